"""What an iteration costs, as a value: where its seconds go, and the bytes that it moves.

Iterations of workers of different speeds whose messages overlap the backward pass.

One worker of every kind is played (`ddlnb.simulator.unlike`): a message leaves when the last worker
has it, and a worker goes on when what it waits for has come back.

A program with compressed messages: the same players simulate it, overlap included.

The worker compresses every message before it leaves and decompresses it after it has come back.
Both are tasks of the computation, so that they delay what the worker computes after them; on the
network a message is the requests of its compressor.

Plans for what is sent: gradients merged by the sizes and the readiness of compressed ones.

Small messages are all latency, so that compressed gradients are merged further than dense ones,
and wait for being compressed (merged gradient sparsification; Shi et al., INFOCOM 2020). Which ones
is decided by the base method's own rule: it is shown a workload whose gradients have the bytes that
are sent and take their compression besides, and the cost of the compressor's requests.

The cost of iterations whose messages overlap the backward pass: lossless, or compressed BSP.

Layer by layer, messages leave while the backward pass goes on, as a lossless method sends them; the
whole model as one vector leaves after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import CompressionProfile
from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.alpha_beta import AlphaBeta, ring_bytes_sent
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Gate, Launch, Message, Piece, Plan
from ddlnb.simulator.events import play_unlike_fast
from ddlnb.simulator.fast_player import play_fast
from ddlnb.simulator.path import ALL_REDUCE
from ddlnb.simulator.program import Program, lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.tasks import Task, Tasks
from ddlnb.simulator.workers import Slowness, team_of, with_team
from ddlnb.training.cost.machines import server_machines
from ddlnb.training.cost.requests import (
    CompressedPiece,
    RequestCost,
    coding_seconds,
    coding_source,
    compressed_pieces,
    fused,
    gathers,
    link_bytes,
    pieces,
    requests_cost,
    require_shapes,
    tensor_shapes,
)
from ddlnb.training.method import TrainingMethod
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True)
class PlayedIteration:
    """Mean seconds of an iteration, and those in which a worker computes or compresses in it."""

    iteration_seconds: float
    busy_seconds: float


def play_uneven(
    program: Program,
    finished: Callable[[Program], Program],
    cluster: Cluster,
    slower: Slowness | None,
    steps: int,
) -> PlayedIteration:
    """Return the mean over ``steps`` iterations of workers of different speeds.

    They differ as the cluster says, and ``slower(rank, step, workers)`` multiplies the seconds that
    a worker computes. ``finished`` makes of a program the one that is played; no factor changes the
    seconds that it adds, such as those of compression.
    """
    require_whole(steps=steps)
    done = finished(program)
    if slower is None and cluster.is_alike:
        played = play_fast(done)
    else:
        idle = replace(program, task_seconds=0.0 * program.task_seconds)
        added = finished(idle).task_seconds
        slowed = replace(done, task_seconds=done.task_seconds - added)
        played = play_unlike_fast(with_team(slowed, team_of(cluster, slower, steps), added))
    return PlayedIteration(
        played.iteration_seconds, played.iteration_seconds - played.exposed_seconds
    )


NOTHING, BACKWARD, BOTH_PASSES = "nothing", "backward pass", "backward and next forward pass"


@dataclass(frozen=True)
class IterationCost:
    """Where the seconds of one worker's iteration go, and the bytes of the busiest worker.

    ``waiting_seconds`` are those of communication that nothing hides and of waiting for others.
    ``gathers`` is true when payloads go to all workers, so that traffic grows with their number.
    ``hidden_behind`` is the computation that communication may overlap, NOTHING where it follows
    all of it. ``server_machines`` are those that parameter servers take beside the workers'.
    ``source`` says how the seconds were found.
    """

    method: str
    iteration_seconds: float
    compute_seconds: float
    compression_seconds: float
    waiting_seconds: float
    bytes_sent: float
    bytes_received: float
    gathers: bool = False
    hidden_behind: str = NOTHING
    server_machines: int = 0
    source: str = ""

    @classmethod
    def of_played(
        cls, method: str, played: PlayedIteration, bytes_: float, coding: float = 0.0, **told: Any
    ) -> IterationCost:
        """Return the cost of a played iteration, of whose busy seconds ``coding`` are compression.

        A worker sends ``bytes_`` and receives as many; ``told`` are the other fields.
        """
        return cls(
            method,
            played.iteration_seconds,
            compute_seconds=played.busy_seconds - coding,
            compression_seconds=coding,
            waiting_seconds=played.iteration_seconds - played.busy_seconds,
            bytes_sent=bytes_,
            bytes_received=bytes_,
            **told,
        )

    @property
    def bytes(self) -> float:
        """What passes the worker's link, both ways."""
        return self.bytes_sent + self.bytes_received


