"""Flows of gradients in three orders: by fair shares, first come first served, by deadline.

The deadline of a layer's gradients is when the next forward pass reaches that layer; the first
layer is due first, and its gradients are complete last. Simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.errors import require_whole
from ddlnb.networks.network import Network, Numbers
from ddlnb.networks.play import share
from ddlnb.networks.topologies import Star
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.precision import get_precision
from ddlnb.parallelism.shares import shares_by_layer
from ddlnb.parallelism.stages import pipeline_stages
from ddlnb.studies.findings import Findings, findings
from ddlnb.studies.layers_codesign.factorial import FLOPS, LLAMA
from ddlnb.units import MS, bandwidth_from

SAME = 1e-6  # of an iteration: equal but for rounding


@dataclass(frozen=True)
class Layers:
    """The layers of a model in the order of the forward pass: seconds, and bytes of gradients."""

    forward: Numbers
    backward: Numbers
    gradients: Numbers

    @property
    def ready(self) -> Numbers:
        """When the gradients of every layer are complete, from the backward pass's beginning."""
        return np.cumsum(self.backward[::-1])[::-1]

    def iteration_seconds(self, arrivals: Numbers) -> float:
        """Return when the next forward pass ends if each layer waits for its gradients."""
        free = float(self.backward.sum())
        for seconds, arrival in zip(self.forward, arrivals, strict=True):
            free = max(free, float(arrival)) + float(seconds)
        return free


def llama_layers() -> Layers:
    """Return those of Llama 3 8B for one sequence of 4096 tokens."""
    shape = LLAMA.shape
    stage = pipeline_stages(shape, 1, 1)[0]
    forward, elements = [], []
    for (layer, count), (held, _) in zip(
        stage.layers, shares_by_layer(stage, Layout()), strict=True
    ):
        forward += [layer.forward_flops / FLOPS] * count
        elements += [held.elements] * count
    width = get_precision("mixed").reduced
    return Layers(np.array(forward), 2 * np.array(forward), width * np.array(elements, float))


def fair(layers: Layers, network: Network) -> Numbers:
    """Return when the gradients of every layer have arrived if flows share links fairly."""
    flows = [
        flow
        for size, ready in zip(layers.gradients, layers.ready, strict=True)
        for flow in _round_the_ring(network, float(size), float(ready))
    ]
    stops = share(network, flows).messages["stop"]
    return np.asarray(stops.reshape(len(layers.gradients), -1).max(axis=1), float)


def first_come(layers: Layers, network: Network) -> Numbers:
    """Return the same if the gradients that have waited longest go next, alone."""
    return _one_by_one(layers, network, lambda layer: float(layers.ready[layer]))


def by_deadline(layers: Layers, network: Network) -> Numbers:
    """Return the same if the gradients that are needed first go next, alone."""
    return _one_by_one(layers, network, float)


ORDERS: dict[str, Callable[[Layers, Network], Numbers]] = {
    "fair shares": fair,
    "first come": first_come,
    "deadline": by_deadline,
}


def _one_by_one(layers: Layers, network: Network, urgency: Callable[[int], float]) -> Numbers:
    arrivals = np.zeros(len(layers.gradients))
    waiting, now = set(range(len(arrivals))), 0.0
    while waiting:
        now = max(now, min(float(layers.ready[layer]) for layer in waiting))
        here = [layer for layer in waiting if layers.ready[layer] <= now]
        layer = min(here, key=urgency)
        flows = _round_the_ring(network, float(layers.gradients[layer]), 0.0)
        now += share(network, flows).seconds
        arrivals[layer] = now
        waiting.remove(layer)
    return arrivals


def _round_the_ring(
    network: Network, size: float, at: float
) -> list[tuple[int, int, float, float]]:
    """Return an all-reduce as what each rank sends to the next one in all of its steps."""
    ranks = network.ranks
    return [(r, (r + 1) % ranks, 2 * (ranks - 1) / ranks * size, at) for r in range(ranks)]


def deadline_table(
    bandwidths: Sequence[str] = ("25 GB/s", "50 GB/s", "100 GB/s", "200 GB/s"), replicas: int = 8
) -> pd.DataFrame:
    """Return the seconds of an iteration by bandwidth of a replica (rows) and order (columns).

    One more column, ``bound``: computation alone, or communication after the first gradients of
    the backward pass and before the last layer of the forward pass, whichever is longer.
    """
    require_whole(2, replicas=replicas)
    layers = llama_layers()
    rows = {}
    for text in bandwidths:
        network = Star(replicas).network(bandwidth_from(text))
        sent = 2 * (replicas - 1) / replicas * layers.gradients.sum() / bandwidth_from(text)
        computed = layers.forward.sum() + layers.backward.sum()
        times = {name: layers.iteration_seconds(of(layers, network)) for name, of in ORDERS.items()}
        bound = max(computed, layers.backward[-1] + sent + min(layers.forward))
        rows[text] = {**times, "bound": float(bound)}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("bandwidth")


def deadline_findings(table: pd.DataFrame) -> Findings:
    """Return what an order by deadline brings over fair shares and first come, in sentences."""
    others = [name for name in ORDERS if name != "deadline"]
    over = table[others].min(axis=1) / table["deadline"]
    best = over.idxmax()
    same = (table["fair shares"] / table["first come"] - 1).abs().max() < SAME
    return findings(
        "Fair shares and first come, first served end an iteration at the same time: the gradients "
        "that it needs first arrive last with both."
        if same
        else "",
        f"By deadline an iteration is at most {over.max():.2f} times as fast as by the better of "
        f"the two (at {best}: {table.loc[best, 'deadline'] / MS:,.0f} ms against "
        f"{table.loc[best, others].min() / MS:,.0f} ms), and at most "
        f"{(table['deadline'] / table['bound']).max():.2f} times its bound.",
    )
