"""The search of plans for compressed gradients: what `ddlnb.search_plan` gets as ``sent``.

The search decides when tensors travel and with which others; each is compressed on its own, so that
merging, order and gate change nothing of what is learnt. Mixed, it also decides which messages go
dense: a message that computation hides gains nothing by being compressed, and pays for it. What
compression makes of one message is said in `ddlnb.training.cost.overlapped`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import (
    SHEET,
    CompressionProfile,
    compression_on,
    compression_profile,
)
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Plan
from ddlnb.search.bound import (
    MOST_GRADIENTS,
    Bound,
    Coding,
    LeastTime,
    best_merging,
    bound_of,
    earliest_ends,
    groups,
    in_groups,
    least_of_all_reduces,
    least_of_servers,
    ready_seconds,
)
from ddlnb.search.compressed import Compression, Sending
from ddlnb.search.space import Candidate, Cost, Space, all_reduce_costs
from ddlnb.training.cost.overlapped import (
    CompressedMessage,
    Compressing,
    compression_of,
    messages_of,
    played,
)
from ddlnb.training.cost.requests import CompressedPiece, request_cost, request_seconds
from ddlnb.units import KIB, MIB
from ddlnb.workloads.workload import Workload

Numbers = NDArray[np.float64]
SMALL = (64 * KIB, MIB)  # bytes of messages that are first tried dense; BytePS has 64 KiB
EARLY = (0.5, 0.75, 0.9)  # of all bytes: the first that backward makes ready, tried dense


@dataclass(frozen=True)
class Compressed(Compression):
    """Gradients that are compressed, for `ddlnb.search_plan`.

    ``compression`` is a compressor, with "feedback" if wanted. ``profile`` says what compressing
    takes, as in `ddlnb.iteration_cost`: by default "sheet".
    ``mixed`` lets every message be dense, too. Raises UnknownName for a name that there is not, and
    InputError for choices that do not fit together.

    >>> import ddlnb
    >>> print(ddlnb.training.Compressed("top-k(0.01) + feedback", profile="cpu-1thread"))
    top-k(0.01) + feedback
    >>> found = ddlnb.search_plan(
    ...     "resnet50",
    ...     "survey-10GbE",
    ...     workers=16,
    ...     compression=ddlnb.training.Compressed("fp16"),
    ...     most_plans=60,
    ... )
    >>> found.plan.compressed_by, found.iteration_seconds <= min(found.fixed.values())
    (('fp16',), True)
    """

    compression: str
    profile: str | CompressionProfile = SHEET
    mixed: bool = False

    def __post_init__(self) -> None:
        compression_of(self.compression)
        if self.profile != SHEET:
            compression_profile(self.profile)

    def on(self, workload: Workload, cluster: Cluster, space: Space) -> CompressedSending:
        """Return how the gradients of a workload are sent on a cluster.

        Raises InputError for gradients other than float32, a compressor whose seconds the profile
        lacks, and one that needs shapes of tensors that are not known.
        """
        profile = compression_on(self.profile, cluster.hardware)
        compressing = Compressing(workload, cluster, profile, compression_of(self.compression))
        # What payloads cannot do: be cut, go in halves, be summed elsewhere.
        own = replace(space, partition=False, split=False, collectives=(), servers=False)
        return CompressedSending(
            workload, cluster, own, compressing, str(self), space, is_mixed=self.mixed
        )

    def __str__(self) -> str:
        compression = compression_of(self.compression)
        return f"{compression.compressor}{' + feedback' if compression.feedback else ''}"


@dataclass(frozen=True)
class CompressedSending(Sending):
    """Gradients of a workload on a cluster that one compressor makes smaller, all or some.

    ``whole`` is the space of dense messages.
    """

    compressing: Compressing
    compression: str
    whole: Space

    def plan(self, one: Candidate) -> Plan | None:
        """Return the plan of a candidate, None for one of more messages than are tried."""
        plan = one.plan(self.workload, self.cluster, (), self._cost)
        if plan is None:
            return None
        ends = [max(positions) + 1 for positions in plan.gradients_of]
        return self._named(plan, [end not in one.dense for end in ends])

    def seconds(self, plan: Plan) -> float:
        """Return the seconds of a steady iteration of a plan."""
        messages = messages_of(plan, {self.compression: self.compressing})
        return played(self.workload, self.cluster, plan, messages).iteration_seconds

    def fixed(self) -> dict[str, list[Plan]]:
        """Return the plans of BSP with this compressor, its messages as those of every base."""
        return {
            f"bsp + {self.compression} as {base.name}": [
                self._named(plan, [True] * len(plan.messages))
                for plan in self.compressing.plans(base)
            ]
            for base in METHODS.values()
            if base.exchange == "all_reduce" and base.partition_bytes is None and not base.planner
        }

    def mergings(self) -> list[tuple[int, ...]]:
        """Return the best merging of compressed gradients, and mixed, that of dense ones."""
        if len(self.workload.gradients) > MOST_GRADIENTS:
            return []
        pieces = [self.compressing.pieces[one.name] for one in self.workload.gradients]
        costs = group_costs(self.cluster, pieces)
        share = np.full(len(costs.work), self.compressing.share)
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
            if dense <= self.compressing.message(*(one.name for one in listed[start:end])).seconds
        ]
        return list(dict.fromkeys([frozenset(), frozenset(quicker), *chosen]))

    def bound(self) -> Bound:
        """Return the bound of all plans whose messages are compressed, or mixed, may be."""
        alone = self._alone
        # A message of all has the least latency and work of a byte, where these depend on its size.
        whole = self.compressing.message(*(one.name for one in self.workload.gradients)).cost
        work = np.array([one.cost.work for one in alone])
        least = LeastTime(
            min(whole.latency, *(one.cost.latency for one in alone)),
            work * min(1.0, whole.work / work.sum() if work.any() else 1.0),
            min(1.0, max(self.compressing.share, self.cluster.effects.latency_share)),
        )
        if not self.is_mixed:
            return bound_of(self.workload, self.cluster, least, self._coding)
        names = self.whole.collectives_on(self.cluster)
        ways = [least.or_else(least_of_all_reduces(self.workload, self.cluster, names))]
        if self.whole.servers and self.cluster.takes_servers:
            ways.append(least_of_servers(self.workload, self.cluster))
        bounds = (bound_of(self.workload, self.cluster, one) for one in ways)
        return min(bounds, key=lambda bound: bound.seconds)

    def _named(self, plan: Plan, is_compressed: list[bool]) -> Plan:
        if not any(is_compressed):
            return plan
        names = tuple(self.compression if one else "" for one in is_compressed)
        return replace(plan, compressions=names)

    @cached_property
    def _alone(self) -> list[CompressedMessage]:
        return self.compressing.alone()

    @cached_property
    def _coding(self) -> Coding:
        return Coding(
            np.array([one.encode_seconds for one in self._alone]),
            np.array([one.decode_seconds for one in self._alone]),
        )

    @cached_property
    def _cost(self) -> AlphaBeta:
        """The seconds of a compressed message while workers compute, by its dense bytes."""
        return self.compressing.cost_by(self.workload.gradient_bytes)


class GroupCosts(NamedTuple):
    """Seconds of every group, in the order of `ddlnb.search.bound.groups`.

    ``latency`` holds the copies into a message of several tensors and out of it.
    """

    latency: Numbers
    work: Numbers


def group_costs(cluster: Cluster, pieces: Sequence[CompressedPiece]) -> GroupCosts:
    """Return the costs of the groups of these tensors, as of `requests_cost` for each."""
    first, last = groups(len(pieces))
    asked: dict[tuple[int, type], Numbers] = defaultdict(lambda: np.zeros((2, len(pieces))))
    for position, (compressor, shape) in enumerate(pieces):
        for number, (request, size) in enumerate(
            compressor.declared_traffic(shape, cluster.workers)
        ):
            asked[number, request][:, position] = size, 1
    latency, work = np.zeros(len(first)), np.zeros(len(first))
    for (_, request), (sizes, asks) in asked.items():
        summed = in_groups(sizes)
        waits, works = request_seconds(cluster, request, summed)
        copies = request_cost(cluster, request, 1.0, is_merged=True).copies
        latency += np.where(in_groups(asks) > 0, waits, 0.0)
        latency += np.where(last > first, copies * summed, 0.0)
        work += works
    return GroupCosts(latency, work)
