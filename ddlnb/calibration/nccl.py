"""What a collective costs: NCCL's algorithms and protocols, each as latency, filling and bytes.

The latencies are those of NCCL's own model (src/graph/tuning.cc, in
data/published/nccl_tuner_constants.csv). What limits the bytes follows from who sends what: in a
ring every rank, and so every node, sends the bus factor times the size; in a double binary tree a
node with two children in one tree is a leaf of the other, and sends and receives the size twice,
but only once where there are two nodes. Therefore the bus bandwidth of a tree falls from two nodes
to four, and never again. All times are in seconds and arrays: draws of parameters down, sizes
across.

The circumstances of a row of a table are in its words, free text such as "H100-SXM (Dell XE9680)"
and "RoCE 8x200 Gb/s". What they do not say is taken from the ports that such GPUs are sold with,
and counts as less certain.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import require
from ddlnb.files import PUBLISHED
from ddlnb.hardware.catalogue import get_gpu, gpu_in, protocol_of, stated_rate
from ddlnb.hardware.gpu import Nvlink
from ddlnb.hardware.machine import Interconnect, link_inside, protocols
from ddlnb.plans.alpha_beta import double_tree_share
from ddlnb.results.schema import read_cells
from ddlnb.units import GB, KIB, US

PATH = PUBLISHED / "nccl_tuner_constants.csv"
PROTOCOLS = ("LL", "LL128", "Simple")


@functools.cache
def _constants() -> dict[tuple[str, str, str], float]:
    return {
        (row["table"], row["index"], row["column"]): float(row["value"]) for row in read_cells(PATH)
    }


def base_seconds(algorithm: str, protocol: str) -> float:
    """Return what a call costs before its first hop; algorithms that NCCL lists none for have 0."""
    return _constants().get(("baseLatency_us", algorithm, protocol), 0.0) * US


def hop_seconds(link: str, algorithm: str, protocol: str) -> float:
    """Return what a hop over NVLINK, PCI or NET costs.

    >>> round(hop_seconds("NET", "Tree", "Simple") * 1e6)
    14
    """
    return _constants()[(f"hwLatency_us {link}", algorithm, protocol)] * US


def few_bytes_cap(generation: str, nodes: int) -> float:
    """Return the most bytes per second of a ring with the protocol LL."""
    rows = {"Ampere": "Ampere|AMD", "Hopper": "Hopper", "Blackwell": "Blackwell"}
    row = rows.get(generation, "Volta|Intel") if nodes == 1 else "Volta|Intel"
    return _constants()[("llMaxBw_GBps", row, _column(nodes))] * GB


def many_nodes_share(table: str, generation: str, nodes: int) -> float:
    """Return a channel's cap on this many nodes over that on two; 1 on fewer.

    ``table`` is perChMaxTreeBw, perChMaxTreeLL128Bw, perChMaxNVLSTreeBw or perChMaxRingLL128Bw.

    >>> round(many_nodes_share("perChMaxTreeBw", "Ampere", 8), 3)
    0.754
    """
    if nodes <= 2:
        return 1.0
    caps = _constants()
    return caps[(table, generation, _column(nodes))] / caps[(table, generation, "N2")]


def _column(nodes: int) -> str:
    return f"N{nodes}" if nodes <= 2 else "N4"


Array = NDArray[np.float64]

WIRE_SHARE = {"LL": 0.5, "LL128": 120 / 128, "Simple": 1.0}  # payload of what a protocol sends
LL128_INSIDE = 0.75  # of the rate with Simple inside a node, in the published rows
TREE_LL_INSIDE = 1 / 3.8  # the same of a tree with LL (tuning.cc)
SCALES = {"LL": 1.0, "LL128": 1.5, "Simple": 1.0}  # of latencies in a node, in the published rows
PLATEAU = 1.4  # of the latency of rings between nodes (tuning.cc)
LAUNCH_SECONDS = 1e-6  # of a step of a ring between nodes; three times that with Simple (tuning.cc)
GROWTH = 0.085  # of the latency with LL, for every doubling of the size beyond 1 KiB
ALL_CHANNELS = 16 * KIB  # from which size on it does not grow, in the published rows
FILLING = 0.25  # of the bytes: the first part, for which a stage waits, up to three stages
SMALLER_CHUNKS = 0.5  # of NVLSTree on four nodes and more: 64 KiB in place of 128 (enqueue.cc)
COPIED = ("all_gather", "reduce_scatter")
PEER_SECONDS = 0.5e-6  # of every further rank that one exchanges messages with
PYTHON_CALL = 10e-6  # seconds of a call of PyTorch that benchmarks count; a judgement
PAT_RANK_SECONDS = 2.8e-6  # (tuning.cc)


@dataclass(frozen=True)
class Parameters:
    """What is fitted; each is an array of draws, (draws, 1).

    In bytes/s: ``inside`` is the bus bandwidth of a ring in a node, ``switch`` the rate of an
    all-reduce in NVLink's switches, ``between`` what a node sends to others, ``copying`` the rate
    at which a framework copies what was gathered or is to be scattered. In seconds: ``hop`` is what
    a hop between nodes takes more than in NCCL's table, ``flush`` what the protocol Simple adds to
    it, ``host`` what a call takes outside of NCCL. Factors of NCCL's latencies in a node: ``few``
    with LL, ``many`` with the other protocols. ``pipe`` are the bytes in flight at a stage of a
    tree, ``spread`` is the standard deviation of the logarithm of nodes' speeds. LL128 is at work
    between nodes where ``fine`` is above 1: it needs a network that keeps the order of its bytes.
    """

    inside: Array
    switch: Array
    between: Array
    hop: Array
    flush: Array
    fine: Array
    few: Array
    many: Array
    host: Array
    pipe: Array
    spread: Array
    copying: Array


@dataclass(frozen=True)
class Setting:
    """The circumstances of a collective: what it is, on which nodes, and what NCCL may choose.

    A node is what NVLink joins: ``joined`` machines with a network port each. ``linked`` is the
    share of a GPU's links that lead to others of its node that take part, ``outside`` are seconds
    of a call from Python.
    """

    collective: str
    nodes: int
    per_node: int
    generation: str = "Hopper"
    has_switch_reduction: bool = True
    algorithms: frozenset[str] = frozenset()  # empty: any
    protocols: frozenset[str] = frozenset()
    joined: float = 1.0
    linked: float = 1.0
    outside: float = 0.0

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.per_node


def seconds(setting: Setting, sizes: Array, p: Parameters) -> Array:
    """Return how long the collective takes with the algorithm that NCCL chooses, (draws, sizes).

    It chooses by its own latencies, not by those of the cluster at hand.
    """
    planned = np.stack(list(_planned(setting, sizes, p).values()))
    times = np.stack(list(by_algorithm(setting, sizes, p).values()))
    return np.take_along_axis(times, planned.argmin(axis=0)[None], axis=0)[0]


def chosen(setting: Setting, sizes: Array, p: Parameters) -> list[tuple[str, str]]:
    """Return the algorithm and the protocol that NCCL chooses for each size, in most draws."""
    planned = _planned(setting, sizes, p)
    best = np.stack([np.median(times, axis=0) for times in planned.values()]).argmin(axis=0)
    return [list(planned)[number] for number in best]


def _planned(setting: Setting, sizes: Array, p: Parameters) -> dict[tuple[str, str], Array]:
    nominal = replace(p, few=np.ones_like(p.few), many=np.ones_like(p.many), flush=p.hop)
    return by_algorithm(setting, sizes, nominal)


def by_algorithm(setting: Setting, sizes: Array, p: Parameters) -> dict[tuple[str, str], Array]:
    """Return the seconds of every (algorithm, protocol) that is allowed, each (draws, sizes).

    Where what the settings ask for does not exist for the collective, NCCL chooses freely; of
    reductions in the network it has to be told. LL128 alone is taken on every network.
    """
    if setting.protocols == {"LL128"}:
        p = replace(p, fine=np.full_like(p.fine, np.inf))
    p = replace(p, between=p.between * setting.joined, inside=p.inside * setting.linked)
    found = dict(_candidates(setting, sizes, p))
    if "CollNet" not in setting.algorithms:
        found = {key: time for key, time in found.items() if key[0] != "CollNet"}
    for number, allowed in enumerate((setting.algorithms, setting.protocols)):
        kept = {key: time for key, time in found.items() if not allowed or key[number] in allowed}
        found = kept or found
    slower = np.exp(p.spread * (slowest(setting.nodes) - slowest(2))) if setting.nodes > 2 else 1.0
    besides = setting.outside + p.host + sizes / p.copying * (setting.collective in COPIED)
    return {key: besides + slower * time for key, time in found.items()}


def slowest(nodes: int) -> float:
    """Return the median of the slowest of this many nodes, in standard deviations of one.

    All wait for it, and the logarithms of nodes' speeds are taken as normal and independent.

    >>> [round(slowest(n), 2) for n in (1, 2, 64)]
    [0.0, 0.54, 2.3]
    """
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 ** (1 / nodes))


def _candidates(s: Setting, sizes: Array, p: Parameters) -> Iterator[tuple[tuple[str, str], Array]]:
    if s.collective in ("all_reduce", "all_gather", "reduce_scatter"):
        for protocol in PROTOCOLS:
            yield ("Ring", protocol), _ring(s, sizes, p, protocol)
        if s.collective == "all_reduce":
            yield from _all_reduces(s, sizes, p)
        elif s.nodes > 1 and s.per_node == 1:
            yield ("PAT", "Simple"), _pat(s, sizes, p)
    elif s.collective in ("broadcast", "reduce"):
        for protocol in PROTOCOLS:
            yield ("Ring", protocol), _chain(s, sizes, p, protocol)
    else:
        yield ("direct", "Simple"), _direct(s, sizes, p)


def _all_reduces(
    s: Setting, sizes: Array, p: Parameters
) -> Iterator[tuple[tuple[str, str], Array]]:
    if s.nodes > 1:
        for protocol in PROTOCOLS:
            yield ("Tree", protocol), _tree(s, sizes, p, protocol)
    if s.has_switch_reduction and s.per_node > 1:
        name = "NVLS" if s.nodes == 1 else "NVLSTree"
        yield (name, "Simple"), _in_switches(s, sizes, p)
    if s.nodes > 1:
        yield ("CollNet", "Simple"), _in_network(s, sizes, p)


def depth(nodes: int) -> int:
    """Return the number of hops from the root of a binary tree of nodes to its farthest leaf."""
    return math.ceil(math.log2(nodes))


def _scale(p: Parameters, protocol: str) -> Array:
    return SCALES[protocol] * (p.few if protocol == "LL" else p.many)


def _growth(sizes: Array, protocol: str) -> Array:
    """Return the factor by which more channels, up to all, make the latency of LL grow."""
    if protocol != "LL":
        return np.ones_like(sizes)
    return 1 + GROWTH * np.log2(1 + np.minimum(sizes, ALL_CHANNELS) / KIB)


def _hop(p: Parameters, protocol: str, algorithm: str) -> Array:
    """Return the seconds of a hop between nodes; with Simple, buffers are flushed as well."""
    more = p.hop + p.flush if protocol == "Simple" else p.hop
    if protocol == "LL128":
        more = np.where(p.fine > 1, more, np.inf)
    return hop_seconds("NET", algorithm, protocol) + more


def _ring(s: Setting, sizes: Array, p: Parameters, protocol: str) -> Array:
    rounds = 2 if s.collective == "all_reduce" else 1
    steps, crossings = rounds * (s.ranks - 1), rounds * (s.nodes - 1)
    inside = hop_seconds("NVLINK", "Ring", protocol)
    if s.nodes > 1:
        inside = max(inside, LAUNCH_SECONDS * (3 if protocol == "Simple" else 1))
    scale = _scale(p, protocol)
    hop = _hop(p, protocol, "Tree" if s.per_node == 1 else "Ring")
    latency = (base_seconds("Ring", protocol) + (steps - crossings) * inside) * scale
    latency = latency + crossings * hop if crossings else latency
    if protocol == "Simple" and s.nodes > 1 and s.collective == "all_reduce":
        latency = latency * PLATEAU
    rate = _narrowest(s, p, protocol)
    return latency * _growth(sizes, protocol) + steps / s.ranks * sizes / rate


def _narrowest(s: Setting, p: Parameters, protocol: str) -> Array:
    """Return the bytes/s of a ring or a chain through all nodes."""
    share = LL128_INSIDE if protocol == "LL128" else WIRE_SHARE[protocol]
    rate = p.inside * share if s.per_node > 1 else np.full_like(p.inside, np.inf)
    if s.nodes > 1:
        rate = np.minimum(rate, p.between * WIRE_SHARE[protocol])
    return np.minimum(rate, few_bytes_cap(s.generation, s.nodes)) if protocol == "LL" else rate


def _tree(s: Setting, sizes: Array, p: Parameters, protocol: str) -> Array:
    scale = _scale(p, protocol)
    inside = (s.per_node - 1) * hop_seconds("NVLINK", "Tree", protocol) * scale
    latency = base_seconds("Tree", protocol) * scale
    latency = latency + 2 * (inside + depth(s.nodes) * _hop(p, protocol, "Tree"))
    cap = {"LL": "perChMaxTreeBw", "LL128": "perChMaxTreeLL128Bw", "Simple": "perChMaxTreeBw"}
    share = {"LL": TREE_LL_INSIDE, "LL128": LL128_INSIDE, "Simple": 1.0}[protocol]
    chain = p.inside / 2 * share * many_nodes_share(cap[protocol], s.generation, s.nodes)
    rate = p.between / double_tree_share(s.nodes) * WIRE_SHARE[protocol]
    rate = np.minimum(rate, chain) if s.per_node > 1 else rate
    if protocol == "LL":
        rate = np.minimum(rate, few_bytes_cap(s.generation, s.nodes) / 2)
    filling = _filling(s, sizes, p.pipe) / rate if protocol == "Simple" else 0.0
    return latency * _growth(sizes, protocol) + filling + sizes / rate


def _filling(s: Setting, sizes: Array, pipe: Array) -> Array:
    """Return the bytes that pass before all stages of a tree are at work."""
    stages = 1 + 2 * depth(s.nodes)
    return np.minimum(FILLING * min(stages, 3) * sizes, stages * pipe)


def _in_switches(s: Setting, sizes: Array, p: Parameters) -> Array:
    """All-reduce in NVLink's switches (NVLS), between nodes along a double tree (NVLSTree)."""
    latency = hop_seconds("NVLINK", "NVLS", "Simple") * p.many
    rate, pipe = p.switch, p.pipe * (SMALLER_CHUNKS if s.nodes >= 4 else 1.0)
    if s.nodes > 1:
        latency = latency + 2 * depth(s.nodes) * _hop(p, "Simple", "NVLSTree")
        share = many_nodes_share("perChMaxNVLSTreeBw", s.generation, s.nodes)
        rate = np.minimum(p.switch * share, p.between / double_tree_share(s.nodes))
    return latency + (_filling(s, sizes, pipe) + sizes) / rate


