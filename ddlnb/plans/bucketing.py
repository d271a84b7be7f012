"""Which gradients travel together: functions from a workload to messages, in the order they start.

Each function is the idea of one survey method and nothing else. A `Bucketing` declares what its
function needs to know besides the workload. The order of priorities, which is fixed in advance
because collectives must start alike on all ranks, and which server keeps which message stand here,
too.
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddlnb.errors import InputError, require
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Message, Piece
from ddlnb.units import MB, MIB
from ddlnb.workloads.workload import Gradient, Workload

DDP_FIRST_BUCKET, DDP_BUCKET = MIB, 25 * MIB  # torch's defaults
BUFFER_BYTES = 25 * MB  # of DeAR


@dataclass(frozen=True)
class Bucketing:
    """A rule that groups gradients into messages.

    ``group`` takes the workload and, if the rule ``needs_cost``, the seconds of one all-reduce.
    """

    group: Callable[..., list[Message]]
    needs_cost: bool = False

    def __post_init__(self) -> None:
        takes = "workload, cost" if self.needs_cost else "workload"
        try:
            inspect.signature(self.group).bind(*takes.split())
        except (TypeError, ValueError) as error:
            raise InputError(
                f"rule {self.name!r} cannot be called with ({takes}): {error}; give a rule that "
                f"takes the cost of an all-reduce as Bucketing(rule, needs_cost=True)"
            ) from error

    @property
    def name(self) -> str:
        """Name the rule as tables show it, after its function."""
        group = getattr(self.group, "func", self.group)  # of a functools.partial
        return getattr(group, "__name__", type(group).__name__).replace("_", " ")

    def messages(self, workload: Workload, cost: AlphaBeta | None = None) -> list[Message]:
        """Return the messages of a workload. Raises InputError if a cost is needed but missing."""
        if self.needs_cost and cost is None:
            raise InputError(
                f"grouping gradients as {self.name!r} needs the cost of an all-reduce; "
                f"pass cost=AlphaBeta(a, b)"
            )
        found = self.group(workload, cost) if self.needs_cost else self.group(workload)
        require(
            isinstance(found, Sequence) and all(isinstance(one, Message) for one in found),
            f"rule {self.name!r} returns {str(found)[:60]}, which is no list of messages; make "
            f"them with ddlnb.plans.bucketing.message_of(workload, gradients)",
        )
        return found


def one_bucket(workload: Workload) -> list[Message]:
    """Put everything in one message (BSP, survey section 4.1)."""
    return [message_of(workload, workload.gradients)]


def per_tensor(workload: Workload) -> list[Message]:
    """Send one message per gradient tensor: wait-free backpropagation (Zhang et al. 2017)."""
    return [message_of(workload, [gradient]) for gradient in workload.gradients]


def merged(workload: Workload, cost: AlphaBeta) -> list[Message]:
    """Merge neighbours as MG-WFBP does (Shi, Chu and Li, INFOCOM 2019, algorithm 1).

    Going through the gradients as backward produces them, a message that could start at time s
    takes in the next gradient, ready at time r, when r < s + a: the wait costs less than the
    latency a that it saves. Needs measured layer times and the fitted cost a + b M.

    >>> from ddlnb.workloads.workload import Layer
    >>> gradients = [Gradient(n, "l", 10, 4, t) for n, t in [("c", 1.0), ("b", 0.1), ("a", 3.0)]]
    >>> work = Workload("toy", 1, (Layer("l"),), tuple(gradients), "by hand")
    >>> [str(message) for message in merged(work, AlphaBeta(0.5, 0.01))]
    ['c .. b (2 pieces)', 'a[0:10]']
    """
    groups: list[list[Gradient]] = []
    network_free = starts = 0.0
    for gradient, ready in zip(workload.gradients, workload.ready_seconds, strict=True):
        if groups and ready < starts + cost.latency_seconds:
            groups[-1].append(gradient)
        else:
            if groups:
                network_free = starts + cost.seconds(sum(g.bytes for g in groups[-1]))
            groups.append([gradient])
        starts = max(ready, network_free)
    return [message_of(workload, group) for group in groups]


def buffered(workload: Workload) -> list[Message]:
    """Fill buffers of 25 MB with gradients as backward produces them (DeAR, Zhang et al. 2023).

    A gradient that does not fit any more begins the next buffer; one that is larger has its own.
    The paper's tensor fusion (section 4) tunes the size by Bayesian optimisation; 25 MB is where
    it starts, the default of PyTorch's DDP.
    """
    return in_buffers(workload, BUFFER_BYTES)


def in_buffers(workload: Workload, buffer_bytes: int) -> list[Message]:
    """Return messages of neighbours of at most so many bytes, or of one gradient that is larger."""
    groups: list[list[Gradient]] = []
    room = 0
    for gradient in workload.gradients:
        if not groups or gradient.bytes > room:
            groups.append([])
            room = buffer_bytes
        groups[-1].append(gradient)
        room -= gradient.bytes
    return [message_of(workload, group) for group in groups]


def ddp_buckets(
    workload: Workload, first: int = DDP_FIRST_BUCKET, others: int = DDP_BUCKET
) -> list[Message]:
    """Fill buckets as PyTorch's DistributedDataParallel does (Li et al. 2020), of so many bytes.

    Gradients join a bucket as the backward pass produces them, and the bucket closes with the one
    that brings it to its size: by default 1 MiB for the first, so that it leaves early, 25 MiB for
    the others. That is how DDP fills its buckets anew after the first iteration (torch's
    ``Reducer``). The bytes are those that the backward pass makes: a hook that sends them in
    halves converts a full bucket.
    """
    groups: list[list[Gradient]] = [[]]
    for gradient in workload.gradients:
        limit = first if len(groups) == 1 else others
        groups[-1].append(gradient)
        if sum(g.elements * (g.made_bytes or g.bytes_per_element) for g in groups[-1]) >= limit:
            groups.append([])
    return [message_of(workload, group) for group in groups if group]


ONE_BUCKET = Bucketing(one_bucket)
PER_TENSOR = Bucketing(per_tensor)
MERGED = Bucketing(merged, needs_cost=True)
DDP_BUCKETS = Bucketing(ddp_buckets)
BUFFERED = Bucketing(buffered)


def partitioned(
    messages: Sequence[Message], bytes_per_element: int, partition_bytes: int
) -> list[Message]:
    """Cut messages into parts of at most the given bytes (ByteScheduler, Peng et al. 2019).

    The parts of a message are of equal length; order and priority stay.

    >>> whole = Message((Piece("w", 0, 10),), 3)
    >>> [str(part) for part in partitioned([whole], bytes_per_element=4, partition_bytes=16)]
    ['w[0:4]', 'w[4:8]', 'w[8:10]']
    """
    limit = max(1, partition_bytes // bytes_per_element)
    parts = []
    for message in messages:
        step = math.ceil(message.elements / math.ceil(message.elements / limit))
        pieces: list[Piece] = []
        room = step
        for piece in message.pieces:
            start = piece.start
            while start < piece.stop:
                stop = min(piece.stop, start + room)
                pieces.append(Piece(piece.gradient, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    parts.append(Message(tuple(pieces), message.priority))
                    pieces, room = [], step
        if pieces:
            parts.append(Message(tuple(pieces), message.priority))
    return parts


def message_of(workload: Workload, gradients: Sequence[Gradient]) -> Message:
    """Return the message of these whole gradients, with the priority of their first layer.

    Raises InputError for no gradients.
    """
    require(bool(gradients), "a message of no gradients; leave out groups that are empty")
    pieces = tuple(Piece(gradient.name, 0, gradient.elements) for gradient in gradients)
    position = workload.layer_position
    return Message(pieces, min(position[gradient.layer] for gradient in gradients))


def by_priority(
    messages: Sequence[Message],
    workload: Workload,
    cost: AlphaBeta,
    credit_bytes: int | None,
) -> list[Message]:
    """Return the messages in the order in which a priority queue would start them.

    The queue is played through once with the workload's times: whenever the bytes in flight leave
    room within the credit, the ready message with the smallest priority starts; the network serves
    those in flight one after the other.
    """
    ready = dict(zip((one.name for one in workload.gradients), workload.ready_seconds, strict=True))
    each = {gradient.name: gradient.bytes_per_element for gradient in workload.gradients}
    ready_at = [max([ready[piece.gradient] for piece in message.pieces]) for message in messages]
    sizes = [each[message.pieces[0].gradient] * message.elements for message in messages]
    seconds = {size: cost.seconds(size) for size in set(sizes)}
    credit = math.inf if credit_bytes is None else credit_bytes
    arrivals = sorted(range(len(messages)), key=ready_at.__getitem__)[::-1]
    waiting: list[tuple[int, int]] = []
    in_flight: deque[tuple[float, int]] = deque()
    flying = 0  # bytes
    order: list[Message] = []
    now = network_free = 0.0
    while arrivals or waiting:
        while arrivals and ready_at[arrivals[-1]] <= now:
            index = arrivals.pop()
            heapq.heappush(waiting, (messages[index].priority, index))
        while in_flight and in_flight[0][0] <= now:
            flying -= in_flight.popleft()[1]
        if waiting and (not flying or flying + sizes[waiting[0][1]] <= credit):
            _, index = heapq.heappop(waiting)
            network_free = max(now, network_free) + seconds[sizes[index]]
            in_flight.append((network_free, sizes[index]))
            flying += sizes[index]
            order.append(messages[index])
            continue
        now = ready_at[arrivals[-1]] if arrivals else math.inf
        if in_flight:
            now = min(now, in_flight[0][0])
    return order


def balanced(messages: Sequence[Message], servers: int) -> tuple[int, ...]:
    """Place the largest message first, each on the server with the least load so far.

    >>> from ddlnb.plans.plan import Piece
    >>> balanced([Message((Piece(name, 0, n),)) for name, n in zip("abcd", [5, 4, 3, 2])], 2)
    (0, 1, 1, 0)
    """
    sizes = [message.elements for message in messages]
    load = [(0, server) for server in range(servers)]
    placement = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        least, server = load[0]
        placement[index] = server
        heapq.heapreplace(load, (least + sizes[index], server))
    return tuple(placement)


def hashed(messages: Sequence[Message], servers: int) -> tuple[int, ...]:
    """Place every message by a hash of its key, as BytePS does; the load is uneven.

    The key of part i of the j-th tensor is j * 2**16 + i; the hash is djb2 over its decimal digits.
    Gradients are numbered by name, and after them, as they come, the tensors that several of them
    are merged into.

    >>> from ddlnb.plans.plan import Piece
    >>> hashed([Message((Piece("w", 4 * i, 4 * i + 4),)) for i in range(6)], 2)
    (1, 0, 1, 0, 1, 0)
    """
    names = sorted({piece.gradient for message in messages for piece in message.pieces})
    number: dict[tuple[str, ...], int] = {(name,): index for index, name in enumerate(names)}
    parts: Counter[tuple[str, ...]] = Counter()
    placement = []
    for tensor in _tensors(messages):
        key = number.setdefault(tensor, len(number))
        placement.append(_djb2(str((key << 16) + parts[tensor])) % servers)
        parts[tensor] += 1
    return tuple(placement)


def _tensors(messages: Sequence[Message]) -> list[tuple[str, ...]]:
    """Return the gradients of the tensor that each message is a part of: one, or several merged.

    A message that goes on in the middle of a gradient is a part of the tensor before it.
    """
    runs: list[list[Message]] = []
    for message in messages:
        goes_on = runs and message.pieces[0].start > 0
        if goes_on and message.pieces[0].gradient == runs[-1][-1].pieces[-1].gradient:
            runs[-1].append(message)
        else:
            runs.append([message])
    found = []
    for run in runs:
        merged = dict.fromkeys(piece.gradient for message in run for piece in message.pieces)
        found += [tuple(merged)] * len(run)
    return found


def _djb2(text: str) -> int:
    value = 5381
    for character in text:
        value = (value * 33 + ord(character)) % 2**64
    return value


PLACEMENTS = {"balanced": balanced, "hashed": hashed}
