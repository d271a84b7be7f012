"""ECD-PSGD: gossip on compressed extrapolations of the models.

Source: Tang et al. 2018 (arXiv 1803.06443), extrapolation compression.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from ddlnb.plans.requests import Flow
from ddlnb.training.loop import NextGradient, StepDone
from ddlnb.training.synchronisation.gossip import Gossip, Mixed, mix
from ddlnb.training.synchronisation.graphs import make_graph
from ddlnb.training.worker import Worker


@dataclass(frozen=True)
class ECDPSGD(Gossip):
    """With mixing weights w, learning rate r, gradients g_i at x_i, compression C, t = 1, 2, ...:

    x_i' = sum_j w_ij y_j - r g_i; a worker sends C(z_i) of z_i = (1 - t/2) x_i + t/2 x_i', and all
    keep the estimate y_i <- (1 - 2/t) y_i + 2/t C(z_i) of x_i'. Errors of an unbiased C average out
    as 1/t if they are bounded; but z grows as t times the step, and errors proportional to z make
    the method diverge. Without compression y = x, and it is D-PSGD that mixes before the step.
    ``r g`` stands for what the worker's optimizer does.
    """

    name = "ecd-psgd"

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        around = worker.parameters.clone()  # sum_j w_ij y_j
        for t in count(1):
            gradient = yield NextGradient()
            start = worker.parameters.clone()
            worker.apply(gradient)
            new = around + (worker.parameters - start)
            worker.parameters.copy_(new)
            mixed: Mixed = yield from mix(worker, graph, (1 - t / 2) * start + t / 2 * new)
            around = (1 - 2 / t) * around + 2 / t * mixed.mean
            yield StepDone()
