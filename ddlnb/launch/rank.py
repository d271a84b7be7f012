"""A rank from the inside: its context, and what runs there for its owner.

The owner holds what ranks cannot reach, such as the switch of the emulated network they are on. A
rank that reaches a barrier with a callback waits until the owner has called it; both talk through
the store of the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ddlnb.errors import DdlnbError, MissingPart, require_known
from ddlnb.launch.store import Address, connected

if TYPE_CHECKING:
    import torch

_OWN_NAMESPACE = Path("/proc/thread-self/ns/net")
REACHED, OVER, DONE = "reached", "over", "done"

Callbacks = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Slot:
    """The node of a rank: its network namespace, and its address there."""

    namespace: str
    address: str
    interface: str = "net0"


@dataclass(frozen=True)
class RankContext:
    """Where a function runs: the first argument of every function given to Ranks.run."""

    rank: int
    count: int
    owner_host: str  # the address at which this machine reaches the owner
    store_address: Address
    store_secret: bytes = field(repr=False)
    prefix: str  # another one for every run
    host: str  # address of this rank's machine, to bind services to
    threads: int
    timeout_seconds: float  # of the whole run
    barriers: tuple[str, ...] = ()  # at which the owner does something

    def store(self) -> Any:
        """Return a torch store that the ranks of this run share, empty when the run starts."""
        from torch.distributed import PrefixStore

        store = connected(self.store_address, self.store_secret)
        store.set_timeout(timedelta(seconds=self.timeout_seconds))
        return PrefixStore(self.prefix, store)

    def reach(self, barrier: str) -> None:
        """Have the owner call what it has for this barrier of the run, and wait until it is done.

        One rank says so, once. Raises UnknownName for a barrier that `Ranks.run` was not given,
        DdlnbError with what went wrong if the callback failed.
        """
        require_known("barrier", barrier, self.barriers)
        reach(self.store(), barrier)


def reach(store: Any, barrier: str) -> None:
    """Have the owner act, from a rank; return when it is done. Raises DdlnbError if it failed."""
    store.set(f"barrier {barrier} reached", REACHED)
    said = store.get(f"barrier {barrier} answered").decode()
    if said != DONE:
        raise DdlnbError(f"barrier {barrier!r} of the run: {said}")


@contextlib.contextmanager
def calling_back(connect: Callable[[], Any], callbacks: Callbacks) -> Iterator[None]:
    """Call back at barriers of a run while the body waits for its end.

    ``connect`` returns a store in which threads do not wait for each other.
    Barriers are reached in the order of the callbacks, each once or never.
    """
    if not callbacks:
        yield
        return
    store = connect()
    thread = threading.Thread(target=_call_back, args=(store, callbacks), name="callbacks")
    thread.start()
    try:
        yield
    finally:
        for barrier in callbacks:
            store.set(f"barrier {barrier} reached", OVER)
        thread.join()


def _call_back(store: Any, callbacks: Callbacks) -> None:
    for barrier, callback in callbacks.items():
        if store.get(f"barrier {barrier} reached").decode() == OVER:
            return
        said = DONE
        try:
            callback()
        except Exception as error:  # the rank that waits raises it, and the run ends
            said = f"{type(error).__name__}: {error}"
        store.set(f"barrier {barrier} answered", said)
        if said != DONE:
            return


@contextlib.contextmanager
def process_group(
    context: RankContext, store: Any, workers: int, backend: str = "gloo"
) -> Iterator[None]:
    """Make the workers' default process group for the block.

    Raises MissingPart if this machine cannot run the backend.
    """
    import torch
    import torch.distributed as dist

    if backend == "nccl" and not torch.cuda.is_available():
        raise MissingPart("backend 'nccl' needs NVIDIA GPUs, and torch sees none; use 'gloo'")
    if not dist.is_backend_available(backend):
        raise MissingPart(f"this torch {torch.__version__} has no backend {backend!r}; use 'gloo'")
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("workers", store),
        rank=context.rank,
        world_size=workers,
        timeout=timedelta(seconds=context.timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def local_device(context: RankContext, device: str) -> torch.device:
    """Return the device of this rank: the CPU, or the GPUs of its machine in turn."""
    import torch

    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MissingPart(f"device {device!r} needs an NVIDIA GPU, and torch sees none")
    chosen = torch.device("cuda", context.rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


@dataclass(frozen=True)
class Failure:
    """What a rank answers instead of a result."""

    message: str
    traceback: tuple[str, ...] = ()
    died: bool = False

    def __str__(self) -> str:
        return self.message


def stack_file(pid: int) -> str:
    return f"stack-{pid}"


_namespace = ""  # in which the main thread, and every thread it starts, has its sockets
_address = ""


def prepare(folder: str, slot: Slot | None, owner_host: str) -> int:
    """Make this process a rank, on its slot of an emulated network if any; return its pid."""
    global _namespace, _address
    if slot is not None:
        # Only this thread moves: those of ipyparallel go on talking to the owner from outside.
        _enter(slot.namespace)
        _namespace, _address = str(_OWN_NAMESPACE.readlink()), slot.address
        os.environ["GLOO_SOCKET_IFNAME"] = slot.interface
    # With more ranks than cores, small all-reduces were measured 4 to 7 times faster under this
    # policy: a rank that waits for a message does not push the others from their core.
    # Threads inherit it, so it comes before torch and gloo start theirs.
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # gloo looks up its address by host name, which is wrong or slow on many laptops.
    with contextlib.suppress(OSError):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(address_towards(owner_host)))
    # Kept open for the life of the process: the handler writes to the descriptor.
    with contextlib.suppress(OSError):
        stacks = Path(folder, stack_file(os.getpid())).open("w")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
    import torch
    import torch.distributed

    torch.set_num_interop_threads(1)
    return os.getpid()


def call(context: RankContext, path: list[str], payload: bytes) -> bytes | Failure:
    """Return the pickled result of the function in the payload, or what it raised."""
    import cloudpickle
    import torch

    try:
        if _namespace and str(_OWN_NAMESPACE.readlink()) != _namespace:
            raise OSError(f"this thread is not in the node's namespace {_namespace}")
        sys.path += [folder for folder in path if folder not in sys.path]
        torch.set_num_threads(context.threads)
        function, args = cloudpickle.loads(payload)
        context = replace(context, host=_address or address_towards(context.owner_host))
        return cloudpickle.dumps(function(context, *args))
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # not this one
        lines = "".join(traceback.format_exception(error)).splitlines()
        return Failure(f"{type(error).__qualname__}: {error}", tuple(lines))


def _enter(namespace: str) -> None:
    """Make this thread's sockets those of a network namespace; OSError if it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(descriptor, 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), f"cannot enter the network {namespace}")
    finally:
        os.close(descriptor)


def address_towards(host: str) -> str:
    """Return the address of this machine that packets to the host carry: local for a local host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return probe.getsockname()[0]


def interface_of(address: str) -> str:
    """Return the name of the network interface with this address. Raises OSError if none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    raise OSError(f"no network interface has the address {address}")
