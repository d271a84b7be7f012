"""A plan whose messages are compressed, each by what the plan names: its program, and its seconds.

What compression makes of one message is said in `ddlnb.training.cost.overlapped`, for plans and
for the fixed methods alike.

The cost of an iteration by a plan whose messages are compressed, as of a kept one.

What every group of neighbouring gradients costs when it is compressed, all groups at once.

Requests of tensors that travel together are joined, so that a group has the latency of each of its
requests once, and the bytes of all its tensors; both are sums over neighbours.

What is sent, compressed: the costs of lossy methods, for the search of plans.

The search decides when tensors travel and with which others; each is compressed on its own, so that
merging, order and gate change nothing of what is learnt. Mixed, it also decides which messages go
dense: a message that computation hides gains nothing by being compressed, and pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import FREE, CompressionProfile, compression_profile
from ddlnb.errors import require
from ddlnb.plans.alpha_beta import AlphaBeta, ring_bytes_sent
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import fitted
from ddlnb.search.bound import (
    Bound,
    Coding,
    LeastTime,
    bound_of,
    least_of_all_reduces,
    least_of_servers,
)
from ddlnb.search.merging import (
    MOST_GRADIENTS,
    best_merging,
    earliest_ends,
    groups,
    in_groups,
    ready_seconds,
)
from ddlnb.search.space import Candidate, Cost, Space, all_reduce_costs
from ddlnb.simulator.program import lower_as_dense
from ddlnb.simulator.workers import Slowness
from ddlnb.training.cost.machines import with_own_plans
from ddlnb.training.cost.overlapped import (
    CompressedMessage,
    IterationCost,
    PlayedIteration,
    base_plans,
    compressed,
    compressed_message,
    hidden_behind,
    play_uneven,
    require_float32,
)
from ddlnb.training.cost.requests import (
    CompressedPiece,
    coding_source,
    compressed_pieces,
    gathers,
    request_cost,
    require_shapes,
    tensor_shapes,
)
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.units import KIB, MIB
from ddlnb.workloads.workload import Workload


def compressing_method(compression: str) -> TrainingMethod:
    """Return BSP with a compression as plans name it, such as "top-k(0.01) + feedback".

    Raises UnknownName for a compressor that there is not, InputError for one that does not fit.
    """
    first = compression.partition("+")[0].strip()
    require(
        first not in SYNCHRONISATIONS,
        f"compression {compression!r} begins with a synchronisation, and plans are for bsp; leave "
        f"{first!r} out",
    )
    method = training_method(f"bsp + {compression}")
    require(
        method.compressor is not None,
        f"compression {compression!r} compresses nothing; name a compressor, or leave it out",
    )
    require(
        not method.whole_model,
        f"compression {compression!r} makes one message of the whole model, which leaves nothing "
        f"to plan; leave whole-model out",
    )
    return method


@dataclass(frozen=True)
class Compressing:
    """The compressed messages of a workload on a cluster, with the seconds of a profile.

    Raises InputError for gradients other than float32.
    """

    workload: Workload
    cluster: Cluster
    profile: CompressionProfile
    _pieces: dict[str, dict[str, CompressedPiece]] = field(default_factory=dict, repr=False)
    _made: dict[tuple[str, tuple[str, ...]], CompressedMessage] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        require_float32(self.workload)

    def pieces(self, compression: str) -> dict[str, CompressedPiece]:
        """Return every tensor as a compression takes it, by name.

        Raises InputError for a compressor that needs shapes of tensors that are not known.
        """
        if compression not in self._pieces:
            compressor = compressing_method(compression).compressor
            assert compressor is not None
            require_shapes(self.workload, compressor)
            shapes = tensor_shapes(self.workload)
            listed = compressed_pieces(compressor, shapes.values())
            self._pieces[compression] = dict(zip(shapes, listed, strict=True))
        return self._pieces[compression]

    def message(self, compression: str, gradients: tuple[str, ...]) -> CompressedMessage:
        """Return what a compression makes of the message that carries these gradients.

        Raises InputError for a compressor whose seconds the profile lacks.
        """
        key = compression, gradients
        if key not in self._made:
            by_name = self.pieces(compression)
            self._made[key] = self.maker(compression)([by_name[name] for name in gradients])
        return self._made[key]

    def maker(self, compression: str) -> Callable[[Sequence[CompressedPiece]], CompressedMessage]:
        """Return what makes a message of tensors with their compressors."""
        feedback = compressing_method(compression).feedback
        return partial(
            compressed_message, cluster=self.cluster, profile=self.profile, feedback=feedback
        )

    def messages(self, plan: Plan) -> list[CompressedMessage | None]:
        """Return what compression makes of every message of a plan; None where it is dense."""
        if not plan.compressions:
            return [None] * len(plan.messages)
        return [
            self.message(compression, tuple(piece.gradient for piece in message.pieces))
            if compression
            else None
            for message, compression in zip(plan.messages, plan.compressions, strict=True)
        ]

    def played(
        self,
        plan: Plan,
        messages: Sequence[CompressedMessage | None],
        slower: Slowness | None = None,
        steps: int = 1,
    ) -> PlayedIteration:
        """Return the seconds of a plan with these messages; stragglers hold everybody up."""
        program = lower_as_dense(self.workload, self.cluster, plan, keep=False)
        finish = partial(compressed, messages=messages)
        return play_uneven(program, finish, self.cluster, slower, steps)


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
    compressing = Compressing(workload, cluster, profile)
    made = compressing.messages(plan)
    played = compressing.played(plan, made, slower, steps)
    some = [one for one in made if one is not None]
    coding = sum(one.encode_seconds + one.decode_seconds for one in some)
    dense = sum(size for size, one in zip(plan.message_bytes, made, strict=True) if one is None)
    bytes_ = sum(one.bytes for one in some) + ring_bytes_sent(dense, cluster.workers)
    used = [piece for text in plan.compressed_by for piece in compressing.pieces(text).values()]
    return IterationCost.of_played(
        f"{plan.method}: {' and '.join(plan.compressed_by)}",
        played,
        bytes_,
        coding,
        gathers=gathers(used),
        hidden_behind=hidden_behind(plan.launch, plan.gate),
        source=f"simulated by plan {plan.digest}, {len(some)} of {len(made)} messages compressed; "
        f"compression {coding_source(used, profile)}",
    )


Numbers = NDArray[np.float64]


class GroupCosts(NamedTuple):
    """Seconds of every group, in the order of `ddlnb.search.merging.groups`.

    ``latency`` holds the copies into a message of several tensors and out of it.
    """

    latency: Numbers
    work: Numbers


def group_costs(cluster: Cluster, pieces: Sequence[CompressedPiece]) -> GroupCosts:
    """Return the costs of the groups of these tensors, as of `requests_cost` for each."""
    first, last = groups(len(pieces))
    bytes_of: dict[tuple[int, type], Numbers] = {}
    asks: dict[tuple[int, type], NDArray[np.int64]] = {}
    for position, (compressor, shape) in enumerate(pieces):
        for key in enumerate(compressor.traffic(shape, cluster.workers)):
            number, (request, size) = key
            at = number, request
            bytes_of.setdefault(at, np.zeros(len(pieces)))[position] = size
            asks.setdefault(at, np.zeros(len(pieces), np.int64))[position] = 1
    latency, work = np.zeros(len(first)), np.zeros(len(first))
    for at, sizes in bytes_of.items():
        _, request = at
        empty = request_cost(cluster, request, 0.0)
        one = request_cost(cluster, request, 1.0, is_merged=True)
        summed = in_groups(sizes)
        latency += np.where(in_groups(asks[at]) > 0, empty.latency, 0.0)
        latency += np.where(last > first, one.copies * summed, 0.0)
        work += one.work * summed
    return GroupCosts(latency, work)


SMALL = (64 * KIB, MIB)  # bytes of messages that are first tried dense; BytePS has 64 KiB
EARLY = (0.5, 0.75, 0.9)  # of all bytes: the first that backward makes ready, tried dense


@dataclass(frozen=True)
class Compressed:
    """Gradients that are compressed, for `ddlnb.search_plan`.

    ``compression`` is a compressor, with "feedback" if wanted. ``profile`` says what compressing
    takes: one of data/profiles/compression, a CompressionProfile, or "free", a bound.
    ``mixed`` lets every message be dense, too. Raises UnknownName for a name that there is not, and
    InputError for choices that do not fit together.

    >>> import ddlnb
    >>> print(ddlnb.Compressed("top-k(0.01) + feedback", profile="cpu-1thread"))
    top-k(0.01) + feedback
    >>> found = ddlnb.search_plan(
    ...     "resnet50", "survey-10GbE", workers=16, sent=ddlnb.Compressed("fp16"), most_plans=60
    ... )
    >>> found.plan.compressed_by, found.iteration_seconds <= min(found.fixed.values())
    (('fp16',), True)
    """

    compression: str
    profile: str | CompressionProfile = FREE
    mixed: bool = False

    def __post_init__(self) -> None:
        compressing_method(self.compression)
        compression_profile(self.profile)

    def on(self, workload: Workload, cluster: Cluster, space: Space) -> CompressedSending:
        """Return how the gradients of a workload are sent on a cluster.

        Raises InputError for gradients other than float32, a compressor whose seconds the profile
        lacks, and one that needs shapes of tensors that are not known.
        """
        compressing = Compressing(workload, cluster, compression_profile(self.profile))
        return CompressedSending(compressing, str(self), space, self.mixed)

    def __str__(self) -> str:
        method = compressing_method(self.compression)
        return f"{method.compressor}{' + feedback' if method.feedback else ''}"


@dataclass(frozen=True)
class CompressedSending:
    """Gradients of a workload on a cluster that one compressor makes smaller, all or some."""

    compressing: Compressing
    compression: str
    whole: Space
    is_mixed: bool = False

    names = ()

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return self.compressing.workload

    @property
    def cluster(self) -> Cluster:
        """Where."""
        return self.compressing.cluster

    @property
    def space(self) -> Space:
        """The space without what payloads cannot do: be cut, go in halves, be summed elsewhere."""
        return replace(self.whole, partition=False, split=False, collectives=(), servers=False)

    def plan(self, one: Candidate) -> Plan | None:
        """Return the plan of a candidate, None for one of more messages than are tried."""
        plan = one.plan(self.workload, self.cluster, (), self._cost)
        if plan is None:
            return None
        ends = [max(positions) + 1 for positions in plan.gradients_of]
        return self._named(plan, [end not in one.dense for end in ends])

    def seconds(self, plan: Plan) -> float:
        """Return the seconds of a steady iteration of a plan."""
        made = self.compressing.messages(plan)
        return self.compressing.played(plan, made).iteration_seconds

    def fixed(self) -> dict[str, list[Plan]]:
        """Return the plans of BSP with this compressor, its messages as those of every base."""
        here = with_own_plans(self.cluster)
        by_name = self.compressing.pieces(self.compression)
        message = self.compressing.maker(self.compression)
        found = {}
        for base in METHODS.values():
            if _carries_tensors(base):
                plans = base_plans(self.workload, here, base, by_name, message)
                name = f"bsp + {self.compression} as {base.name}"
                found[name] = [self._named(plan, [True] * len(plan.messages)) for plan in plans]
        return found

    def mergings(self) -> list[tuple[int, ...]]:
        """Return the best merging of compressed gradients, and mixed, that of dense ones."""
        if len(self.workload.gradients) > MOST_GRADIENTS:
            return []
        costs = group_costs(self.cluster, self._pieces)
        share = np.full(len(costs.work), self._share)
        # Whatever the groups: when one ends, all before it have been compressed.
        ready = ready_seconds(self.workload, self.cluster) + self._coding.encode.cumsum()
        slowed = self.cluster.effects.latency_share
        found = [earliest_ends(ready, costs.latency, costs.work, share, slowed)]
        if self.is_mixed:
            dense = best_merging(self.workload, self.cluster, all_reduce_costs(self.cluster, [""]))
            found += [dense] if dense is not None else []
        return found

    def selections(self, ends: tuple[int, ...]) -> list[frozenset[int]]:
        """Return which groups may go dense: none; small ones, early ones, those quicker so."""
        if not self.is_mixed:
            return [frozenset()]
        listed = self.workload.gradients
        total = np.concatenate([[0], np.cumsum([gradient.bytes for gradient in listed])])
        bounds = list(pairwise((0, *ends)))
        sizes = {end: int(total[end] - total[start]) for start, end in bounds}
        chosen = [frozenset(end for end in ends if sizes[end] < small) for small in SMALL]
        chosen += [
            frozenset(end for end in ends if total[end] <= share * total[-1]) for share in EARLY
        ]
        seconds = Cost(self.cluster).seconds(np.array(list(sizes.values())))
        quicker = [
            end
            for (start, end), dense in zip(bounds, seconds, strict=True)
            if dense <= _seconds(self._message(tuple(one.name for one in listed[start:end])))
        ]
        return list(dict.fromkeys([frozenset(), frozenset(quicker), *chosen]))

    def bound(self) -> Bound:
        """Return the bound of all plans whose messages are compressed, or mixed, may be."""
        alone = self._alone
        least = LeastTime(
            min(one.cost.latency for one in alone),
            np.array([one.cost.work for one in alone]),
            min(1.0, max(self._share, self.cluster.effects.latency_share)),
        )
        if not self.is_mixed:
            return bound_of(self.workload, self.cluster, least, self._coding)
        names = self.whole.collectives_on(self.cluster)
        ways = [least.or_else(least_of_all_reduces(self.workload, self.cluster, names))]
        if self.whole.servers and self.cluster.takes_servers:
            ways.append(least_of_servers(self.workload, self.cluster))
        bounds = [bound_of(self.workload, self.cluster, one) for one in ways]
        return min(bounds, key=lambda bound: bound.seconds)

    def _named(self, plan: Plan, is_compressed: list[bool]) -> Plan:
        if not any(is_compressed):
            return plan
        names = tuple(self.compression if one else "" for one in is_compressed)
        return replace(plan, compressions=names)

    def _message(self, gradients: tuple[str, ...]) -> CompressedMessage:
        return self.compressing.message(self.compression, gradients)

    @cached_property
    def _pieces(self) -> list[CompressedPiece]:
        by_name = self.compressing.pieces(self.compression)
        return [by_name[gradient.name] for gradient in self.workload.gradients]

    @cached_property
    def _alone(self) -> list[CompressedMessage]:
        """What compression makes of every gradient as a message of its own."""
        return [self._message((gradient.name,)) for gradient in self.workload.gradients]

    @cached_property
    def _coding(self) -> Coding:
        return Coding(
            np.array([one.encode_seconds for one in self._alone]),
            np.array([one.decode_seconds for one in self._alone]),
        )

    @cached_property
    def _share(self) -> float:
        """The share of its work that a message does beside the computation."""
        _, _, share = Cost(self.cluster).parts(np.ones(1))
        return share

    @cached_property
    def _cost(self) -> AlphaBeta:
        """The seconds of a compressed message while workers compute, by its dense bytes."""
        joined = self._message(tuple(gradient.name for gradient in self.workload.gradients)).cost
        seconds = joined.work / self._share + joined.copies
        return AlphaBeta(
            joined.latency / self.cluster.effects.latency_share,
            seconds / self.workload.gradient_bytes,
        )


def _seconds(message: CompressedMessage) -> float:
    return message.encode_seconds + message.cost.seconds + message.decode_seconds


def _carries_tensors(base: Method) -> bool:
    """Return whether compressed tensors can travel as messages of this method do."""
    return base.exchange == "all_reduce" and base.partition_bytes is None and base.planner is None
