"""The processes of one set of ranks, from their start to their end.

They are started once and ended once, and leave nothing behind: they carry a token in their
environment, their files are in one private folder, and a reaper (see reaper.py) that was there
before them cleans up even if this process is killed. Where the reaper cannot reach, on other
machines, every rank holds a heartbeat: a connection to its owner over which nothing is ever sent.
It breaks when the owner lets go, and when it dies; then the rank ends at once, also in the midst of
a collective, and takes its folder with it, but for that of an owner that died on the same machine:
by it the next start finds what else was left (see leftovers.py).
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ddlnb.errors import DdlnbError, RankError, require
from ddlnb.files import claim, is_abandoned
from ddlnb.launch import reaper
from ddlnb.launch.launchers import RankSpec, cancel_command, cluster, jobs_in_queue
from ddlnb.launch.options import is_here
from ddlnb.launch.rank import prepare
from ddlnb.launch.store import StoreServer
from ddlnb.registry import supplied

Item = TypeVar("Item")

# A machine that loses its power closes no connection: asked every so often, it does not answer.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, times


def hold(folder: str, host: str, port: int) -> tuple[str, int]:
    """Make this process end with its owner; the name of its machine, and its number in the job.

    The owner listens at that address and never accepts: the system keeps connections in the queue,
    and breaks them all when the listener is closed, which a death does too.

    Called once in every rank. OSError if the owner cannot be reached. The number is that of a
    Slurm task, which counts machine by machine, and 0 where there is none.
    """
    line = socket.create_connection((host, port), timeout=30)
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        with suppress(AttributeError, OSError):  # not on every system
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    threading.Thread(target=_end_with_owner, args=(line, folder), daemon=True).start()
    return platform.node(), int(os.environ.get("SLURM_PROCID", 0))


def _end_with_owner(line: socket.socket, folder: str) -> None:
    with suppress(OSError):
        line.recv(1)
    if not is_abandoned(Path(folder)):  # a dead owner's tells the next start what else it left
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def neighbours_together(items: Sequence[Item], slots: Sequence[tuple[str, int]]) -> list[Item]:
    """Return the items machine by machine, by their numbers there; machines as they came first.

    Ranks are numbered in the order of this list: a ring then leaves each machine once, and
    ranks of one machine take different GPUs.

    >>> neighbours_together("abcd", [("n1", 3), ("n2", 2), ("n1", 1), ("n2", 0)])
    ['d', 'b', 'c', 'a']
    """
    machines = list(dict.fromkeys(machine for machine, _ in slots))  # as they came
    first = {one: min(number for machine, number in slots if machine == one) for one in machines}
    keys = [(first[machine], machines.index(machine), number) for machine, number in slots]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


LONGEST_SOCKET = 103  # bytes of the name of a Unix socket
STOP_SECONDS = 10.0  # for the reaper, after which this process cleans up itself
LOG_LINES = 15  # of what the launcher and the ranks wrote, quoted in an error
LOOK_SECONDS = 5.0  # between two looks at what starts the ranks, which may be a busy queue
# The ranks find what this process can import, a notebook's folder or an editable install, behind
# what is installed; and files where it does, or at home on a machine that lacks the folder.
_SETTLE = """import os, sys
sys.path[:] = [p for p in sys.path if p]
sys.path += [p for p in {path!r} if p not in sys.path]
os.chdir(next(p for p in ({folder!r}, os.path.expanduser("~"), "/") if os.access(p, os.X_OK)))"""


class _Unready(RuntimeError):
    """What starts the ranks has ended before they were there."""


class _Late(_Unready, TimeoutError):
    """Not all ranks were there in time."""


class RankProcesses:
    """The started ranks: processes, the calls into them, and the store they share."""

    def __init__(self, launch: RankSpec):
        """Start everything. Raises RankError if the ranks do not come up in time.

        The reaper is told the name of the folder before the folder is there, and is there before
        any process, so that there is no moment at which a death leaves something behind.
        """
        self.token = secrets.token_hex(16)
        self.folder = Path(tempfile.gettempdir()) / f"ddlnb-{self.token[:12]}"
        self.pids: list[int] = []
        self._local: list[psutil.Process | None] = []
        self._client: Any = None
        self._cluster: Any = None
        self._launch = launch
        self.store: Any = None  # a StoreServer
        self.network: Any = None  # an emulated one
        self._heartbeat: socket.socket | None = None
        self._claim: Any = None  # of the folder, while this process lives
        self.ended = False
        self._cancel = cancel_command(self.folder.name) if launch.in_slurm else []
        self._reaper = subprocess.Popen(
            [
                *(sys.executable, "-P", reaper.__file__),
                *(self.token, str(os.getpid()), str(self.folder), *self._cancel),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # who reads the output of a killed owner need not wait
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the owner
        )
        try:
            self._start()
        except DdlnbError:
            self.end()
            raise
        except Exception as error:
            message = self._not_started(error)
            self.end()
            raise RankError(message) from error
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        deadline = time.monotonic() + self._launch.timeout_seconds
        self.folder.mkdir(mode=0o700)
        self._claim = claim(self.folder)
        self.store = self._store()
        if self._launch.launcher == "mpi":
            with suppress(OSError):  # no such memory here
                reaper.shared_memory(self.folder).mkdir(mode=0o700)
        before: list[str] = []
        if self._launch.topology is not None:
            own = {reaper.TOKEN_VARIABLE: self.token, "IPYTHONDIR": str(self.folder)}
            self.network = supplied("emulated network")(self._launch.topology, own)
            before = self.network.enter_user
        self._cluster = cluster(self._launch, self.token, self.folder, before)
        self._cluster.start_controller_sync()
        self._cluster.start_engines_sync(self._launch.count)
        self._connect(deadline)
        self._wait_for_engines(deadline)
        self._views = [self._client[engine] for engine in sorted(self._client.ids)]
        self._views = self._views[: self._launch.count]
        settle = _SETTLE.format(path=sys.path, folder=str(Path.cwd()))
        wait([view.execute(settle, silent=True) for view in self._views])
        if self._launch.is_remote:
            self._tie_to_owner(deadline)
        nodes = [rank // self._launch.ranks_per_node for rank in range(self._launch.count)]
        slots = [self.network.slot(node) if self.network else None for node in nodes]
        where = [(str(self.folder), slot, self._launch.host) for slot in slots]
        self.pids = self._answers(prepare, where, deadline, "ready")
        self._local = [self._if_local(pid) for pid in self.pids]

    def _store(self) -> StoreServer:
        """Return a store that this machine alone can reach, if all ranks are on it."""
        path, launch = str(self.folder / "store"), self._launch
        fits = len(os.fsencode(path)) <= LONGEST_SOCKET and is_here(launch.launcher, launch.host)
        require(
            fits or launch.topology is None,
            f"the temporary folder {tempfile.gettempdir()!r} is too long a name for a socket in "
            f"it; set a shorter TMPDIR",
        )
        return StoreServer(path if fits else (launch.host, 0))

    def _wait_for_engines(self, deadline: float) -> None:
        look = time.monotonic() + LOOK_SECONDS
        while (up := len(self._client.ids)) < self._launch.count:
            now = time.monotonic()
            if now > deadline:
                raise _Late(f"only {up} came up in time")
            if now > look:
                look = now + LOOK_SECONDS
                if self._is_over():
                    raise _Unready(f"what starts them has ended, {up} came up")
                # Of an engine that registers while a client connects, the client may never hear.
                self._connect(deadline)
            time.sleep(0.02)

    def _connect(self, deadline: float) -> None:
        if self._client is not None:
            self._client.close(linger=0)
        self._client = self._cluster.connect_client_sync(
            ipython_dir=str(self.folder), timeout=max(1, deadline - time.monotonic())
        )

    def _is_over(self) -> bool:
        """Return whether the job, mpiexec or a connection that starts the engines has ended."""
        if self._launch.launcher == "slurm":
            with suppress(OSError):  # it may answer the next time
                return not jobs_in_queue(self.folder.name)
        if self._launch.launcher in ("mpi", "ssh"):
            return self._cluster.engine_set.poll() is not None
        return False

    def _tie_to_owner(self, deadline: float) -> None:
        """Make remote ranks end when this process does, and number those of a machine in a row."""
        self._heartbeat = socket.create_server((self._launch.host, 0), backlog=self._launch.count)
        end = (str(self.folder), *self._heartbeat.getsockname())
        slots = self._answers(hold, [end] * self._launch.count, deadline, "reached")
        self._views = neighbours_together(self._views, slots)

    def _answers(self, function: Callable, where: list[tuple], deadline: float, what: str) -> list:
        """Return what the function returns on every rank, each with arguments of its own."""
        calls = [self.call(rank, function, *args) for rank, args in enumerate(where)]
        done, late = wait(calls, timeout=max(1, deadline - time.monotonic()))
        if late:
            raise _Late(f"only {len(done)} were {what} in time")
        return [call.get() for call in calls]

    def _not_started(self, error: Exception) -> str:
        """Return one line that stands alone, then all that the queue and the logs say."""
        kind = type(error).__name__
        what = str(error) if isinstance(error, _Unready) else f"{kind}: {error}"
        if isinstance(error, TimeoutError):
            seconds = self._launch.timeout_seconds
            what += f"; start_timeout_seconds={seconds} can be raised"
        said = self._said()
        if said and self._launch.is_remote:
            what += f"; {said[0]}" if self._launch.launcher == "slurm" else f"; {said[-1]}"
        summary = (
            f"{self._launch.count} ranks were not started with launcher "
            f"{self._launch.launcher!r}: {what}"
        )
        return "\n".join([summary, *said])

    def _said(self) -> list[str]:
        """Return what Slurm's queue says of the job, and the last lines of the logs."""
        logs = sorted(self.folder.glob("log/*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        queue = []
        if self._launch.launcher == "slurm":
            try:
                queue = jobs_in_queue(self.folder.name) or ["their job is not in the queue"]
            except OSError as silence:
                queue = [str(silence)]
        return [*queue, *lines[-LOG_LINES:]]

    def _if_local(self, pid: int) -> psutil.Process | None:
        """Return the process if it runs on this machine: on another the number means nothing."""
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if reaper.carries(process, self.token):
                return process
        return None

    def call(self, rank: int, function: Callable, *args: Any) -> Any:
        """Return the future of function(*args) in one rank."""
        return self._views[rank].apply_async(function, *args)

    def forget(self) -> None:
        """Drop what the client keeps of finished calls: a long sweep would fill the memory."""
        with suppress(RuntimeError):
            self._client.purge_local_results("all")
        self._client.history.clear()

    def lost(self, rank: int) -> str:
        """Return why the rank cannot answer any more; empty if it may, as far as can be seen."""
        process = self._local[rank]
        if process is not None and reaper.has_ended(process):
            return "process died"
        controller = getattr(self._cluster.controller, "process", None)  # none in a batch queue
        if controller is not None and reaper.has_ended(controller):
            return "the controller of ipyparallel, which connects the ranks, died"
        return ""

    def is_stopped(self, rank: int) -> bool:
        """Return whether the process of the rank is held by SIGSTOP or a debugger."""
        with suppress(psutil.Error):
            process = self._local[rank]
            return process is not None and process.status() in (
                psutil.STATUS_STOPPED,
                psutil.STATUS_TRACING_STOP,
            )
        return False

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that runs on this machine."""
        with suppress(psutil.Error):
            if process := self._local[rank]:
                process.send_signal(number)

    def end(self) -> None:
        """End every process, remove the folder; safe to call twice."""
        self.ended = True
        for held in filter(None, (self._heartbeat, self._claim)):
            held.close()
        for rank in range(len(self._local)):
            self.signal(rank, signal.SIGKILL)
        if self.store is not None:
            self.store.close()
        if self._client is not None:
            self._client.close(linger=0)
        # Only the launcher can end remote processes. The reaper cancels a job of Slurm.
        if self._cluster is not None and self._launch.launcher not in ("local", "mpi", "slurm"):
            with suppress(Exception):
                self._cluster.stop_engines_sync()
        if self.network is not None:
            self.network.close()
        with suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self._reaper.communicate(reaper.ALL_ENDED, STOP_SECONDS)
        if self._reaper.returncode != 0:  # somebody ended the reaper
            reaper.clean(self.token, self.folder, cancel=self._cancel)
