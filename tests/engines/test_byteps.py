"""The BytePS engine: our plans on BytePS's parameter servers equal one worker on joined batches."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.byteps_stress import load, stress
from ddlnb.engines.byteps.engine import partition_and_credit
from ddlnb.engines.byteps.runtime import Membership, serve
from ddlnb.engines.catalogue import ENGINES, get_engine
from ddlnb.engines.job import Job
from ddlnb.engines.settings import MEASURING, OPTIMIZERS
from ddlnb.engines.worker import run_job
from ddlnb.errors import MissingPart, ModelError, RankError
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.methods import METHODS
from ddlnb.units import MIB
from ddlnb.workloads.tracing import trace
from tests.toy import in_double, mlp, train_alone

LACK = get_engine("byteps").missing()
needs_byteps = [pytest.mark.ranks, pytest.mark.skipif(bool(LACK), reason=LACK)]
STEPS, BATCH = 10, 2
ENDLESS = 100_000


def job_of(task, method, workers, servers, optimizer="sgd", **changes) -> Job:
    tuned = METHODS[method].tuned(partition="100KB", credit="300KB")
    plan = tuned.plan(trace(task, 4), servers=servers)
    given = {"iterations": STEPS, "batches": STEPS, "plan": plan, **changes}
    return Job(task, "byteps", workers, BATCH, make_optimizer=OPTIMIZERS[optimizer], **given)


def train(ranks, job, seconds=60) -> list:
    """The reports of the workers."""
    return ranks.run(run_job, job, count=job.ranks, timeout_seconds=seconds)[: job.workers]


@cache
def alone(optimizer, workers) -> dict:
    """One worker's parameters after training on the joined batches."""
    return train_alone(in_double("small-conv"), OPTIMIZERS[optimizer], workers, BATCH, STEPS)


class TestOnRanks:
    pytestmark = needs_byteps

    @pytest.mark.parametrize(
        ("method", "workers", "servers", "optimizer"),
        [
            ("BSP-PS", 2, 1, "sgd"),
            ("BSP-PS", 4, 2, "sgd"),
            ("WFBP-PS", 2, 2, "sgd"),
            ("WFBP-PS", 4, 1, "sgd"),
            ("ByteScheduler-PS", 2, 1, "sgd"),
            ("ByteScheduler-PS", 4, 2, "adamw"),
        ],
    )
    def test_ten_steps_equal_one_worker_on_the_joined_batch(
        self, six_ranks, method, workers, servers, optimizer
    ):
        """Workers and servers change from case to case, in the same processes."""
        task = in_double("small-conv")
        job = job_of(task, method, workers, servers, optimizer, keep_parameters=True)
        reports = train(six_ranks, job)
        assert len({report.digest for report in reports}) == 1
        for name, value in alone(optimizer, workers).items():
            torch.testing.assert_close(reports[0].parameters[name], value, rtol=1e-5, atol=1e-9)

    @pytest.mark.parametrize("credit", [0, 3])
    def test_every_sum_is_right_when_everybody_is_late(self, six_ranks, credit):
        with load(2):
            counts = six_ranks.run(stress, 4, 2, 20, credit, timeout_seconds=120)
        seen = [count for count in counts if count is not None]
        assert len(seen) == 4
        assert [(count.sums, count.wrong) for count in seen] == [(140, 0)] * 4

    def test_with_credit_an_urgent_tensor_overtakes(self, six_ranks):
        """Patch 13: upstream, credit and priority change nothing here."""
        assert max(six_ranks.run(_overtaken, 0, count=2)[0]) < 15
        assert min(six_ranks.run(_overtaken, 2, count=2)[0]) >= 15

    def test_a_run_leaves_no_process_no_file_and_no_listener(self, six_ranks):
        before = six_ranks.run(_left_behind, count=3)
        shared = _shared_memory()
        for workers, servers in ((2, 1), (1, 2), (2, 1)):
            train(six_ranks, job_of(mlp([8]), "WFBP-PS", workers, servers))
        assert six_ranks.run(_left_behind, count=3) == before
        assert _shared_memory() == shared

    def test_what_was_sent_and_waited_for_is_reported(self, six_ranks):
        task = mlp([64, 64])
        size = trace(task, 4).gradient_bytes
        for report in train(six_ranks, job_of(task, "ByteScheduler-PS", 2, 1, traced=2)):
            assert report.bytes_sent == STEPS * size
            assert report.waited_seconds > 0
            assert {"forward", "backward", "wait", "update"} <= {s.kind for s in report.spans}
            assert sum(span.bytes for span in report.spans if span.kind == "message") == 2 * size

    @pytest.mark.parametrize(
        ("victim", "said"),
        [("server", "BytePS's server ended"), ("scheduler", "BytePS's scheduler ended")],
    )
    def test_a_killed_part_of_byteps_is_one_error(self, victim, said):
        with Ranks(3, imports=(__name__, *MEASURING)) as ranks:
            job = job_of(mlp([8]), "WFBP-PS", 2, 1, iterations=ENDLESS, batches=1)
            start = time.monotonic()
            with pytest.raises(RankError, match=said):
                ranks.run(_train_and_kill, job, victim, timeout_seconds=60)
            assert time.monotonic() - start < 20
        assert _parts() == []

    def test_a_killed_rank_is_one_error_and_its_child_ends(self):
        with Ranks(3, imports=(__name__, *MEASURING)) as ranks:
            job = job_of(mlp([8]), "ByteScheduler-PS", 2, 1, iterations=ENDLESS, batches=1)
            with pytest.raises(RankError, match="rank 2: process died"):
                ranks.run(_train_and_kill, job, "rank 2", timeout_seconds=60)
        assert _parts() == []

    def test_a_worker_that_does_not_come_is_waited_for_until_the_time_is_over(self):
        with Ranks(3, imports=(__name__, *MEASURING)) as ranks:
            job = job_of(mlp([8]), "WFBP-PS", 2, 1)
            with pytest.raises(RankError, match="within 4"):
                ranks.run(_all_but_rank_1, job, timeout_seconds=4)
        assert _parts() == []

    def test_what_the_build_cannot_do_is_refused(self):
        begin = ENGINES["byteps"].starter()
        job = job_of(mlp([8]), "BSP-PS", 2, 1)
        halved = mlp([8], torch.bfloat16).build()
        with pytest.raises(ModelError, match=r"dtype torch.bfloat16, which BytePS does not sum"):
            begin(None, job, None, halved)
        with pytest.raises(MissingPart, match="needs a BytePS with CUDA"):
            begin(None, replace(job, device="cuda"), None, job.task.build())


