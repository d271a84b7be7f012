"""Traces of torch.profiler, made here and written by hand, and timelines of Horovod and BytePS."""

import gzip
import json

import networkx as nx
import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import ddlnb
from ddlnb.errors import InputError
from ddlnb.traces import chrome
from ddlnb.traces.kineto.events import Around, recording
from ddlnb.traces.kineto.graph import HOST, LAUNCH, STREAM, SYNCHRONISE, WAIT
from ddlnb.traces.kineto.trace import kineto_trace
from ddlnb.traces.read import read_byteps_graph, read_trace
from ddlnb.units import US
from ddlnb.workloads.profiling import measure
from ddlnb.workloads.resolve import get_task
from tests.traces.gpu_traces import (
    AUTOGRAD,
    NCCL,
    call,
    event,
    events_in,
    header,
    kernel,
    one_iteration,
    two_streams,
)

BATCH, ITERATIONS = 4, 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a real trace of some iterations, and what hooks measured in the same iterations."""
    task = get_task("small-conv")
    structure = ddlnb.trace(task, BATCH)
    with torch.random.fork_rng(devices=[]):
        module = task.build()
    measure(task, module, structure, 1)
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True, with_stack=True) as profiler:
        measured = []
        for _ in range(ITERATIONS):
            measured += measure(task, module, structure, 1)
            torch.optim.SGD(module.parameters(), lr=0.01).step()
    file = tmp_path_factory.mktemp("kineto") / "small-conv.json.gz"
    profiler.export_chrome_trace(str(file))
    return file, structure, measured


def test_a_real_trace_has_the_layers_and_gradients_of_the_model(recorded):
    file, structure, _ = recorded
    named = read_trace(file).workload(structure)
    alone = read_trace(file).workload(local_batch=BATCH)
    assert named.structure == structure.structure
    assert [g.elements for g in alone.gradients] == [g.elements for g in structure.gradients]
    assert [g.shape for g in alone.gradients] == [g.shape for g in structure.gradients]
    kinds = [layer.name.split("_")[0] for layer in alone.layers]
    modules = dict(get_task("small-conv").build().named_modules())
    assert kinds == [type(modules[layer.name]).__name__ for layer in structure.layers]


def test_seconds_are_those_that_hooks_measured_in_the_same_iterations(recorded):
    """Of the typical layer and gradient: a busy machine may come between a hook and an operation.

    The first gradient and the last layer are left out, which begin and end with the loss.
    """
    file, structure, measured = recorded
    trace = read_trace(file)
    assert len(trace.iterations) == ITERATIONS
    spans = trace.timeline(structure).spans
    for kind, part in (("forward", slice(None, -1)), ("backward", slice(1, None))):
        traced, hooks = [], []
        for number, one in enumerate(measured):
            own = [s.seconds for s in spans if (s.iteration, s.kind) == (number, kind)]
            seconds = one.forward_seconds if kind == "forward" else one.backward_seconds
            traced += own[part]
            hooks += list(seconds.values())[part]
        off = np.median(np.abs(np.subtract(traced, hooks)))
        assert off < 0.15 * np.mean(hooks)


def trained(folder, passes, optimizers=1, again=False):
    """Return a real trace of three iterations of so many backward passes and optimizers each."""
    layers = [torch.nn.Linear(8, 8) for _ in range(2)]
    steps = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in layers]
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(3):
            for _ in range(passes):
                x = torch.ones(4, 8)
                x = checkpoint(layers[0], x, use_reentrant=False) if again else layers[0](x)
                layers[1](x).sum().backward()
            for one in steps[:optimizers]:
                one.step()
    path = folder / "trained.json"
    profiler.export_chrome_trace(str(path))
    return read_trace(path)


def test_several_backward_passes_of_an_iteration_are_no_larger_model(tmp_path):
    with pytest.raises(InputError, match="several forward and backward passes in an iteration"):
        trained(tmp_path, passes=2).workload(local_batch=4)


@pytest.mark.parametrize("changed", [{"optimizers": 2}, {"again": True}])
def test_several_optimizers_or_layers_computed_again_are_one_iteration(tmp_path, changed):
    found = trained(tmp_path, passes=1, **changed)
    assert len(found.iterations) == 3
    assert len(found.workload(local_batch=4).gradients) == 4


def test_every_operation_of_a_real_trace_is_explained(recorded):
    trace = read_trace(recorded[0])
    graph = trace.operations
    assert nx.is_directed_acyclic_graph(graph.graph)
    assert nx.is_weakly_connected(graph.graph)
    assert graph.replayed_seconds == pytest.approx(trace.seconds, rel=1e-6)
    assert sum(graph.critical_seconds().values()) == pytest.approx(graph.replayed_seconds)


def gpu(events):
    return kineto_trace(events_in(events), header(), "gpu")


def edges_of(graph):
    names = [
        one.name if one.category != "cuda_runtime" else f"{one.name} {one.correlation}"
        for one in graph.operations
    ]
    return {(names[e.before], names[e.after], e.why) for e in graph.edges}


def test_the_longest_operations_of_a_cpu_hold_no_one_another(recorded):
    trace = read_trace(recorded[0])
    names = {one.name for one in trace.longest}
    assert {"aten::conv2d", "ConvolutionBackward0"} <= names
    assert "aten::mkldnn_convolution" not in names  # it is inside of conv2d
    each = len(trace.iterations)
    assert each > 1
    assert each * sum(one.seconds for one in trace.longest) < trace.seconds


def test_gpu_operations_wait_for_launches_streams_events_and_synchronisation():
    graph = gpu(two_streams()).operations
    copy = "Memcpy DtoH (Device -> Pinned)"
    sync = "cudaDeviceSynchronize 6"
    assert edges_of(graph) == {
        ("cudaLaunchKernel 1", "gemm", LAUNCH),
        ("cudaMemcpyAsync 4", copy, LAUNCH),
        ("cudaLaunchKernel 5", "relu", LAUNCH),
        ("cudaLaunchKernel 7", "adam", LAUNCH),
        ("gemm", "relu", STREAM),
        ("relu", "adam", STREAM),
        ("gemm", copy, WAIT),
        (copy, sync, SYNCHRONISE),
        ("relu", sync, SYNCHRONISE),
        ("cudaLaunchKernel 1", "cudaMemcpyAsync 4", HOST),
        ("cudaMemcpyAsync 4", "cudaLaunchKernel 5", HOST),
        ("cudaLaunchKernel 5", sync, HOST),
        (sync, "cudaLaunchKernel 7", HOST),
    }


def test_an_event_without_stream_waits_for_what_other_streams_had_done():
    """As CUPTI of CUDA 13 records it: the stream and the record of the event are -1."""
    events = two_streams()
    (wait,) = [one for one in events if one["name"] == "Stream Wait Event"]
    wait["args"] |= {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    found = edges_of(gpu(events).operations)
    assert found == edges_of(gpu(two_streams()).operations)
    early = [
        {**one, "ts": 50} if one["name"].startswith("Memcpy") and one["cat"] != "cuda_sync" else one
        for one in events
    ]
    assert not [edge for edge in edges_of(gpu(early).operations) if edge[2] == WAIT]


def test_a_call_that_waits_for_an_event_waits_for_what_was_done_by_then():
    events = [
        call("cudaLaunchKernel", 0, 4, 1),
        kernel("gemm", 5, 100, 1),
        call("cudaEventRecord", 5, 1, 2),
        call("cudaLaunchKernel", 10, 4, 3),
        kernel("relu", 105, 200, 3),
        call("cudaEventSynchronize", 20, 90, 4),
        call("cudaLaunchKernel", 115, 4, 5),
        kernel("adam", 305, 10, 5),
    ]
    graph = gpu(events).operations
    assert ("gemm", "cudaEventSynchronize 4", SYNCHRONISE) in edges_of(graph)
    assert ("relu", "cudaEventSynchronize 4", SYNCHRONISE) not in edges_of(graph)


def test_a_thread_that_waited_for_another_did_no_work_meanwhile():
    """The main thread launches, autograd's launches for long, the main thread goes on."""
    main = [call("cudaLaunchKernel", at, 4, number) for at, number in ((0, 1), (220, 4))]
    autograd = [call("cudaLaunchKernel", 10, 4, 2, 9), call("cudaDeviceSynchronize", 15, 200, 3, 9)]
    kernels = [kernel("a", 5, 5, 1), kernel("b", 15, 195, 2), kernel("c", 225, 5, 4)]
    graph = gpu([*main, *autograd, *kernels]).operations
    assert graph.replayed_seconds == pytest.approx(230 * US)
    assert graph.seconds_if(gpu=0) == pytest.approx(30 * US, abs=2 * US)


