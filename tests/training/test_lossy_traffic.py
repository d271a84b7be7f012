"""Traffic of lossy methods: closed forms, the ratios of the survey, and bytes counted in a run.

Workers that differ cost relaxed methods their rates, leads and links.
"""

import math
from dataclasses import replace

import pytest

import ddlnb
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.clusters.heterogeneous import Delay
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.gtop_k import GTopK
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import METHODS
from ddlnb.survey.time_to_target import made_up_digits
from ddlnb.training.cost.estimate import cluster_clock, iteration_cost
from ddlnb.training.cost.requests import (
    compressed_bytes,
    compression_ratio,
    pieces,
    tensor_shapes,
    traffic_table,
)
from ddlnb.training.executors.clock import OneSlow
from ddlnb.training.executors.dry_run import dry_run
from ddlnb.training.method import training_method
from ddlnb.training.settings import training_settings
from ddlnb.workloads.models import TASKS
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.toy import TOY

SHAPES = [(64, 32), (64,), (10, 64), (10,)]
ELEMENTS = sum(math.prod(shape) for shape in SHAPES)
STEPS = 3


def sent(method: str, workers: int, steps: int = STEPS) -> float:
    """Bytes per iteration of the busiest worker, counted."""
    return dry_run(training_method(method), SHAPES, workers, steps).bytes_sent


@pytest.mark.parametrize("workers", [2, 4, 7, 16])
def test_dense_bsp_sends_what_a_ring_sends(workers):
    assert sent("bsp", workers) == pytest.approx(ring_bytes_sent(4 * ELEMENTS, workers))


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_counted_bytes_are_those_of_the_closed_form(name, workers):
    for flag, shapes in [("", SHAPES), (" + whole-model", [(ELEMENTS,)])]:
        method = training_method(f"bsp + {name}{flag}")
        expected = compressed_bytes(method.compressor, shapes, workers)
        if isinstance(method.compressor, GTopK):
            expected /= 2  # along a tree, who sends most up is not who sends most down
        assert sent(method, workers) == pytest.approx(expected)


@pytest.mark.item("A25")
def test_top_k_saves_what_the_survey_says_and_no_more():
    assert compression_ratio(TopK(0.001), [(1_000_000,)], 32) == pytest.approx(31.25)
    assert round(compression_ratio(TopK(0.001), [(1_000_000,)], 2)) == 500


@pytest.mark.parametrize("workers", [4, 8, 32])
def test_top_k_breaks_even_at_a_density_of_one_over_the_workers(workers):
    at_break_even = compression_ratio(TopK(1 / workers), [(1 << 16,)], workers)
    assert at_break_even == pytest.approx(1.0)
    assert compression_ratio(TopK(2 / workers), [(1 << 16,)], workers) < 1


def test_shapes_are_those_of_the_model_and_pieces_those_of_workers():
    workload = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    shapes = tensor_shapes(workload)
    assert list(shapes) == [name for name, _ in TASKS["resnet50"].build().named_parameters()]
    elements = {gradient.name: gradient.elements for gradient in workload.gradients}
    assert {name: math.prod(shape) for name, shape in shapes.items()} == elements
    assert max(map(len, shapes.values())) == 4
    worker = training_settings("digits", "bsp + top-k", workers=1).job().worker(0)
    workload = made_up_digits(1e4)
    assert pieces(workload, whole_model=False) == [shape for _, _, shape in worker.pieces]


def without_shapes(workload: Workload) -> Workload:
    """Return the workload as a profile of an earlier edition describes it."""
    bare = tuple(replace(gradient, shape=None) for gradient in workload.gradients)
    return replace(workload, gradients=bare)


def test_powersgd_on_a_profile_of_one_s_own_sends_its_factors():
    """It sent the dense bytes, as if every tensor were a vector."""
    theirs = replace(ddlnb.read_profile("resnet50_b64_rtx2080ti"), model="mine")
    method = "bsp + powersgd(1)"
    cost, built_in = (
        ddlnb.iteration_cost(one, "survey-10GbE", method, workers=8)
        for one in (theirs, replace(theirs, model="resnet50"))
    )
    assert cost.bytes == pytest.approx(built_in.bytes)
    dense = ddlnb.iteration_cost(theirs, "survey-10GbE", "WFBP-A2A", workers=8)
    assert cost.bytes < dense.bytes / 50


@pytest.mark.parametrize("method", ["bsp + powersgd(1)", "local(8) + powersgd(1)"])
def test_powersgd_is_refused_where_nobody_kept_the_shapes(method):
    old = without_shapes(replace(ddlnb.read_profile("resnet50_b64_rtx2080ti"), model="mine"))
    with pytest.raises(InputError, match=r"powersgd.* does not have the shapes .*; profile it ag"):
        ddlnb.iteration_cost(old, "survey-10GbE", method, workers=8)
    whole = ddlnb.iteration_cost(old, "survey-10GbE", f"{method} + whole-model", workers=8)
    assert whole.bytes > 0  # one vector of the model has a shape
    ddlnb.iteration_cost(old, "survey-10GbE", method.replace("powersgd(1)", "top-k(0.1)"))


