"""Ranks: N processes that run one function together, each with a context that says which it is.

    with Ranks(4) as ranks:
        ranks.run(function, argument)     # function(context, argument) on every rank

A run is a collective program: it has ended when every rank has. It is watched from outside: a rank
that fails, dies or does not answer ends the run for all, with one RankError that says what became
of each.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import fields, replace
from typing import Any

from ddlnb.errors import InputError, RankError, reason_of, require, require_positive, require_whole
from ddlnb.launch import leftovers
from ddlnb.launch.capacity import require_room
from ddlnb.launch.launchers import RankSpec, check_launcher
from ddlnb.launch.options import LaunchOptions, Network
from ddlnb.launch.processes import RankProcesses
from ddlnb.launch.rank import Callbacks, Failure, RankContext, call, calling_back, stack_file
from ddlnb.registry import supplied

GRACE_SECONDS = 2.0  # after the first failure, for what the other ranks may add to the message
LOOK_SECONDS = 0.2  # between two looks at the processes; answers are noticed at once
# Says a rank whose peer is gone.
LEFT_ALONE = r"Connection (was likely )?(closed|reset)|Broken pipe|Socket closed|Timed out waiting"
STACK_LINES = 6
STACK_SECONDS = 0.2  # that a rank has to write down where it is
TRACEBACK_LINES = 8


class Watch:
    """Waits for the answers of all ranks, and never in a call that only the slowest can end."""

    def __init__(self, processes: RankProcesses, answers: list, timeout_seconds: float):
        self._processes = processes
        self._answers = answers
        self._timeout_seconds = timeout_seconds
        self._start = time.monotonic()
        self._results: dict[int, bytes] = {}
        self._failures: dict[int, Failure] = {}  # in the order in which they were seen

    def results(self) -> list:
        """Return what the ranks returned. Raises one RankError if any of them did not."""
        deadline = self._start + self._timeout_seconds
        while self._silent() and (left := deadline - time.monotonic()) > 0:
            first = not self._failures
            self._look(min(LOOK_SECONDS, left))
            if self._failures and first:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if len(self._results) < len(self._answers):
            network = self._processes.network
            apart = network.why_apart() if network is not None else ""
            summary = f"{self._summary()}; {apart}" if apart else self._summary()
            raise RankError("\n".join([summary, *self._details()]))
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
            elif not done and (reason := self._processes.lost(rank)):
                self._failures[rank] = Failure(reason, died=True)

    @property
    def _cause(self) -> int | None:
        """The rank whose failure explains the others'; None if all are merely silent.

        A death is the cause of what the neighbours said, even if they said it before, and so is
        any error of those that only say that a connection has ended.
        """

        def follows(rank: int) -> tuple[bool, bool]:
            failure = self._failures[rank]
            return not failure.died, re.search(LEFT_ALONE, str(failure)) is not None

        return min(self._failures, key=follows, default=None)

    def _summary(self) -> str:
        """Return what happened, in one line that stands alone."""
        total, cause = len(self._answers), self._cause
        if cause is None:
            return (
                f"{len(self._silent())} of {total} ranks did not answer within "
                f"{self._timeout_seconds} s; allow more with timeout_seconds "
                f"(ddlnb measure --timeout)"
            )
        first = str(self._failures[cause]).splitlines()[0]
        return f"{len(self._failures)} of {total} ranks failed, first rank {cause}: {first}"

    def _details(self) -> Iterator[str]:
        """Yield what became of each rank, and where the first failure was, line by line."""
        seconds, silent = time.monotonic() - self._start, self._silent()
        stacks = _stacks(self._processes, silent)
        for rank in range(len(self._answers)):
            if rank in silent:
                held = "stopped, " if self._processes.is_stopped(rank) else ""
                yield f"  rank {rank}: {held}no answer after {seconds:.1f} s"
                yield from (f"    {line}" for line in stacks.get(rank, []))
            else:
                yield f"  rank {rank}: {self._failures.get(rank, 'done')}"
        if self._cause is not None and (lines := self._failures[self._cause].traceback):
            yield f"rank {self._cause} said:"
            yield from lines[-TRACEBACK_LINES:]


def _outcome(answer: Any) -> bytes | Failure:
    """Return what a finished call says; for a rank that it lost, ipyparallel itself answers."""
    try:
        return answer.get()
    except Exception as error:
        name = getattr(error, "ename", type(error).__name__)
        if name == "EngineError":
            return Failure("process died", died=True)
        return Failure(f"{name}: {error}")


def _stacks(processes: RankProcesses, silent: list[int]) -> dict[int, list[str]]:
    """Return where in Python the silent ranks are, innermost first, if they can still say so."""
    asked = [rank for rank in silent if not processes.is_stopped(rank)]
    for rank in asked:
        processes.signal(rank, signal.SIGUSR1)
    if asked:
        time.sleep(STACK_SECONDS)
    stacks = {}
    for rank in asked:
        with contextlib.suppress(OSError):
            file = processes.folder / stack_file(processes.pids[rank])
            lines = file.read_text().splitlines()[1:]
            own = [i for i, line in enumerate(lines) if line.endswith(" in call")]
            stacks[rank] = [line.strip() for line in lines[: own[0] if own else None]]
            stacks[rank] = stacks[rank][:STACK_LINES]
    return stacks


class Ranks:
    """N processes started by ipyparallel that run one function together.

    - launcher: "local"; "mpi", "slurm", "ssh" (with hosts=) or another one of ipyparallel's; or the
      name of one of your IPython profiles.
    - host: the address of this machine at which the ranks find their store. The default can only be
      reached from this machine: for ranks on others give an address that they can reach. With a
      batch launcher the temporary folder (TMPDIR) must be on a shared file system.
    - network, scale, ranks_per_node: with launcher "emulated", which puts the ranks on nodes of an
      emulated network: its links by name ("10GbE"), in words ("1Gb/s 50us") or one of these for
      every node; slowed by the scale (1/100: a hundredth of the bandwidth, hundredfold latency).
      ``verified`` is the table of asked and measured links (see `verify`).
    - threads: of torch, in each rank.
    - imports: names of modules that ranks of this machine import once for all, before they are
      forked (Linux; elsewhere each imports what its functions need).
    - timeout_seconds: of a run that does not give its own.

    ``run(function, *arguments)`` returns what the function returned on every rank, in their order;
    its first argument is the context, with ``rank`` and ``count``. ``site`` holds the launcher and
    what it was given. After a RankError or an interrupt the next run starts fresh processes: do not
    rely on anything that a function keeps in a rank. Ranks of this machine that are not up within
    ``start_timeout_seconds`` start once more, and a warning in the log says so. Raises InputError
    for more ranks than this machine has room for, RankError if they do not come up.

    >>> import ddlnb
    >>> with ddlnb.Ranks(2) as ranks:  # doctest: +SKIP
    ...     ranks.run(lambda context, base: base**context.rank, 10)
    [1, 10]
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
        imports: Iterable[str] = (),
        start_timeout_seconds: float = 120,
        timeout_seconds: float = 120,
    ):
        require_whole(count=count, threads=threads)
        require_positive(
            start_timeout_seconds=start_timeout_seconds, timeout_seconds=timeout_seconds
        )
        self.site = LaunchOptions(launcher, host, tuple(hosts), network, scale, ranks_per_node)
        require(
            self.site.is_emulated or network is None,
            f"launcher {launcher!r} with network={network!r}: give network='10GbE' or the like "
            f"with launcher 'emulated', and only with it",
        )
        check_launcher(launcher)
        self.count = count
        address = _own_address(host)
        require_room(count, launcher, address)
        topology = self.site.topology(count) if self.site.is_emulated else None
        self._spec = RankSpec(
            launcher,
            count,
            address,
            self.site.hosts,
            threads,
            start_timeout_seconds,
            topology and topology.slowed(scale),
            ranks_per_node,
            tuple(imports),
        )
        self._timeout_seconds = timeout_seconds
        self._runs = 0
        self._one_run = threading.Lock()
        self._closed = False
        self._processes: RankProcesses | None = None
        self._end: Callable = lambda: None
        self._running()
        emulated = self.network
        self.verified = emulated and supplied("verification of links")(
            self.run, emulated, -(-count // ranks_per_node), ranks_per_node
        )

    @classmethod
    def at(cls, site: LaunchOptions, count: int, **options: Any) -> Ranks:
        """Start ranks where launch options say, whose network is a name unless it is emulated.

        ``options`` are imports, threads and seconds.
        """
        where = {one.name: getattr(site, one.name) for one in fields(site)}
        return cls(count, **where | ({} if site.is_emulated else {"network": None}), **options)

    @property
    def pids(self) -> list[int]:
        """The process ids by rank; empty while no processes are up."""
        return list(self._processes.pids) if self._processes and not self._processes.ended else []

    @property
    def network(self) -> Any:
        """The emulated network the ranks are on, while they are up."""
        return self._processes.network if self._processes and not self._processes.ended else None

    def run(
        self,
        function: Callable,
        *args: Any,
        count: int | None = None,
        timeout_seconds: float | None = None,
        callbacks: Callbacks | None = None,
    ) -> list:
        """Return what ``function(context, *args)`` returned on ranks 0 to count - 1, in that order.

        The function may be any that can be imported here, or one defined in a notebook.
        ``callbacks`` are functions by the name of a barrier. One is called here, in a thread, when
        a rank calls ``context.reach(name)``, which waits for it; barriers are reached in this order
        or not at all.
        Raises RankError when a rank raised, died, or was not done after timeout_seconds.
        """
        count = self.count if count is None else count
        timeout_seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        require_whole(count=count)
        require_positive(timeout_seconds=timeout_seconds)
        require(
            count <= self.count,
            f"count={count} is more than the {self.count} ranks that were started; "
            f"start them with Ranks({count})",
        )
        payload = _pickled(function, args)
        with self._one_run:
            processes = self._running()
            self._runs += 1
            context = RankContext(
                rank=0,
                count=count,
                owner_host=self._spec.host,
                store_address=processes.store.address,
                store_secret=processes.store.secret,
                prefix=f"run{self._runs}",
                host=self._spec.host,
                threads=self._spec.threads,
                timeout_seconds=timeout_seconds,
                barriers=tuple(callbacks or ()),
            )
            # Whatever happens, the run has ended at twice its time.
            own = replace(context, timeout_seconds=2 * timeout_seconds)
            try:
                with calling_back(own.store, callbacks or {}):
                    answers = [
                        processes.call(rank, call, replace(context, rank=rank), sys.path, payload)
                        for rank in range(count)
                    ]
                    results = Watch(processes, answers, timeout_seconds).results()
                processes.forget()
                return results
            except BaseException:  # also an interrupt: the ranks may be inside a collective
                self._end()
                raise

    def _running(self) -> RankProcesses:
        """Return the processes, started afresh if they were ended or if one has died since."""
        require(not self._closed, "these ranks are closed; start others with Ranks(count)")
        if self._processes and any(map(self._processes.lost, range(self.count))):
            self._end()
        if self._processes is None or self._processes.ended:
            self._processes = None
            self._processes = _started(self._spec)
            self._end = weakref.finalize(self, self._processes.end)  # also at exit
        return self._processes

    def close(self) -> None:
        """End the processes; safe to call twice."""
        self._closed = True
        self._end()
        self._processes = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Ranks({self.count}, launcher={self.site.launcher!r}{state})"


def _started(spec: RankSpec) -> RankProcesses:
    """Return started ranks. Where they are late on this machine, they are ended and start again.

    Engines that cannot register on a busy machine give up, and none would come by waiting longer.
    A queue or a host that is late once is so again. Raises RankError.
    """
    leftovers.sweep()
    try:
        return RankProcesses(spec)
    except RankError as error:
        if spec.is_remote or not isinstance(error.__cause__, TimeoutError):
            raise
        first = str(error).splitlines()[0]
        logging.getLogger(__name__).warning("%s; they are started once more", first)
    return RankProcesses(spec)


def _own_address(host: str) -> str:
    """Return the address behind the name. Raises InputError if it is not one of this machine."""
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
            f"what the ranks are to run cannot be sent to them: {reason_of(error)}; give plain "
            f"data, and functions that make the rest there, such as ddlnb.task(MAKE_MODULE, ...)"
        ) from error
