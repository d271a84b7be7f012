"""Horovod in one run: initialised when the run starts and shut down when it ends.

Horovod finds its peers by environment variables and a small HTTP server. Here the processes are
already up, so worker 0 opens that server for as long as all need it, and every worker sets the
variables of its slot for as long as Horovod reads them. Ranks that MPI started (launcher ``mpi``)
need neither where ``HOROVOD_CONTROLLER=mpi`` leaves Horovod's communication to it.
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
from typing import Any

from ddlnb.errors import MissingPart, require
from ddlnb.foreign_engines import catalogue
from ddlnb.foreign_engines.catalogue import environment
from ddlnb.launch.rank import RankContext, interface_of

_joined = False  # whether this process has initialised Horovod before


@dataclass(frozen=True)
class Slot:
    """A worker's number among all, on its host, and among those of the same number on all hosts."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which Horovod knows its slot."""
        numbers = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        named = {f"HOROVOD_{name.upper()}": str(getattr(self, name)) for name in numbers}
        return {"HOROVOD_HOSTNAME": self.hostname, **named}


def slots(hosts: list[str]) -> list[Slot]:
    """Return the slot of every worker, given the workers' hosts by rank.

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


def join(context: RankContext, store: Any, workers: int, fusion_bytes: int) -> Any:
    """Return the module ``horovod.torch``, initialised with these workers over gloo.

    It is initialised over MPI where ``HOROVOD_CONTROLLER=mpi`` says so. Call `leave` at the end.
    Horovod merges tensors that are ready at the same time, up to ``fusion_bytes``. Raises
    MissingPart if Horovod cannot be used here, InputError for variables in the environment that
    would crash it.
    """
    global _joined
    hvd = imported()
    require(
        not (_joined and "HOROVOD_CYCLE_TIME" in os.environ),
        "HOROVOD_CYCLE_TIME ends the process when Horovod is initialised a second time "
        "beside a fusion threshold; unset it",
    )
    seconds = math.ceil(context.timeout_seconds)
    common = {
        # Always set: Horovod 0.28 keeps an earlier value where none is given.
        "HOROVOD_FUSION_THRESHOLD": str(fusion_bytes),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(seconds),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(min(60, max(1, seconds // 2))),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(seconds),
    }
    over_mpi = os.environ.get("HOROVOD_CONTROLLER") == "mpi"
    rendezvous = _by_mpi(workers) if over_mpi else _rendezvous(context, store, workers)
    with rendezvous as variables, environment(common | variables):
        hvd.init()
        store.set(f"horovod joined {context.rank}", "")
    _joined = True
    return hvd


def leave() -> None:
    """Shut Horovod down: its idle threads would go on talking to their peers every millisecond."""
    imported().shutdown()


def imported() -> Any:
    """Return the module ``horovod.torch``. Raises MissingPart with the reason and the fix."""
    return catalogue.imported("Horovod", "horovod.torch")


@contextmanager
def _by_mpi(workers: int) -> Iterator[dict[str, str]]:
    """Lend the variables for MPI, in which all of its processes always take part."""
    from mpi4py import MPI

    if not imported().mpi_built():
        raise MissingPart(
            "this Horovod was built without MPI; install libopenmpi-dev and openmpi-bin, then "
            "scripts/install_engines.sh builds one with it"
        )
    size = MPI.COMM_WORLD.Get_size()
    require(workers == size, f"{workers} workers of {size} MPI processes; over MPI all take part")
    yield {"HOROVOD_CPU_OPERATIONS": "mpi"}


@contextmanager
def _rendezvous(context: RankContext, store: Any, workers: int) -> Iterator[dict[str, str]]:
    """Lend the variables of this worker's slot, and the server that they name, to the block."""
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
    """Raise MissingPart if gradients would not travel over this worker's interface.

    An unpatched Horovod 0.28 sends them to the address of the host's name, whatever interface it
    is given. Between processes of one machine that makes no difference.
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
            f"scripts/install_engines.sh builds one that uses the given interface"
        )


def _serve(host: str, plan: list[Slot]) -> Any:
    """Start Horovod's rendezvous server on this address only; its own starter listens on all."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Rendezvous(RendezvousHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)  # HTTPServer's asks for the host's full name

    server = Rendezvous((host, 0), RendezvousHandler, 0)
    server.init(plan)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