def test_the_critical_path_of_a_gpu_is_the_one_on_paper():
    graph = gpu(two_streams()).operations
    path = [one.name for one in graph.critical_path]
    assert path == [
        "cudaLaunchKernel",
        "gemm",
        "relu",
        "cudaDeviceSynchronize",
        "cudaLaunchKernel",
        "adam",
    ]
    assert graph.replayed_seconds == pytest.approx(340 * US)
    spent = graph.critical_seconds()
    assert spent["computation"] == pytest.approx(310 * US)
    assert spent["communication"] == spent["copies"] == 0
    assert spent["host"] == pytest.approx(30 * US)


def test_a_gpu_iteration_has_the_seconds_on_paper():
    trace = gpu(one_iteration())
    workload = trace.workload(local_batch=4)
    assert {layer.name: layer.forward_seconds for layer in workload.layers} == pytest.approx(
        {"Linear_0": 100 * US, "Linear_1": 200 * US}
    )
    assert [(g.layer, g.elements, g.bytes) for g in workload.gradients] == [
        ("Linear_1", 32, 128),
        ("Linear_0", 32, 128),
    ]
    seconds = [gradient.backward_seconds for gradient in workload.gradients]
    assert seconds == pytest.approx([300 * US, 200 * US])
    assert workload.hardware == "NVIDIA H100 80GB HBM3"


