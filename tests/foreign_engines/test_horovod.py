"""What is Horovod's own: its timeline, its slots, its ways to fail, and MPI."""

import json
import time
from dataclasses import replace

import pytest
import torch

from ddlnb.emulation.network import lacking
from ddlnb.engines.catalogue import ENGINES, get_engine
from ddlnb.engines.settings import MEASURING
from ddlnb.engines.worker import run_job
from ddlnb.errors import InputError, MissingPart, ModelError, RankError
from ddlnb.foreign_engines.catalogue import environment
from ddlnb.foreign_engines.horovod import runtime
from ddlnb.foreign_engines.horovod.runtime import imported, slots
from ddlnb.launch.ranks import Ranks
from ddlnb.traces.chrome import Events
from ddlnb.traces.read import horovod_timeline
from ddlnb.workloads.tracing import trace
from tests.engines.jobs import ENDLESS, STEPS, job_of, train_and_kill
from tests.toy import mlp

LACK = get_engine("horovod").missing()
needs_horovod = [pytest.mark.ranks, pytest.mark.skipif(bool(LACK), reason=LACK)]


class TestOnRanks:
    pytestmark = needs_horovod

    @pytest.mark.thorough
    def test_horovod_s_own_timeline_has_every_message(self, four_ranks, tmp_path):
        task = mlp([64, 64])
        job = job_of(task, "WFBP-A2A", 2, engine="horovod")
        path = tmp_path / "timeline.json"
        four_ranks.run(_train_with_timeline, job, str(path), count=2)
        timeline = timeline_in(path, "WFBP-A2A")
        messages = {str(message) for message in job.plan.messages}
        assert {span.name for span in timeline.spans} == messages
        # Horovod may lose the last lines when it is shut down.
        whole = [s for s in timeline.spans if s.iteration < STEPS - 1]
        assert len(whole) == (STEPS - 1) * len(messages)
        assert sum(s.bytes for s in whole) == (STEPS - 1) * trace(task, 4).gradient_bytes
        four_ranks.run(run_job, job, count=2)
        assert timeline_in(path).spans == timeline.spans

    def test_a_killed_rank_is_one_error(self):
        job = job_of(mlp([8]), "ByteScheduler-A2A", 2, engine="horovod", **ENDLESS)
        with Ranks(2, imports=(__name__, *MEASURING)) as ranks:
            start = time.monotonic()
            with pytest.raises(RankError, match="rank 1: process died"):
                ranks.run(train_and_kill, job, 1, timeout_seconds=60)
            assert time.monotonic() - start < 30

    @pytest.mark.thorough
    @pytest.mark.skipif(bool(lacking()), reason=lacking())
    def test_gradients_take_the_emulated_network(self):
        job = job_of(mlp([512, 512], torch.float32), "MG-WFBP", 3, engine="horovod")
        network = "500Mb/s 1ms"
        with Ranks(3, launcher="emulated", network=network, imports=MEASURING) as ranks:
            before = ranks.network.statistics()["bytes"]
            reports = ranks.run(run_job, job)
            crossed = ranks.network.statistics()["bytes"] - before
        assert len({report.digest for report in reports}) == 1
        sent = sum(report.bytes_sent for report in reports)
        assert sent < crossed < 1.3 * sent

    def test_what_the_build_cannot_do_is_refused(self):
        begin = ENGINES["horovod"].starter()
        job = job_of(mlp([8]), "BSP-A2A", 2, engine="horovod")
        halved = mlp([8], torch.bfloat16).build()
        with pytest.raises(ModelError, match=r"dtype torch.bfloat16, which Horovod does not sum"):
            begin(None, job, None, halved)
        for changes in ({"device": "cuda"}, {"backend": "nccl"}):
            with pytest.raises(MissingPart, match="needs a Horovod with NCCL"):
                begin(None, replace(job, **changes), None, job.task.build())

    def test_mpi_carries_the_gradients_of_ranks_that_it_started(self, monkeypatch):
        pytest.importorskip("mpi4py", exc_type=ImportError)
        if not imported().mpi_built():
            pytest.skip("this Horovod was built without MPI")
        monkeypatch.setenv("HOROVOD_CONTROLLER", "mpi")
        with Ranks(2, launcher="mpi") as ranks:
            reports = ranks.run(
                run_job, job_of(mlp([8]), "MG-WFBP", 2, engine="horovod"), timeout_seconds=60
            )
            assert len({report.digest for report in reports}) == 1
            with pytest.raises(RankError, match="over MPI all take part"):
                ranks.run(run_job, job_of(mlp([8]), "MG-WFBP", 1, engine="horovod"), count=1)


