"""The Horovod world of one run: joined when the run starts and left when it ends.

Horovod finds its peers by environment variables and a small HTTP server. Here the processes are
there already, so worker 0 opens that server for as long as all need it, and every worker sets
the variables of its slot for as long as Horovod reads them. So do processes that ``horovodrun``
started: its server is not made for being asked twice. Those that it started by MPI need neither.
"""

from __future__ import annotations

import math
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ddlnb.engines.environment import environment
from ddlnb.errors import InputError, MissingPart
from ddlnb.launch.rank import RankContext, interface_of

_joined = False  # whether this process has ever been in a world


@dataclass(frozen=True)
class Slot:
    """Where a worker is: its number among all, on its host, and among the same of other hosts."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell Horovod so."""
        numbers = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        named = {f"HOROVOD_{name.upper()}": str(getattr(self, name)) for name in numbers}
        return {"HOROVOD_HOSTNAME": self.hostname, **named}


def slots(hosts: list[str]) -> list[Slot]:
    """The slot of every worker, given the workers' hosts by rank.

    >>> [(s.rank, s.local_rank, s.cross_rank) for s in slots(["a", "b", "a"])]
    [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    """
    local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    found = []
    for rank, host in enumerate(hosts):
        across = [hosts[r] for r in range(len(hosts)) if local[r] == local[rank]]
        number = across.index(host)
        sizes = (hosts.count(host), number, len(across))
        found.append(Slot(host, rank, len(hosts), local[rank], *sizes))
    return found


def missing() -> str:
    """What this machine lacks to run Horovod; "" if it has all, without importing it."""
    found = find_spec("horovod")
    folders = found.submodule_search_locations if found else None
    if not folders:
        return "Horovod is not installed; scripts/install_engines.sh builds it"
    if not any(Path(folder, "torch").glob("mpi_lib_v2*.so") for folder in folders):
        return "Horovod was built without PyTorch; scripts/install_engines.sh builds it with it"
    return ""


def join(context: RankContext, store: Any, workers: int, fusion_bytes: int) -> Any:
    """The module ``horovod.torch``, initialised with these workers over gloo.

    Over MPI where ``HOROVOD_CONTROLLER=mpi`` says so, which `ddlnb.cli.horovodrun` sets.
    Call `leave` when all is done. Horovod merges tensors that are ready at the same time up to
    ``fusion_bytes``. Raises MissingPart if Horovod cannot be used here, InputError for settings
    in the environment that it would not survive.
    """
    global _joined
    hvd = imported()
    if _joined and "HOROVOD_CYCLE_TIME" in os.environ:
        raise InputError(
            "HOROVOD_CYCLE_TIME ends the process when Horovod is initialised a second time "
            "beside a fusion threshold; unset it"
        )
    seconds = math.ceil(context.timeout_seconds)
    common = {
        # Always, as what Horovod 0.28 was told once it keeps when it is not told again.
        "HOROVOD_FUSION_THRESHOLD": str(fusion_bytes),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(seconds),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(min(60, max(1, seconds // 2))),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(seconds),
    }
    way = _by_mpi(workers) if over_mpi() else _rendezvous(context, store, workers)
    with way as variables, environment(common | variables):
        hvd.init()
        store.set(f"horovod joined {context.rank}", "")
    _joined = True
    return hvd


def leave() -> None:
    """End Horovod's threads: idle, they would go on talking to their peers every millisecond."""
    imported().shutdown()


def imported() -> Any:
    """The module ``horovod.torch``. Raises MissingPart with the reason and the mend."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise MissingPart(
            f"Horovod cannot be imported ({error}); scripts/install_engines.sh builds it for "
            f"the torch that is installed"
        ) from error
    return hvd


def over_mpi() -> bool:
    """Whether this process was told to leave Horovod's communication to MPI."""
    return os.environ.get("HOROVOD_CONTROLLER") == "mpi"


@contextmanager
def _by_mpi(workers: int) -> Iterator[dict[str, str]]:
    """MPI knows who takes part: always all of its processes."""
    from mpi4py import MPI

    if not imported().mpi_built():
        raise MissingPart(
            "this Horovod was built without MPI; install libopenmpi-dev and openmpi-bin, then "
            "scripts/install_engines.sh builds one with it"
        )
    size = MPI.COMM_WORLD.Get_size()
    if workers != size:
        raise InputError(f"{workers} workers of {size} MPI processes; over MPI all take part")
    yield {"HOROVOD_CPU_OPERATIONS": "mpi"}


@contextmanager
def _rendezvous(context: RankContext, store: Any, workers: int) -> Iterator[dict[str, str]]:
    """The variables of this worker's slot, and the server they name, for the time of the block."""
    store.set(f"horovod host {context.rank}", context.host)
    hosts = [store.get(f"horovod host {rank}").decode() for rank in range(workers)]
    _require_own_interface(context.host, hosts)
    plan = slots(hosts)
    server = _serve(context.host, plan) if context.rank == 0 else None
    if server is not None:
        store.set("horovod rendezvous", str(server.server_address[1]))
    try:
        yield {
            **plan[context.rank].environment,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": interface_of(context.host),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": store.get("horovod rendezvous").decode(),
        }
        if server is not None:
            store.wait([f"horovod joined {rank}" for rank in range(workers)])
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _require_own_interface(own: str, hosts: list[str]) -> None:
    """Raise MissingPart if gradients would take another way than that to this worker's address.

    An unmended Horovod 0.28 sends them to the address of the host's name, whatever interface it
    was told. Between processes of one machine that makes no difference.
    """
    if version("horovod").endswith("+iface") or len(set(hosts)) == 1:
        return
    name = socket.gethostname()
    try:
        found = socket.gethostbyname(name)
    except OSError as error:
        found = str(error)
    if found != own:
        raise MissingPart(
            f"this Horovod connects to {name!r} ({found}), and this worker is at {own}; "
            f"scripts/install_engines.sh builds one that uses the interface it is told"
        )


def _serve(host: str, plan: list[Slot]) -> Any:
    """Horovod's rendezvous server, on that address only; its own starter listens on all."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Rendezvous(RendezvousHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)  # HTTPServer's asks for the host's full name

    server = Rendezvous((host, 0), RendezvousHandler, 0)
    server.init(plan)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