def test_whole_model_is_one_vector_and_the_table_has_ring_and_compressors():
    workload = Workload(
        "toy", 1, (Layer("l"),), (Gradient("w", "l", 10), Gradient("b", "l", 5)), "by hand"
    )
    assert pieces(workload, whole_model=False) == [(10,), (5,)]
    assert pieces(workload, whole_model=True) == [(15,)]
    workload = Workload("toy", 1, (Layer("l"),), (Gradient("w", "l", 1000),), "by hand")
    table = traffic_table(workload, {"top-k(0.1)": TopK(0.1)}, [2, 8])
    assert list(table["compressor"]) == ["none", "top-k(0.1)"] * 2
    assert list(table["ratio"]) == pytest.approx([1.0, 5.0, 1.0, 1.25])


THEIRS = replace(ddlnb.read_profile("resnet50_b64_rtx2080ti"), model="mine")
MADE_UP = Workload("resnet50", 1, (Layer("l"),), (Gradient("w", "l", 10),), "by hand")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: traffic_table(without_shapes(THEIRS), {"powersgd": PowerSGD(1)}, [8]),
            "does not have the shapes",
        ),
        (lambda: tensor_shapes(MADE_UP), "other tensors than the model"),
    ],
)
def test_shapes_that_are_missing_or_of_another_model_are_refused(ask, said):
    with pytest.raises(InputError, match=said):
        ask()


# Workers that differ.


FREE = Cluster("free", "by hand", 4, 1, Effects(), server_place="extra machines")
SLOW = FREE.with_effects(between_bandwidth=1000.0)
COMPUTE = TOY.compute_seconds


def seconds(cluster, method, **options):
    return iteration_cost(TOY, cluster, method, overlap=False, **options).iteration_seconds


@pytest.mark.parametrize(
    ("method", "factor", "steps", "times", "near"),
    [
        # An iteration is as many gradients as there are workers.
        *(("asp on PS", factor, 64, 4 / (3 + 1 / factor), 1e-9) for factor in (1.0, 2.0, 4.0)),
        *(
            (method, 2.0, 400, 2, 0.02)  # SSP gets its bound ahead, once
            for method in ("bsp on A2A", "bsp on PS", "local(4) on A2A", "ssp(2) on PS")
        ),
    ],
)
def test_who_waits_goes_at_the_rate_of_the_slowest_and_else_rates_add_up(
    method, factor, steps, times, near
):
    found = seconds(FREE.with_heterogeneity({1: factor}), method, steps=steps)
    assert found == pytest.approx(COMPUTE * times, rel=near)


def test_stale_synchronous_workers_are_between_the_two():
    delayed = FREE.with_heterogeneity(delay=Delay("exponential", COMPUTE, seed=2))
    order = ["asp on PS", "ssp(8) on PS", "ssp(1) on PS", "bsp on PS"]
    found = [seconds(delayed, method, steps=96) for method in order]
    assert found == sorted(found)
    assert found[0] < 0.8 * found[-1]


def test_the_cluster_slows_a_worker_down_as_a_law_does_and_delays_come_on_top():
    here, law = SLOW.with_heterogeneity({3: 2.0}), OneSlow(2.0, rank=3)
    for method in ("bsp on A2A", "bsp on PS", "local(2) on A2A", "asp on PS"):
        by_law = seconds(SLOW, method, slower=law)
        assert seconds(here, method) == pytest.approx(by_law, rel=1e-9)
    in_parts = METHODS["ByteScheduler-PS"].tuned(partition="4MB")  # no sizes for each cluster
    for method in ("WFBP-A2A", "MG-WFBP", "WFBP-PS", in_parts):
        by_law = iteration_cost(TOY, SLOW, method, slower=law).iteration_seconds
        found = iteration_cost(TOY, here, method).iteration_seconds
        assert found == pytest.approx(by_law, rel=1e-9)
    delay = Delay("pareto", 0.5, seed=3)
    clock = cluster_clock(TOY, FREE.with_heterogeneity({2: 3.0}, delay=delay))
    late = delay.seconds(2, 300)
    for step in (0, 7, 299):
        assert clock.compute(2, step, 4) == pytest.approx(3 * COMPUTE + late[step])


def test_a_slow_link_holds_up_messages_of_its_own_node_alone():
    """520 bytes there and back, at 1 kB/s."""
    alike, slow = SLOW, SLOW.with_heterogeneity(link={0: 4.0})
    trips = [
        cluster_clock(TOY, cluster, "asp on PS").trip_of(rank, "push", 520, 4).seconds
        for cluster in (alike, slow)
        for rank in (0, 1)
    ]
    assert trips[0] == trips[1] == trips[3]
    assert trips[2] > trips[0]
    clock = cluster_clock(TOY, SLOW.with_heterogeneity(link={1: 3.0}), "d-psgd")
    paces = [clock.link(*pair).seconds_per_byte for pair in ((0, 1), (1, 2), (2, 3))]
    assert paces == pytest.approx([3e-3, 3e-3, 1e-3])