def test_what_communicates_or_was_launched_before_holds_no_gradient_up():
    sent = {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float"}
    longer = [
        call("cudaLaunchKernelExC", 55, 2, 90, AUTOGRAD),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 450, 5000, 90, NCCL, **sent),
        kernel("of the step before", 11, 4000, 91),
    ]
    plain, beside = (gpu(events).passes for events in (one_iteration(), one_iteration() + longer))
    assert [one.arrivals for one in beside] == [one.arrivals for one in plain]


def test_without_gradients_the_optimizer_ends_iterations_and_the_last_goes_on():
    steps = [event("user_annotation", "Optimizer.step#SGD", 100 * n, 10) for n in (1, 2, 3)]
    trace = gpu([call("cudaLaunchKernel", 0, 4, 1), kernel("gemm", 10, 5, 1), *steps])
    assert np.array(trace.iterations) / US == pytest.approx(
        np.array([(0, 110), (110, 210), (210, np.inf)])
    )


def test_a_gpu_timeline_has_messages_waits_and_the_update():
    line = gpu(one_iteration()).timeline()
    spans = {span.kind: span for span in line.spans if span.kind in ("message", "wait", "update")}
    assert spans["message"].bytes == 256
    assert spans["message"].seconds == pytest.approx(300 * US)
    assert spans["wait"].seconds == pytest.approx(310 * US)
    assert spans["update"].seconds == pytest.approx(40 * US)
    assert line.seconds("backward") == pytest.approx(500 * US)


