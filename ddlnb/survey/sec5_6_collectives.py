"""Which collective fits which network, and what is searched for one (survey, section 5.6)."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.calibration.statistics import Verdict
from ddlnb.errors import require
from ddlnb.figures.style import (
    ALGORITHM_COLOURS,
    OTHER_COLOUR,
    facets,
    legend,
    note,
    styled,
    text_on,
)
from ddlnb.networks.collectives.base import joined
from ddlnb.networks.collectives.catalogue import (
    get_algorithm,
    get_collective as get_collective,
    why_not,
)
from ddlnb.networks.collectives.double_tree import up_and_down
from ddlnb.networks.flows import Startup
from ddlnb.networks.network import Network
from ddlnb.networks.play import play
from ddlnb.networks.topologies import BCube, FatTree, Star, Topology, Torus, TwoTier
from ddlnb.plans.transfers import Collective
from ddlnb.survey.items import Findings, Rows, findings, item_verdict, tabled
from ddlnb.units import MS, bandwidth_from, listed, seconds_from, size_in_words

# Those in which everyone sends to everyone at once are left out: a message has a latency here and
# takes no time of a core, which flatters them.
ALGORITHMS = ("ring", "tree", "recursive-doubling", "halving-doubling", "swing", "torus")
DOUBLE_TREE, SEARCHED = "double-tree", "searched trees"
SIZES = tuple(4**power for power in range(5, 14))  # bytes
LINK = "10 Gb/s, 30 us"  # a host's cable, and what every message waits


class HostLink(NamedTuple):
    """The cable of a host: bytes per second, and the seconds that every message waits."""

    bandwidth: float
    latency: float


def host_link(text: str) -> HostLink:
    """Return the cable that ``"10 Gb/s, 30 us"`` describes. Raises InputError.

    >>> host_link("8 Gb/s, 1 ms")
    HostLink(bandwidth=1000000000.0, latency=0.001)
    """
    parts = [part.strip() for part in text.split(",")]
    require(len(parts) == 2, f"link {text!r} must have a bandwidth and a latency: '10 Gb/s, 30 us'")
    return HostLink(bandwidth_from(parts[0]), seconds_from(parts[1]))


def networks_of(hosts: int, oversubscription: float = 4.0) -> dict[str, Topology]:
    """Return the networks that are compared, for a square number of hosts, a multiple of four.

    A fat-tree is the smallest one that has as many hosts; those beyond are idle.
    """
    side = isqrt(hosts)
    require(
        side * side == hosts and hosts % 4 == 0 and side > 2,
        f"{hosts} hosts must be a square and a multiple of four, such as 16, 36 or 64",
    )
    ports = next(ports for ports in range(2, 2 * hosts, 2) if ports**3 // 4 >= hosts)
    return {
        "star": Star(hosts),
        "oversubscribed tree": TwoTier(hosts // 4, 4, oversubscription),
        "fat-tree": FatTree(ports),
        "BCube": BCube(side, 2),
        "torus": Torus(side, side),
    }


def collectives_of(hosts: int, algorithms: Sequence[str] = ALGORITHMS) -> dict[str, Collective]:
    """Return the all-reduces that run among this many hosts; the torus' as a square."""
    found = {}
    for name in algorithms:
        text = f"torus({isqrt(hosts)}, {isqrt(hosts)})" if name == "torus" else name
        if not why_not(get_algorithm(text), hosts):  # of which some need a power of two
            found[name] = get_collective(text, hosts)
    return found


def best_algorithms(
    hosts: Sequence[int] = (16, 64),
    sizes: Sequence[int] = SIZES,
    link: str = LINK,
    algorithms: Sequence[str] = ALGORITHMS,
) -> pd.DataFrame:
    """Return the seconds of every all-reduce: a row per network, hosts, message bytes, algorithm.

    Columns: network, hosts, bytes, algorithm, seconds, and ``best``, whether none is faster.
    """
    rows, cable = [], host_link(link)
    for count in hosts:
        collectives = collectives_of(count, algorithms)
        for name, topology in networks_of(count).items():
            network = topology.network(cable.bandwidth)
            rows += [
                {
                    "network": name,
                    "hosts": count,
                    "bytes": size,
                    "algorithm": algorithm,
                    "seconds": _seconds(collective, network, size, cable),
                }
                for size in sizes
                for algorithm, collective in collectives.items()
            ]
    table = pd.DataFrame(rows)
    least = table.groupby(["network", "hosts", "bytes"])["seconds"].transform("min")
    return table.assign(best=table["seconds"] <= least * (1 + 1e-9))