def _in_network(s: Setting, sizes: Array, p: Parameters) -> Array:
    """All-reduce in the switches between nodes: a node sends and receives the size once."""
    latency = base_seconds("Tree", "Simple") * p.many + 2 * _hop(p, "Simple", "CollNetDirect")
    inside = p.switch if s.has_switch_reduction else p.inside / 2
    return latency + sizes / np.minimum(inside, p.between)


def _pat(s: Setting, sizes: Array, p: Parameters) -> Array:
    latency = base_seconds("PAT", "Simple") * p.many
    latency = latency + depth(s.nodes) * _hop(p, "Simple", "PAT") / 3.5
    return latency + s.ranks * PAT_RANK_SECONDS + sizes * (s.ranks - 1) / s.ranks / p.between / 0.75


def _chain(s: Setting, sizes: Array, p: Parameters, protocol: str) -> Array:
    """From rank to rank, in parts that follow each other: all links carry the size once."""
    inside = (s.ranks - s.nodes) * hop_seconds("NVLINK", "Ring", protocol)
    latency = (base_seconds("Ring", protocol) + inside) * _scale(p, protocol)
    if s.nodes > 1:
        latency = latency + (s.nodes - 1) * _hop(p, protocol, "Ring")
    rate = _narrowest(s, p, protocol)
    return latency * _growth(sizes, protocol) + sizes / rate


