"""Ranks: N processes that run one function together, and the place each of them is told.

    with Ranks(4) as ranks:
        ranks.run(function, argument)     # function(context, argument) on every rank

A run is a collective program: it has ended when every rank has. A rank that fails, dies or does
not answer ends the run for all, with one RankError that says what became of each.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from typing import Any

from ddlnb.errors import InputError, RankError, require, require_whole
from ddlnb.launch.capacity import require_room
from ddlnb.launch.emulation.links import links_of
from ddlnb.launch.emulation.network import MEETING_HOST, EmulatedNetwork
from ddlnb.launch.launchers import RankSpec, check_launcher
from ddlnb.launch.processes import World
from ddlnb.launch.rank import Failure, RankContext, call, prepare, stack_file
from ddlnb.launch.site import Network, Site
from ddlnb.launch.verify_links import verify

GRACE_SECONDS = 2.0  # from the first failure on, what the other ranks may add to the message
LOOK_SECONDS = 0.2  # between two looks at the processes; answers are noticed at once
STACK_LINES = 6
TRACEBACK_LINES = 8


class Ranks:
    """N processes started by ipyparallel, that run one function together.

    launcher: "local"; "mpi", "slurm", "ssh" (with hosts=) or another one of ipyparallel's; or the
        name of one of your IPython profiles.
    host: the address of this machine at which the ranks find their store. The default is only
        reachable from this machine: for ranks elsewhere give an address that they can reach.
        With a batch launcher the temporary folder (TMPDIR) must be on a shared file system.
    network, scale, ranks_per_node: with launcher "emulated", which puts the ranks on nodes of an
        emulated network: its links by name ("10GbE"), in words ("1Gb/s 50us") or one of these for
        every node; slowed by the scale (1/100: a hundredth of the bandwidth, hundredfold latency).
        ``verified`` is the table of asked and measured links (see `verify`).
    threads: of torch, in each rank.
    timeout_seconds: of a run that does not say its own.

    After a RankError or an interrupt the next run starts fresh processes: nothing that a function
    keeps in a rank is there for certain in the next run.
    """

    def __init__(
        self,
        count: int,
        *,
        launcher: str = "local",
        host: str = "127.0.0.1",
        hosts: Iterable[str] = (),
        network: Network | None = None,
        scale: float = 1.0,
        ranks_per_node: int = 1,
        threads: int = 1,
        start_timeout_seconds: float = 120,
        timeout_seconds: float = 120,
    ):
        require_whole(count=count)
        require_whole(threads=threads)
        _require_seconds("start_timeout_seconds", start_timeout_seconds)
        _require_seconds("timeout_seconds", timeout_seconds)
        self.site = Site(launcher, host, tuple(hosts), network, scale, ranks_per_node)
        require(
            self.site.is_emulated or network is None,
            f"launcher {launcher!r} with network={network!r}: give network='10GbE' or the like "
            f"with launcher 'emulated', and only with it",
        )
        check_launcher(launcher)
        self.count = count
        address = _own_address(host)
        require_room(count, launcher, address)
        links = [] if network is None else links_of(network, -(-count // ranks_per_node))
        self.launch = RankSpec(
            launcher,
            count,
            address,
            self.site.hosts,
            threads,
            start_timeout_seconds,
            tuple(link.slowed(scale) for link in links),
            ranks_per_node,
        )
        self._timeout_seconds = timeout_seconds
        self._runs = 0
        self._one_run = threading.Lock()
        self._closed = False
        self._world: World | None = None
        self._end: Callable = lambda: None
        self._ready_world()
        emulated = self.network
        self.verified = emulated and verify(self.run, emulated, self.launch.links, ranks_per_node)

    @classmethod
    def at(cls, site: Site, count: int, *, timeout_seconds: float = 120) -> Ranks:
        """Start ranks at a site; where nothing is emulated its network is a name only."""
        return cls(
            count,
            launcher=site.launcher,
            host=site.host,
            hosts=site.hosts,
            network=site.network if site.is_emulated else None,
            scale=site.scale,
            ranks_per_node=site.ranks_per_node,
            timeout_seconds=timeout_seconds,
        )

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty while no processes are up."""
        return list(self._world.pids) if self._world and not self._world.ended else []

    @property
    def network(self) -> EmulatedNetwork | None:
        """The emulated network the ranks are on, while they are up."""
        return self._world.network if self._world and not self._world.ended else None

    def run(
        self,
        function: Callable,
        *args: Any,
        count: int | None = None,
        timeout_seconds: float | None = None,
    ) -> list:
        """What function(context, *args) returned on ranks 0 to count - 1, in that order.

        The function may be any that can be imported here, or one defined in a notebook.
        Raises RankError when a rank raised, died, or was not done after timeout_seconds.
        """
        count = self.count if count is None else count
        timeout_seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        require_whole(count=count)
        _require_seconds("timeout_seconds", timeout_seconds)
        if count > self.count:
            raise InputError(
                f"count={count} is more than the {self.count} ranks there are; "
                f"start them with Ranks({count})"
            )
        payload = _pickled(function, args)
        with self._one_run:
            world = self._ready_world()
            self._runs += 1
            context = RankContext(
                rank=0,
                count=count,
                store_host=world.meeting[0],
                store_port=world.meeting[1],
                prefix=f"run{self._runs}",
                host=self.launch.host,
                threads=self.launch.threads,
                timeout_seconds=timeout_seconds,
            )
            try:
                answers = [
                    world.call(rank, call, replace(context, rank=rank), sys.path, payload)
                    for rank in range(count)
                ]
                results = _Watch(world, answers, timeout_seconds).results()
                world.forget()
                return results
            except BaseException:  # also an interrupt: the ranks may be inside a collective
                self._end()
                raise

    def _ready_world(self) -> World:
        """The world, started afresh if it was ended or if one of its ranks died since."""
        require(not self._closed, "these ranks are closed; start others with Ranks(count)")
        if self._world and any(map(self._world.lost, range(self.count))):
            self._end()
        if self._world is None or self._world.ended:
            self._world = None
            store_host = MEETING_HOST if self.launch.links else self.launch.host
            self._world = World(self.launch, prepare, store_host)
            self._end = weakref.finalize(self, self._world.end)  # also at exit
        return self._world

    def close(self) -> None:
        """End the processes; safe to call twice."""
        self._closed = True
        self._end()
        self._world = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Ranks({self.count}, launcher={self.site.launcher!r}{state})"


