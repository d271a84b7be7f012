"""Laws of traces that torch.profiler recorded on an H100, kept in data/measured."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pandas as pd
import pytest
from msgspec import Raw, json, structs

import ddlnb
from ddlnb.errors import InputError
from ddlnb.files import DATA
from ddlnb.traces.kineto.events import ACCUMULATE
from ddlnb.traces.kineto.graph import WAIT
from ddlnb.traces.read import read_trace

FOLDER = DATA / "measured" / "2026-11-22_h100" / "traces"
ITERATIONS = {"small-conv": 3, "resnet18-ddp": 3, "resnet50-side": 1}


@pytest.fixture(scope="module")
def recorded():
    """Return the traces by name."""
    return {name: read_trace(FOLDER / f"{name}.json.gz") for name in ITERATIONS}


@pytest.fixture(params=ITERATIONS)
def trace(recorded, request):
    """Return each trace in turn."""
    return recorded[request.param]


def test_dependencies_alone_explain_when_all_of_it_ran(trace):
    graph = trace.operations
    assert nx.is_directed_acyclic_graph(graph.graph)
    assert nx.is_weakly_connected(graph.graph)
    assert graph.replayed_seconds == pytest.approx(trace.seconds, rel=0.02)
    assert sum(graph.critical_seconds().values()) == pytest.approx(graph.replayed_seconds)


def test_neither_the_host_nor_the_gpu_alone_takes_longer_than_both(trace):
    graph = trace.operations
    assert graph.seconds_if() == graph.replayed_seconds
    assert graph.seconds_if(host=0) <= graph.replayed_seconds
    assert graph.seconds_if(gpu=0) <= graph.replayed_seconds
    assert graph.seconds_if(gpu=2, host=2) == pytest.approx(2 * graph.replayed_seconds)
    with pytest.raises(InputError, match="at least 0"):
        graph.seconds_if(gpu=-1)


def test_a_gpu_without_host_takes_what_its_operations_add_up_to(recorded):
    """All of them run on one stream, apart from one copy that the others wait for."""
    for trace in recorded.values():
        work = sum(one.seconds for one in trace.gpu)
        assert trace.operations.seconds_if(host=0) == pytest.approx(work, rel=1e-9)


def test_every_gpu_operation_is_in_one_pass_or_outside_and_time_is_busy_or_idle(trace):
    times = trace.gpu_times
    assert sum(one.operations for one in times) == len(trace.gpu)
    assert sum(one.work_seconds for one in times) == pytest.approx(
        sum(one.seconds for one in trace.gpu)
    )
    assert sum(one.busy_seconds for one in times) == pytest.approx(_covered(trace.gpu))
    passes = [one for one in times if one.iteration is not None]
    assert len(passes) == 3 * ITERATIONS[trace.name]
    for kind in ("forward", "backward", "update"):
        counts = {one.operations for one in passes if one.kind == kind}
        assert len(counts) == 1  # iterations do the same
        assert min(counts) > 0


def test_kernels_of_resnet50_take_what_an_iteration_was_measured_to(recorded):
    """Forward and backward pass without profiler, by its sibling in the same folder."""
    rows = pd.read_csv(FOLDER.parent / "iterations.csv")
    rows = rows[(rows["model"] == "resnet50") & (rows["batch"] == 64)]
    measured = rows[rows["precision"] == "tf32"]["seconds"].item()
    times = recorded["resnet50-side"].gpu_times
    kernels = sum(one.busy_seconds for one in times if one.kind in ("forward", "backward"))
    assert kernels == pytest.approx(measured, rel=0.05)
    assert recorded["resnet50-side"].workload(local_batch=64).compute_seconds == pytest.approx(
        measured, rel=0.07
    )


def test_the_copy_of_the_second_stream_is_a_dependency_although_its_event_has_no_stream(recorded):
    graph = recorded["resnet50-side"].operations
    (edge,) = [edge for edge in graph.edges if edge.why == WAIT]
    before, after = graph.operations[edge.before], graph.operations[edge.after]
    assert before.name == "Memcpy HtoD (Pinned -> Device)"
    assert before.args["stream"] != after.args["stream"]
    assert "mul" in after.name.lower() or "vectorized_elementwise" in after.name
    assert before.stop <= after.start


@pytest.mark.parametrize("name", ["small-conv", "resnet18-ddp"])
def test_gradients_are_those_of_the_model_and_layers_those_of_modules(recorded, name):
    model = ddlnb.trace(name.removesuffix("-ddp"), 64)
    named = recorded[name].workload(model)
    alone = recorded[name].workload(local_batch=64)
    assert named.structure == model.structure
    assert [g.shape for g in alone.gradients] == [g.shape for g in model.gradients]
    assert len(alone.layers) == len(model.layers)
    assert alone.compute_seconds == pytest.approx(named.compute_seconds)


def test_a_weight_may_arrive_before_its_bias_as_it_does_with_autocast(recorded):
    trace, model = recorded["small-conv"], ddlnb.trace("small-conv", 64)
    arrivals = [event for event in trace.events if event.name == ACCUMULATE]
    dims = {id(e): e.args["Input Dims"] for e in arrivals}
    each = len(model.gradients)
    for start in range(0, len(arrivals), each):
        bias, weight = arrivals[start : start + 2]
        dims[id(bias)], dims[id(weight)] = dims[id(weight)], dims[id(bias)]
    swapped = tuple(
        structs.replace(e, packed=Raw(json.encode({**e.args, "Input Dims": dims[id(e)]})))
        if id(e) in dims
        else e
        for e in trace.events
    )
    workload = replace(trace, events=swapped).workload(model)
    first, second, *rest = (gradient.name for gradient in workload.gradients)
    known = [gradient.name for gradient in model.gradients]
    assert [second, first, *rest] == known


def test_the_longest_operations_are_all_that_the_gpu_did(recorded):
    for name, trace in recorded.items():
        each = len(trace.iterations)
        assert each * sum(one.calls for one in trace.longest) == pytest.approx(len(trace.gpu))
        work = sum(one.work_seconds for one in trace.gpu_times)
        assert each * sum(one.seconds for one in trace.longest) == pytest.approx(work)
        assert trace.longest[0].name == "ConvolutionBackward0", name


def _covered(operations):
    """Return the seconds in which at least one operation ran, by counting at every instant."""
    edges = sorted([(e.start, 1) for e in operations] + [(e.stop, -1) for e in operations])
    running, covered = 0, 0.0
    for (at, step), (until, _) in pairwise(edges):
        running += step
        covered += (until - at) * (running > 0)
    return covered