@dataclass(frozen=True)
class CompressedMessage:
    """What compression makes of one message: seconds of the worker, and its cost on the network.

    ``bytes`` are those that one worker sends; it receives as many.
    """

    encode_seconds: float
    decode_seconds: float
    cost: RequestCost
    bytes: float


def compressed(program: Program, messages: Sequence[CompressedMessage | None]) -> Program:
    """Return the program with every all-reduce replaced by its compressed message.

    Messages that are None stay as they are; where all are, so does the program. A compressed one
    occupies the network for all of its latency. Raises InputError
    for a program that goes through parameter servers.
    """
    if all(message is None for message in messages):
        return program
    require(
        program.stages[0].name == ALL_REDUCE,
        "only all-to-all programs can be compressed; choose a base method that ends in A2A",
    )
    if len(messages) != len(program.message_bytes):
        raise InputError(
            f"{len(messages)} compressed messages do not fit a program of "
            f"{len(program.message_bytes)}; give one for each"
        )
    stage, *later = program.stages
    latency, work = stage.latency.astype(float), stage.work.astype(float)
    is_dense = np.array([message is None for message in messages], float)
    later = [replace(one, latency=one.latency * is_dense) for one in later]
    sent = program.message_bytes.copy()
    for number, message in enumerate(messages):
        if message is not None:
            latency[number] = message.cost.latency + message.cost.copies
            work[number] = message.cost.work
            sent[number] = round(message.bytes)
    stage = replace(stage, name="compressed", latency=latency, work=work)
    tasks, seconds = _with_compression(program, messages)
    return replace(
        program,
        tasks=tasks,
        task_seconds=np.array(seconds),
        stages=(stage, *later),
        message_bytes=sent,
    )


def _with_compression(
    program: Program, messages: Sequence[CompressedMessage | None]
) -> tuple[Tasks, list[float]]:
    """Return tasks with a compression before and a decompression after every compressed message.

    It is decompressed once, for the first layer that waits for it; the others find it done.
    """
    listed: list[Task] = []
    seconds: list[float] = []
    came_from: list[int] = []  # the task of the program, or -1
    decompressed: set[int] = set()

    def add(task: Task, taken: float, number: int = -1) -> None:
        listed.append(task)
        seconds.append(taken)
        came_from.append(number)

    for number, task in enumerate(program.tasks.listed):
        plain = []
        for message in task.waits_for:
            made = messages[message]
            if made is None or message in decompressed:
                plain.append(message)
                continue
            decompressed.add(message)
            add(Task("decompress", str(message), waits_for=(message,)), made.decode_seconds)
        dense = tuple(one for one in task.readies if messages[one] is None)
        add(
            Task(task.kind, task.name, tuple(plain), dense),
            float(program.task_seconds[number]),
            number,
        )
        for message in task.readies:
            made = messages[message]
            if made is not None:
                add(Task("compress", str(message), readies=(message,)), made.encode_seconds)

    def kept(values: np.ndarray) -> np.ndarray:
        return np.array([values[number] if number >= 0 else 0.0 for number in came_from])

    old = program.tasks
    tasks = replace(
        old,
        listed=tuple(listed),
        own_seconds=np.array(seconds),
        readied=np.array([float(len(task.readies)) for task in listed]),
        updated_tensors=kept(old.updated_tensors),
        updated_bytes=kept(old.updated_bytes),
    )
    return tasks, seconds


