"""Who must be simulated: workers of a kind do the same at the same time, so one stands for them.

A kind is what a worker computes and is delayed by, on a node of a kind: the same link, the same
workers. So one slow worker among a thousand costs no more than one among four.

The stages of a program as the workers of a team pass through them: who has which, and what next.

Every worker, node or the cluster has a copy of a stage. An edge leads from a copy to one of the
next stage. Who has a copy of the first stage is a sender: it starts messages when all its workers
have made them ready, and in one order, as BytePS does for the workers of a node.

A program with the workers who play it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require, require_whole
from ddlnb.simulator.path import Each, Stage
from ddlnb.simulator.program import Program
from ddlnb.simulator.tasks import Indices, Numbers, Task

Slowness = Callable[[int, int, int], float]  # a factor by rank, iteration and number of workers
DRAWN_ITERATIONS = 64  # played where workers are delayed at random


@dataclass(frozen=True)
class Lane:
    """A worker that stands for all of its kind: the one of the lowest ``rank`` among ``count``.

    ``node`` is the kind of its node.
    """

    rank: int
    node: int
    count: int


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a kind: how many, and the seconds per byte of their link over those of others."""

    count: int
    link: float


@dataclass(frozen=True)
class Team:
    """The workers that are simulated.

    ``factor`` multiplies the seconds that a lane computes, and ``delay`` is how many seconds later
    it begins: a row for every lane, a column for every iteration, or one for all iterations.
    """

    lanes: tuple[Lane, ...]
    nodes: tuple[NodeKind, ...]
    factor: Numbers
    delay: Numbers

    @property
    def counts(self) -> Numbers:
        """How many workers each lane stands for."""
        return np.array([float(lane.count) for lane in self.lanes])

    @property
    def iterations(self) -> int | None:
        """How many iterations to play, or None to play until they are alike."""
        columns = self.factor.shape[1]
        return columns if columns > 1 else None


