"""The cost of iterations whose messages overlap the backward pass: lossless, or compressed BSP.

Layer by layer, messages leave while the backward pass goes on, as a lossless method sends them; the
whole model as one vector leaves after it. The worker compresses every message before it leaves and
decompresses it after it has come back. Both are tasks of the computation, so that they delay what
the worker computes after them; on the network a message is the requests of its compressor. The same
simulator plays it as dense messages.

Small messages are all latency, so that compressed gradients are merged further than dense ones,
and wait for being compressed (merged gradient sparsification; Shi et al., INFOCOM 2020). Which ones
is decided by the base method's own rule: it is shown a workload whose gradients have the bytes that
are sent and take their compression besides, and the cost of the compressor's requests.

Of workers of different speeds one of every kind is played: a message leaves when the last worker
has it, and a worker goes on when what it waits for has come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import CompressionProfile
from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.alpha_beta import AlphaBeta, ring_bytes_sent
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Gate, Launch, Piece, Plan
from ddlnb.plans.plan_file import fitted
from ddlnb.simulator.events import Seconds, play
from ddlnb.simulator.path import ALL_REDUCE
from ddlnb.simulator.program import Program, lower_as_dense
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.tasks import Task
from ddlnb.simulator.workers import Slowness, workers_of
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
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.training.worker import Compression
from ddlnb.workloads.workload import Workload

T = TypeVar("T")
UNPACKING = 0.1  # of the seconds of messages: less is not worth smaller ones
PARTS = (1 / 8, 1 / 32)  # of all elements, in such messages
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

    @property
    def bytes(self) -> float:
        """What passes the worker's link, both ways."""
        return self.bytes_sent + self.bytes_received


def with_own_plans(cluster: Cluster) -> Cluster:
    """Return the cluster on which methods merge gradients by its own cost of an all-reduce.

    A cluster may say that methods were run with another cost in mind; who chooses a method today
    can give it the right one. So costs are compared on equal terms.
    """
    return replace(cluster, planning=None)


# A program with compressed messages.


@dataclass(frozen=True)
class CompressedMessage:
    """What compression makes of one message: seconds of the worker, and its cost on the network.

    ``bytes`` are those that one worker sends; it receives as many.
    """

    encode_seconds: float
    decode_seconds: float
    cost: RequestCost
    bytes: float

    @property
    def seconds(self) -> float:
        """All together."""
        return self.encode_seconds + self.cost.seconds + self.decode_seconds


def compressed(program: Program, messages: Sequence[CompressedMessage | None]) -> Program:
    """Return the program with every all-reduce replaced by its compressed message.

    Messages that are None stay as they are; where all are, so does the program. A compressed one
    occupies the network for all of its latency. Raises InputError
    for a program that goes through parameter servers.
    """
    made = {number: message for number, message in enumerate(messages) if message is not None}
    if not made:
        return program
    require(
        program.stages[0].name == ALL_REDUCE,
        "only all-to-all programs can be compressed; choose a base such as WFBP-A2A or MG-WFBP",
    )
    require(
        len(messages) == len(program.message_bytes),
        f"{len(messages)} compressed messages do not fit a program of "
        f"{len(program.message_bytes)}; give one for each",
    )
    stage, *later = program.stages
    latency, work = stage.latency.astype(float), stage.work.astype(float)
    is_dense, sent = np.ones(len(messages)), program.message_bytes.copy()
    for number, message in made.items():
        latency[number] = message.cost.latency + message.cost.copies
        work[number] = message.cost.work
        is_dense[number], sent[number] = 0.0, round(message.bytes)
    return replace(
        _with_coding(program, made),
        stages=(
            replace(stage, name="compressed", latency=latency, work=work),
            *(replace(one, latency=one.latency * is_dense) for one in later),
        ),
        message_bytes=sent,
    )