def _seconds(collective: Collective, network: Network, size: float, link: HostLink) -> float:
    startup = Startup(link.latency, link.latency)
    return play(collective, network, size, startup=startup).seconds


def map_findings(rows: pd.DataFrame) -> Findings:
    """Return what the map says, in words: how many algorithms are best somewhere, and where."""
    best = rows[rows["best"]]
    cells = best.groupby(["network", "hosts", "bytes"]).ngroups
    wins = best["algorithm"].value_counts()
    if len(wins) == 1:
        return findings(f"In all {cells} cells the best algorithm is {wins.index[0]}.")
    each = ", ".join(f"{name} in {count}" for name, count in wins.items())
    each += ", ties counted for each" * bool(wins.sum() > cells)
    ends = {
        size_in_words(size): listed(
            best["algorithm"][best["bytes"] == size].value_counts().index.to_list(), "or"
        )
        for size in (int(rows["bytes"].min()), int(rows["bytes"].max()))
    }
    (small, of_small), (large, of_large) = ends.items()
    return findings(
        f"Of {cells} cells the best algorithm is {each}: no algorithm fits all networks.",
        f"By the network, it is {of_small} for messages of {small}, and {of_large} for {large}.",
    )


def searched_trees(network: Network, moves: int = 1000, seed: int = 0) -> list[np.ndarray]:
    """Return two trees whose edges are cables of the network, as parents (the root's is -1).

    A move replaces one edge of one tree by a cable that joins its two parts, and stays unless the
    trees then share more cables, or their longest paths are longer. Every device of the network is
    a host, as on a torus.
    """
    random = np.random.default_rng(seed)
    cables = sorted({(link.start, link.end) for link in network.links if link.start < link.end})
    trees = [nx.Graph(list(nx.bfs_edges(nx.Graph(cables), root))) for root in range(2)]

    def cost() -> tuple[int, int]:
        shared = nx.intersection(*trees).number_of_edges()
        return shared, sum(len(_longest_path(tree)) for tree in trees)

    now = cost()
    for _ in range(moves):
        tree = trees[random.integers(2)]
        old = list(tree.edges)[random.integers(network.ranks - 1)]
        tree.remove_edge(*old)
        part = nx.node_connected_component(tree, old[0])
        joining = [one for one in cables if (one[0] in part) != (one[1] in part)]
        new = joining[random.integers(len(joining))]
        tree.add_edge(*new)
        then = cost()
        if then > now:
            tree.remove_edge(*new)
            tree.add_edge(*old)
        now = min(now, then)
    return [_parents(tree) for tree in trees]


