"""Traffic of lossy methods: closed forms, the survey's ratios, and bytes counted in a run."""

from __future__ import annotations

import math

import pytest

import ddlnb
from ddlnb.collectives import ring_bytes_sent
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.lossy_traffic import (
    compressed_bytes,
    compression_ratio,
    pieces,
    tensor_shapes,
    traffic_table,
)
from ddlnb.training.method import training_method
from ddlnb.training.null_worker import null_run
from ddlnb.workload import Gradient, Layer, Workload

SHAPES = [(64, 32), (64,), (10, 64), (10,)]
ELEMENTS = sum(math.prod(shape) for shape in SHAPES)
STEPS = 4


def sent(method: str, workers: int, steps: int = STEPS) -> float:
    """Bytes per iteration of the busiest worker, counted."""
    return null_run(training_method(method), SHAPES, workers, steps).bytes_sent


@pytest.mark.parametrize("workers", [2, 4, 7, 16])
def test_dense_bsp_sends_what_a_ring_sends(workers):
    assert sent("bsp", workers) == pytest.approx(ring_bytes_sent(4 * ELEMENTS, workers))


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_counted_bytes_are_those_of_the_closed_form(name, workers):
    for flag, shapes in [("", SHAPES), (" + whole-model", [(ELEMENTS,)])]:
        method = training_method(f"bsp + {name}{flag}")
        expected = compressed_bytes(method.compressor, shapes, workers)
        assert sent(method, workers) == pytest.approx(expected)


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


def test_shapes_are_those_of_the_model_in_the_order_of_the_gradients():
    workload = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    shapes = tensor_shapes(workload)
    assert list(shapes) == [gradient.name for gradient in workload.gradients]
    assert [math.prod(shape) for shape in shapes.values()] == [
        gradient.elements for gradient in workload.gradients
    ]
    assert max(map(len, shapes.values())) == 4


def test_other_tensors_under_the_name_of_a_model_are_refused():
    made_up = Workload("resnet50", 1, (Layer("l"),), (Gradient("w", "l", 10),), "by hand")
    with pytest.raises(InputError, match="other tensors than the model"):
        tensor_shapes(made_up)


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
