"""What is BytePS's own: its sums under load, its priorities, its parts that die."""

import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.byteps_stress import busy, stress
from ddlnb.engines.catalogue import ENGINES, get_engine
from ddlnb.engines.settings import MEASURING
from ddlnb.engines.worker import run_job
from ddlnb.errors import MissingPart, ModelError, RankError
from ddlnb.foreign_engines.byteps.engine import partition_and_credit
from ddlnb.foreign_engines.byteps.runtime import Membership, serve
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.methods import METHODS
from ddlnb.units import MIB
from ddlnb.workloads.tracing import trace
from tests.engines.jobs import ENDLESS, job_of, train, train_and_kill
from tests.toy import mlp

LACK = get_engine("byteps").missing()
needs_byteps = [pytest.mark.ranks, pytest.mark.skipif(bool(LACK), reason=LACK)]


class TestOnRanks:
    pytestmark = needs_byteps

    @pytest.mark.thorough(but=1)
    @pytest.mark.parametrize("credit", [0, 3])
    def test_every_sum_is_right_when_everybody_is_late(self, six_ranks, credit):
        with busy(2):
            counts = six_ranks.run(stress, 4, 2, 20, credit, timeout_seconds=120)
        seen = [count for count in counts if count is not None]
        assert len(seen) == 4
        assert [(count.sums, count.wrong) for count in seen] == [(140, 0)] * 4

    def test_with_credit_an_urgent_tensor_overtakes(self, six_ranks):
        """Patch 13: upstream, credit and priority change nothing here."""
        assert max(six_ranks.run(_overtaken, 0, count=2)[0]) < 15
        assert min(six_ranks.run(_overtaken, 2, count=2)[0]) >= 15

    def test_a_run_leaves_no_shared_memory(self, six_ranks):
        shared = _shared_memory()
        train(six_ranks, job_of(mlp([8]), "WFBP-PS", 2, engine="byteps"))
        assert _shared_memory() == shared

    @pytest.mark.thorough(but=1)
    @pytest.mark.parametrize(
        ("holder", "is_child", "said"),
        [
            (2, True, "BytePS's server ended"),
            (0, True, "BytePS's scheduler ended"),
            (2, False, "rank 2: process died"),
        ],
    )
    def test_a_killed_part_is_one_error_and_nothing_stays(self, holder, is_child, said):
        job = job_of(mlp([8]), "ByteScheduler-PS", 2, engine="byteps", **ENDLESS)
        with Ranks(3, imports=(__name__, *MEASURING)) as ranks:
            start = time.monotonic()
            with pytest.raises(RankError, match=said):
                ranks.run(train_and_kill, job, holder, is_child, timeout_seconds=60)
            assert time.monotonic() - start < 20
        assert _parts() == []

    @pytest.mark.thorough
    def test_a_stopped_part_is_waited_for_until_the_time_is_over(self):
        job = job_of(mlp([8]), "ByteScheduler-PS", 2, engine="byteps", iterations=400, batches=1)
        with Ranks(3, imports=(__name__, *MEASURING)) as ranks:
            start = time.monotonic()
            with pytest.raises(RankError, match="within 8"):
                ranks.run(train_and_kill, job, 2, True, signal.SIGSTOP, timeout_seconds=8)
            assert time.monotonic() - start < 45
            assert ranks.run(_rank) == [0, 1, 2]
        assert _parts() == []

    @pytest.mark.thorough
    def test_a_worker_that_does_not_come_is_waited_for_until_the_time_is_over(self):
        with Ranks(3, imports=(__name__, *MEASURING)) as ranks:
            job = job_of(mlp([8]), "WFBP-PS", 2, engine="byteps")
            with pytest.raises(RankError, match="within 4"):
                ranks.run(_all_but_rank_1, job, timeout_seconds=4)
        assert _parts() == []

    def test_what_the_build_cannot_do_is_refused(self):
        begin = ENGINES["byteps"].starter()
        job = job_of(mlp([8]), "BSP-PS", 2, engine="byteps")
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


def _rank(context):
    return context.rank


def _all_but_rank_1(context, job):
    if context.rank == 1:
        time.sleep(60)
    return run_job(context, job)


def test_partition_and_credit_are_the_plan_s_in_whole_pages():
    workload = trace(mlp([300, 300]), 4)
    tuned = METHODS["ByteScheduler-PS"].tuned(partition="40KB", credit="130KB")
    assert partition_and_credit(tuned.plan(workload, servers=1)) == (40960, 3)
    small = METHODS["ByteScheduler-PS"].tuned(partition="40KB", credit="1KB")
    assert partition_and_credit(small.plan(workload, servers=1)) == (40960, 1)
    assert partition_and_credit(METHODS["WFBP-PS"].plan(workload, servers=1))[1] == 0