def _parents(tree: nx.Graph) -> np.ndarray:
    """Return the parents in the tree when it hangs by the middle of its longest path."""
    path, parents = _longest_path(tree), np.full(len(tree), -1)
    for parent, child in nx.bfs_edges(tree, path[len(path) // 2]):
        parents[child] = parent
    return parents


def on_trees(trees: Sequence[np.ndarray], blocks: int) -> Collective:
    """Return the all-reduce of which each tree carries an equal share, in so many blocks."""
    rows = [up_and_down(parents, half * blocks, blocks) for half, parents in enumerate(trees)]
    return Collective(SEARCHED, "all-reduce", len(trees[0]), len(trees) * blocks, joined(*rows))


def _longest_path(tree: nx.Graph) -> list[int]:
    """Return the hosts of a longest path: from whoever is farthest from anyone to its farthest."""
    *_, (_, end) = nx.bfs_edges(tree, 0)
    *_, (_, other) = nx.bfs_edges(tree, end)
    path: list[int] = nx.shortest_path(tree, end, other)
    return path


BLOCKS = (8, 32, 128)  # of trees; the quickest number counts


@tabled(index=["algorithm"])
def torus_use(hosts: int = 16, size: int = 100_000_000, link: str = LINK) -> Rows:
    """Return how far all-reduces use the links of a square torus, each on the hosts in order.

    ``idle`` links of ``links`` carry nothing; ``used (%)`` is the share of the bandwidth of all
    links that carries bytes while it lasts. No all-reduce is quicker than ``bound``, when all links
    of every host are busy: 2 (n - 1) / n M bytes over four of them.
    """
    cable = host_link(link)
    network = networks_of(hosts)["torus"].network(cable.bandwidth)
    known = collectives_of(hosts, [name for name in ALGORITHMS if name != "tree"])
    doubles = [get_collective(f"double-tree({blocks})", hosts) for blocks in BLOCKS]
    trees = searched_trees(network)
    searched = [on_trees(trees, blocks) for blocks in BLOCKS]
    tried = {name: [one] for name, one in known.items()}
    for name, ways in (tried | {DOUBLE_TREE: doubles, SEARCHED: searched}).items():
        startup = Startup(cable.latency, cable.latency)
        plays = (play(way, network, size, startup=startup) for way in ways)
        best = min(plays, key=lambda played: played.seconds)
        yield {
            "algorithm": name,
            "idle": int((best.link_bytes == 0).sum()),
            "links": len(network.links),
            "used (%)": 100 * float(best.utilisation.mean()),
            "seconds": best.seconds,
            "bound": 2 * (hosts - 1) / hosts * size / (4 * cable.bandwidth),
        }


def torus_findings(use: pd.DataFrame) -> Findings:
    """Say what a double tree leaves of a torus, and what trees along its cables make of it.

    The survey's sentence is against the simulator where a double tree uses as much as they do.
    """
    double, searched = use.loc[DOUBLE_TREE], use.loc[SEARCHED]
    known = use.drop(SEARCHED)["seconds"]
    left = (
        f"the double tree leaves {double['idle']:.0f} of {double['links']:.0f} links idle and uses "
        f"{double['used (%)']:.0f} % of their bandwidth"
    )
    made = (
        f"two trees along cables, found by search, leave {searched['idle']:.0f} idle, use "
        f"{searched['used (%)']:.0f} %"
    )
    worse = double["used (%)"] < searched["used (%)"] and double["idle"] > searched["idle"]
    verdict = Verdict.HOLDS if worse else Verdict.CONTRADICTED
    return findings(
        f"On the torus {left}; {made}, and take {searched['seconds'] / MS:.1f} ms: "
        f"{double['seconds'] / searched['seconds']:.1f} times as fast as it, "
        f"{known.min() / searched['seconds']:.2f} times as fast as the best known one "
        f"({known.idxmin()}), {searched['seconds'] / searched['bound']:.2f} times the bound.",
        items=[item_verdict("A65", [verdict], "simulated", f"{left}; {made}")],
    )


@styled
def best_collectives(rows: pd.DataFrame) -> Figure:
    """The best all-reduce by network, number of hosts and message size, in one colour each.

    ``rows`` have the columns network, hosts, bytes, algorithm, seconds and best. The number in a
    field is the time of the second best algorithm over that of the best.
    """
    names = list(dict.fromkeys(rows["algorithm"]))
    networks, sizes = list(dict.fromkeys(rows["network"])), sorted(rows["bytes"].unique())
    best = rows[rows["best"]].drop_duplicates(["network", "hosts", "bytes"])
    height = 0.5 * len(networks) + 1.6
    figure, panels = facets(rows, "hosts", width=(1.5, 5.4), height=height, sharey=True)
    colours = [ALGORITHM_COLOURS.get(name, OTHER_COLOUR) for name in names]
    for ax, hosts, part in panels:
        here = best[best["hosts"] == hosts]
        quickest = here.pivot(index="network", columns="bytes", values="algorithm").loc[networks]
        fields = quickest.map(names.index).to_numpy()
        seconds = part.groupby(["network", "bytes"])["seconds"]
        lead = seconds.agg(lambda times: times.nsmallest(2).iloc[1] / times.min()).unstack()
        ax.imshow(
            fields, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(names) - 0.5, aspect="auto"
        )
        for (y, x), field in np.ndenumerate(fields):
            text = f"{lead.loc[networks[y], sizes[x]]:.1f}"
            dark = text_on(colours[field])
            ax.text(x, y, text, ha="center", va="center", fontsize=7, color=dark)
        ax.set_xticks(range(len(sizes)), [size_in_words(size) for size in sizes], rotation=45)
        ax.set_yticks(range(len(networks)), networks)
        ax.set(title=f"{hosts} hosts", xlabel="message size")
        ax.grid(False)
    shown = [name for name in names if name in set(best["algorithm"])]
    legend(figure, [Patch(color=colours[names.index(name)], label=name) for name in shown])
    return note(
        figure, "source: simulated flows; numbers: time of the second best over that of the best"
    )
