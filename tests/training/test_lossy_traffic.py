"""Traffic of lossy methods: closed forms, the survey's ratios, and bytes counted in a run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import ddlnb
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.gtop_k import GTopK
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.training.cost.pure_case import made_up_digits
from ddlnb.training.cost.requests import (
    compressed_bytes,
    compression_ratio,
    pieces,
    tensor_shapes,
    traffic_table,
)
from ddlnb.training.executors.dry_run import dry_run
from ddlnb.training.method import training_method
from ddlnb.training.settings import training_settings
from ddlnb.workloads.models import TASKS
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.toy_training import Trained

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


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_bytes_of_a_real_run_are_those_of_the_closed_form(name, workers):
    method = f"bsp + {name}"
    trained = Trained(method, STEPS, workers)
    shapes = [shape for _, _, shape in trained.workers[0].pieces]
    expected = compressed_bytes(training_method(method).compressor, shapes, workers)
    if name == GTopK.name:
        expected /= 2  # as above
    assert expected == pytest.approx(max(trained.run.bytes_sent) / STEPS)


def test_gtop_k_grows_with_the_levels_of_its_tree():
    """Towards the root and back k words and places travel per level: the survey's 97x at n = 32."""
    gtop_k = training_method("bsp + gtop-k(0.001)").compressor
    assert compression_ratio(gtop_k, [(1_000_000,)], 32) == pytest.approx(97, rel=0.01)


@pytest.mark.item("A25")
def test_top_k_saves_what_the_survey_says_and_no_more():
    assert compression_ratio(TopK(0.001), [(1_000_000,)], 32) == pytest.approx(31.25)
    assert round(compression_ratio(TopK(0.001), [(1_000_000,)], 2)) == 500


@pytest.mark.parametrize("workers", [4, 8, 32])
def test_top_k_breaks_even_at_a_density_of_one_over_the_workers(workers):
    at_break_even = compression_ratio(TopK(1 / workers), [(1 << 16,)], workers)
    assert at_break_even == pytest.approx(1.0)
    assert compression_ratio(TopK(2 / workers), [(1 << 16,)], workers) < 1


def test_gathered_bytes_grow_with_the_workers():
    counts = [2, 4, 8, 16, 32]
    grown = [compressed_bytes(TopK(0.01), [(100_000,)], count) for count in counts]
    assert grown == [pytest.approx((count - 1) * 8000) for count in counts]


def test_shapes_are_those_of_the_model_in_the_order_of_its_parameters():
    workload = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    shapes = tensor_shapes(workload)
    assert list(shapes) == [name for name, _ in TASKS["resnet50"].build().named_parameters()]
    elements = {gradient.name: gradient.elements for gradient in workload.gradients}
    assert {name: math.prod(shape) for name, shape in shapes.items()} == elements
    assert max(map(len, shapes.values())) == 4


def test_pieces_of_a_learning_task_are_those_of_its_workers():
    worker = training_settings("digits", "bsp + top-k", workers=1).job().worker(0)
    workload = made_up_digits(1e4)
    assert pieces(workload, whole_model=False) == [shape for _, _, shape in worker.pieces]


def test_other_tensors_under_the_name_of_a_model_are_refused():
    made_up = Workload("resnet50", 1, (Layer("l"),), (Gradient("w", "l", 10),), "by hand")
    with pytest.raises(InputError, match="other tensors than the model"):
        tensor_shapes(made_up)


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
    with pytest.raises(InputError, match="does not have the shapes"):
        traffic_table(old, {"powersgd": PowerSGD(1)}, [8])


def test_whole_model_is_one_vector():
    workload = Workload(
        "toy", 1, (Layer("l"),), (Gradient("w", "l", 10), Gradient("b", "l", 5)), "by hand"
    )
    assert pieces(workload, whole_model=False) == [(10,), (5,)]
    assert pieces(workload, whole_model=True) == [(15,)]


def test_the_table_has_the_dense_ring_and_every_compressor():
    workload = Workload("toy", 1, (Layer("l"),), (Gradient("w", "l", 1000),), "by hand")
    table = traffic_table(workload, {"top-k(0.1)": TopK(0.1)}, [2, 8])
    assert list(table["compressor"]) == ["none", "top-k(0.1)"] * 2
    assert list(table["ratio"]) == pytest.approx([1.0, 5.0, 1.0, 1.25])