def _with_coding(program: Program, made: Mapping[int, CompressedMessage]) -> Program:
    """Return tasks with a compression before and a decompression after every compressed message.

    It is decompressed once, for the first layer that waits for it; the others find it done. Its
    seconds are fixed: what slows the computation of a worker does not slow them.
    """
    listed: list[tuple[Task, float, int]] = []  # with its seconds, and its place before, or -1
    packed = set(made)  # until the first layer waits for them
    for place, (task, seconds) in enumerate(
        zip(program.tasks.listed, program.task_seconds.tolist(), strict=True)
    ):
        unpacked = [one for one in task.waits_for if one in packed]
        packed.difference_update(unpacked)
        for one in unpacked:
            unpacking = Task("decompress", str(one), waits_for=(one,))
            listed.append((unpacking, made[one].decode_seconds, -1))
        others = tuple(one for one in task.waits_for if one not in unpacked)
        dense = tuple(one for one in task.readies if one not in made)
        listed.append((task._replace(waits_for=others, readies=dense), seconds, place))
        for one in filter(made.__contains__, task.readies):
            packing = Task("compress", str(one), readies=(one,))
            listed.append((packing, made[one].encode_seconds, -1))
    tasks, all_seconds, all_places = zip(*listed, strict=True)
    own_seconds, places = np.array(all_seconds), np.array(all_places)
    is_coding = places < 0

    def moved(values: np.ndarray) -> np.ndarray:
        return np.where(is_coding, 0.0, values[places])

    old = program.tasks
    return replace(
        program,
        task_seconds=np.where(is_coding, 0.0, own_seconds),
        fixed_seconds=np.where(is_coding, own_seconds, 0.0),
        tasks=replace(
            old,
            listed=tasks,
            own_seconds=own_seconds,
            readied=np.array([float(len(task.readies)) for task in tasks]),
            updated_tensors=moved(old.updated_tensors),
            updated_bytes=moved(old.updated_bytes),
        ),
    )


# What a compression makes of messages.


def compressed_message(
    group: Sequence[CompressedPiece],
    cluster: Cluster,
    profile: CompressionProfile,
    feedback: bool = False,
) -> CompressedMessage:
    """Return what compression makes of the message that carries these pieces."""
    workers = cluster.workers
    alike = {
        piece: piece[0].declared_traffic(piece[1], workers) for piece in set(group)
    }  # layers repeat
    traffic = fused([alike[piece] for piece in group])
    encode, decode = coding_seconds(group, profile, workers, feedback)
    return CompressedMessage(
        encode,
        decode,
        requests_cost(cluster, traffic, is_merged=len(group) > 1),
        sum(link_bytes(one, workers) for one in traffic) / 2,
    )


@dataclass(frozen=True)
class Compressing:
    """The messages of a workload on a cluster that one compression makes smaller.

    The seconds are those of a profile. Raises InputError for gradients other than float32, and for
    a compressor that needs shapes of tensors that are not known.
    """

    workload: Workload
    cluster: Cluster
    profile: CompressionProfile
    compression: Compression
    _made: dict[tuple[str, ...], CompressedMessage] = field(default_factory=dict, repr=False)
    _of_pieces: dict[tuple[CompressedPiece, ...], CompressedMessage] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        sizes = {gradient.bytes_per_element for gradient in self.workload.gradients}
        require(
            sizes == {4},
            f"compressors take float32, and workload {self.workload.model!r} has gradients of "
            f"{sorted(sizes)} bytes per element; profile it in float32",
        )
        require_shapes(self.workload, self.compression.compressor)

    @cached_property
    def pieces(self) -> dict[str, CompressedPiece]:
        """Every tensor as the compression takes it, by name."""
        shapes = tensor_shapes(self.workload)
        listed = compressed_pieces(self.compression.compressor, shapes.values())
        return dict(zip(shapes, listed, strict=True))

    def message(self, *gradients: str) -> CompressedMessage:
        """Return what the compression makes of the message that carries these gradients.

        Raises InputError for a compressor whose seconds the profile lacks.
        """
        if gradients not in self._made:
            self._made[gradients] = self.made_of([self.pieces[name] for name in gradients])
        return self._made[gradients]

    def made_of(self, group: Sequence[CompressedPiece]) -> CompressedMessage:
        """Return what the compression makes of a message of these pieces; layers repeat."""
        key = tuple(group)
        if key not in self._of_pieces:
            self._of_pieces[key] = compressed_message(
                group, self.cluster, self.profile, self.compression.feedback
            )
        return self._of_pieces[key]

    def alone(self) -> list[CompressedMessage]:
        """Return what it makes of every gradient as a message of its own."""
        return [self.message(gradient.name) for gradient in self.workload.gradients]

    def plans(self, base: Method) -> list[Plan]:
        """Return the plans of a base for compressed tensors, of which the quickest is taken.

        One is the plan for dense tensors. A base that weighs costs has another for what is sent.
        Its rule neglects what unpacking takes: where that is much, there are more, in which one
        message is unpacked while the next is on its way. Raises InputError for a base that cuts
        tensors.
        """
        here = with_own_plans(self.cluster)
        dense = plan_on(here, self.workload, base)
        pieces_of_messages(dense, self.pieces)  # raises InputError where tensors are cut
        whole = self.message(*self.pieces)
        bytes_sent = whole.bytes
        if not base.bucketing.needs_cost or not bytes_sent:
            return [dense]
        sent = base.plan(self._as_sent(), cost=self.cost_by(bytes_sent))
        elements = {gradient.name: gradient.elements for gradient in self.workload.gradients}
        found = {dense.messages: dense}
        has_more = whole.decode_seconds > UNPACKING * whole.cost.seconds
        for share in (1.0, *PARTS) if has_more else (1.0,):
            most = share * sum(elements.values())
            messages = tuple(
                replace(message, pieces=tuple(Piece(name, 0, elements[name]) for name in part))
                for message, names in zip(sent.messages, _names(sent), strict=True)
                for part in _parts({name: elements[name] for name in names}, most)
            )
            found.setdefault(messages, replace(dense, messages=messages))
        return list(found.values())

    def cost_by(self, bytes_: float) -> AlphaBeta:
        """Return the seconds of a message while workers compute, where all gradients count so many.

        ``bytes_`` are those of all gradients in one message, whether dense or as they are sent. As
        for dense messages, the latency is that of the smallest, whose bytes hide none of it.
        """
        cost, share = self.message(*self.pieces).cost, self.share
        smallest = min(self.alone(), key=lambda message: message.bytes)
        return AlphaBeta(
            smallest.cost.latency / self.cluster.effects.latency_share,
            (cost.work / share + cost.copies) / bytes_,
        )

    @property
    def share(self) -> float:
        """The share of its work that a message does beside the computation."""
        return self.cluster.all_reduce_seconds[2] if self.cluster.workers > 1 else 1.0

    def _as_sent(self) -> Workload:
        gradients = tuple(
            replace(
                gradient,
                elements=max(1, round(message.bytes)),
                bytes_per_element=1,
                shape=None,
                backward_seconds=gradient.backward_seconds + message.encode_seconds,
            )
            for gradient, message in zip(self.workload.gradients, self.alone(), strict=True)
        )
        return replace(self.workload, gradients=gradients)


