"""DCD-PSGD: gossip on compressed differences of the models.

Source: Tang et al. 2018 (arXiv 1803.06443), difference compression.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.plans.requests import Flow
from ddlnb.training.loop import NextGradient, StepDone
from ddlnb.training.synchronisation.gossip import Gossip, Mixed, mix
from ddlnb.training.synchronisation.graphs import make_graph
from ddlnb.training.worker import Worker


@dataclass(frozen=True)
class DCDPSGD(Gossip):
    """With mixing weights w, learning rate r, gradients g_i at x_i and compression C:

    z_i = sum_j w_ij x_j - r g_i - x_i; a worker sends C(z_i), and x_i <- x_i + C(z_i), so that
    neighbours know x_i exactly. What C loses is lost from the model itself: the method converges if
    C loses little, and diverges otherwise. Without compression it is D-PSGD that mixes before the
    step. ``r g`` stands for what the worker's optimizer does.
    """

    name = "dcd-psgd"

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        around = worker.parameters.clone()  # sum_j w_ij x_j
        while True:
            gradient = yield NextGradient()
            start = worker.parameters.clone()
            worker.apply(gradient)
            step = worker.parameters - start
            mixed: Mixed = yield from mix(worker, graph, around + step - start)
            around += mixed.mean
            worker.parameters.copy_(start + mixed.own)
            yield StepDone()
