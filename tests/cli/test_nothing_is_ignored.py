"""What would change nothing is refused, and the answer says so: no word is ignored."""

import pytest

from ddlnb.clusters.file import read_cluster
from ddlnb.engines.settings import DEFAULTS
from ddlnb.engines.targets import targets_of
from ddlnb.errors import InputError
from ddlnb.files import CLUSTERS
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.runs.compare import tuned
from ddlnb.training.runs.runner import Runner
from ddlnb.training.settings import training_settings
from ddlnb.workloads.workload import read_profile


def test_a_measurement_refuses_a_size_that_no_method_has():
    sizes = DEFAULTS.changed(partition="1MB")
    with pytest.raises(InputError, match="partition '1MB' changes nothing: WFBP-A2A has none"):
        targets_of("WFBP-A2A", sizes)
    assert any(one.name == "ByteScheduler-A2A" for one in targets_of("all", sizes))


def test_a_base_is_checked_even_where_nobody_sends_messages_like_it():
    with pytest.raises(InputError, match="base method BSP-PS goes through servers"):
        iteration_cost(
            read_profile("resnet50_b64_rtx2080ti"), "survey-10GbE", "local(8)", base="BSP-PS"
        )


@pytest.mark.parametrize("schedule", ["warm-up(101)", "cosine(101)", "linear-scaling(2, 101)"])
def test_a_warm_up_ends_within_the_run(schedule):
    with pytest.raises(InputError, match=r"rises over 101 steps, and the run has 100"):
        training_settings("quadratic", "bsp", steps=100, schedule=schedule)
    assert training_settings("quadratic", "bsp", steps=101, schedule=schedule).steps == 101


def test_a_search_for_a_rate_says_that_half_the_steps_are_too_few_for_the_warm_up():
    settings = training_settings("digits", "bsp", workers=2, steps=10, schedule="warm-up(6)")
    with pytest.raises(InputError, match="the search for a rate, with half of them, has 5"):
        tuned([settings], Runner(jobs=1))


@pytest.mark.parametrize("key", ["hardware", "network", "about"])
def test_a_word_of_a_cluster_file_is_no_number(tmp_path, key):
    path = tmp_path / "mine.yaml"
    lines = (CLUSTERS / "v100-nvlink.yaml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{key}:")]
    path.write_text("\n".join([*kept, f"{key}: 3"]))
    with pytest.raises(InputError, match=f"{key} 3: input should be a valid string"):
        read_cluster(path)


def test_facts_are_free_text_that_may_be_numbers(tmp_path):
    path = tmp_path / "mine.yaml"
    text = (CLUSTERS / "v100-nvlink.yaml").read_text()
    path.write_text(text.replace("facts:\n", "facts:\n  bought: 2019\n"))
    assert read_cluster(path).facts["bought"] == "2019"
