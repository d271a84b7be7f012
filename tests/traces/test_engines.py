"""Timelines of Horovod and BytePS, in the formats that the engines wrote here."""

import gzip
import json

import pytest

import ddlnb
from ddlnb.errors import InputError
from ddlnb.traces.read import read_byteps_graph, read_trace

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


def test_a_folder_of_traces_is_no_trace(tmp_path):
    with pytest.raises(InputError, match="is a folder; give the file of one trace in it"):
        read_trace(tmp_path)
