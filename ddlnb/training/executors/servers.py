"""Parameter servers of real processes: ours, or BytePS's.

Loops and rules are the same. Our servers run any rule; BytePS has two built in, and refuses the
methods that need another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ddlnb.engines.base import Transport
from ddlnb.engines.catalogue import require_installed
from ddlnb.engines.transports.connect import connect_to_servers
from ddlnb.engines.transports.server import serve_workers
from ddlnb.errors import InputError, UnknownName
from ddlnb.launch.rank import RankContext
from ddlnb.plans.server_rules import Rule
from ddlnb.training.executors import byteps
from ddlnb.training.job import Arrival, TrainingJob
from ddlnb.training.method import TrainingMethod
from ddlnb.training.worker import Worker


@dataclass(frozen=True)
class ParameterServers:
    """How a worker reaches its server, and what the rank that serves does.

    ``serve`` returns the order of pushes, () if it is not recorded. ``refuses`` says why these
    servers cannot run a method, "" if they can. ``engine`` is the entry of
    `ddlnb.engines.catalogue` that says what this machine lacks for them.
    """

    engine: str
    connect: Callable[[RankContext, Any, TrainingJob, Worker], Transport]
    serve: Callable[[RankContext, Any, TrainingJob], tuple[Arrival, ...]]
    refuses: Callable[[TrainingMethod], str]


def _connect(context: RankContext, store: Any, job: TrainingJob, worker: Worker) -> Transport:
    return connect_to_servers(context, store, job.servers, [0])


def _serve(context: RankContext, store: Any, job: TrainingJob) -> tuple[Arrival, ...]:
    rule = job.rule()
    assert rule is not None, f"{job.method.synchronisation} has no rule for its server"
    recording = RecordingRule(rule)
    serve_workers(context, store, job.workers, recording)
    return tuple(recording.arrivals)


def _nothing(method: TrainingMethod) -> str:
    return ""


SERVERS: dict[str, ParameterServers] = {  # by executor
    "distributed": ParameterServers("torch", _connect, _serve, _nothing),
    "byteps": ParameterServers("byteps", byteps.connect, byteps.serve, byteps.refuses),
}


def get_servers(executor: str) -> ParameterServers:
    """Return the parameter servers of this executor. Raises UnknownName."""
    if executor not in SERVERS:
        raise UnknownName("executor on real processes", executor, SERVERS)
    return SERVERS[executor]


def require_trains(executor: str, method: TrainingMethod) -> None:
    """Raise InputError, with the reason, if the executor's servers cannot run the method.

    Raises UnknownName, and MissingPart if this machine lacks them.
    """
    chosen = get_servers(executor)
    if reason := chosen.refuses(method):
        able = [name for name, servers in SERVERS.items() if not servers.refuses(method)]
        raise InputError(
            f"executor {executor!r} cannot run {str(method)!r}: {reason}; "
            f"executors that can: lockstep, {', '.join(able)}"
        )
    require_installed(chosen.engine)


class RecordingRule:
    """Applies the rule ``inner`` and records the ``arrivals`` of its pushes."""

    def __init__(self, inner: Rule):
        self.inner = inner
        self.arrivals: list[Arrival] = []

    def push(self, worker: int, key: int, clock: int, value: Tensor, now: float = 0.0) -> None:
        """Record the push, and hand it to the inner rule."""
        self.arrivals.append(Arrival(worker, now))
        self.inner.push(worker, key, clock, value, now)

    def pull(self, worker: int, key: int, clock: int) -> Tensor | None:
        """Return what the inner rule answers."""
        return self.inner.pull(worker, key, clock)
