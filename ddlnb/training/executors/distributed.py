"""Workers and a parameter server in real processes, over sockets: the same loops as in lockstep.

A worker's requests are answered over the network, one after the other. Messages do not overlap with
the backward pass here, since a worker sends when its gradient is complete. Parameter servers are
ours, which run any rule, or others that are supplied (`ddlnb.registry`) as ``servers EXECUTOR``.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddlnb.engines.base import Transport
from ddlnb.engines.catalogue import require_installed
from ddlnb.engines.transports.all_reduce import AllReduceTransport
from ddlnb.engines.transports.push_pull import connect_to_servers, serve_workers
from ddlnb.errors import DdlnbError, InputError, look_up
from ddlnb.launch.rank import RankContext, process_group
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.requests import AllGather, AllReduce, Messages, PushPull
from ddlnb.plans.server_rules import Rule
from ddlnb.registry import supplied_parts
from ddlnb.training.method import Arrival, TrainingJob, TrainingMethod, TrainingRun, WorkerReport
from ddlnb.training.worker import NextGradient, StepDone, Worker, begun

UNREAD_MESSAGES = 4  # to one worker, before the sender waits until one is received


class BlockingTransport:
    """Answers the requests of `ddlnb.plans.requests` on CPUs, each before the next is made.

    It uses the default process group; ``servers`` leads to the parameter server if there is one.
    """

    def __init__(self, servers: Transport | None = None):
        self._servers = servers
        self._all_reduce = AllReduceTransport()
        self._workers = dist.get_world_size()
        self._sent = self._received = 0  # without all-reduces
        self._sending: dict[int, deque[tuple[dist.Work, Tensor]]] = defaultdict(deque)

    @property
    def bytes_sent(self) -> float:
        """Bytes that this worker has sent, without headers; all-reduces count as rings."""
        return self._all_reduce.bytes_sent + self._sent

    @property
    def bytes_received(self) -> float:
        """Bytes that this worker has received, without headers."""
        return self._all_reduce.bytes_sent + self._received

    def answer(self, request: Any) -> Any:
        """Return the answer once it has arrived. Raises DdlnbError for an unknown request."""
        if isinstance(request, AllReduce):
            return self._all_reduce.start(0, AllReduce(request.tensor.contiguous())).wait()
        if isinstance(request, AllGather):
            return self._gather(request.payload.contiguous())
        if isinstance(request, Messages):
            return self._exchange(request.outgoing, request.incoming)
        if isinstance(request, PushPull):
            if self._servers is None:
                raise DdlnbError("a worker pushes, and there is no parameter server")
            answer = self._servers.start(0, PushPull(request.tensor.contiguous())).wait()
            self._sent += request.tensor.nbytes
            self._received += answer.nbytes
            return answer
        raise DdlnbError(f"a worker asked for {request!r}, which no executor knows")

    def close(self) -> None:
        """Take leave of the server, once all workers have their answers."""
        if self._servers is not None:
            self._servers.close()
        dist.barrier()  # a message on its way must not be lost with its sender

    def _gather(self, payload: Tensor) -> list[Tensor]:
        self._sent += (self._workers - 1) * payload.nbytes
        self._received += (self._workers - 1) * payload.nbytes
        gathered = [torch.empty_like(payload) for _ in range(self._workers)]
        dist.all_gather(gathered, payload)
        return gathered

    def _exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """Post all receives before anything is sent, and wait for the receives only.

        So workers may send in any order, before others are ready to receive, without deadlock.
        Messages without bytes are not sent: both ends know that they are empty.
        """
        received = {
            sender: torch.empty(size, dtype=torch.uint8) for sender, size in incoming.items()
        }
        receiving = [dist.irecv(into, peer) for peer, into in received.items() if len(into)]
        for peer, payload in outgoing.items():
            self._sent += payload.nbytes
            if len(payload):
                self._send(peer, payload.contiguous())
        for work in receiving:
            assert work is not None
            work.wait()
        self._received += sum(incoming.values())
        return received

    def _send(self, peer: int, payload: Tensor) -> None:
        under_way = self._sending[peer]
        work = dist.isend(payload, peer)
        assert work is not None
        under_way.append((work, payload))  # the payload must outlive the sending
        if len(under_way) > UNREAD_MESSAGES:
            under_way.popleft()[0].wait()


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


OURS = ParameterServers("torch", _connect, _serve, lambda method: "")


def all_servers() -> dict[str, ParameterServers]:
    """Return the parameter servers that are here, by executor: ours, and those supplied."""
    return {"distributed": OURS, **supplied_parts("servers")}


def get_servers(executor: str) -> ParameterServers:
    """Return the parameter servers of this executor. Raises UnknownName."""
    return look_up("executor on real processes", executor, all_servers())


def require_trains(executor: str, method: TrainingMethod) -> None:
    """Raise InputError, with the reason, if the executor's servers cannot run the method.

    Raises UnknownName, and MissingPart if this machine lacks them.
    """
    chosen = get_servers(executor)
    if reason := chosen.refuses(method):
        able = [name for name, servers in all_servers().items() if not servers.refuses(method)]
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


def train_on_ranks(
    ranks: Ranks,
    job: TrainingJob,
    timeout_seconds: float | None = None,
    executor: str = "distributed",
) -> TrainingRun:
    """Run the job on as many of these ranks as it needs, with the executor's parameter servers.

    Raises UnknownName, InputError if there are too few or the servers cannot run the method,
    MissingPart, and RankError, naming the rank, if one fails.
    """
    # A wrong job is refused here, before anything starts.
    require_trains(executor, job.method)
    job.worker(0)
    reports = ranks.run(
        run_on_rank, job, executor, count=job.ranks, timeout_seconds=timeout_seconds
    )
    return as_run(reports)


def as_run(reports: list[Any]) -> TrainingRun:
    """Join what `run_on_rank` returned on all ranks, in rank order."""
    workers = tuple(report for report in reports if isinstance(report, WorkerReport))
    arrivals = [report for report in reports if isinstance(report, tuple)]
    return TrainingRun(workers, arrivals[0] if arrivals else ())


def run_on_rank(
    context: RankContext, job: TrainingJob, executor: str = "distributed"
) -> WorkerReport | tuple[Arrival, ...] | None:
    """Run this rank's part: return a worker's report, a server's arrivals, None for a spare rank.

    Ranks.run calls it on every rank.
    """
    store = context.store()
    if context.rank >= job.ranks:
        return None
    if context.rank >= job.workers:
        return get_servers(executor).serve(context, store, job)
    with process_group(context, store, job.workers):
        return _train(context, job, store, executor)


def _train(context: RankContext, job: TrainingJob, store: Any, executor: str) -> WorkerReport:
    worker = job.worker(context.rank)
    servers = None
    if job.servers:
        servers = get_servers(executor).connect(context, store, job, worker)
    transport = BlockingTransport(servers)
    flow = begun(job.method.synchronisation.loop, worker)
    losses: list[float] = []
    observed: list[Any] = []
    answer: Any = None
    dist.barrier()
    start = time.perf_counter()
    while len(losses) < job.steps:
        request = flow.send(answer)
        answer = None
        if isinstance(request, NextGradient):
            if (delay := job.delay(worker.rank, worker.step)) > 0:
                time.sleep(delay)
            answer = worker.gradient()
        elif isinstance(request, StepDone):
            losses.append(worker.last_loss)
            if job.observe is not None:
                seconds = time.perf_counter() - start
                observed.append(job.observe(worker, len(losses), seconds))
        else:
            answer = transport.answer(request)
    seconds = time.perf_counter() - start
    flow.close()
    sent, received = transport.bytes_sent, transport.bytes_received
    averaging = 0.0
    if not job.method.synchronisation.model_on_server:
        averaging = _averaging_seconds(worker, transport)
    # Not after a failure: closing waits for others, and a failed rank ends with its process.
    transport.close()
    return WorkerReport(
        worker.rank,
        worker.parameters,
        tuple(losses),
        sent,
        received,
        seconds,
        tuple(observed),
        averaging,
    )


def _averaging_seconds(worker: Worker, transport: BlockingTransport) -> float:
    """Return the seconds of one all-reduce of the models, which leaves the worker's own alone."""
    copy = worker.parameters.clone()
    dist.barrier()
    start = time.perf_counter()
    transport.answer(AllReduce(copy))
    return time.perf_counter() - start