def test_collectives_on_the_host_are_messages_with_their_bytes():
    """As torch records DDP with gloo and record_shapes=True."""
    shapes = {"Input Dims": [[64]], "Input type": ["float"]}
    reduced = event("user_annotation", "gloo:all_reduce", 90, 25, 100, 3, shapes)
    on_host = [one for one in one_iteration() if one["cat"] not in ("kernel", "cuda_runtime")]
    spans = kineto_trace(events_in([*on_host, reduced]), header(), "host").timeline().spans
    message = next(span for span in spans if span.kind == "message")
    wait = next(span for span in spans if span.kind == "wait")
    assert (message.bytes, message.seconds) == (256, pytest.approx(25 * US))
    assert wait.stop_seconds == message.stop_seconds
    assert wait.seconds == pytest.approx((115 - 84) * US)


def test_a_circle_is_refused():
    """A kernel that runs before its launch, which waits for what comes after the kernel."""
    events = [
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaDeviceSynchronize", 2, 18, 3),
        call("cudaLaunchKernel", 21, 1, 2),
        kernel("early", 10, 1, 2),
        kernel("late", 12, 1, 1),
    ]
    with pytest.raises(InputError, match="'gpu' wait for one another in a circle: "):
        _ = gpu(events).operations


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "no list 'traceEvents'"),
        ('{"traceEvents": [1]}', "an event is no JSON object"),
        ('{"traceEvents": []}', "no event"),
        ('{"schemaVersion": 1, "traceEvents": []}', "holds no operation"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "disk", "name": "read", "ts": 0}]}',
            "1 event with categories disk, such as read",
        ),
        (
            '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", '
            '"ts": "soon"}]}',
            "'a' has ts 'soon'",
        ),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_files_that_are_no_trace_are_refused(tmp_path, content, message, packed):
    file = tmp_path / ("trace.json.gz" if packed else "trace.json")
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    with pytest.raises(InputError, match=message):
        read_trace(file)


@settings(max_examples=60)
@given(
    piece=st.integers(1, 400),
    indent=st.sampled_from([None, 1]),
    cut=st.integers(0, 5000) | st.none(),
)
def test_pieces_and_cuts_of_any_size_give_the_events_of_the_whole(piece, indent, cut):
    odd = event("cpu_op", 'a"},{"b', 1, 2, args={"deep": [{"é": 1}, {"x": []}], "last": {}})
    written = [*one_iteration(), odd, *two_streams()]
    text = json.dumps(
        {**header(), "traceEvents": written, "traceName": "it"}, indent=indent, ensure_ascii=False
    ).encode()
    part = text[: len(text) - cut] if cut else text
    pieces = [part[at : at + piece] for at in range(0, len(part), piece)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome, "PIECE", piece)
        if b'"traceEvents": [' not in part or b"}," not in part.partition(b'"traceEvents"')[2]:
            return
        found = chrome.Events(pieces, "it")
        events, head = list(found), found.head
    count = head.get(chrome.CUT, len(written))
    assert (chrome.CUT in head) == bool(cut)
    assert len(events) == count >= len(written) * (1 - (cut or 0) / len(text)) - len(written) / 2
    assert [(one.name, chrome.said(one.args)) for one in events] == [
        (one["name"], one.get("args", {})) for one in written[:count]
    ]
    assert bool(cut) or head["traceName"] == "it"


def test_events_are_read_as_they_are_asked_for_and_little_is_kept_of_each(monkeypatch):
    monkeypatch.setattr(chrome, "PIECE", 1000)
    kernels = [
        kernel(f"gemm {number}", number, 1, number, 7 + number % 2, grid=[1, 1, 1])
        for number in range(500)
    ]
    text = json.dumps({**header(), "traceEvents": kernels}).encode()
    read = []
    pieces = (read.append(at) or text[at : at + 1000] for at in range(0, len(text), 1000))
    events = chrome.Events(pieces, "it")
    assert next(events).name == "gemm 0"
    assert len(read) < 5
    trace = kineto_trace(events, events.head, "it")
    assert len(trace.events) == 499
    assert len({id(one.packed) for one in trace.events}) == 2  # one for each stream
    assert {one.args["stream"] for one in trace.events} == {7, 8}