def _require_seconds(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require(
        number and math.isfinite(value) and value > 0,
        f"{name}={value!r} is not a positive number of seconds",
    )


def _own_address(host: str) -> str:
    """The address behind the name, if services can be bound to it here."""
    try:
        address = socket.gethostbyname(host)
        socket.create_server((address, 0)).close()
    except OSError as error:
        raise InputError(
            f"host={host!r} is not an address of this machine ({error}); give the one at which "
            f"the ranks reach it, or leave it out when they run here"
        ) from error
    return address


def _pickled(function: Callable, args: tuple) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((function, args))
    except Exception as error:
        raise InputError(
            f"{function!r} with its arguments cannot be sent to the ranks: {error}; "
            f"pass plain data and create the rest inside the function"
        ) from error


class _Watch:
    """One run, watched from outside: never a call that only the slowest rank can end."""

    def __init__(self, world: World, answers: list, timeout_seconds: float):
        self._world = world
        self._answers = answers
        self._timeout_seconds = timeout_seconds
        self._start = time.monotonic()
        self._results: dict[int, bytes] = {}
        self._failures: dict[int, Failure] = {}  # in the order in which they were seen

    def results(self) -> list:
        """What the ranks returned, or one RankError."""
        deadline = self._start + self._timeout_seconds
        while self._silent() and (left := deadline - time.monotonic()) > 0:
            first = not self._failures
            self._look(min(LOOK_SECONDS, left))
            if self._failures and first:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if len(self._results) < len(self._answers):
            raise RankError("\n".join(self._report()))
        return [pickle.loads(self._results[rank]) for rank in range(len(self._answers))]

    def _silent(self) -> list[int]:
        ranks = range(len(self._answers))
        return [r for r in ranks if r not in self._results and r not in self._failures]

    def _look(self, seconds: float) -> None:
        """Take the answers that arrive; if none does, see which processes are gone."""
        silent = self._silent()
        done, _ = wait([self._answers[rank] for rank in silent], seconds, FIRST_COMPLETED)
        for rank in silent:
            if self._answers[rank] in done:
                outcome = _outcome(self._answers[rank])
                if isinstance(outcome, Failure):
                    self._failures[rank] = outcome
                else:
                    self._results[rank] = outcome
            elif not done and (reason := self._world.lost(rank)):
                self._failures[rank] = Failure(reason, died=True)

    def _report(self) -> Iterator[str]:
        """What became of each rank, and where the first failure was, line by line."""
        seconds = time.monotonic() - self._start
        total, silent = len(self._answers), self._silent()
        # A death is the cause of what the neighbours said, even if they said it before.
        cause = min(self._failures, key=lambda r: not self._failures[r].died, default=None)
        if cause is None:
            yield (
                f"{len(silent)} of {total} ranks did not answer within {self._timeout_seconds} s; "
                f"allow more with timeout_seconds="
            )
        else:
            yield f"{len(self._failures)} of {total} ranks failed, first rank {cause}"
        stacks = _stacks(self._world, silent)
        for rank in range(total):
            if rank in silent:
                held = "stopped, " if self._world.is_stopped(rank) else ""
                yield f"  rank {rank}: {held}no answer after {seconds:.1f} s"
                yield from (f"    {line}" for line in stacks.get(rank, []))
            else:
                yield f"  rank {rank}: {self._failures.get(rank, 'done')}"
        if cause is not None and self._failures[cause].traceback:
            yield f"rank {cause} said:"
            yield from self._failures[cause].traceback[-TRACEBACK_LINES:]


def _outcome(answer: Any) -> bytes | Failure:
    """What a finished call says; ipyparallel itself answers for a rank that it lost."""
    try:
        return answer.get()
    except Exception as error:
        name = getattr(error, "ename", type(error).__name__)
        if name == "EngineError":
            return Failure("process died", died=True)
        return Failure(f"{name}: {error}")


def _stacks(world: World, silent: list[int]) -> dict[int, list[str]]:
    """Where in Python the silent ranks are, innermost first, as far as they can still tell."""
    asked = [rank for rank in silent if not world.is_stopped(rank)]
    for rank in asked:
        world.signal(rank, signal.SIGUSR1)
    if asked:
        time.sleep(0.2)
    stacks = {}
    for rank in asked:
        with contextlib.suppress(OSError):
            lines = (world.folder / stack_file(world.pids[rank])).read_text().splitlines()[1:]
            own = [i for i, line in enumerate(lines) if line.endswith(" in call")]
            stacks[rank] = [line.strip() for line in lines[: own[0] if own else None]]
            stacks[rank] = stacks[rank][:STACK_LINES]
    return stacks
