"""The three layers of communication: what is exchanged, how it is taken apart, how it is carried.

Follows the survey of layers (arXiv 2403.07585): a strategy says what ranks exchange, a collective
library makes transfers of it, a network carries them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

from ddlnb.errors import require, require_whole
from ddlnb.figures.style import note, styled
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.network import Network
from ddlnb.networks.play import play
from ddlnb.networks.topologies import get_topology
from ddlnb.parallelism.layout import Layout, group_size
from ddlnb.parallelism.memory import get_precision
from ddlnb.parallelism.model import Transformer, llama
from ddlnb.parallelism.volumes import traffic_matrices
from ddlnb.survey.items import Findings, Rows, findings, tabled, ties as ties
from ddlnb.units import GB, MB, MS, bandwidth_from

# Llama 3 8B (its model card) and Mixtral 8x7B (arXiv 2401.04088, table 1), 4096 tokens a sequence.
DENSE = llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 4096)
EXPERTS = Transformer(
    "mixtral-8x7b", 32, 4096, 32, 32000, 4096, 8, 14336, gated=True, experts=8, top_k=2
)
ALGORITHMS = ("ring", "hierarchical", "halving-doubling", "recursive-doubling")
SAME = 1e-3  # of a volume: norms that every tensor rank repeats, and rounding up, are less
SHARE = 0.6  # of an iteration is communication, at most, in a production setting (section I)


def model_of(layout: Layout) -> Transformer:
    """Return the model that a layout is shown with: a mixture of experts where it has an ep."""
    return EXPERTS if layout.ep > 1 else DENSE


def layout_traffic(layouts: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Return the bytes from rank to rank in an iteration: by layout, and by axis.

    Llama 3 8B, or Mixtral 8x7B where experts are split. Raises InputError for layouts that do not
    divide them.
    """
    plans = {text: Layout.parse(text) for text in layouts}
    return {text: traffic_matrices(model_of(plan).shape, plan) for text, plan in plans.items()}


@tabled("layout", "axis", "ranks", "row_sum", "formula", "ratio", index=["layout", "axis"])
def volume_table(traffic: Mapping[str, Mapping[str, np.ndarray]]) -> Rows:
    """Return the largest row sum of every matrix beside the closed form: a row a layout and axis.

    Columns: ranks in a group, ``row_sum`` and ``formula`` (bytes), and their ``ratio``.
    """
    for text, matrices in traffic.items():
        layout = Layout.parse(text)
        for axis, matrix in matrices.items():
            largest, formula = float(matrix.sum(axis=1).max()), closed_form(layout, axis)
            ranks = group_size(layout, axis)
            yield (text, axis, ranks, largest, formula, largest / formula)


def closed_form(layout: Layout, axis: str) -> float:
    """Return the bytes that the busiest rank sends along an axis, by formula.

    Data: 2 (N - 1)/N of the gradients; tensor: 2 (t - 1)/t of the activations four times a layer,
    and once for the embedding and the head; pipeline: the activations per boundary and direction;
    expert: (e - 1)/e of the tokens' copies four times a layer. Only for layouts without context
    parallelism, ZeRO, recomputation, sequence parallelism and chunks, and for untied embeddings.
    """
    plain = Layout(
        layout.dp, layout.tp, layout.pp, ep=layout.ep, micro_batch=layout.micro_batch,
        micro_batches=layout.micro_batches, order=layout.order,
    )  # fmt: skip
    require(plain == layout, f"layout {layout} has no closed form here; take {plain}")
    model, width = model_of(layout), get_precision("mixed")
    n, layers = group_size(layout, axis), model.layers / layout.pp
    samples = layout.micro_batch * layout.micro_batches
    activations = samples * model.sequence * model.hidden * width.activation
    ends = 2 if layout.pp == 1 else 1  # embedding and head are on one stage, or on two
    if axis == "tp":
        loss = samples * model.sequence * 3 * width.logit
        return 2 * (n - 1) / n * ((4 * layers + ends) * activations + loss)
    if axis == "pp":
        return min(2, n - 1) * activations
    if axis == "ep":
        return 4 * layers * (n - 1) / n * activations * model.top_k
    matrices = 3 * model.hidden * model.ffn
    if axis == "expert-data":
        held = layers * model.experts * matrices / layout.ep / layout.tp
        return 2 * (n - 1) / n * held * width.reduced
    require(axis == "data", f"axis {axis!r} of layout {layout} has no closed form here")
    attention = 2 * model.hidden**2 * (1 + model.kv_heads / model.heads)
    block = attention + (model.hidden * model.experts if model.experts else matrices)
    held = (layers * block + ends * model.vocab * model.hidden) / layout.tp
    return 2 * (n - 1) / n * held * width.reduced


