"""Ranks run a function together, say what went wrong in one error, and leave nothing behind."""

import asyncio
import os
import random
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ddlnb.errors import InputError, MissingPart, RankError
from ddlnb.launch import forked
from ddlnb.launch.processes import RankProcesses
from ddlnb.launch.rank import process_group
from ddlnb.launch.ranks import RankContext, Ranks
from ddlnb.launch.reaper import TOKEN_VARIABLE, carriers
from tests.launch.owner import Owner
from tests.running import is_running

pytestmark = pytest.mark.ranks


# ---------------------------------------------------------------- functions that run in ranks


def where(context: RankContext, *args: object) -> tuple:
    return (context.rank, context.count, *args)


def total_of_ranks(context: RankContext) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(context.rank)])
    with process_group(context, context.store(), context.count):
        dist.all_reduce(tensor)
    return tensor.item()


def all_reduce_until(context: RankContext, victim: int, number: int | None) -> None:
    """All-reduce for ever; after a moment the victim raises, or sends itself the signal."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=context.store(), rank=context.rank, world_size=context.count
    )
    start = time.monotonic()
    while True:
        if context.rank == victim and time.monotonic() - start > 0.3:
            if number is None:
                raise ValueError("the learning rate is a fish")
            os.kill(os.getpid(), number)
        dist.all_reduce(torch.ones(1))


# ---------------------------------------------------------------- what comes back


def test_results_come_back_in_the_order_of_the_ranks(four_ranks):
    assert four_ranks.run(where, "x") == [(rank, 4, "x") for rank in range(4)]


def test_a_smaller_run_uses_the_first_ranks(four_ranks):
    assert four_ranks.run(where, count=2) == [(0, 2), (1, 2)]


def test_closures_and_their_results_travel(four_ranks):
    offset = 10
    functions = four_ranks.run(lambda context: lambda: context.rank + offset, count=2)
    assert [function() for function in functions] == [10, 11]


def test_large_arguments_and_results_travel(four_ranks):
    import torch

    tensor = torch.arange(1_000_000)
    doubled = four_ranks.run(lambda context, tensor: 2 * tensor, tensor, count=2)
    assert all(torch.equal(answer, 2 * tensor) for answer in doubled)


def test_ranks_meet_in_the_store_of_their_run(four_ranks):
    assert four_ranks.run(total_of_ranks) == [6.0] * 4
    assert four_ranks.run(total_of_ranks, count=3) == [3.0] * 3


def test_every_run_has_a_store_that_starts_empty(four_ranks):
    def first_count(context: RankContext) -> int:
        return context.store().add("visits", 1)

    assert four_ranks.run(first_count, count=1) == [1]
    assert four_ranks.run(first_count, count=1) == [1]


def test_a_rank_uses_the_threads_it_was_given_and_waits_politely(four_ranks):
    def settings(context: RankContext) -> tuple:
        import torch

        policy = os.sched_getscheduler(0) if hasattr(os, "SCHED_BATCH") else None
        return torch.get_num_threads(), torch.get_num_interop_threads(), policy

    assert four_ranks.run(settings) == [(1, 1, getattr(os, "SCHED_BATCH", None))] * 4


def test_a_call_is_cheap(four_ranks):
    seconds = []
    for _ in range(20):
        start = time.monotonic()
        four_ranks.run(where)
        seconds.append(time.monotonic() - start)
    # About 10 ms on an idle machine; the minimum, because the machine may not be idle.
    assert min(seconds) < 0.06


def test_runs_from_several_threads_take_turns(four_ranks):
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(four_ranks.run, total_of_ranks) for _ in range(3)]
    assert [answer.result() for answer in answers] == [[6.0] * 4] * 3


def test_the_token_is_not_in_the_environment_of_the_owner(four_ranks):
    assert TOKEN_VARIABLE not in os.environ
    assert len(set(four_ranks.pids)) == 4
    for pid in four_ranks.pids:
        assert psutil.Process(pid).environ()[TOKEN_VARIABLE]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
def test_one_process_imports_torch_and_forks_all_ranks(four_ranks):
    parents = {psutil.Process(pid).ppid() for pid in four_ranks.pids}
    assert len(parents) == 1
    assert parents != {os.getpid()}
    assert forked.__file__ in psutil.Process(parents.pop()).cmdline()


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
def test_ranks_share_what_was_imported_before_they_were_forked(four_ranks):
    def places(context: RankContext) -> tuple:
        return "tests.not_there" in sys.modules, id(sys.modules.get("tests.running"))

    assert "tests.not_there" in four_ranks._spec.imports  # which is no failure by itself
    [(there, place)] = set(four_ranks.run(places))  # of one object, which was copied
    assert not there
    assert place != id(None)


def test_ranks_do_not_draw_the_same_numbers(four_ranks):
    def draws(context: RankContext) -> tuple:
        import numpy as np

        return random.random(), np.random.random()

    for column in zip(*four_ranks.run(draws), strict=True):
        assert len(set(column)) == 4


def test_each_rank_leads_a_group_of_its_own(four_ranks):
    """A signal for the group of one, as a terminal sends it, does not reach the others."""
    assert [os.getpgid(pid) for pid in four_ranks.pids] == four_ranks.pids


# ---------------------------------------------------------------- bad input


def test_more_ranks_than_there_are_is_refused_with_both_numbers(four_ranks):
    with pytest.raises(InputError, match=r"count=5 is more than the 4 ranks"):
        four_ranks.run(where, count=5)


def test_a_function_that_cannot_travel_is_refused_and_nothing_is_lost(four_ranks):
    pids = four_ranks.pids
    with pytest.raises(InputError, match="cannot be sent to them"):
        four_ranks.run(where, threading.Lock())
    assert four_ranks.run(where, count=1) == [(0, 1)]
    assert four_ranks.pids == pids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count 0 must be a whole number, at least 1"),
        ({"count": 2.0}, "count 2.0 must be a whole number"),
        ({"count": True}, "count True must be a whole number"),
        ({"count": 2, "threads": 0}, "threads 0 must be"),
        ({"count": 2, "timeout_seconds": 0}, "timeout_seconds 0 must be a finite number above 0"),
        ({"count": 2, "timeout_seconds": float("nan")}, "timeout_seconds nan must be"),
        ({"count": 2, "start_timeout_seconds": -1}, "start_timeout_seconds -1 must be"),
        ({"count": 2, "host": "192.0.2.1"}, "host='192.0.2.1' is not an address of this machine"),
        ({"count": 2, "hosts": ["a"]}, "only with it"),
        ({"count": 2, "launcher": "ssh"}, "give hosts="),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Ranks(**arguments)


@pytest.mark.parametrize(
    ("launcher", "message"),
    [("mpi", "'mpiexec': apt-get install openmpi-bin"), ("slurm", "'sbatch': run on a login node")],
)
def test_a_launcher_that_is_not_installed_says_where_it_comes_from(
    launcher, message, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPart, match=message):
        Ranks(2, launcher=launcher)


# ---------------------------------------------------------------- failures


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Ranks]:
    """Three ranks to be killed, and restarted by the next run: the tests below share them."""
    with Ranks(3, timeout_seconds=60, imports=(__name__,)) as ranks:
        yield ranks


def test_one_exception_ends_the_run_for_all(own_ranks):
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        own_ranks.run(all_reduce_until, 1, None)
    assert time.monotonic() - start < 8
    message = str(caught.value)
    assert re.match(r"\d of 3 ranks failed, first rank 1: ValueError: the learning rate", message)
    assert "rank 1: ValueError: the learning rate is a fish" in message
    assert re.search(r"rank 0: no answer after \d+\.\d s\n.*in all_reduce", message)
    assert "in all_reduce_until" in message.split("rank 1 said:")[1]


def says(context, failing: str):
    """Fail on rank 0 as one whose peer is gone, and a little later on rank 1 with the reason."""
    if context.rank == 0:
        raise RuntimeError(f"[gloo] {failing} by peer; remote worker crashing")
    if context.rank == 1:
        time.sleep(0.5)
        raise KeyError("of rank 1")


@pytest.mark.parametrize("failing", ["Connection closed", "Connection reset"])
def test_a_rank_that_lost_its_peer_is_not_the_first_to_fail(own_ranks, failing):
    with pytest.raises(RankError, match=r"2 of 3 ranks failed, first rank 1: KeyError"):
        own_ranks.run(says, failing)


def test_a_killed_rank_ends_the_run_for_all(own_ranks):
    assert own_ranks.run(where, count=1) == [(0, 1)]  # with fresh processes: the last run failed
    pids = own_ranks.pids
    start = time.monotonic()
    with pytest.raises(
        RankError, match=r"first rank 2: process died\n(.*\n)*  rank 2: process died"
    ):
        own_ranks.run(all_reduce_until, 2, signal.SIGKILL)
    assert time.monotonic() - start < 8
    assert not any(is_running(pid) for pid in pids)
    assert own_ranks.pids == []


def test_a_stopped_rank_is_named_when_the_time_is_over(own_ranks):
    own_ranks.run(where)
    start = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1: stopped, no answer after 2\.\d s") as caught:
        own_ranks.run(all_reduce_until, 1, signal.SIGSTOP, timeout_seconds=2)
    assert time.monotonic() - start < 5
    assert "3 of 3 ranks did not answer within 2 s" in str(caught.value)


def test_a_rank_that_died_between_two_runs_is_replaced(own_ranks):
    own_ranks.run(where)
    os.kill(own_ranks.pids[0], signal.SIGKILL)
    time.sleep(0.2)
    assert own_ranks.run(where) == [(rank, 3) for rank in range(3)]


def test_a_result_that_cannot_travel_is_the_error_of_its_rank(own_ranks):
    with pytest.raises(RankError, match=r"rank 0: TypeError: cannot pickle '_thread.lock'"):
        own_ranks.run(lambda context: threading.Lock(), count=1)


def test_ranks_that_cannot_start_say_so_and_are_gone():
    with pytest.raises(RankError, match=r"2 ranks were not started .*start_timeout_seconds=0\.5"):
        Ranks(2, start_timeout_seconds=0.5)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("late", [1, 2])
def test_ranks_that_are_late_start_once_more_and_what_was_late_is_gone(monkeypatch, caplog, late):
    starts: list[RankProcesses] = []
    wait = RankProcesses._wait_for_engines

    def wait_too_long(processes: RankProcesses, deadline: float) -> None:
        starts.append(processes)
        if len(starts) <= late:
            raise TimeoutError("only 1 came up in time")
        wait(processes, deadline)

    monkeypatch.setattr(RankProcesses, "_wait_for_engines", wait_too_long)
    if late == 1:
        with Ranks(2) as ranks:
            assert ranks.run(where) == [(0, 2), (1, 2)]
    else:
        with pytest.raises(RankError, match=r"2 ranks were not started .*only 1 came up in time"):
            Ranks(2)
    assert len(starts) == 2
    [record] = caplog.records
    assert "2 ranks were not started" in record.getMessage()
    assert "; they are started once more" in record.getMessage()
    assert "\n" not in record.getMessage()
    for start in starts:
        assert not start.folder.exists()
        assert not carriers(start.token)


def test_ranks_start_inside_a_running_event_loop_as_in_a_notebook():
    async def cell() -> list:
        with Ranks(1) as ranks:
            return ranks.run(where)

    assert asyncio.run(cell()) == [(0, 1)]


def test_files_where_a_command_starts_stand_for_no_module(tmp_path, monkeypatch):
    for name in ("cloudpickle", "psutil", "tornado", "traitlets", "zmq"):
        (tmp_path / f"{name}.py").write_text(f"raise OSError('{name} of a stranger')")
    monkeypatch.chdir(tmp_path)
    with Ranks(1) as ranks:
        folder, found = ranks.run(lambda _: (str(Path.cwd()), __import__("zmq").__file__))[0]
    assert folder == str(tmp_path)
    assert tmp_path not in Path(found).parents


def test_closed_ranks_refuse_to_run():
    ranks = Ranks(1)
    ranks.close()
    ranks.close()
    assert repr(ranks) == "Ranks(1, launcher='local', closed)"
    with pytest.raises(InputError, match="closed"):
        ranks.run(where)


# ---------------------------------------------------------------- nothing is left behind


def script(*lines: str) -> str:
    """A script that starts two ranks and goes on with the lines."""
    start = """
        import signal
        from ddlnb.launch.ranks import Ranks

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none

        def hang(context):
            context.store().wait(["never"])

        print("starting", flush=True)
        ranks = Ranks(2)
        print("running", flush=True)
        """
    return "\n".join([textwrap.dedent(start), *lines])


def test_an_owner_killed_during_a_run_leaves_nothing(tmp_path):
    owner = Owner(tmp_path, script("ranks.run(hang)"))
    owner.read_until("running")
    time.sleep(0.5)
    assert len(owner.left()) > 4
    owner.process.kill()
    owner.assert_nothing_left(within_seconds=10)


def test_owners_killed_while_they_start_leave_nothing(tmp_path):
    moments = random.Random(7)
    owners = [Owner(tmp_path / str(number), script()) for number in range(4)]
    for owner in owners:
        owner.read_until("starting")
        time.sleep(moments.uniform(0.1, 1.5))
        owner.process.kill()
    for owner in owners:
        owner.assert_nothing_left(within_seconds=10)


def test_an_owner_that_just_ends_leaves_nothing_and_says_nothing(tmp_path):
    owner = Owner(tmp_path, script("print('end', ranks.run(lambda context: context.rank))"))
    assert owner.read_until("end") == "starting\nrunning\nend [0, 1]\n"
    assert owner.process.stdout.read() == ""
    owner.assert_nothing_left(within_seconds=5)


def test_an_interrupt_ends_the_run_and_the_next_one_works(tmp_path):
    owner = Owner(
        tmp_path,
        script(
            "try:",
            "    ranks.run(hang)",
            "except KeyboardInterrupt:",
            "    print('interrupted', flush=True)",
            "print('again', ranks.run(lambda context: context.rank), flush=True)",
        ),
    )
    owner.read_until("running")
    time.sleep(0.5)
    start = time.monotonic()
    owner.process.send_signal(signal.SIGINT)
    assert owner.read_until("interrupted") == "interrupted\n"
    assert time.monotonic() - start < 3
    assert owner.read_until("again") == "again [0, 1]\n"
    owner.assert_nothing_left(within_seconds=5)
