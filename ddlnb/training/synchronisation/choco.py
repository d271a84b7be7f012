"""CHOCO-SGD: gossip on public replicas that follow the models by compressed differences.

Source: Koloskova et al. 2019 (arXiv 1902.00340), for deep networks arXiv 1907.09356.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.errors import require
from ddlnb.plans.requests import Flow
from ddlnb.training.loop import NextGradient, StepDone
from ddlnb.training.synchronisation.gossip import Gossip, Mixed, mix
from ddlnb.training.synchronisation.graphs import make_graph
from ddlnb.training.worker import Worker


@dataclass(frozen=True)
class Choco(Gossip):
    """With mixing weights w, learning rate r, gradients g_i at x_i, compression Q, replicas y:

    x_i <- x_i - r g_i; a worker sends Q(x_i - y_i); all that know y_i add it,
    y_i <- y_i + Q(x_i - y_i); and x_i <- x_i + gamma sum_j w_ij (y_j - y_i). What Q loses stays in
    x_i - y_i and is sent later, so any contraction converges if ``gamma`` is small enough: the more
    Q loses, the smaller. An unbiased Q with an error of u |v|^2 is no contraction if u is one or
    more: it has to be multiplied by a ``scale`` of 1 / (1 + u).

    Without compression and with gamma = 1 this is D-PSGD that mixes after the step. ``r g`` stands
    for what the worker's optimizer does. Replicas start at the common initial model, which all
    workers know, where the paper has zero.
    """

    gamma: float = 0.1
    scale: float = 1.0

    name = "choco"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in {"gamma": self.gamma, "scale": self.scale}.items():
            require(0 < value <= 1, f"{name} {value!r} must be above 0 and at most 1")

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        replica = worker.parameters.clone()
        around = worker.parameters.clone()  # sum_j w_ij y_j
        while True:
            gradient = yield NextGradient()
            worker.apply(gradient)
            mixed: Mixed = yield from mix(worker, graph, worker.parameters - replica)
            replica.add_(mixed.own, alpha=self.scale)
            around.add_(mixed.mean, alpha=self.scale)
            worker.parameters.add_(around - replica, alpha=self.gamma)
            yield StepDone()
