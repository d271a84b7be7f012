"""The stages of a program as the workers of a team pass through them: who has which, and what next.

Every worker, node or the cluster has a copy of a stage. An edge leads from a copy to one of the
next stage. Who has a copy of the first stage is a sender: it starts messages when all its workers
have made them ready, and in one order, as BytePS does for the workers of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.simulator.computation import Indices, Numbers
from ddlnb.simulator.path import Each, Stage
from ddlnb.simulator.unlike.team import Team

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