def team_of(
    cluster: Cluster,
    slower: Slowness | None = None,
    iterations: int = DRAWN_ITERATIONS,
    warm_up: bool = True,
) -> Team:
    """Return the workers of a cluster in use, by kind.

    ``slower(rank, iteration, workers)`` multiplies the seconds that a worker computes, on top of
    what the cluster says. Where that or a random delay changes from one iteration to the next, so
    many ``iterations`` are played, and with ``warm_up`` the first one twice.
    """
    require_whole(iterations=iterations)
    unlike, workers, per_node = cluster.unlike, cluster.workers, cluster.workers_per_node
    columns = 1 if slower is None and unlike.delay is None else iterations
    factor = np.array([[unlike.compute_factor(rank)] * columns for rank in range(workers)])
    delay = np.zeros_like(factor)
    for rank in range(workers):
        if slower is not None:
            factor[rank] *= [slower(rank, step, workers) for step in range(columns)]
        if unlike.delay is not None:
            delay[rank] = unlike.delay.seconds(rank, columns)
    if unlike.delay is None and (factor == factor[:, :1]).all():
        factor, delay = factor[:, :1], delay[:, :1]
    elif warm_up:
        factor, delay = (np.concatenate([one[:, :1], one], axis=1) for one in (factor, delay))
    kind_of = [(factor[rank].tobytes(), delay[rank].tobytes()) for rank in range(workers)]
    nodes: dict[object, list[int]] = {}
    for node in range(cluster.nodes_in_use):
        inside = sorted(kind_of[node * per_node : (node + 1) * per_node])
        link = unlike.link_factor(node) if cluster.nodes_in_use > 1 else 1.0
        nodes.setdefault((link, *inside), []).append(node)
    number_of = {node: kind for kind, alike in enumerate(nodes.values()) for node in alike}
    lanes: dict[object, list[int]] = {}
    for rank in range(workers):
        lanes.setdefault((number_of[rank // per_node], kind_of[rank]), []).append(rank)
    first = [ranks[0] for ranks in lanes.values()]
    return Team(
        lanes=tuple(
            Lane(ranks[0], number_of[ranks[0] // per_node], len(ranks)) for ranks in lanes.values()
        ),
        nodes=tuple(
            NodeKind(len(alike), unlike.link_factor(alike[0]) if len(number_of) > 1 else 1.0)
            for alike in nodes.values()
        ),
        factor=factor[first],
        delay=delay[first],
    )


Units = list[tuple[int, ...]]  # the lanes of every copy of a stage


@dataclass(frozen=True)
class Copies:
    """Copies of stages, and the edges between them.

    For every copy: its ``stage``, its ``lanes``, the edges that come ``into`` it and go ``out`` of
    it; ``work``, ``latency`` and ``resource`` hold a row for every copy and a value for every
    message. For every edge: the copy that it leads ``to``, the ``weight`` of what it carries, and
    the lanes that it comes ``of``. The first edges come from the senders, one to each copy of the
    first stage; ``first`` is the number of the first copy of each stage, and one more.
    """

    stage: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]
    into: tuple[tuple[int, ...], ...]
    out: tuple[tuple[int, ...], ...]
    to: tuple[int, ...]
    weight: tuple[float, ...]
    of: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    latency: Numbers
    work: Numbers
    resource: Indices
    resources: int

    @property
    def senders(self) -> tuple[tuple[int, ...], ...]:
        """The lanes of every sender."""
        return self.lanes[: self.first[1]]


def copies_of(stages: Sequence[Stage], team: Team) -> Copies:
    """Return the copies of the stages of a program for the workers of a team."""
    lanes = range(len(team.lanes))
    nodes: Units = [
        tuple(i for i in lanes if team.lanes[i].node == n) for n in range(len(team.nodes))
    ]
    of_each: dict[Each, Units] = {
        Each.WORKER: [(lane,) for lane in lanes],
        Each.NODE: nodes,
        Each.CLUSTER: [tuple(lanes)],
    }
    units = [of_each[stage.each] for stage in stages]
    first = np.cumsum([0, *map(len, units)]).tolist()
    # Edges: what each comes of, the copy that it leads to, its weight.
    edges: list[tuple[tuple[int, ...], int, float]] = []
    into: list[list[int]] = [[] for _ in range(first[-1])]
    out: list[list[int]] = [[] for _ in range(first[-1])]
    before = units[0]
    for number, stage in enumerate(stages):
        to_all = stage.parts or (number > 0 and stages[number - 1].spreads)
        for source, members in enumerate(before):
            for position, target in enumerate(units[number]):
                if to_all or set(members) & set(target):
                    copy, edge = first[number] + position, len(edges)
                    edges.append((members, copy, _share(team, members) if stage.parts else 1.0))
                    into[copy].append(edge)
                    if number:
                        out[first[number - 1] + source].append(edge)
        before = units[number]
    latency, work, resource, resources = _values(stages, units, team)
    return Copies(
        stage=tuple(number for number, alike in enumerate(units) for _ in alike),
        lanes=tuple(members for alike in units for members in alike),
        into=tuple(map(tuple, into)),
        out=tuple(map(tuple, out)),
        to=tuple(copy for _, copy, _ in edges),
        weight=tuple(weight for _, _, weight in edges),
        of=tuple(members for members, _, _ in edges),
        first=tuple(first),
        latency=latency,
        work=work,
        resource=resource,
        resources=resources,
    )


def _share(team: Team, members: tuple[int, ...]) -> float:
    """Return the share of the workers that these lanes stand for."""
    return float(team.counts[list(members)].sum() / team.counts.sum())


def _values(
    stages: Sequence[Stage], units: Sequence[Units], team: Team
) -> tuple[Numbers, Numbers, Indices, int]:
    """Return latency, work and resource of every copy and message, and the number of resources."""
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    latency, work, resource = [], [], []
    for stage, alike in zip(stages, units, strict=True):
        for members in alike:
            link = team.nodes[team.lanes[members[0]].node].link if stage.on_link else 1.0
            latency.append(stage.latency)
            work.append(stage.work * link)
            named = [(name, members) for name in stage.resource.tolist()]
            resource.append([numbers.setdefault(one, len(numbers)) for one in named])
    return np.stack(latency), np.stack(work), np.array(resource, dtype=np.int64), len(numbers)


MOST_ITERATIONS = 24  # played until iterations are alike
MOST_PASSAGES = 2_000_000  # a stated budget: some 300 MB


@dataclass(frozen=True)
class UnlikeProgram:
    """A program for the workers of a team.

    Lane l takes ``factor * task_seconds + fixed_seconds`` for a task, and its delay besides for the
    first one of an iteration. Raises InputError if there are too many messages for so many kinds
    of workers.
    """

    program: Program
    team: Team
    fixed_seconds: Numbers
    copies: Copies

    def step_seconds(self, lane: int, iteration: int) -> Numbers:
        """Return the seconds of every step of a lane in an iteration."""
        return self._seconds(self.program.step_seconds, self.fixed_steps, lane, iteration)

    def task_seconds(self, lane: int, iteration: int) -> Numbers:
        """Return the seconds of every task of a lane in an iteration."""
        return self._seconds(self.program.task_seconds, self.fixed_seconds, lane, iteration)

    def _seconds(self, slowed: Numbers, fixed: Numbers, lane: int, iteration: int) -> Numbers:
        column = min(iteration, self.team.factor.shape[1] - 1)
        seconds: Numbers = slowed * self.team.factor[lane, column] + fixed
        seconds[0] += self.team.delay[lane, column]
        return seconds

    @cached_property
    def fixed_steps(self) -> Numbers:
        """Seconds of every step that no factor changes."""
        starts = [step.start for step in self.program.tasks.steps]
        return np.add.reduceat(self.fixed_seconds, starts)


def with_team(program: Program, team: Team, fixed_seconds: Numbers | None = None) -> UnlikeProgram:
    """Return the program for the workers of a team.

    ``fixed_seconds`` are seconds of tasks that no factor changes, by default none. Where there are
    delays an iteration begins with one.
    """
    fixed = np.zeros(len(program.task_seconds)) if fixed_seconds is None else fixed_seconds
    if team.delay.any():
        program, fixed = _delayed(program), np.concatenate([[0.0], fixed])
    copies = copies_of(program.stages, team)
    passages = len(copies.stage) * len(program.messages)
    require(
        passages <= MOST_PASSAGES,
        f"{len(program.messages):,} messages of {len(team.lanes):,} workers that differ make "
        f"{passages:,} passages, and at most {MOST_PASSAGES:,} are simulated; choose larger "
        f"messages, or fewer workers that differ",
    )
    return UnlikeProgram(program, team, fixed, copies)


def _delayed(program: Program) -> Program:
    """Return the program with a task before all others, which takes no time but the delay."""
    old = program.tasks

    def after_none(values: Numbers) -> Numbers:
        return np.concatenate([[0.0], values])

    tasks = replace(
        old,
        listed=(Task("delay", "at random"), *old.listed),
        own_seconds=after_none(old.own_seconds),
        readied=after_none(old.readied),
        updated_tensors=after_none(old.updated_tensors),
        updated_bytes=after_none(old.updated_bytes),
    )
    return replace(program, tasks=tasks, task_seconds=after_none(program.task_seconds))
