"""Clusters: how many nodes of how many GPUs, how they are joined, and what every effect costs.

A cluster is a file in data/clusters. It keeps facts about the hardware, which somebody looked up,
apart from the effects, which somebody fitted and which carry their uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import add, attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.effects import EFFECTS, SHIPPED, UNLIMITED, Effects, Unit, effect_from
from ddlnb.clusters.fabric import (
    ALL_REDUCES,
    NCCL,
    NCCL_TREE,
    Asked,
    Curve,
    Fabric,
    Form,
    Links,
    Load,
    Numbers,
    ServerLoads,
    fabric_of,
    nccl_choice,
)
from ddlnb.clusters.heterogeneous import HOMOGENEOUS, Delay, Factors, Heterogeneity, named
from ddlnb.errors import InputError, UnknownName, require, require_known, require_whole
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import PLACEMENTS
from ddlnb.plans.transfers import Primitive
from ddlnb.units import counted

# Of forecasts on clusters that are fitted, medians are off by 3 to 25 % (docs/forecast.md).
ASSUMED_ERROR = 0.1
# Of seconds, for every doubling of the workers beyond those of a fit. A judgement: with it nine in
# ten of the survey's cells with 32 GPUs are within intervals of a fit to fewer
# (tests/calibration/test_testbed.py).
DOUBLING_ERROR = 0.02
SERVER_PLACES = ("extra machines", "workers' nodes")
IN_A_BOX = 8  # GPUs at most in a node that is no rack


@dataclass(frozen=True)
class Fit:
    """What is known of one effect: a 90 % interval in its unit, and what it was fitted on."""

    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Cluster:
    """Workers, how they are joined, and the effects that cost time.

    ``workers`` fill nodes of ``gpus_per_node`` one after the other. ``all_reduce`` is the name of
    the algorithm, ``nccl`` for NCCL's choice of ring or double tree by size and ranks,
    ``nccl-tree`` for its double tree alone, or ``auto`` for the best one by size. ``topology`` says
    how nodes are joined, as ``fat-tree(4)``, ``routing`` and ``changes`` how routes are chosen and
    what differs, as ``cut(host0, edge0_0)``; without a topology, nodes are on one switch.
    ``server_place`` is None when there are no parameter servers. ``planning`` is the cost of an
    all-reduce by which methods merge gradients, where it is not the cluster's own. ``model_error``
    is the relative standard deviation of measured from simulated seconds that no uncertainty of an
    effect explains; ASSUMED_ERROR where nobody measured it. ``hardware`` is the word for its GPU in
    the names of profiles. ``fitted_workers`` is the most that were seen when it was fitted, 0 if it
    was not: what grows with more is known less, and `error` says so. ``drawn_around`` are the
    effects that those of a draw differ from by chance: collectives on a graph are played with them.

    ``cost`` is the time of an all-reduce among the workers in use, ``with_workers(8)`` the cluster
    with another number in use, ``with_effects(between_bandwidth=3e9)`` one with other effects, in
    seconds, bytes per second, or shares, or as texts with units (``"24 Gb/s"``),
    ``with_heterogeneity(compute={0: 2.0})`` one whose workers differ. Raises InputError for more
    workers than GPUs or a node that is partly used, UnknownName for a word that is not one of
    its choices.

    >>> import ddlnb
    >>> cluster = ddlnb.get_cluster("survey-10GbE", workers=16)
    >>> print(f"{cluster.nodes_in_use} nodes, all-reduce in {cluster.cost}")
    4 nodes, all-reduce in 850 us + M / (4.86 Gb/s)
    >>> cluster.with_workers(8)
    Cluster('survey-10GbE', workers=8 of 32)
    >>> faster = cluster.with_effects(between_bandwidth=3e9)
    >>> faster.cost.seconds(100e6) < cluster.cost.seconds(100e6)
    True
    """

    name: str
    network: str
    nodes: int
    gpus_per_node: int
    effects: Effects
    workers: int = 0  # all of them
    all_reduce: str = "ring"
    topology: str = ""
    routing: str = ""
    changes: tuple[str, ...] = ()
    server_place: str | None = None
    placement: str = "balanced"
    planning: AlphaBeta | None = None
    model_error: float = ASSUMED_ERROR
    fitted_workers: int = 0
    hardware: str = ""
    heterogeneity: Heterogeneity = HOMOGENEOUS
    about: str = field(default="", compare=False)
    facts: Mapping[str, str] = field(default_factory=dict, compare=False)
    fits: Mapping[str, Fit] = field(default_factory=dict, compare=False)
    drawn_around: Effects | None = None

    def __post_init__(self) -> None:
        require_whole(nodes=self.nodes, gpus_per_node=self.gpus_per_node)
        if self.workers == 0:
            object.__setattr__(self, "workers", self.most_workers)
        require(
            isinstance(self.model_error, int | float) and 0 <= self.model_error < 1,
            f"model_error {self.model_error!r} must be a number from 0 to below 1",
        )
        choices: list[tuple[str, Any, Iterable[str]]] = [
            ("place of servers", self.server_place, SERVER_PLACES),
            ("placement of keys", self.placement, PLACEMENTS),
        ]
        for what, value, known in choices:
            if value is None and what == "place of servers":
                continue  # there are none
            if not isinstance(value, str) or value not in known:
                raise UnknownName(what, value, known)
        self._check_workers()
        self._check_all_reduce()
        self._check_heterogeneity()

    @property
    def intervals(self) -> dict[str, Fit]:
        """What is known of every effect that is there: its fit, or else an assumed interval.

        Zero and infinite values have none: they stand for effects that are not there.
        """
        assumed = {
            name: _assumed(EFFECTS[name].unit, value)
            for name, value in self.effects.there.items()
            if 0 < value < UNLIMITED
        }
        return {**assumed, **self.fits}

    @property
    def assumed(self) -> tuple[str, ...]:
        """The effects whose interval nobody gave."""
        return tuple(name for name in self.intervals if name not in self.fits)

    @property
    def error(self) -> float:
        """The model error among the workers in use: above it for each doubling beyond the fit."""
        doublings = math.log2(max(1.0, self.workers / (self.fitted_workers or self.workers)))
        return math.hypot(self.model_error, DOUBLING_ERROR * doublings)

    @property
    def most_workers(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def workers_per_node(self) -> int:
        """Workers on each node in use."""
        return min(self.workers, self.gpus_per_node)

    @property
    def nodes_in_use(self) -> int:
        """Nodes that hold workers."""
        return self.workers // self.workers_per_node

    @property
    def is_homogeneous(self) -> bool:
        """Whether all workers in use are those that the effects describe, and on time."""
        links = self.heterogeneity.link if self.nodes_in_use > 1 else ()
        slowed = any(rank < self.workers for rank, _ in self.heterogeneity.compute)
        limited = any(node < self.nodes_in_use for node, _ in links)
        return not slowed and not limited and self.heterogeneity.delay is None

    @property
    def default_servers(self) -> int:
        """One server for every node in use, as in the survey (section 4.1)."""
        return self.nodes_in_use

    def server_machines(self, architecture: str) -> int:
        """Return how many machines parameter servers take beside those of the workers.

        None within a node, where no servers take part, and none where they run on workers' nodes.

        >>> import ddlnb
        >>> cluster = ddlnb.get_cluster("survey-10GbE", workers=16)
        >>> cluster.server_machines("PS"), cluster.server_machines("A2A")
        (4, 0)
        """
        apart = self.nodes_in_use > 1 and self.server_place == "extra machines"
        return self.default_servers if apart and architecture == "PS" else 0

    @property
    def fabric(self) -> Fabric:
        """How its machines are joined: the topology, with its routing and changes."""
        return fabric_of(self.nodes, self.gpus_per_node, self.topology, self.routing, self.changes)

    @property
    def has_closed_form(self) -> bool:
        """Whether an all-reduce is a formula: all links alike, and the algorithm's load known."""
        known = self.all_reduce == NCCL or self.all_reduce in ALL_REDUCES
        return known and not (self.topology or self.changes)

    @property
    def tree_threshold(self) -> float:
        """Bytes up to which all-reduces take NCCL's double tree: 0 within a node, and elsewhere."""
        return self._forms[2] if self.all_reduce == NCCL else 0.0

    @property
    def _forms(self) -> tuple[Form, Form, float]:
        """The all-reduce of large messages, that of small ones, and up to which bytes they are.

        Double trees join nodes: within a box NCCL has rings, whichever of both is asked for.
        """
        if self.all_reduce != NCCL or self.nodes_in_use == 1:
            only = self._form("ring" if self._is_ring else self.all_reduce)
            return only, only, 0.0
        ring = self._form("ring")
        return ring, *nccl_choice(ring, self._form("double-tree"))

    @property
    def _is_ring(self) -> bool:
        """Whether a ring is played: within a box, where NCCL has no trees."""
        is_tree = self.all_reduce in ("double-tree", NCCL_TREE) and self.workers <= IN_A_BOX
        return self.nodes_in_use == 1 and (self.all_reduce == NCCL or is_tree)

    @property
    def cost(self) -> AlphaBeta:
        """Seconds of one all-reduce among the workers while they compute, by which methods plan.

        Where they are no straight line, it has the latency of small messages and the seconds per
        byte of large ones.
        """
        latency, per_byte, computing = self.all_reduce_seconds
        return AlphaBeta(
            float(latency / self.effects.latency_share),
            float(per_byte / computing),
            self.effects.occupied_share,
        )

    @property
    def all_reduce_seconds(self) -> tuple[float, float, float]:
        """Latency seconds, seconds per byte, and the share of bandwidth left while computing.

        On a topology, where seconds are no straight line, those per byte are of large messages.
        Without one the slowest link of the nodes in use sets the pace.
        """
        if not self.has_closed_form:
            return self._on_fabric("all-reduce")
        large, small, threshold = self._forms
        latency = self._software + (small if threshold else large).hops
        return latency, large.per_byte, large.share

    def _form(self, name: str) -> Form:
        effects = self.effects
        load = ALL_REDUCES[name](self.nodes_in_use, self.workers_per_node)
        hops, inside, between = self._links_seconds(load)
        if self.nodes_in_use == 1:
            inside /= effects.closed_ring_share
        joined = np.maximum if load.overlaps else add
        free = joined(inside, between)
        busy = joined(inside / effects.inside_share, between / effects.between_share)
        return Form(hops, free, free / busy if np.any(busy) else 1.0)

    def _links_seconds(self, load: Load) -> tuple[float, float, float]:
        """Seconds of the hops of a load, and seconds per byte inside and between nodes."""
        effects, slowest = self.effects, self.heterogeneity.slowest_link(self.nodes_in_use)
        return (
            effects.inside_latency * load.inside_hops + effects.between_latency * load.between_hops,
            load.inside_bytes / effects.inside_bandwidth,
            load.between_bytes / self._collective_bandwidth * slowest,
        )

    @property
    def _collective_bandwidth(self) -> float:
        """Bytes per second from a node to the next one in a collective."""
        effects = self.effects
        doublings = max(0.0, math.log2(self.nodes_in_use) - 1)
        left = effects.doubling_share**doublings
        rate: float = left * np.minimum(effects.between_bandwidth, effects.stream_bandwidth)
        return rate

    def all_reduce_work(
        self, sizes: NDArray[Any]
    ) -> tuple[float | Numbers, Numbers, float | Numbers]:
        """Latency seconds, seconds of messages of these bytes after it, and the share as above.

        Messages of different sizes may take different algorithms.
        """
        if not self.has_closed_form:
            latency, per_byte, share = self.all_reduce_seconds
            if self.workers == 1:
                return latency, per_byte * sizes, share
            return *self._along(self._curve("all-reduce"), sizes), share
        large, small, threshold = self._forms
        is_small = np.asarray(sizes) <= threshold
        hops, slope, shares = (np.where(is_small, *pair) for pair in zip(small, large, strict=True))
        return self._latency(hops, slope * sizes), slope * sizes, shares

    def half_work(
        self, primitive: Primitive, sizes: NDArray[Any]
    ) -> tuple[float | Numbers, Numbers, float]:
        """Return what `all_reduce_work` does, for a half of a ring all-reduce of these bytes.

        The primitive is "reduce-scatter" or "all-gather".
        """
        ring = replace(self, all_reduce="ring")
        if not ring.has_closed_form and self.workers > 1:
            _, _, share = ring._on_fabric(primitive)
            return *ring._along(ring._curve(primitive), sizes), share
        latency, per_byte, share = ring.all_reduce_seconds
        work = per_byte / 2 * sizes
        return self._latency((latency - self._software) / 2, work), work, share

    def gather_work(self, sizes: NDArray[Any]) -> tuple[float | Numbers, Numbers]:
        """Latency seconds of an all-gather along a ring, and those of payloads of these bytes."""
        if self.topology or self.changes:
            return self._along(self._curve("all-gather"), self.workers * sizes)
        ring = ALL_REDUCES["ring"](self.nodes_in_use, self.workers_per_node)  # twice a gather
        hops, inside, between = self._links_seconds(ring)
        if self.nodes_in_use == 1:
            inside /= self.effects.closed_ring_share
        work = max(inside, between) / 2 * self.workers * sizes
        return self._latency(hops / 2, work), work

    def _along(self, curve: Curve, sizes: NDArray[Any]) -> tuple[float, Numbers]:
        """Latency seconds, and those of bytes, of messages that take what a curve says.

        A graph's curve may be of several algorithms, so that nothing is known of parts in flight.
        """
        return self._software + curve.latency, curve.at(sizes) - curve.latency

    def _latency(self, hops: float | Numbers, work: Numbers) -> float | Numbers:
        """Latency seconds of messages whose hops and whose bytes take so long.

        A message that moves in k parts keeps links busy with the others while one is on its way: of
        its hops, what is longer than 1 - 1/k of its work is its latency.
        """
        hidden = (1 - 1 / self.effects.parts_in_flight) * work
        return self._software + np.maximum(hops - hidden, 0.0)

    @property
    def _software(self) -> float:
        """Seconds of latency of a collective that are not the links'."""
        return sum(self.effects.terms("collective latency", self.workers), 0.0)

    def _curve(self, primitive: Primitive) -> Curve:
        return self.fabric.curve(self._links(), self._asked(primitive), self._near())

    def _asked(self, primitive: Primitive) -> Asked:
        name = self.all_reduce if primitive == "all-reduce" and not self._is_ring else "ring"
        return Asked(self.nodes_in_use, self.workers_per_node, name, primitive)

    def _links(self, *, computing: bool = False) -> Links:
        between, closed = self._collective_bandwidth, self.nodes_in_use == 1
        return Links.of(self.effects, between, computing=computing, closed=closed)

    def _near(self, *, computing: bool = False) -> Links | None:
        """Return the links of what this cluster was drawn around, None if it was not drawn."""
        if self.drawn_around is None:
            return None
        return replace(self, effects=self.drawn_around)._links(computing=computing)

    def _on_fabric(self, primitive: Primitive) -> tuple[float, float, float]:
        if self.workers == 1:
            return 0.0, 0.0, 1.0
        asked, free = self._asked(primitive), self._curve(primitive)
        free_seconds, busy_seconds = (
            self.fabric.large_seconds(self._links(computing=one), asked, self._near(computing=one))
            - free.latency
            for one in (False, True)
        )
        share = free_seconds / busy_seconds if busy_seconds else 1.0
        return self._software + free.latency, free.per_byte, min(share, 1.0)

    def with_workers(self, workers: int) -> Cluster:
        """Return the same cluster with this many of its GPUs in use.

        Raises InputError when it has fewer, or when a node would be partly used.
        """
        require_whole(workers=workers)
        return replace(self, workers=int(workers))

    @property
    def kin(self) -> tuple[object, ...]:
        """What clusters share that differ in nothing but the values of the same effects.

        A graph takes numbers alone, and so may effects of one's own: such a cluster has no kin.
        """
        there = self.effects.there
        own = any(EFFECTS[one] is not SHIPPED.get(one) for one in there)
        return (*_BUT_EFFECTS(self), *there, (own or not self.has_closed_form) and id(self))

    def _check_workers(self) -> None:
        require_whole(workers=self.workers)
        require(
            self.workers <= self.most_workers,
            f"{self.workers} workers exceed the {self.most_workers} GPUs of cluster {self.name!r} "
            f"({counted(self.nodes, 'node')} of {self.gpus_per_node}); use fewer, or "
            "a larger cluster",
        )
        require(
            self.workers <= self.gpus_per_node or self.workers % self.gpus_per_node == 0,
            f"{self.workers} workers do not fill nodes of {self.gpus_per_node} GPUs of cluster "
            f"{self.name!r}; use a multiple of {self.gpus_per_node}",
        )

    def _check_all_reduce(self) -> None:
        """Raise InputError for what the fabric cannot be, before anything is simulated."""
        require(
            not self.routing or bool(self.topology or self.changes),
            f"routing {self.routing!r} changes nothing without a topology; leave it out",
        )
        if not self.has_closed_form:
            self.fabric.require_all_reduce(Links.of(self.effects), self.all_reduce)

    def _check_heterogeneity(self) -> None:
        self.heterogeneity.require_within(self.most_workers, self.nodes, self.name)
        require(
            not self.heterogeneity.link or self.has_closed_form,
            f"link factors {dict(self.heterogeneity.link)} are for links that are a formula, and "
            f"cluster {self.name!r} is played on a graph; slow a node down there with changes such "
            f"as scale-node(3, 0.25)",
        )

    @property
    def takes_servers(self) -> bool:
        """Whether parameter servers have a place: by the file, and on the topology."""
        if self.server_place is None or not (self.topology or self.changes):
            return self.server_place is not None
        fabric, needed = self.fabric, self.default_servers
        has_room = self.server_place != "extra machines" or fabric.spare_hosts >= needed
        return has_room and fabric.takes_servers

    @property
    def label(self) -> str:
        """Its name, and what joins its machines where that is not one switch and a ring."""
        words = [self.name, *((f"on {self.topology}",) if self.topology else ())]
        if self.all_reduce not in ("ring", NCCL):
            words.append(f"all-reduce {self.all_reduce}")
        return ", ".join([*words, *self.changes])

    def require_servers(self, method: str) -> None:
        """Raise InputError if a method with parameter servers lacks them here.

        Within one node none take part.
        """
        if self.nodes_in_use > 1 and self.server_place is None:
            raise InputError(
                f"method {method!r} needs parameter servers, and cluster {self.name!r} has none; "
                f"add server_place to it, or choose an all-to-all method"
            )

    def server_loads(self, servers: int) -> list[ServerLoads]:
        """Seconds per byte of a message of all nodes on its way to each server, on a topology.

        Servers are on the hosts behind the nodes, or beside the workers of the first ones.
        """
        nodes = range(self.nodes_in_use)
        places = [server % self.nodes_in_use for server in range(servers)]
        if self.server_place == "extra machines":
            spare = self.fabric.spare_hosts
            require(
                spare >= servers,
                f"topology {self.topology or 'star'} has {spare} hosts left for {servers} servers "
                f"on extra machines; take an all-to-all method, a larger topology, fewer servers, "
                f"or server_place \"workers' nodes\" in the cluster's file",
            )
            places = [self.nodes + server for server in range(servers)]
        return self.fabric.server_loads(Links.of(self.effects), nodes, places)

    def with_effects(self, **values: float | str) -> Cluster:
        """The same cluster with these effects replaced: seconds, bytes per second, shares.

        A text has a unit, such as ``"10 Gb/s"``. Raises UnknownName for an effect that there is
        not, InputError for a value that it cannot have.
        """
        for name in values:
            require_known("effect", name, EFFECTS)
        numbers = {
            name: effect_from(name, value) if isinstance(value, str) else value
            for name, value in values.items()
        }
        return replace(self, effects=self.effects.but(**numbers), drawn_around=None)

    def with_heterogeneity(
        self, compute: Factors = (), link: Factors = (), delay: Delay | None = None
    ) -> Cluster:
        """Return the same cluster with workers that differ so, and in nothing else.

        ``compute`` are factors of the seconds that workers compute, ``link`` of the seconds per
        byte of nodes' links: by rank or node for those that differ, or one for every worker or node
        in use. ``delay`` comes before every iteration of every worker. Without arguments all are
        alike. Raises InputError for factors that are not positive or too few or too many.

        >>> import ddlnb
        >>> cluster = ddlnb.get_cluster("survey-10GbE", workers=4)
        >>> slow = cluster.with_heterogeneity(compute=[2.0, 1.0, 1.0, 1.0])
        >>> slow == cluster.with_heterogeneity(compute={0: 2.0})
        True
        """
        given = Heterogeneity(
            named("compute", "worker", compute, self.workers),
            named("link", "node", link, self.nodes_in_use),
            delay,
        )
        return replace(self, heterogeneity=given)

    with_unlike = with_heterogeneity  # its name in 0.1

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, workers={self.workers} of {self.most_workers})"