def plans_for_sent(
    workload: Workload,
    cluster: Cluster,
    base: Method,
    dense: Plan,
    alone: Sequence[CompressedMessage],
    joined: CompressedMessage,
) -> list[Plan]:
    """Return the plan of ``base`` for what is sent; none where it is the ``dense`` one.

    ``alone`` holds what compression makes of every gradient as a message of its own, in the order
    of the workload's, and ``joined`` what it makes of all in one. The rule of the base neglects
    what unpacking takes, so that the plan may be slower than the dense one.
    """
    if not base.bucketing.needs_cost or not joined.bytes:
        return []
    sent = base.plan(_as_sent(workload, alone), cost=_cost(cluster, joined))
    elements = {gradient.name: gradient.elements for gradient in workload.gradients}
    messages = tuple(_of_whole_tensors(message, elements) for message in sent.messages)
    return [] if messages == dense.messages else [replace(dense, messages=messages)]


def _as_sent(workload: Workload, alone: Sequence[CompressedMessage]) -> Workload:
    gradients = tuple(
        replace(
            gradient,
            elements=max(1, round(message.bytes)),
            bytes_per_element=1,
            shape=None,
            backward_seconds=gradient.backward_seconds + message.encode_seconds,
        )
        for gradient, message in zip(workload.gradients, alone, strict=True)
    )
    return replace(workload, gradients=gradients)


def _cost(cluster: Cluster, joined: CompressedMessage) -> AlphaBeta:
    """Return the seconds of one compressed message while workers compute, by the bytes it sends."""
    _, _, share = cluster.all_reduce_seconds
    return AlphaBeta(
        joined.cost.latency / cluster.effects.latency_share,
        (joined.cost.work / share + joined.cost.copies) / joined.bytes,
    )


def _of_whole_tensors(message: Message, elements: Mapping[str, int]) -> Message:
    names = [name for name, _ in groupby(piece.gradient for piece in message.pieces)]
    return replace(message, pieces=tuple(Piece(name, 0, elements[name]) for name in names))


T = TypeVar("T")


def lossless_cost(
    workload: Workload,
    cluster: Cluster,
    method: Method,
    slower: Slowness | None = None,
    steps: int = 1,
) -> IterationCost:
    """Return the cost of a lossless method, as `ddlnb.simulate` finds it.

    Stragglers hold everybody up, as `ddlnb.training.cost.overlapped` says.
    """
    program = lower(workload, cluster, plan_on(cluster, workload, method))
    played = play_uneven(program, _unchanged, cluster, slower, steps)
    size = workload.gradient_bytes
    if method.architecture == "A2A":
        bytes_ = ring_bytes_sent(size, cluster.workers)
    else:
        bytes_ = float(size) if cluster.workers > 1 else 0.0  # one worker asks nobody
    return IterationCost.of_played(
        method.name,
        played,
        bytes_,
        hidden_behind=hidden_behind(method.launch, method.gate),
        server_machines=server_machines(cluster, method.architecture),
        source="simulated",
    )


def overlapped_cost(
    workload: Workload,
    cluster: Cluster,
    method: TrainingMethod,
    profile: CompressionProfile,
    base: Method,
    slower: Slowness | None = None,
    steps: int = 1,
) -> IterationCost:
    """Return the cost of BSP on A2A, its messages launched as those of ``base``.

    A base that merges gradients merges them by what is sent of them, unless its plan for dense
    gradients is quicker (`ddlnb.training.cost.overlapped`). A method with the whole-model flag has
    one message after the backward pass, whatever the base. Stragglers hold everybody up.
    Raises InputError for a base that goes through servers or cuts tensors, for gradients other than
    float32, for a compressor that the profile lacks, and for one that needs unknown shapes.
    """
    if method.compressor is None:
        return lossless_cost(workload, cluster, base, slower, steps)
    require_all_to_all(base)
    require_float32(workload)
    require_shapes(workload, method.compressor)
    found = compressed_pieces(method.compressor, pieces(workload, method.whole_model))
    message = partial(
        compressed_message, cluster=cluster, profile=profile, feedback=method.feedback
    )
    if method.whole_model:
        base = get_method("BSP-A2A")
        planned = [(plan_on(cluster, workload, base), [message(found)])]
    else:
        by_name = dict(zip(tensor_shapes(workload), found, strict=True))
        planned = [
            (plan, [message(one) for one in pieces_of_messages(plan, by_name)])
            for plan in base_plans(workload, cluster, base, by_name, message)
        ]
    costs = []
    for plan, made in planned:
        program = lower(workload, cluster, plan)
        played = play_uneven(program, partial(compressed, messages=made), cluster, slower, steps)
        costs.append((played, made))
    played, made = min(costs, key=lambda cost: cost[0].iteration_seconds)
    coding = sum(one.encode_seconds + one.decode_seconds for one in made)
    return IterationCost.of_played(
        str(method),
        played,
        sum(one.bytes for one in made),
        coding,
        gathers=gathers(found),
        hidden_behind=hidden_behind(base.launch, base.gate),
        source=f"simulated as {base.name}, {_messages(len(made))}; "
        f"compression {coding_source(found, profile)}",
    )