def _direct(s: Setting, sizes: Array, p: Parameters) -> Array:
    """Messages between pairs of ranks: all-to-all, gather, scatter, send and receive.

    Those inside a node and those between nodes overlap.
    """
    port = p.between / s.per_node
    within, across, peers = (s.per_node - 1) / s.ranks, (s.ranks - s.per_node) / s.ranks, s.ranks
    if s.collective == "sendrecv":
        within, across, peers = 1.0, float(s.nodes > 1), 2
    latency = base_seconds("Ring", "Simple") * p.many + (peers - 2) * PEER_SECONDS
    latency = latency + (_hop(p, "Simple", "Ring") if s.nodes > 1 else 0.0)
    inside = within * sizes / p.inside if s.per_node > 1 else 0.0 * sizes
    return latency + np.maximum(inside, across * sizes / port)


PCIE_INSIDE = 25 * GB  # bytes/s in one direction, of a GPU without NVLink
RING_SHARE, RING_CERTAINTY = 0.81, 0.08  # of NVLink's rate in one direction
ONE_OF_CERTAINTY, UNKNOWN_CERTAINTY = 0.3, 1.0  # of one of two GPUs; NVLink or PCIe is open
USUAL_DOMAIN = 72  # GPUs that NVLink joins where words say only that it joins nodes
UNKNOWN_GPU = "H100"  # what an unknown one is taken for


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU: bytes/s that it sends inside a node and, by its port, between nodes.

    Rings get ``share`` of what its sheet says inside a node; ``certainty`` is the standard
    deviation of the logarithm of that.
    """

    name: str
    generation: str
    inside: float
    has_switch_reduction: bool
    port: float
    is_known: bool
    share: float
    certainty: float
    nvlink: Nvlink | None = None
    domain: int = 0


@dataclass(frozen=True)
class Network:
    """A network: its kind, bytes/s of a node in one direction, and how it was measured.

    Others use a shared one at the same time; where a framework stands between the benchmark and
    NCCL, what is gathered is copied. ``domain`` is the number of GPUs that NVLink joins where the
    words name it, 0 where they do not. MPI and Gloo have other algorithms than NCCL.
    """

    kind: str
    node_rate: float
    rate_is_known: bool
    is_shared: bool = False
    is_copied: bool = False
    is_nccl: bool = True
    domain: int = 0


@dataclass(frozen=True)
class NetworkKind:
    """How networks of a kind fare: share of the line rate, seconds more per hop than NCCL's.

    ``certainty`` is the standard deviation of the logarithm of the share; ``fine`` is above 1 where
    LL128 can be expected to work, ``has_few`` says whether LL does.
    """

    efficiency: float
    hop_seconds: float
    certainty: float
    fine: float
    has_few: bool = True


# By protocol. Efficiencies are those of headers and, for EFA, of software; of TCP see `delivered`.
# NCCL's plugin for EFA asks for the protocol Simple where packets may overtake one another
# (aws-ofi-nccl, platform-aws), so that even small messages pay its latencies.
KINDS = {
    "RoCE": NetworkKind(0.92, 4e-6, 0.08, 4.5),
    "EFA": NetworkKind(0.85, 12e-6, 0.15, 0.7, has_few=False),
    "InfiniBand": NetworkKind(0.94, 0.5e-6, 0.06, 4.5),
    "Slingshot": NetworkKind(0.85, 2e-6, 0.15, 1.0),
    "TCP": NetworkKind(1.0, 20e-6, 0.5, 0.5),
}
UNKNOWN = NetworkKind(0.75, 4e-6, 0.9, 1.5)  # the hop is the geometric mean of those


def delivered(network: Network) -> tuple[float, float]:
    """Return bytes/s that large messages of a node get, and the deviation of their logarithm.

    Over TCP it is what data/hardware/protocols.yaml says: the line less headers, or what software
    moves at most.

    >>> slow, fast = (Network("TCP", rate / 8, True) for rate in (10e9, 100e9))
    >>> [round(delivered(one)[0] * 8e-9, 2) for one in (slow, fast)]
    [9.35, 22.0]
    """
    kind = KINDS.get(network.kind, UNKNOWN)
    if network.kind != "TCP":
        return kind.efficiency * network.node_rate, kind.certainty
    protocol = protocols()["TCP"]
    known = Interconnect("TCP", network.node_rate, protocol, "its words").bandwidth
    by_software = known.value < protocol.share.value * network.node_rate
    spread = _deviation(known.low, known.high)
    return known.value, math.hypot(spread, kind.certainty if by_software else 0.0)


def _deviation(low: float, high: float) -> float:
    """Return the standard deviation of the logarithm that has this 90 % interval."""
    return math.log(high / low) / (2 * NORMAL_TAIL)


NORMAL_TAIL = 1.6449  # 90 % of normal numbers are within this many standard deviations
SLOW_PORT = 12.5 * GB  # bytes/s; a slower network is hardly one port of several


@functools.cache
def gpu_of(words: str) -> Gpu:
    """Return the kind of GPU that words name; an unknown one is taken for an H100.

    >>> gpu_of("NVIDIA A100-SXM4-40GB (OCI BM.GPU4.8)").generation
    'Ampere'
    """
    parts = words.split(" or ")
    either = [gpu_of(part) for part in parts if gpu_in(part)] if len(parts) > 1 else []
    if len({gpu.name for gpu in either}) > 1:
        return _one_of(either)
    found = gpu_in(words)
    known = found or get_gpu(UNKNOWN_GPU)
    linked = known.nvlink if "PCIE" not in words.upper().replace(" ", "") else None
    slot = link_inside(replace(known, nvlink=None)).share
    share, certainty = (
        (RING_SHARE, RING_CERTAINTY) if linked else (slot.value, _deviation(slot.low, slot.high))
    )
    return Gpu(
        known.family if found else words.strip(),
        known.kin.tuned_like,
        linked.bandwidth if linked else min(PCIE_INSIDE, known.pcie_bandwidth),
        linked is not None and linked.reduces,
        known.port,
        found is not None,
        share,
        certainty if found else UNKNOWN_CERTAINTY,
        linked,
        known.nvlink_domain,
    )


def _one_of(gpus: list[Gpu]) -> Gpu:
    """Return what is known of a GPU that may be any of these: rates between theirs."""
    inside, port = (
        math.exp(sum(math.log(rate) for rate in rates) / len(gpus))
        for rates in ([gpu.inside for gpu in gpus], [gpu.port for gpu in gpus])
    )
    name = " or ".join(gpu.name for gpu in gpus)
    adds = all(gpu.has_switch_reduction for gpu in gpus)
    share, certainty = gpus[-1].share, ONE_OF_CERTAINTY
    return Gpu(name, gpus[-1].generation, inside, adds, port, False, share, certainty)


@functools.cache
def network_of(words: str, gpu: Gpu, gpus_per_node: int) -> Network:
    """Return the network that words name, for nodes with this many of the GPUs.

    A rate counts as a node's if it has a factor ("8x400 Gb/s"), says so ("per node"), is a network
    by name ("400GbIB"), is of EFA or TCP, whose rates usually are, or if the node has one GPU;
    otherwise as that of one port of several, and the node has what nodes with such GPUs usually
    have.
    """
    protocol = protocol_of(words)
    kind = "unknown" if protocol is None else protocol.name
    rate, is_known = _node_rate(words, kind, gpu.port, gpus_per_node)
    return Network(kind, rate, is_known, domain=_domain_in(words))


def _domain_in(words: str) -> int:
    """Return how many GPUs NVLink joins by these words, 0 where they say nothing of it.

    >>> _domain_in("GB200 NVL36, 4x400 Gb/s"), _domain_in("MNNVL"), _domain_in("NVLink 4 (NVLS)")
    (36, 72, 0)
    """
    if stated := re.search(r"NVL(\d+)", words, re.IGNORECASE):
        return int(stated[1])
    several = re.search(r"MNNVL|multi-node nvlink", words, re.IGNORECASE)
    return USUAL_DOMAIN if several else 0


def _node_rate(words: str, kind: str, port: float, gpus: int) -> tuple[float, bool]:
    """Return bytes/s of a node in one direction, and whether the words say them."""
    usual = port * gpus
    stated = stated_rate(words)
    if stated is not None and stated.ports is not None:
        return stated.ports * stated.port_rate, True
    if stated is None or not stated.is_number:
        return usual, False
    rate = stated.port_rate
    of_node = kind in ("EFA", "TCP") or re.search(_OF_NODE, words, re.IGNORECASE)
    whole = of_node or gpus == 1 or rate < SLOW_PORT or rate > usual / 2
    return (rate, True) if whole else (usual, False)


_OF_NODE = r"node|host|total|^[\d.]+gb(ib|e(-roce)?)$"
_ALGORITHMS = {
    "NVLSTree": r"nvls_?tree",
    "NVLS": r"\bnvls\b(?!_)",
    "CollNet": r"coll_?net|sharp",
    "PAT": r"\bpat\b",
    "Ring": r"\bring\b",
    "Tree": r"\btree\b",
}
_PROTOCOLS = {"LL128": r"\bLL128\b", "LL": r"\bLL\b", "Simple": r"\bSimple\b"}
_SOCKETS = r"NCCL_IB_DISABLE\s*=\s*1|NCCL_NET\s*=\s*\W?Socket"
_WITHOUT_PEERS = r"NCCL_P2P_DISABLE\s*=\s*1|NCCL_P2P_LEVEL\s*=\s*(LOC|0)"
_WITHOUT_SWITCHES = r"NVLS_ENABLE\s*=\s*0|no[- ]nvls|without nvls|nvls[ =:]*(?:off|disabled)"


def hardware_of(row: Mapping[str, Any]) -> tuple[Gpu, Network]:
    """Return the GPU and the network that a row's words name, and its settings leave in use."""
    words = _words(row)
    apart = re.search(_WITHOUT_PEERS, words, re.IGNORECASE) is not None
    gpu = gpu_of(_text(row, "gpu") + " PCIe" * apart)
    network = network_of(_text(row, "network"), gpu, int(row["gpus_per_node"]))
    network = replace(network, domain=_domain_of(row, gpu, network))
    if re.search(_SOCKETS, words, re.IGNORECASE):
        network = replace(network, kind="TCP")
    shared = re.search(r"\bshared|production", words, re.IGNORECASE) is not None
    copied = re.search(r"torch", words, re.IGNORECASE) is not None
    other = re.search(r"\bmpi\b|gloo", words, re.IGNORECASE) and not re.search(r"nccl", words, re.I)
    return gpu, replace(network, is_shared=shared, is_copied=copied, is_nccl=not other)


