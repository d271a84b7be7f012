"""ByteScheduler's tuning: never slower than its default sizes, and close to a fine grid of both."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from benchmarks.bytescheduler_tuning import TUNING, seconds, tuned_cells, with_default_sizes
from ddlnb.calibration.observations import as_measured
from ddlnb.clusters.file import get_cluster
from ddlnb.clusters.heterogeneous import Heterogeneity
from ddlnb.clusters.named import cluster_of
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS, SURVEYED, get_method
from ddlnb.plans.plan_file import method_of, read_plan, write_plan
from ddlnb.simulator import simulate as simulating
from ddlnb.simulator.draws import Circumstances
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.simulate import Cell, plan_on, sized_on, tuned
from ddlnb.survey.testbed import BATCHES, CLUSTERS, GPUS, as_run, fig4_cluster, fig4_workload
from ddlnb.units import show_bytes
from ddlnb.workloads.workload import read_profile

NAMES = [method.name for method in TUNING]
FEW = {"partition": "2MB", "credit": "8MB"}
RESNET, BERT = fig4_workload("resnet50"), fig4_workload("bert-large")
SURVEY = get_cluster("survey-10GbE")


def test_those_that_tune_are_both_bytescheduler():
    assert NAMES == ["ByteScheduler-PS", "ByteScheduler-A2A"]


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("network", CLUSTERS)
@pytest.mark.parametrize("model", BATCHES)
def test_tuned_sizes_are_never_slower_than_the_default_ones(model, network):
    workload = fig4_workload(model)
    for cluster in (fig4_cluster(network, gpus) for gpus in GPUS):
        for method in TUNING:
            taken = seconds(workload, cluster, sized_on(cluster, workload, method))
            assert taken <= seconds(workload, cluster, with_default_sizes(method))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "cell",
    [
        *(("resnet50", "10GbE", 32), ("resnet50", "100GbE", 16), ("resnet50", "100GbIB", 16)),
        ("bert-base", "100GbE", 32),
    ],
)
def test_tuned_sizes_are_close_to_a_fine_grid(cell):
    """`python -m benchmarks.bytescheduler_tuning` compares all cells."""
    rows = tuned_cells(*([one] for one in cell)).set_index("method")
    assert rows.index.tolist() == NAMES
    assert rows.loc["ByteScheduler-PS", "off"] <= 0.05
    assert rows.loc["ByteScheduler-A2A", "off"] <= 0.02


@pytest.mark.parametrize(
    "cluster",
    [
        replace(SURVEY, heterogeneity=Heterogeneity(compute=((0, 1.5),))),
        replace(SURVEY, topology="fat-tree(4)"),
        get_cluster("two-cores-4-workers"),
    ],
    ids=["a slow worker", "a topology", "a small machine"],
)
def test_it_tunes_wherever_a_plan_can_be_played(cluster):
    workload = read_profile("small-conv_b64_cpu-1thread")
    for method in TUNING:
        taken = seconds(workload, cluster, sized_on(cluster, workload, method))
        assert taken <= seconds(workload, cluster, with_default_sizes(method))


@pytest.mark.parametrize("nodes", [16, 32, 64])
def test_it_keeps_many_servers_busy(nodes):
    """Its own credit does for four servers; with 32, WFBP-PS was 1.8 times as fast."""
    cluster = cluster_of("RTX2080Ti", nodes, 1, "100GbE")
    both = (sized_on(cluster, BERT, get_method(f"{one}-PS")) for one in ("ByteScheduler", "WFBP"))
    tuned, plain = (seconds(BERT, cluster, method) for method in both)
    assert tuned <= 1.01 * plain


@pytest.mark.parametrize(
    ("partition", "credit"), [("64KB", "1KB"), ("1GB", "4GB"), ("1KB", "4GB"), ("300KB", "300KB")]
)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_not_slower_wherever_it_starts(name, partition, credit):
    workload, cluster = (
        read_profile("small-conv_b64_cpu-1thread"),
        get_cluster("two-cores-4-workers"),
    )
    fixed = METHODS[name].tuned(partition=partition, credit=credit)
    found = sized_on(cluster, workload, replace(fixed, tunes=True))
    assert seconds(workload, cluster, found) <= seconds(workload, cluster, fixed)


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_a_row_are_those_of_its_plan(name, tmp_path):
    """By hand they make the same plan; a file of it takes the same seconds."""
    (row,) = forecast(RESNET, SURVEY, name, gpus=32, draws=0).rows.to_dict("records")
    again = as_measured(row)
    assert again == sized_on(SURVEY, RESNET, name) != METHODS[name]
    assert plan_on(SURVEY, RESNET, again).digest == row["plan"]
    file = write_plan(plan_on(SURVEY, RESNET, name), tmp_path / "plan.json")
    assert seconds(RESNET, SURVEY, method_of(read_plan(file))) == row["iteration_seconds"]


@pytest.mark.parametrize("sizes", [FEW, {"partition": "2MB"}, {"credit": "8MB"}])
@pytest.mark.parametrize("name", NAMES)
def test_a_size_given_by_hand_is_taken_and_none_is_tuned(name, sizes):
    method = METHODS[name].tuned(**sizes)
    assert sized_on(SURVEY, RESNET, method) is method
    assert plan_on(SURVEY, RESNET, method).credit_bytes == method.credit_bytes
    row = forecast(RESNET, SURVEY, method, gpus=32, draws=0).rows.iloc[0]
    assert row["settings"] == method.sizes
    assert {f"{what}={size[:-2]}000000B" for what, size in sizes.items()} <= {*method.sizes.split()}


def test_an_answer_says_which_sizes_were_found_and_none_that_were_given():
    found = forecast(RESNET, SURVEY, ["ByteScheduler-PS", "MG-WFBP"], gpus=[8, 32], draws=0)
    (said,) = [one for one in found.remarks if "tuned" in one]
    size = dict(word[:-1].split("=") for word in found.rows["settings"].iloc[2].split())
    sizes = (show_bytes(int(size[name])) for name in ("partition", "credit"))
    words = "on 32 GPUs ByteScheduler-PS has a partition of {} and a credit of {}."
    assert said.endswith(words.format(*sizes))
    given_ = METHODS["ByteScheduler-PS"].tuned(**FEW)
    for quiet in (
        forecast(RESNET, SURVEY, given_, gpus=32, draws=0),
        forecast(RESNET, SURVEY, "ByteScheduler-PS", gpus=1, draws=0),
        forecast(RESNET, SURVEY, "MG-WFBP", gpus=32, draws=0),
    ):
        assert not any("tuned" in one for one in quiet.remarks)


def test_draws_have_the_sizes_of_the_cluster_that_is_planned_for():
    method, rate = METHODS["ByteScheduler-A2A"], SURVEY.effects.between_bandwidth
    slow = SURVEY.with_effects(between_bandwidth=rate / 4)
    fitted, other = Cell(RESNET, SURVEY, method), Cell(RESNET, slow, method)
    assert other.sized != fitted.sized  # else there is nothing to mix up
    assert replace(other, planned_on=SURVEY).sized == fitted.sized
    for (drawn,) in Circumstances([fitted], 20, 0).each_draw():
        assert (drawn.sized, drawn.plan) == (fitted.sized, fitted.plan)


def test_the_same_is_found_again():
    found = [sized_on(SURVEY, RESNET, method) for method in TUNING]
    simulating._sized_on.cache_clear()
    assert [sized_on(SURVEY, RESNET, method) for method in TUNING] == found


def test_what_was_run_elsewhere_is_not_tuned():
    """Neither what the survey ran, nor what was measured here: its settings name the sizes."""
    assert not any(as_run(name).tunes for name in SURVEYED)
    for method in TUNING:
        assert as_measured({"method": method.name, "settings": ""}) == with_default_sizes(method)


@given(st.sampled_from(TUNING), st.integers(13, 28), st.integers(0, 6))
def test_a_bowl_is_found_to_its_ground(method, partition, credit):
    """Wherever its ground is, if gradients are cut there and few parts are made."""
    workload = BERT
    wanted = 2**partition, 2 ** (partition + credit)
    most = max(gradient.bytes for gradient in workload.gradients)
    tried = []

    def bowl(one):
        tried.append(one)
        sizes = one.partition_bytes, one.credit_bytes
        return 1 + sum((own / best - 1) ** 2 for own, best in zip(sizes, wanted, strict=True))

    found = tuned(method, workload, bowl)
    assert bowl(found) <= bowl(with_default_sizes(method))
    assert len(set(tried)) == len(tried) - 2 <= 60
    if workload.gradient_bytes / 600 < wanted[0] < most and wanted[1] < workload.gradient_bytes:
        for size, best in zip((found.partition_bytes, found.credit_bytes), wanted, strict=True):
            assert 0.5 <= size / best <= 2


@pytest.mark.parametrize("servers", [1, 4000])
def test_sizes_that_cut_nothing_are_not_tried(servers):
    """Of plans that are the same one is played, whatever sizes they are given."""
    method, workload = METHODS["ByteScheduler-PS"], read_profile("small-conv_b64_cpu-1thread")
    largest = max(gradient.bytes for gradient in workload.gradients)
    most = min(largest, -(-workload.gradient_bytes // servers))
    tried = []
    tuned(method, workload, lambda one: tried.append(one) or 1.0, servers)
    assert all(one.partition_bytes < 2 * most for one in tried)
    assert all(one.credit_bytes < 2 * workload.gradient_bytes for one in tried)
    plans = {method.tuned(partition=one.partition_bytes, credit=one.credit_bytes) for one in tried}
    assert len(plans) == len(tried) <= 25


def test_a_method_without_both_sizes_is_refused():
    with pytest.raises(InputError, match=r"'WFBP-PS' has no partition and credit to tune"):
        tuned(get_method("WFBP-PS"), RESNET, lambda one: 1.0)
