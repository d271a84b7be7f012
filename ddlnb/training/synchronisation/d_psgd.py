"""D-PSGD: every worker takes its own step and averages its model with its neighbours.

Source: Lian et al. 2017 (arXiv 1705.09056).
"""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.choices import one_of
from ddlnb.compression.base import Compressor
from ddlnb.errors import InputError, UnknownName
from ddlnb.plans.requests import Flow
from ddlnb.training.loop import NextGradient, StepDone
from ddlnb.training.synchronisation.gossip import Gossip, Mixed, mix
from ddlnb.training.synchronisation.graphs import make_graph
from ddlnb.training.worker import Worker

ORDERS = ("after", "before")


@dataclass(frozen=True)
class DPSGD(Gossip):
    """With mixing weights w, learning rate r and gradients g_i at x_i, workers i on a ``graph``:

    ``mixing`` is after the step, x_i <- sum_j w_ij (x_j - r g_j), or before it as in the paper's
    listing, x_i <- sum_j w_ij x_j - r g_i. Mixing before, messages can travel while the gradient is
    computed, and workers differ by their last gradients even on a complete graph. Mixing after,
    they are equal there, and the method is BSP. Rates of convergence are the same.
    """

    mixing: str = one_of("after", ORDERS)

    name = "d-psgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing not in ORDERS:
            raise UnknownName("mixing", self.mixing, ORDERS)

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise InputError, since this method sends parameters."""
        raise InputError(
            f"{self} sends its parameters, and {compressor} would lose a share of them, not of "
            f"their change, in every round; use dcd-psgd, ecd-psgd or choco, or no compression"
        )

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        while True:
            gradient = yield NextGradient()
            start = worker.parameters.clone()
            worker.apply(gradient)
            if self.mixing == "after":
                mixed: Mixed = yield from mix(worker, graph, worker.parameters.clone())
                worker.parameters.copy_(mixed.mean)
            else:
                mixed = yield from mix(worker, graph, start)
                worker.parameters.add_(mixed.mean - start)
            yield StepDone()
