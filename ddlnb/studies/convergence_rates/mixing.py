"""How fast gossip mixes: by the eigenvalues of the weights, and as counted in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ddlnb.errors import require, require_whole
from ddlnb.seeding import generator
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.synchronisation.gossip import consensus_distance
from ddlnb.training.synchronisation.graphs import GRAPHS, make_graph, spectral_gap
from ddlnb.training.worker import Worker
from ddlnb.workloads.tasks import Batch

if TYPE_CHECKING:
    import pandas as pd


COUNTS = (4, 8, 16, 32, 64)
MIXED = ("d-psgd(ring)", "d-psgd(torus)", "choco(ring, 0.3) + top-k(0.1)")
# Spectral gaps of the mixing weights 1/(degree+1) as they were written down: as text, for the
# digits to which they are given.
STATED = {
    "ring": {4: "0.67", 8: "0.195", 16: "0.051", 32: "0.0128", 36: "0.010", 64: "0.0032"},
    "torus": {4: "0.67", 16: "0.40", 36: "0.20", 64: "0.117"},
    "complete": {4: "1", 16: "1", 36: "1", 64: "1"},
}
DERIVED = "[d]"
PAPER = "[d], equals [P] CHOCO Table 2"
IN_PAPER = (4, 16, 36)


def spectral_gaps(workers: Sequence[int] = COUNTS, graphs: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row for every graph (by default all) and number of workers: the computed gap.

    >>> spectral_gaps([8, 16], ["ring"])["gap"].round(3).tolist()
    [0.195, 0.051]
    """
    import pandas as pd

    rows = [
        {"graph": name, "workers": count, "gap": spectral_gap(make_graph(name, count))}
        for name in graphs or GRAPHS
        for count in workers
    ]
    return pd.DataFrame(rows).assign(source="computed")


def consensus_rounds(
    methods: Sequence[str | TrainingMethod] = MIXED,
    *,
    workers: int = 16,
    rounds: int = 60,
    elements: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return rows of method, round, distance, bytes_sent: gossip, with gradients at the start only.

    Every worker takes one step to normal random numbers of its own, and then mixes. ``distance`` is
    the mean squared distance from the mean in units of what it was before any mixing, in round 0;
    ``bytes_sent`` what a worker has sent by then on average. Raises InputError for methods that
    are not on gossip.
    """
    import pandas as pd

    require_whole(workers=workers, rounds=rounds, elements=elements)
    parts = [
        pd.DataFrame(_mixed(training_method(method), workers, rounds, elements, seed))
        for method in methods
    ]
    require(bool(parts), "there are no methods to run")
    return pd.concat(parts, ignore_index=True).assign(workers=workers, source="simulated")


class _OneStep(Worker):
    """A worker whose first gradient is random, and whose others are zero."""

    def gradient(self) -> Tensor:
        self.step += 1
        self.flat_gradient.zero_()
        if self.step == 1:
            self.flat_gradient.copy_(self.first())
        return self.flat_gradient

    def first(self) -> Tensor:
        """Return the first gradient."""
        return torch.randn(len(self.parameters), generator=generator(self.seed, self.rank))


def _mixed(
    method: TrainingMethod, workers: int, rounds: int, elements: int, seed: int
) -> list[dict[str, object]]:
    require(method.architecture == "gossip", f"{method} does not gossip; choose d-psgd or choco")
    sgd = partial(torch.optim.SGD, lr=1.0)
    team = []
    for rank in range(workers):
        module = nn.Module()
        module.register_parameter("x", nn.Parameter(torch.zeros(elements)))
        team.append(
            _OneStep(rank, workers, module, _no_loss, _no_batch, sgd, method.compression, seed=seed)
        )
    seen: list[list[Tensor]] = [[worker.first() for worker in team], *([] for _ in range(rounds))]

    def look(rank: int, done: int, seconds: float) -> None:
        seen[done].append(team[rank].parameters.clone())

    run = Lockstep(team, method.synchronisation.loop, rounds, on_step=look)
    run.run()
    per_round = sum(run.bytes_sent) / workers / rounds
    start = consensus_distance(seen[0])
    return [
        {
            "method": str(method).removesuffix(" on gossip"),
            "graph": method.synchronisation.topology,
            "round": done,
            "distance": consensus_distance(vectors) / start,
            "bytes_sent": done * per_round,
        }
        for done, vectors in enumerate(seen)
    ]


def _no_loss(module: nn.Module, batch: Batch) -> Tensor:
    raise AssertionError("these workers have no loss")


def _no_batch(step: int) -> Batch:
    raise AssertionError("these workers have no data")


def gap_check() -> pd.DataFrame:
    """Return a row per graph and number of workers: the gap computed, the one stated, if the same.

    ``same`` when the computed gap, rounded to the digits that were given, is the one stated.

    >>> bool(gap_check()["same"].all())
    True
    """
    import pandas as pd

    rows = []
    for graph, stated in STATED.items():
        for workers, text in stated.items():
            computed = spectral_gap(make_graph(graph, workers))
            decimals = len(text.partition(".")[2])
            rows.append(
                {
                    "graph": graph,
                    "workers": workers,
                    "computed": round(computed, 4),
                    "stated": float(text),
                    "same": round(computed, decimals) == float(text),
                    "tag": PAPER if workers in IN_PAPER and graph != "complete" else DERIVED,
                }
            )
    return pd.DataFrame(rows)