def _overtaken(context, credit) -> list[int] | None:
    """How many of 30 tensors of 1 MiB came after one pushed last, of larger priority; five times.

    One worker and one server.
    """
    store = context.store()
    if context.rank == 1:
        return serve(context, store, 1, 1)
    membership = Membership(context, store, 1, 1, MIB, credit)
    lib = membership.ops.c_lib
    tensors = [torch.ones(MIB // 4) for _ in range(31)]
    for number in range(31):
        lib.byteps_torch_declare_tensor(str(number))

    def push(number: int, priority: int) -> int:
        tensor, name = tensors[number], str(number)
        return lib.byteps_torch_push_pull_async_torch_FloatTensor(
            tensor, tensor, 0, name, 0, priority
        )

    def finish(handle: int) -> None:
        membership.wait(handle, "a tensor")
        lib.byteps_torch_wait_and_clear(handle)

    for number in range(31):  # sets up their buffers
        finish(push(number, 0))
    counts = []
    for _ in range(5):
        others = [push(number, 0) for number in range(30)]
        finish(push(30, 1))
        counts.append(sum(not lib.byteps_torch_poll(handle) for handle in others))
        for handle in others:
            finish(handle)
    membership.leave()
    return counts


def _left_behind(context) -> tuple:
    """Variables, children, files and listening sockets of this process."""
    process = psutil.Process()
    variables = sorted(name for name in os.environ if name.startswith(("DMLC", "BYTEPS")))
    children = [" ".join(child.cmdline()) for child in process.children()]
    connections = process.net_connections()
    listening = sorted(entry.laddr.port for entry in connections if entry.status == "LISTEN")
    start = time.process_time()
    time.sleep(0.3)
    is_busy = time.process_time() - start > 0.1
    return variables, children, len(process.open_files()), listening, is_busy


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("BytePS*")}


def _parts() -> list[int]:
    """Schedulers and servers of BytePS on this machine that a rank of ours has left behind."""
    found = []
    for process in psutil.process_iter(["cmdline", "ppid", "status"]):
        if any("byteps.server" in word for word in process.info["cmdline"] or ()):
            is_orphan = process.info["ppid"] == 1
            if is_orphan and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def _train_and_kill(context, job, victim):
    """Train, and two seconds later kill a rank, or the part of BytePS that a rank started."""
    holder = {"scheduler": 0, "server": 2, "rank 2": 2}[victim]
    if context.rank == holder:
        threading.Timer(2.0, _kill, [victim]).start()
    return run_job(context, job)


def _kill(victim):
    process = psutil.Process()
    if victim != "rank 2":
        (process,) = process.children()
    os.kill(process.pid, signal.SIGKILL)


def _all_but_rank_1(context, job):
    if context.rank == 1:
        time.sleep(60)
    return run_job(context, job)


@pytest.mark.parametrize("method", [m.name for m in METHODS.values() if m.architecture == "A2A"])
def test_all_reduces_are_refused(method):
    assert ENGINES["byteps"].refuses(METHODS[method]) == (
        f"answers push_pull, and the method asks for {METHODS[method].exchange}"
    )


def test_partition_and_credit_are_the_plan_s_in_whole_pages():
    workload = trace(mlp([300, 300]), 4)
    tuned = METHODS["ByteScheduler-PS"].tuned(partition="40KB", credit="130KB")
    assert partition_and_credit(tuned.plan(workload, servers=1)) == (40960, 3)
    small = METHODS["ByteScheduler-PS"].tuned(partition="40KB", credit="1KB")
    assert partition_and_credit(small.plan(workload, servers=1)) == (40960, 1)
    assert partition_and_credit(METHODS["WFBP-PS"].plan(workload, servers=1))[1] == 0