def base_plans(
    workload: Workload,
    cluster: Cluster,
    base: Method,
    by_name: Mapping[str, CompressedPiece],
    message: Callable[[Sequence[CompressedPiece]], CompressedMessage],
) -> list[Plan]:
    """Return the plans of a base for compressed tensors, of which the quickest is taken.

    ``message`` says what compression makes of tensors that travel together. Raises InputError for a
    base that cuts tensors.
    """
    dense = plan_on(cluster, workload, base)
    pieces_of_messages(dense, by_name)  # raises InputError where tensors are cut
    alike = {piece: message([piece]) for piece in set(by_name.values())}
    alone = [alike[by_name[gradient.name]] for gradient in workload.gradients]
    joined = message(list(by_name.values()))
    return [dense, *plans_for_sent(workload, cluster, base, dense, alone, joined)]


def compressed_message(
    group: Sequence[CompressedPiece],
    cluster: Cluster,
    profile: CompressionProfile,
    feedback: bool = False,
) -> CompressedMessage:
    """Return what compression makes of the message that carries these pieces."""
    workers = cluster.workers
    alike = {piece: piece[0].traffic(piece[1], workers) for piece in set(group)}  # layers repeat
    traffic = fused([alike[piece] for piece in group])
    encode, decode = coding_seconds(group, profile, workers, feedback)
    return CompressedMessage(
        encode,
        decode,
        requests_cost(cluster, traffic, is_merged=len(group) > 1),
        sum(link_bytes(one, workers) for one in traffic) / 2,
    )


def pieces_of_messages(plan: Plan, by_name: Mapping[str, T]) -> list[list[T]]:
    """Group what was found for every tensor, by its name, as tensors travel.

    Raises InputError for a plan that cuts tensors.
    """
    sizes = {gradient.name: gradient.elements for gradient in plan.gradients}
    sent = [piece for message in plan.messages for piece in message.pieces]
    require(
        all(piece.elements == sizes[piece.gradient] for piece in sent),
        f"method {plan.method!r} cuts tensors, and compressors take whole ones; choose a base "
        f"method that does not, say WFBP-A2A or MG-WFBP",
    )
    return [[by_name[piece.gradient] for piece in message.pieces] for message in plan.messages]


def require_all_to_all(base: Method) -> None:
    """Raise InputError for a base method that goes through parameter servers, or in halves."""
    require(
        base.architecture == "A2A",
        f"base method {base.name} goes through servers; choose one that ends in A2A, or MG-WFBP",
    )
    require(
        base.exchange == "all_reduce",
        f"base method {base.name} splits all-reduces, and payloads cannot be; choose one that ends "
        f"in A2A, or MG-WFBP",
    )


def hidden_behind(launch: Launch, gate: Gate) -> str:
    """Return the computation that messages may overlap, by when they start and who waits."""
    if launch is Launch.AFTER_BACKWARD:
        return NOTHING
    return BACKWARD if gate is Gate.ALL_LAYERS else BOTH_PASSES


def _unchanged(program: Program) -> Program:
    return program


def _messages(count: int) -> str:
    return "one message" if count == 1 else f"{count} messages"


def require_float32(workload: Workload) -> None:
    """Raise InputError for gradients that compressors do not take."""
    sizes = {gradient.bytes_per_element for gradient in workload.gradients}
    require(
        sizes == {4},
        f"compressors take float32, and workload {workload.model!r} has gradients of "
        f"{sorted(sizes)} bytes per element; profile it in float32",
    )