def network_of(topology: str, per_node: int, between: str, inside: str) -> Network:
    """Return a topology's network with GPUs; ``between`` is of a GPU's share of its node's links.

    Raises InputError for a topology that does not take so many GPUs a node.
    """
    outside = per_node * bandwidth_from(between)
    return get_topology(topology).with_gpus(per_node, outside, bandwidth_from(inside))


@tabled(index=["topology", "algorithm"])
def walk_table(
    topologies: Sequence[str],
    algorithms: Sequence[str] = ALGORITHMS,
    *,
    layout: str = "dp32",
    per_node: int = 8,
    between: str = "50 GB/s",
    inside: str = "450 GB/s",
) -> Rows:
    """Return one number on its way through the layers: a row per algorithm and topology; simulated.

    The number are the bytes of gradients that ``layout``'s replicas reduce, per rank. Columns:
    ``steps`` and ``sent`` (bytes of a rank) by the collective, ``leaves`` (bytes that leave a node
    with it), and by the network the ``busiest`` link and ``seconds``. ``between`` is the bandwidth
    of a GPU's share of its node's links.
    """
    plan = Layout.parse(layout)
    exchanged = gradient_bytes(plan)
    for text in topologies:
        network = network_of(text, per_node, between, inside)
        nodes = np.array(network.nodes)
        for name in algorithms:
            collective = get_collective(name, plan.dp, per_node=per_node)
            transfers = collective.transfers
            parts = transfers["stop"] - transfers["first"]
            crosses = nodes[transfers["source"]] != nodes[transfers["target"]]
            played = play(collective, network, exchanged)
            yield {
                "topology": text,
                "algorithm": name,
                "steps": collective.steps,
                "sent": float(collective.bytes_sent(exchanged).max()),
                "leaves": parts[crosses].sum()
                * exchanged
                / collective.parts
                / (plan.dp / per_node),
                "busiest": played.busiest_name,
                "seconds": played.seconds,
            }


def gradient_bytes(layout: Layout) -> float:
    """Return the bytes of gradients on one rank of a layout that only has replicas."""
    require(layout.dp == layout.ranks > 1, f"layout {layout} must be of replicas alone: dp32")
    return model_of(layout).shape.parameters * get_precision("mixed").reduced


@tabled(index=["hosts"])
def aggregation_table(hosts: Sequence[int], ports: int = 32) -> Rows:
    """Return what adding up in switches saves: bytes of a host over M, and steps, by hosts.

    A ring sends 2 (n - 1)/n M in 2 (n - 1) steps; with switches that add up, a host sends M once,
    up and down a tree of switches with ``ports`` ports towards the hosts. The ring's numbers are
    counted on its transfers.
    """
    require_whole(2, ports=ports)
    for count in hosts:
        ring = get_collective("ring", count)
        depth = max(1, ceil(log2(count) / log2(ports) - 1e-9))
        sent = float(ring.bytes_sent(1.0).max())
        yield {
            "hosts": count,
            "ring sends": sent,
            "switches: sent": 1.0,
            "ring steps": ring.steps,
            "switches: steps": 2 * depth,
        }


