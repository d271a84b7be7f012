"""What NCCL says of itself (NCCL_DEBUG=INFO) and `nvidia-smi topo -m` of the links between GPUs.

Lines are those of NCCL 2.18 to 2.27 (src/init.cc, transport/*.cc, enqueue.cc). What a text does not
say is None or empty. Choices of algorithms need NCCL_DEBUG_SUBSYS=INIT,NET,TUNING.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddlnb.units import counted, show_bytes

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
_NETWORK = re.compile(r"NCCL INFO Using network (\w[\w ]*?)\s*$", re.MULTILINE)
_CARDS = re.compile(r"NCCL INFO NET/(\w+)\s*: Using (.*)")
_CARD = re.compile(r"\[\d+\]\s*([\w.]+)")
_VIA = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : .* via ([\w/]+)")
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
_NVLS = re.compile(r"NVLS multicast support is (not )?available")
_CHOSEN = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_SET = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (\S+)")
_TOPO = re.compile(r"^\s*GPU\d+((?:\s+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS))+)", re.MULTILINE)


@dataclass(frozen=True)
class NcclFacts:
    """``network`` carries traffic between nodes by these ``cards``; ``direct`` says if GPUs' memory
    goes to it without the host's. ``inside`` joins the GPUs of a node, ``links`` are nvidia-smi's
    words for pairs of GPUs. ``chosen`` are algorithm and protocol by collective and bytes, ``set_``
    the variables that somebody set.
    """

    network: str = ""
    cards: tuple[str, ...] = ()
    direct: bool | None = None
    inside: str = ""
    channels: int | None = None
    switches: bool | None = None
    links: frozenset[str] = frozenset()
    chosen: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    set_: dict[str, str] = field(default_factory=dict)

    @property
    def nvlink(self) -> bool | None:
        """Whether NVLink joins every pair of GPUs; None where no topology is there."""
        return all(word.startswith("NV") for word in self.links) if self.links else None

    @property
    def said(self) -> Iterator[str]:
        """Yield what was found."""
        if self.network:
            cards = f" by {counted(len(self.cards), 'card')} ({', '.join(self.cards)})"
            direct = {True: ", with GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}
            by = cards if self.cards else ""
            yield f"NCCL's network is {self.network}{by}{direct[self.direct]}."
        if self.inside:
            yield f"Inside a node it goes by {self.inside}."
        if self.links:
            yield f"Pairs of GPUs are joined by {', '.join(sorted(self.links))} (nvidia-smi topo)."
        if self.channels is not None:
            yield f"NCCL has {self.channels} channels."
        for name, value in self.set_.items():
            yield f"{name} is set to {value}."
        for (what, size), (algorithm, protocol) in self.chosen.items():
            yield f"NCCL took {algorithm} with {protocol} for {what} of {show_bytes(size)}."


def nccl_facts(text: str) -> NcclFacts:
    """Return what the text of a log says of NCCL and of links.

    >>> nccl_facts("n:1:2 [0] NCCL INFO Using network Socket").network
    'Socket'
    """
    networks = _NETWORK.findall(text) or [name for name, _ in _CARDS.findall(text)]
    cards = {
        card
        for network, listed in _CARDS.findall(text)
        if network in networks
        for card in _CARD.findall(listed)
    }
    ways = set(_VIA.findall(text))
    outside = [way for way in ways if way.startswith("NET/")]
    inside = {way.partition("/")[0] for way in ways if way.startswith(("P2P", "SHM"))}
    channels, switches = _CHANNELS.findall(text), _NVLS.findall(text)
    topo = [row.split() for row in _TOPO.findall(text)]  # GPUs come first, then network cards
    links = {word for row in topo for word in row[: len(topo)] if word != "X"}
    return NcclFacts(
        networks[-1] if networks else "",
        tuple(sorted(cards)),
        any("GDRDMA" in way for way in outside) if outside else None,
        " and ".join(sorted(inside)),
        int(channels[-1]) if channels else None,
        switches[-1] == "" if switches else None,
        frozenset(links),
        dict(_choices(text)),
        dict(_SET.findall(text)),
    )


def _choices(text: str) -> Iterator[tuple[tuple[str, int], tuple[str, str]]]:
    for what, size, algorithm, protocol in _CHOSEN.findall(text):
        yield (what, int(size)), (_named(algorithm, ALGORITHMS), _named(protocol, PROTOCOLS))


def _named(word: str, names: tuple[str, ...]) -> str:
    """Return an algorithm or protocol by the number or the name that NCCL prints.

    >>> _named("1", ALGORITHMS), _named("NVLS_TREE", ALGORITHMS), _named("SIMPLE", PROTOCOLS)
    ('Ring', 'NVLSTree', 'Simple')
    """
    if word.isdigit():
        return names[int(word)] if int(word) < len(names) else word
    by_word = {name.upper(): name for name in names}
    return by_word.get(word.replace("_", "").upper(), word)