@given(spans=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_the_innermost_event_around_an_instant_is_the_last_that_began(spans):
    spans = sorted(spans, key=lambda one: (one[0], -one[1]))
    events = recording(
        events_in([event("cpu_op", str(at), at / US, dur / US) for at, dur in [(0, 0), *spans]]),
        header(),
        "it",
    ).events
    around = Around(events)
    for at in np.arange(0, 62, 0.5):
        holding = [one for one in events if one.start <= at <= one.stop]
        assert around.innermost(at) is (holding[-1] if holding else None)


def test_a_layer_is_the_innermost_module_and_without_flows_there_is_one_forward_pass():
    nested = [event("python_function", "nn.Module: Model_0", 9, 40), *one_iteration()]
    assert [one.name for one in gpu(nested).workload(local_batch=4).layers] == [
        "Linear_0",
        "Linear_1",
    ]
    alone = [one for one in nested if one["cat"] != "fwdbwd"]
    (layer,) = gpu(alone).workload(local_batch=4).layers
    assert layer.forward_seconds / US == pytest.approx(300)
    with pytest.raises(InputError, match="leave the model out"):
        gpu(alone).workload(gpu(nested).workload(local_batch=4))


def test_a_file_that_fails_early_is_closed_and_one_beyond_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "bad.json"
    bad = event("cpu_op", "a", "soon", 1)
    text = {**header(), "traceEvents": [bad, *[event("cpu_op", "b", 1, 1)] * 100_000]}
    path.write_text(json.dumps(text))
    with pytest.raises(InputError, match="'a' has ts 'soon'") as told:
        read_trace(path)
    assert str(path) not in {file.path for file in psutil.Process().open_files()}, told
    free = psutil.virtual_memory()._replace(available=5 * path.stat().st_size)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    with pytest.raises(InputError, match="holds more than"):
        read_trace(path)


def test_what_a_user_calls_a_part_tells_no_tool_and_a_cut_trace_says_so(tmp_path):
    path = tmp_path / "named.json"
    named = event("user_annotation", "ALLREDUCE of mine", 0, 5)
    text = {"traceEvents": [named, *two_streams()], **header()}
    path.write_text(json.dumps(text))
    assert len(read_trace(path).gpu) == 4
    path.write_text(json.dumps({**header(), "traceEvents": [named] * 2})[:-40])
    with pytest.raises(InputError, match="cut after 1 events' holds no operation"):
        read_trace(path)


def test_a_trace_without_backward_pass_has_no_workload():
    with pytest.raises(InputError, match="no backward pass"):
        gpu(two_streams()).workload(local_batch=1)


def test_what_the_trace_does_not_say_must_be_given(recorded):
    file = recorded[0]
    with pytest.raises(InputError, match="give the batch, or the model"):
        read_trace(file).workload()
    with pytest.raises(InputError, match="has 28 gradients in an iteration and model"):
        read_trace(file).workload(ddlnb.trace("small-transformer"))
    bare = [
        {**one, "args": {}} if one["cat"] == "cpu_op" else one
        for one in one_iteration()
        if one["cat"] != "fwdbwd"
    ]
    with pytest.raises(InputError, match="record_shapes=True"):
        gpu(bare).workload(local_batch=4)


def test_a_trace_of_another_model_is_named(recorded):
    file, structure, _ = recorded
    with gzip.open(file) as stream:
        content = json.load(stream)
    for one in content["traceEvents"]:
        if one.get("name") == "torch::autograd::AccumulateGrad":
            one["args"]["Input Dims"] = [[3]]
    other = kineto_trace(events_in(content.pop("traceEvents")), content, "other")
    with pytest.raises(InputError, match=r"gradient 1 of 'other' has shape \(3,\), that of model"):
        other.workload(structure)


HOROVOD = [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.0 w[0:6]"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1000, "pid": 1},
    {"ph": "E", "ts": 2000, "pid": 1},
    {"ph": "B", "name": "ALLREDUCE", "ts": 2500, "pid": 1},
    {"ph": "E", "ts": 4000, "pid": 1, "args": {"dtype": "float64", "shape": "[2, 3]"}},
]


def comm(tensor, ts, dur, stage="", thread="total"):
    name = f"Comm.byteps.{tensor}"
    return {
        "ph": "X",
        "args": {"name": name},
        "pid": name,
        "name": name + (f".{stage}" if stage else ""),
        "ts": ts,
        "dur": dur,
        "tid": thread,
        "cat": "Comm",
    }


# As a worker on two servers' trace has them; numbers are rounded.
BYTEPS = [
    comm("27 conv1.bias[0:24]", 1795356410939947, 7717),
    comm("27 conv1.bias[0:24]", 1795356410994025, 44593),
    comm("27 conv1.bias[0:24]", 1795356410940000, 12, "PUSH", "131072"),
    comm("27 conv1.bias[0:24]", 1795356410941000, 15, "PULL", "131072"),
    comm("gradient_0", 1795356410929947, 1000),
]


def test_a_trace_of_horovod_is_recognised(tmp_path):
    file = tmp_path / "timeline.json.gz"
    file.write_bytes(gzip.compress(json.dumps(HOROVOD).encode()))
    (span,) = read_trace(file).spans
    assert (span.name, span.bytes) == ("w[0:6]", 48)
    assert span.seconds == pytest.approx(0.003)


def test_a_trace_of_byteps_is_recognised_and_its_messages_are_counted(tmp_path):
    file = tmp_path / "comm.json"
    file.write_text(json.dumps({"traceEvents": BYTEPS, "displayTimeUnit": "ms"}))
    spans = read_trace(file).spans
    assert [(s.name, s.bytes, s.iteration) for s in spans] == [
        ("gradient_0", 0, 0),
        ("conv1.bias[0:24]", 96, 0),
        ("conv1.bias[0:24]", 96, 1),
    ]
    assert spans[0].start_seconds == 0
    assert [span.seconds for span in spans] == pytest.approx([1e-3, 7.717e-3, 44.593e-3])
    assert spans[1].start_seconds == pytest.approx(10e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dur": None}, "without pid, ts or dur"),
        ({"dur": -5}, "before"),
        ({"tid": "1"}, "no message"),
    ],
)
def test_a_broken_trace_of_byteps_is_refused(tmp_path, change, message):
    file = tmp_path / "comm.json"
    file.write_text(json.dumps({"traceEvents": [{**BYTEPS[0], **change}]}))
    with pytest.raises(InputError, match=message):
        read_trace(file)