_BUT_EFFECTS = attrgetter(
    *(one.name for one in fields(Cluster) if one.compare and one.name != "effects")
)


def together(
    clusters: Sequence[Cluster], collectives: Collection[str] = ()
) -> Iterator[tuple[list[int], Cluster]]:
    """Yield one cluster for all that are kin, with columns of effects, and which these are.

    One that is alone keeps its numbers. Where one of the ``collectives`` of a plan is played on a
    graph, all are alone.
    """
    kin: dict[tuple[object, ...], list[int]] = {}
    played = any(name and name not in ALL_REDUCES for name in collectives)
    for number, cluster in enumerate(clusters):
        kin.setdefault((number,) if played else cluster.kin, []).append(number)
    for numbers in kin.values():
        first, *others = (clusters[number] for number in numbers)
        each = [one.effects for one in (first, *others)]
        yield numbers, replace(first, effects=Effects.columns(each)) if others else first


def _assumed(unit: Unit, value: float) -> Fit:
    low, high = max(unit.least, value / unit.within), min(unit.most, value * unit.within)
    return Fit(low, high, f"assumed: within a factor of {unit.within:g}, as no interval is given")


def describe(cluster: Cluster) -> list[dict[str, str]]:
    """Return a row per effect that the cluster has: value, interval, where from, and meaning."""
    intervals = cluster.intervals
    rows = []
    for effect, value in cluster.effects.there.items():
        unit, fit = EFFECTS[effect].unit, intervals.get(effect)
        rows.append(
            {
                "effect": effect,
                "value": unit.show(value),
                "90 % interval": f"{unit.show(fit.low)} to {unit.show(fit.high)}" if fit else "-",
                "from": fit.source if fit else "given",
                "meaning": EFFECTS[effect].meaning,
            }
        )
    return rows