def pieces_of_messages(plan: Plan, by_name: Mapping[str, T]) -> list[list[T]]:
    """Group what was found for every tensor, by its name, as tensors travel.

    Raises InputError for a plan that cuts tensors.
    """
    sizes = {gradient.name: gradient.elements for gradient in plan.gradients}
    sent = [piece for message in plan.messages for piece in message.pieces]
    require(
        all(piece.elements == sizes[piece.gradient] for piece in sent),
        f"base {plan.method!r} cuts tensors, and compressors take whole ones; take one that does "
        f"not, such as WFBP-A2A or MG-WFBP",
    )
    return [[by_name[piece.gradient] for piece in message.pieces] for message in plan.messages]


def require_all_to_all(base: Method) -> None:
    """Raise InputError for a base method that goes through parameter servers, or in halves."""
    require(
        base.architecture == "A2A",
        f"base {base.name!r} goes through servers; take one that does not, such as WFBP-A2A or "
        f"MG-WFBP",
    )
    require(
        base.exchange == "all_reduce",
        f"base {base.name!r} splits all-reduces, and payloads cannot be; take one that does not, "
        f"such as WFBP-A2A or MG-WFBP",
    )


def messages_of(plan: Plan, by_text: Mapping[str, Compressing]) -> list[CompressedMessage | None]:
    """Return what its compressions make of every message of a plan; None where it is dense."""
    texts = plan.compressions or [""] * len(plan.messages)
    return [
        by_text[text].message(*names) if text else None
        for text, names in zip(texts, _names(plan), strict=True)
    ]


def _names(plan: Plan) -> list[list[str]]:
    return [[piece.gradient for piece in message.pieces] for message in plan.messages]


def _parts(elements: Mapping[str, int], most: float) -> list[list[str]]:
    """Return neighbouring tensors in groups of no more elements, or of one tensor."""
    parts: list[list[str]] = [[]]
    held = 0
    for name, count in elements.items():
        if parts[-1] and held + count > most:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += count
    return parts


# Costs.


def played(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    messages: Sequence[CompressedMessage | None],
    slower: Slowness | None = None,
    steps: int = 1,
) -> Seconds:
    """Return the mean over ``steps`` iterations of a plan, its messages compressed or None.

    Workers differ as the cluster says, and ``slower(rank, step, workers)`` multiplies the seconds
    that a worker computes; no factor changes those of compression.
    """
    require_whole(steps=steps)
    program = lower_as_dense(workload, cluster, plan, keep=not plan.compressions)
    return play(replace(compressed(program, messages), workers=workers_of(cluster, slower, steps)))