def test_our_own_traces_are_not_read_again(tmp_path):
    line = ddlnb.simulate(
        ddlnb.read_profile("small-conv_b64_cpu-1thread"), "two-cores-4-workers", "MG-WFBP"
    )
    with pytest.raises(InputError, match="written by ddlnb itself"):
        read_trace(line.write_chrome_trace(tmp_path / "trace.json"))


def gml(*edges):
    nodes = sorted({end for edge in edges for end in edge})
    lines = [f'node [ id {nodes.index(one)} label "{one}" ]' for one in nodes]
    lines += [
        f"edge [ source {nodes.index(before)} target {nodes.index(after)} ]"
        for before, after in edges
    ]
    return "graph [ directed 1\n" + "\n".join(lines) + "\n]\n"


def test_a_graph_of_byteps_is_proven_to_have_no_circle(tmp_path):
    file = tmp_path / "dag.gml"
    file.write_text(gml(("BW.conv1", "Comm.conv1"), ("Comm.conv1", "UPDATE")))
    graph = read_trace(file)
    assert list(graph.edges) == [("BW.conv1", "Comm.conv1"), ("Comm.conv1", "UPDATE")]
    file.write_text(gml(("BW.conv1", "Comm.conv1"), ("Comm.conv1", "BW.conv1")))
    with pytest.raises(InputError, match="in a circle: "):
        read_byteps_graph(file)
    file.write_text("no graph")
    with pytest.raises(InputError, match="cannot be read"):
        read_byteps_graph(file)


def test_a_folder_without_traces_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no trace"):
        read_trace(tmp_path)
