"""What would change nothing is refused, and the answer says so: no word is ignored."""

from __future__ import annotations

import pytest

from ddlnb.calibration.calibrate import calibrate
from ddlnb.clusters.file import read_cluster
from ddlnb.engines.settings import DEFAULTS
from ddlnb.engines.targets import targets_of
from ddlnb.errors import InputError
from ddlnb.files import CLUSTERS
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.runs.tuning import tuned_rate
from ddlnb.training.settings import training_settings
from ddlnb.workloads.workload import read_profile
from tests.cli.test_app import ddlnb

RESNET = ["--model", "resnet50", "--cluster", "survey-10GbE"]
SCALE = ["layouts", "scale", "--model", "llama3-8b"]
PLAN_ON = ["plan", *RESNET, "--method", "MG-WFBP"]
PLAN = ["plan", "--model", "resnet50", "--profile", "resnet50_b64_rtx2080ti"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["forecast", "--fig4", "--model", "resnet50"], "were run; leave out --model"),
        (["forecast", "--fig4", "--gpus", "8"], "were run; leave out --gpus"),
        (["forecast", "--fig4", "--method", "all", "--batch", "8"], "leave out --batch and --meth"),
        (["forecast", *RESNET, "--method", "MG-WFBP", "--credit", "1MB"], "credit '1MB' changes"),
        (["timeline", *RESNET, "--partition", "1MB"], "partition '1MB' changes nothing: MG-WFBP"),
        (
            [*PLAN, "--method", "MG-WFBP", "--partition", "1MB"],
            "MG-WFBP has none; leave it out, or",
        ),
        ([*PLAN_ON, "--latency", "1e-3"], "workload on the cluster; leave out --latency"),
        ([*PLAN_ON, "--bandwidth", "1e9"], "workload on the cluster; leave out --bandwidth"),
        ([*PLAN_ON, "--gpu", "A100"], "says what hardware there is; leave out --gpu"),
        ([*PLAN_ON, "--time-limit", "2"], "MG-WFBP is a rule, and searches nothing; leave out"),
        (
            ["plan", *RESNET, "--method", "searched", "--servers", "2"],
            "a searched plan goes without servers; leave out --servers",
        ),
        (
            [*PLAN, "--method", "MG-WFBP", "--gpus", "8", "--time-limit", "2"],
            "there is none; leave out --gpus and --time-limit",
        ),
        (
            [*PLAN, "--method", "MG-WFBP", "--servers", "3"],
            "servers 3 change nothing: MG-WFBP goes",
        ),
        ([*PLAN_ON, "--servers", "3"], "goes without; leave them out, or take one of BSP-PS"),
        (["forecast", *RESNET, "--method", "DeAR", "--servers", "3"], "servers 3 change nothing"),
        (["timeline", *RESNET, "--servers", "3"], "servers 3 change nothing: MG-WFBP goes without"),
        (
            [*PLAN, "--method", "BSP-A2A", "--latency", "1e-3"],
            "BSP-A2A is planned without the cost of an all-reduce; leave out --latency",
        ),
        (
            ["forecast", "lossy", *RESNET, "--method", "local(8)", "--compression", "cpu-1thread"],
            "'cpu-1thread' changes nothing: local(8) does not compress; leave out --compression",
        ),
        (
            [
                "layouts",
                "scale",
                "--model",
                "llama3-8b",
                "--framework",
                "fsdp",
                "--schedule",
                "gpipe",
            ],
            "schedule gpipe is one of pipelines, and fsdp has none; leave it out",
        ),
        (
            ["cluster", "fit", "survey", "--out", "here"],
            "'survey' makes no use of out; leave it out",
        ),
        (["cluster", "fit", "here", "--rows", "rows.csv"], "'here' makes no use of rows"),
        (["cluster", "fit", "survey-10GbE", "--write"], "a cluster makes no use of write"),
        (
            ["forecast", "lossy", *RESNET, "--method", "local(8)", "--base", "BSP-PS"],
            "'BSP-PS' changes nothing",
        ),
        (
            ["forecast", "lossy", *RESNET, "--method", "local(8)", "--base", "WFBP-A2A"],
            "local(8) does not; leave",
        ),
        (
            ["train", "--method", "bsp", "--steps", "9", "--schedule", "warm-up(10)"],
            "over 10 steps",
        ),
    ],
)
def test_an_option_that_would_change_nothing_is_one_line(words, said):
    done = ddlnb(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_size_counts_if_one_of_the_methods_has_it():
    said = ddlnb("forecast", *RESNET, "--gpus", "8", "--draws", "0", "--credit", "1MB", check=True)
    assert "MG-WFBP" in said.stdout


def test_a_measurement_refuses_a_size_that_no_method_has():
    sizes = DEFAULTS.changed(partition="1MB")
    with pytest.raises(InputError, match="partition '1MB' changes nothing: WFBP-A2A has none"):
        targets_of("WFBP-A2A", sizes)
    assert any(one.name == "ByteScheduler-A2A" for one in targets_of("all", sizes))


def test_a_calibration_refuses_what_it_has_no_use_for():
    with pytest.raises(InputError, match=r"'here' makes no use of write; .*takes workers and out"):
        calibrate("here", write=True)


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
        tuned_rate(settings)


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