def _train_with_timeline(context, job, path):
    with environment({"HOROVOD_TIMELINE": path}):
        return run_job(context, job)


def test_slots_count_within_and_across_hosts():
    found = slots(["a", "b", "a", "b", "b"])
    assert [(s.local_rank, s.local_size) for s in found] == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert [(s.cross_rank, s.cross_size) for s in found] == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]
    assert found[1].environment["HOROVOD_HOSTNAME"] == "b"
    assert found[4].environment["HOROVOD_LOCAL_RANK"] == "2"


def test_a_horovod_that_would_take_another_network_is_refused(monkeypatch):
    monkeypatch.setattr(runtime, "version", lambda package: "0.28.1")
    monkeypatch.setattr(runtime.socket, "gethostbyname", lambda name: "127.0.1.1")
    require = runtime._require_own_interface
    require("127.0.0.1", ["127.0.0.1", "127.0.0.1"])
    require("127.0.1.1", ["127.0.1.1", "10.0.0.2"])
    with pytest.raises(MissingPart, match=r"\(127.0.1.1\), and this worker is at 10.0.0.1"):
        require("10.0.0.1", ["10.0.0.1", "10.0.0.2"])
    monkeypatch.setattr(runtime, "version", lambda package: "0.28.1+iface")
    require("10.0.0.1", ["10.0.0.1", "10.0.0.2"])


EVENTS = [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.0 w[0:6]"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1000, "pid": 1},
    {"ph": "X", "name": "0", "ts": 1001, "pid": 1, "dur": 0},
    {"ph": "E", "ts": 2000, "pid": 1},
    {"ph": "B", "name": "ALLREDUCE", "ts": 2500, "pid": 1},
    {"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 2600, "pid": 1},
    {"ph": "E", "ts": 2700, "pid": 1},
    {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 2700, "pid": 1},
    {"ph": "E", "ts": 3900, "pid": 1},
    {"ph": "E", "ts": 4000, "pid": 1, "args": {"dtype": "float64", "shape": "[2, 3]"}},
]
TWICE = json.dumps(EVENTS + EVENTS[1:])


def timeline_in(path, method="horovod"):
    """Return the timeline of a file that Horovod wrote."""
    return horovod_timeline(Events([path.read_bytes()], str(path)), str(path), method)


def test_a_timeline_is_read(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text(TWICE)
    first, second = timeline_in(path, "BSP-A2A").spans
    assert (first.name, first.bytes, first.iteration) == ("w[0:6]", 48, 0)
    assert (first.start_seconds, first.stop_seconds) == (0.001, pytest.approx(0.004))
    assert second.iteration == 1


def test_a_truncated_timeline_is_read_as_far_as_it_tells(tmp_path):
    path = tmp_path / "timeline.json"
    needed = len(json.dumps(EVENTS)) - 1  # for the first all-reduce
    for length in range(2, len(TWICE) - 1):  # the last bracket may be missing
        path.write_text(TWICE[:length])
        if length < needed:
            with pytest.raises(InputError, match="no all-reduce"):
                timeline_in(path)
        else:
            assert len(timeline_in(path).spans) == 1