def hidden_table(
    removed: Sequence[float] = (0.25, 0.5, 0.75, 1.0), share: float = SHARE
) -> pd.DataFrame:
    """Return the speed-up when a part of the exposed communication goes away (Amdahl's law).

    ``share`` is the communication's of an iteration before. Raises InputError unless it is from 0
    to below 1.

    >>> hidden_table([0.5, 1.0])["speed_up"].round(2).tolist()
    [1.43, 2.5]
    """
    require(0 <= share < 1, f"share {share} of communication must be from 0 to below 1")
    parts = pd.Index(removed, name="removed")
    return pd.DataFrame({"speed_up": 1 / (1 - share * parts.to_numpy())}, parts)


def layer_findings(volumes: pd.DataFrame) -> Findings:
    """Return which strategy exchanges most and least, and how the matrices agree with formulas."""
    off = (volumes["ratio"] - 1).abs()
    most, least = volumes["row_sum"].idxmax(), volumes["row_sum"].idxmin()
    return findings(
        f"{int((off < SAME).sum())} of {len(volumes)} row sums are those of the closed forms; the "
        f"one furthest off differs by {off.max():.3%} ({', '.join(off.idxmax())}).",
        f"A rank sends most along `{most[1]}` of `{most[0]}`: "
        f"{volumes.loc[most, 'row_sum'] / GB:.1f} GB in an iteration; least along `{least[1]}` of "
        f"`{least[0]}`: {volumes.loc[least, 'row_sum'] / MB:,.0f} MB.",
    )


def walk_findings(table: pd.DataFrame) -> Findings:
    """Return the quickest algorithm of every topology, and what the same one costs elsewhere."""
    told = []
    for topology, part in table.groupby(level="topology", sort=False):
        times = part["seconds"].droplevel("topology")
        worst = times.idxmax()
        best = list(times.index[times <= times.min() * (1 + 1e-9)])
        told.append(
            f"On {topology} {' and '.join(f'`{name}`' for name in best)} take"
            f"{'s' if len(best) == 1 else ''} {times.min() / MS:,.0f} ms, `{worst}` "
            f"{times[worst] / times.min():.1f} times as long; the busiest link of `{best[0]}` is "
            f"{part.loc[(topology, best[0]), 'busiest']}."
        )
    return findings(*told)


TRAFFIC_COLOURS = "viridis_r"
MOST_COLUMNS = 5


@styled
def traffic_maps(traffic: Mapping[str, Mapping[str, np.ndarray]], source: str) -> plt.Figure:
    """The bytes that each rank sends to each other one in an iteration, a panel for every layout.

    ``traffic`` has matrices of bytes by layout and axis; those of all axes are added up. White is
    nothing.
    """
    sums = {
        text: np.sum(list(matrices.values()), axis=0) / GB
        for text, matrices in traffic.items()
        if matrices
    }
    require(len(sums) == len(traffic), "a layout of one rank exchanges nothing; leave it out")
    columns = min(MOST_COLUMNS, len(sums))
    lines = -(-len(sums) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(2.3 * columns + 1, 2.6 * lines + 0.4), squeeze=False
    )
    values = np.concatenate([matrix[matrix > 0] for matrix in sums.values()])
    norm = LogNorm(values.min() / 1.01, values.max() * 1.01)
    for ax, (text, matrix) in zip(axes.flat, sums.items(), strict=False):
        shown = ax.imshow(np.where(matrix > 0, matrix, np.nan), TRAFFIC_COLOURS, norm=norm)
        ends = [0, len(matrix) - 1]
        ax.set(xticks=ends, yticks=ends)
        ax.set_title(text, fontsize=9)
        ax.set_xlabel("to rank", labelpad=-6)
        ax.set_ylabel("from rank", labelpad=-8)
        ax.grid(False)
    for ax in axes.flat[len(sums) :]:
        ax.set_visible(False)
    figure.colorbar(shown, ax=axes, label="GB in an iteration", shrink=0.8)
    return note(figure, f"source: {source}")