def lossless_cost(
    workload: Workload,
    cluster: Cluster,
    method: Method,
    slower: Slowness | None = None,
    steps: int = 1,
) -> IterationCost:
    """Return the cost of a lossless method, as `ddlnb.simulate` finds it.

    Stragglers hold everybody up.
    """
    plan = plan_on(cluster, workload, method)
    dense = [None] * len(plan.messages)
    cost = _cost(method.name, workload, cluster, plan, dense, "simulated", slower, steps)
    if method.architecture == "A2A":
        return cost
    size = float(workload.gradient_bytes) if cluster.workers > 1 else 0.0  # one asks nobody
    machines = cluster.server_machines(method.architecture)
    return replace(cost, bytes_sent=size, bytes_received=size, server_machines=machines)


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
    gradients is quicker. A method with the whole-model flag has one message after the backward
    pass, whatever the base. Stragglers hold everybody up. Raises InputError for a base that goes
    through servers or cuts tensors, for gradients other than float32, for a compressor that the
    profile lacks, and for one that needs unknown shapes.
    """
    if method.compression is None:
        return lossless_cost(workload, cluster, base, slower, steps)
    require_all_to_all(base)
    compressing = Compressing(workload, cluster, profile, method.compression)
    if method.whole_model:
        used = compressed_pieces(method.compression.compressor, pieces(workload, whole_model=True))
        base = get_method("BSP-A2A")
        made = [(plan_on(cluster, workload, base), [compressing.made_of(used)])]
    else:
        used = list(compressing.pieces.values())
        made = [
            (plan, [compressing.message(*names) for names in _names(plan)])
            for plan in compressing.plans(base)
        ]
    costs = []
    for plan, messages in made:
        count = "one message" if len(messages) == 1 else f"{len(messages)} messages"
        source = f"simulated as {base.name}, {count}; compression {coding_source(used, profile)}"
        costs.append(_cost(str(method), workload, cluster, plan, messages, source, slower, steps))
    quickest = min(costs, key=lambda cost: cost.iteration_seconds)
    return replace(quickest, gathers=gathers(used))


def planned_cost(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    profile: CompressionProfile,
    slower: Slowness | None = None,
    steps: int = 1,
) -> IterationCost:
    """Return the cost of a plan that compresses some of its messages, or all.

    Raises PlanError for a workload with other gradients, InputError as a lossy method does for
    gradients other than float32, and for a compressor that the profile lacks.
    """
    plan = fitted(plan, workload)
    by_text = {
        text: Compressing(workload, cluster, profile, compression_of(text))
        for text in plan.compressed_by
    }
    made = messages_of(plan, by_text)
    used = [piece for compressing in by_text.values() for piece in compressing.pieces.values()]
    name = f"{plan.method}: {' and '.join(by_text)}"
    source = (
        f"simulated by plan {plan.digest}, {sum(map(bool, plan.compressions))} of {len(made)} "
        f"messages compressed; compression {coding_source(used, profile)}"
    )
    cost = _cost(name, workload, cluster, plan, made, source, slower, steps)
    return replace(cost, gathers=gathers(used))


def _cost(
    name: str,
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    messages: Sequence[CompressedMessage | None],
    source: str,
    slower: Slowness | None,
    steps: int,
) -> IterationCost:
    """Return the cost of a plan of all-reduces; a worker receives as much as it sends."""
    found = played(workload, cluster, plan, messages, slower, steps)
    some = [one for one in messages if one is not None]
    coding = sum((one.encode_seconds + one.decode_seconds for one in some), 0.0)
    sizes = zip(plan.message_bytes, messages, strict=True)
    dense = sum(size for size, message in sizes if message is None)
    bytes_ = sum(one.bytes for one in some) + ring_bytes_sent(dense, cluster.workers)
    busy = found.iteration_seconds - found.exposed_seconds
    hidden_behind = BACKWARD if plan.gate is Gate.ALL_LAYERS else BOTH_PASSES
    if plan.launch is Launch.AFTER_BACKWARD:
        hidden_behind = NOTHING
    return IterationCost(
        name,
        found.iteration_seconds,
        busy - coding,
        coding,
        found.iteration_seconds - busy,
        bytes_,
        bytes_,
        hidden_behind=hidden_behind,
        source=source,
    )


def compression_of(text: str) -> Compression:
    """Return a compression as plans name it, such as "top-k(0.01) + feedback".

    Raises UnknownName for a compressor that there is not, InputError for one that does not fit.
    """
    first = text.partition("+")[0].strip()
    require(
        first not in SYNCHRONISATIONS,
        f"compression {text!r} begins with a synchronisation, and plans are for bsp; leave "
        f"{first!r} out",
    )
    compression = training_method(f"bsp + {text}").compression
    if compression is None:
        raise InputError(
            f"compression {text!r} compresses nothing; name a compressor, or leave it out"
        )
    require(
        not compression.whole_model,
        f"compression {text!r} makes one message of the whole model, which leaves nothing "
        f"to plan; leave whole-model out",
    )
    return compression
