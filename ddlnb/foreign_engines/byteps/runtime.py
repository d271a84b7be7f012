"""BytePS in one run: a scheduler, servers and workers, which our ranks join and leave.

BytePS finds its peers by environment variables. The scheduler and the servers are its own
programs: a scheduler beside worker 0, a server beside every rank that serves. They are children
of the rank, carry its environment and thus its token, and Linux ends them with the rank. The
workers are the ranks themselves: BytePS's state is set up and taken down in the process as often
as jobs come, because a fresh process per job would import torch each time, which takes longer
than most jobs. A job that fails ends its ranks anyway.

BytePS detects no failures and waits for ever. So whatever may hang is called on a thread or with a
time-out, and a rank watches its child while it waits.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from ddlnb.errors import MissingPart
from ddlnb.foreign_engines import catalogue
from ddlnb.foreign_engines.catalogue import environment
from ddlnb.launch.rank import RankContext

LOOK_SECONDS = 0.05
LOG_LINES = 12
# PR_SET_PDEATHSIG and SIGKILL: the helper ends with the rank that started it. Importing the module
# runs the scheduler or the server until all workers have left.
_HELPER = "import ctypes; ctypes.CDLL(None).prctl(1, 9); import byteps.server"


class BytePSError(RuntimeError):
    """A part of BytePS ended or hung; the message quotes its output."""


def imported() -> Any:
    """Return the module ``byteps.torch.ops``. Raises MissingPart with the reason and the fix."""
    ops = catalogue.imported("BytePS", "byteps.torch.ops")
    if not hasattr(ops.c_lib, "byteps_torch_wait"):
        raise MissingPart(
            "this BytePS lacks our patches, without which it hangs and sums wrongly; "
            "scripts/install_engines.sh builds it with them"
        )
    return ops


class Helper:
    """The scheduler or a server of BytePS: a child process of this rank."""

    def __init__(self, role: str, variables: dict[str, str]):
        self._role = role
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (without a name: nothing stays)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _HELPER],
            env={**os.environ, **variables, "DMLC_ROLE": role},
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
        )

    def has_left(self) -> bool:
        """Return whether it ended because all workers have left. Raises BytePSError if it died."""
        status = self._process.poll()
        if status:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").splitlines()[-LOG_LINES:]
            raise BytePSError(
                "\n".join([f"BytePS's {self._role} ended with status {status}:", *lines])
            )
        return status == 0

    def wait(self, seconds: float) -> None:
        """Return when all workers have left. Raises BytePSError if it died, or after seconds."""
        deadline = time.monotonic() + seconds
        while not self.has_left():
            if time.monotonic() > deadline:
                raise BytePSError(f"the workers did not leave BytePS's {self._role} in {seconds} s")
            time.sleep(LOOK_SECONDS)

    def end(self) -> None:
        """Kill it if it still runs; safe to call twice."""
        self._process.kill()
        self._process.wait()
        self._said.close()


class Membership:
    """This worker's membership: ``ops`` is BytePS's module, ready to push and pull."""

    def __init__(
        self,
        context: RankContext,
        store: Any,
        workers: int,
        servers: int,
        partition_bytes: int,
        credit_partitions: int = 0,
        asynchronous: bool = False,
    ):
        """Join with all workers and servers of the run. Raises BytePSError or MissingPart.

        The servers must be started as ``asynchronous`` as well.
        """
        self.ops = imported()
        self._timeout = context.timeout_seconds
        self._scheduler: Helper | None = None
        self._next_look = 0.0
        variables = {
            "DMLC_ROLE": "worker",
            "DMLC_WORKER_ID": str(context.rank),
            "BYTEPS_LOCAL_RANK": "0",
            "BYTEPS_LOCAL_SIZE": "1",
            "BYTEPS_FORCE_DISTRIBUTED": "1",  # also a lone worker asks the servers
            "BYTEPS_PARTITION_BYTES": str(partition_bytes),
            "BYTEPS_SCHEDULING_CREDIT": str(credit_partitions),
        }
        try:
            if context.rank == 0:
                root = f"{context.host} {_free_port(context.host)}"
                shared = _variables(context, root, workers, servers, asynchronous)
                self._scheduler = Helper("scheduler", shared)
                store.set("byteps root", root)
            root = store.get("byteps root").decode()
            shared = _variables(context, root, workers, servers, asynchronous)
            with environment(shared | variables):
                self._call("joined", self._join)
        except BaseException:
            self._end_scheduler()
            raise

    def check(self) -> None:
        """Raise BytePSError if the scheduler, where it is this rank's child, has died.

        Sums do not need it, but leaving does: it is checked ten times a second at most.
        """
        if self._scheduler is None or (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + 2 * LOOK_SECONDS
        if self._scheduler.has_left():
            raise BytePSError("BytePS's scheduler left before the workers")

    def wait(self, handle: int, what: str) -> None:
        """Return when the push and pull behind the handle are done.

        Raises BytePSError if they cannot be any more, or are not within the run's time-out.
        """
        deadline = time.monotonic() + self._timeout
        self.check()
        while not self.ops.c_lib.byteps_torch_wait(handle, LOOK_SECONDS):
            self.check()
            if time.monotonic() > deadline:
                raise BytePSError(
                    f"{what} was not summed within {self._timeout} s: a server of BytePS is gone, "
                    f"or another worker did not push it"
                )

    def leave(self) -> None:
        """Leave with all others; the process can then join again."""
        try:
            self._call("left", self.ops.shutdown)
            if self._scheduler is not None:
                self._scheduler.wait(self._timeout)
        finally:
            self._end_scheduler()

    def _join(self) -> None:
        self.ops.init(lazy=False)
        # At exit it would wait for everybody; leave() is where we do.
        atexit.unregister(self.ops.shutdown)

    def _call(self, done_what: str, function: Callable[[], Any]) -> None:
        """Call what waits for all others on a thread, because only a thread can be given up."""
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        # From here, not from a pool: only threads of this one are in its network namespace.
        threading.Thread(target=run, name="byteps", daemon=True).start()
        deadline = time.monotonic() + self._timeout
        while not done.wait(LOOK_SECONDS):
            if self._scheduler is not None:
                self._scheduler.has_left()  # it may leave while a worker is leaving
            if time.monotonic() > deadline:
                raise BytePSError(
                    f"not all workers and servers have {done_what} BytePS within {self._timeout} s"
                )

    def _end_scheduler(self) -> None:
        if self._scheduler is not None:
            self._scheduler.end()


def serve(
    context: RankContext, store: Any, workers: int, servers: int, asynchronous: bool = False
) -> None:
    """Run a server until all workers have left. Raises BytePSError as soon as it dies.

    It answers a pull when all workers have pushed, with the sum of that round. An ``asynchronous``
    server answers at once, with the sum of all pushes since the start.
    """
    root = store.get("byteps root").decode()
    server = Helper("server", _variables(context, root, workers, servers, asynchronous))
    try:
        server.wait(context.timeout_seconds)
    finally:
        server.end()


def _variables(
    context: RankContext, root: str, workers: int, servers: int, asynchronous: bool
) -> dict[str, str]:
    """Return the variables of every part. All sockets listen on their rank's address only."""
    host, port = root.split()
    return {
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NODE_HOST": context.host,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_ENABLE_RDMA": "zmq",
        "BYTEPS_ENABLE_ASYNC": str(int(asynchronous)),
        "BYTEPS_SERVER_ENGINE_BLOCKING": "0",  # sums in a buffer that is not there
        "BYTEPS_OMP_THREAD_PER_GPU": str(context.threads),  # of a server, for one sum
    }


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return probe.getsockname()[1]