def _domain_of(row: Mapping[str, Any], gpu: Gpu, network: Network) -> int:
    """Return how many GPUs NVLink joins: by the row's nvlink_domain, by words, or by the GPU."""
    told = str(row.get("nvlink_domain", "")).strip()
    if told.casefold() in ("", "nan", "none"):
        return network.domain or _domain_in(_text(row, "gpu")) or gpu.domain
    require(
        re.fullmatch(r"[1-9]\d*(\.0+)?", told) is not None,
        f"nvlink_domain {told!r} must be a whole number of GPUs; leave it out where NVLink ends at "
        f"the node",
    )
    return int(float(told))


def setting_of(row: Mapping[str, Any]) -> Setting:
    """Return the circumstances of a row with collective, nodes, GPUs per node, and words.

    Settings force an algorithm or a protocol if they name it, such as "Ring" and
    "NCCL_ALGO=NVLSTree", sockets by NCCL_IB_DISABLE=1, and PCIe by NCCL_P2P_DISABLE=1; those that
    begin with "default" name what NCCL chose, and force nothing.
    """
    gpu, network = hardware_of(row)
    machines, each = int(row["nodes"]), int(row["gpus_per_node"])
    nodes = math.ceil(machines / max(1, network.domain // each))
    settings = _text(row, "settings")
    free = settings.casefold().startswith("default")
    off = re.search(_WITHOUT_SWITCHES, settings, re.IGNORECASE) is not None
    words = re.sub(_WITHOUT_SWITCHES, "", settings, flags=re.IGNORECASE)
    kind = KINDS.get(network.kind, UNKNOWN)
    usable = frozenset() if kind.has_few or nodes == 1 else frozenset({"LL128", "Simple"})
    return Setting(
        str(row["collective"]),
        nodes,
        math.ceil(machines * each / nodes),
        gpu.generation,
        gpu.has_switch_reduction and not off,
        frozenset() if free else _named("ALGO", _ALGORITHMS, words, re.IGNORECASE),
        usable if free else _named("PROTO", _PROTOCOLS, words, 0) or usable,
        machines / nodes,
        gpu.nvlink.among(each) if gpu.nvlink and machines == nodes else 1.0,
        PYTHON_CALL if re.search(r"torch|\.py\b", _words(row), re.IGNORECASE) else 0.0,
    )


def _words(row: Mapping[str, Any]) -> str:
    return " ".join(_text(row, name) for name in ("network", "library", "settings"))


def _named(what: str, known: dict[str, str], words: str, flags: int) -> frozenset[str]:
    """Return the algorithms or protocols that words name, or all but these after NCCL's "^"."""
    told = re.search(rf"NCCL_{what}\s*=\s*[\"']?(\^?)([^\s;\"']+)", words)
    words, flags = (told[2], re.IGNORECASE) if told else (words, flags)
    found = frozenset(name for name, pattern in known.items() if re.search(pattern, words, flags))
    if told is None:
        return found
    require(
        bool(found),
        f"settings have NCCL_{what}={told[2]}, which is unknown; write one of "
        f"{', '.join(known)}, or leave it out",
    )
    return frozenset(known) - found - {"CollNet"} if told[1] else found


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name, "")
    return value if isinstance(value, str) else ""
