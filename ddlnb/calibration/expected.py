"""Whether measured collectives are as fast as their hardware should be, and what may slow them.

What it should be is the forecast of `ddlnb.calibration.collectives` for the words of the hardware.
A suspect is the same forecast with one circumstance otherwise; the likeliest one comes closest to
what was measured.

What NCCL says of itself (NCCL_DEBUG=INFO), and `nvidia-smi topo -m` of the links between GPUs, is
read from lines of NCCL 2.18 to 2.27 (src/init.cc, transport/*.cc, enqueue.cc); a topology is what
NCCL_TOPO_DUMP_FILE writes (graph/xml.cc). What a text does not say is None or empty. Choices of
algorithms need NCCL_DEBUG_SUBSYS=INIT,NET,TUNING.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.calibration.collective_tables import COLLECTIVES, SECONDS, bus_factor, completed
from ddlnb.calibration.collectives import (
    FittedCollectives,
    fit_collectives,
    forecast,
    parameters,
    rows_to_fit,
)
from ddlnb.calibration.nccl import Parameters, chosen, setting_of
from ddlnb.hardware.catalogue import gpu_in, stated_rate
from ddlnb.reading import reading
from ddlnb.units import BITS_PER_BYTE, GB, US, counted, show_bytes

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
_GPU = re.compile(r"^#\s+Rank\s.* device\s+\d+ \[\w+\] (.+?)\s*$", re.MULTILINE)
_TOPO = re.compile(r"^\s*GPU\d+((?:\s+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS))+)", re.MULTILINE)


@dataclass(frozen=True)
class NcclFacts:
    """``network`` carries traffic between nodes by these ``cards``; ``direct`` says if GPUs' memory
    goes to it without the host's. ``inside`` joins the GPUs of a node, ``links`` are nvidia-smi's
    words for pairs of GPUs, ``card_gigabits`` the Gb/s of every card of a node, ``gpu`` what
    nccl-tests calls the GPUs. ``chosen`` are
    algorithm and protocol by collective and bytes, ``set_`` the variables that somebody set.
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
    card_gigabits: tuple[float, ...] = ()
    gpu: str = ""

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
            yield f"Pairs of GPUs are joined by {', '.join(sorted(self.links))}."
        if self.card_gigabits:
            rates = " and ".join(f"{rate:g}" for rate in sorted(set(self.card_gigabits)))
            yield f"A node has {counted(len(self.card_gigabits), 'card')} of {rates} Gb/s."
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
        gpu=next(iter(_GPU.findall(text)), ""),
    )


def topology_facts(
    elements: Sequence[tuple[int, str, dict[str, str]]], place: object = "a topology of NCCL"
) -> NcclFacts:
    """Return what a topology of NCCL says, by its elements with their depths.

    Raises InputError, which names the place, for numbers that are none.

    >>> topology_facts([(1, "net", {"name": "mlx5_0", "speed": "400000"})]).card_gigabits
    (400.0,)
    """
    with reading(place):
        cards = [one for _, tag, one in elements if tag == "net"]
        links: list[int] = []  # of each GPU
        for _, tag, one in elements:
            links += [0] if tag == "gpu" else ()
            if tag == "nvlink" and links:
                links[-1] += int(one.get("count", 1))
        direct = {one["gdr"] == "1" for one in cards if "gdr" in one}
        return NcclFacts(
            cards=tuple(sorted(one["name"] for one in cards if "name" in one)),
            direct=None if not direct else direct == {True},
            links=frozenset(f"NV{count}" if count else "PCIe" for count in links),
            card_gigabits=tuple(float(one.get("speed", 0)) / 1e3 for one in cards),
        )


def joined(one: NcclFacts, other: NcclFacts) -> NcclFacts:
    """Return the facts of one, and of the other what the first does not say."""
    nothing = NcclFacts()
    said = {
        name: value for name, value in vars(other).items()
        if getattr(one, name) == getattr(nothing, name)
    }  # fmt: skip
    return replace(one, **said)


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


AS_FORECAST, SLOW, FAST, UNKNOWN = "as forecast", "slow", "faster", "no forecast"
UNTRACED = "slow, or others late"  # where some ranks are not in the traces
SHOWN_SUSPECTS = 3
FAR = math.log(2)  # from what was measured: what is further off explains nothing


@dataclass(frozen=True)
class Suspect:
    """Something that makes collectives slow: what it changes in a row's words, and its test.

    ``told`` is whether what NCCL says of itself confirms it, or rules it out. ``apart`` is the
    typical difference of the logarithms of what was measured and its forecast.
    """

    name: str
    change: Callable[[Mapping[str, Any]], dict[str, Any] | None]
    test: str
    told: Callable[[NcclFacts], bool | None] = lambda _: None
    apart: float = math.inf
    is_told: bool = False


def _network(words: str) -> Callable[[Mapping[str, Any]], dict[str, Any] | None]:
    """Return the change to a row of several nodes whose rate of a node is known."""

    def change(row: Mapping[str, Any]) -> dict[str, Any] | None:
        rate = stated_rate(str(row["network"]))
        if row["nodes"] < 2 or rate is None or not rate.is_number:
            return None
        gigabits = rate.port_rate * BITS_PER_BYTE / GB
        ports = rate.ports or int(row["gpus_per_node"])
        kind = re.sub(r"\d*\s*x?\s*\d+\s*(Gb/s)?", "", str(row["network"])).strip()
        few = max(1, ports // 2)
        if "{half}" in words and ports == 1:
            return None
        network = words.format(one=f"1x{gigabits:g}", half=f"{few}x{gigabits:g}", kind=kind)
        return {"network": network}

    return change


def _settings(words: str, several: bool | None = None) -> Callable[..., dict[str, Any] | None]:
    def change(row: Mapping[str, Any]) -> dict[str, Any] | None:
        if several is not None and (row["nodes"] > 1) != several:
            return None
        return {"settings": words}

    return change


def _took(facts: NcclFacts, place: int, name: str) -> bool | None:
    """Return False where NCCL took something else for all that it says it took."""
    taken = {choice[place] for choice in facts.chosen.values()}
    return False if taken and name not in taken else None


def _over_pcie(row: Mapping[str, Any]) -> dict[str, Any] | None:
    return {"gpu": f"{row['gpu']} PCIe"} if row["nodes"] == 1 else None


SUSPECTS = (
    Suspect(
        "sockets in place of RDMA",
        _network("TCP {one} Gb/s"),
        "NCCL_DEBUG=INFO must say NET/IB (or the plugin), not NET/Socket; NCCL_IB_DISABLE unset",
        lambda facts: facts.network == "Socket" if facts.network else None,
    ),
    Suspect(
        "one network card of several",
        _network("{one} Gb/s {kind}"),
        "NCCL_DEBUG=INFO lists every card in 'Using [0]...'; check NCCL_IB_HCA, ibstat, cables",
        lambda facts: len(facts.cards) == 1 if facts.cards and facts.network != "Socket" else None,
    ),
    Suspect(
        "GPUs' memory that goes to the network through the host's",
        _network("{half} Gb/s {kind}"),
        "NCCL_DEBUG=INFO must say GDRDMA; nvidia-peermem or DMA-BUF, NCCL_NET_GDR_LEVEL, ACS off",
        lambda facts: facts.direct is False,
    ),
    Suspect(
        "half of the network cards, or half their rate",
        _network("{half} Gb/s {kind}"),
        "ibstat shows rate and state of each card; nvidia-smi topo -m, a card near each GPU",
    ),
    Suspect(
        "a network that other jobs share, or congestion",
        lambda row: {"network": f"{row['network']}, shared"} if row["nodes"] > 1 else None,
        "repeat it at another hour and with ib_write_bw between pairs of nodes",
    ),
    Suspect(
        "PCIe in place of NVLink",
        _over_pcie,
        "nvidia-smi topo -m must say NV between GPUs; nvidia-smi nvlink -s; NCCL_P2P_DISABLE unset",
        lambda facts: True if "SHM" in facts.inside or facts.nvlink is False else None,
    ),
    Suspect(
        "no reduction in switches (NVLS)",
        _settings("without NVLS"),
        "NCCL_DEBUG=INFO says 'NVLS multicast support'; NCCL_NVLS_ENABLE unset; Fabric Manager up",
        lambda facts: None if facts.switches is None else not facts.switches,
    ),
    Suspect(
        "the LL protocol at all sizes",
        _settings("LL"),
        "unset NCCL_PROTO and repeat it",
        lambda facts: _took(facts, 1, "LL"),
    ),
    Suspect(
        "a tree where a ring is faster",
        _settings("Tree", several=True),
        "unset NCCL_ALGO and repeat it",
        lambda facts: _took(facts, 0, "Tree"),
    ),
    Suspect(
        "a ring where a tree is faster",
        _settings("Ring", several=True),
        "unset NCCL_ALGO and repeat it",
        lambda facts: _took(facts, 0, "Ring"),
    ),
)


@dataclass(frozen=True)
class Judged:
    """Measured collectives with forecasts: columns of rows, and ``expected``, ``low`` and ``high``
    in seconds (a 90 % interval), ``chosen`` (what NCCL takes by its own model), ``busbw`` in bytes
    per second, and a ``verdict``.
    """

    rows: pd.DataFrame
    suspects: tuple[Suspect, ...]
    other_gpu: str = ""

    @property
    def said(self) -> Iterator[str]:
        """Yield what follows, in sentences."""
        if self.other_gpu:
            yield self.other_gpu
        judged = self.rows[self.rows["verdict"] != UNKNOWN]
        slow = judged[judged["verdict"] == SLOW]
        if not len(judged):
            yield "No collective is of a kind that has a forecast."
            return
        unclear = int((judged["verdict"] == UNTRACED).sum())
        if unclear:
            yield (
                f"{counted(unclear, 'row')} of {len(judged)} took longer than forecast, which "
                f"ranks without a trace may be the reason of; record all ranks."
            )
            return
        if not len(slow):
            yield f"All of {counted(len(judged), 'row')} are as fast as forecast, or faster."
            return
        worst = slow.loc[(slow[SECONDS] - slow["expected"]).idxmax()]  # that loses most
        yield (
            f"{counted(len(slow), 'row')} of {len(judged)} took longer than forecast; the worst, "
            f"{worst['collective']} on {worst['ranks']} ranks, took "
            f"{worst[SECONDS] / worst['expected']:.1f} times as long."
        )
        if not self.suspects:
            yield "No single circumstance explains it."
        for number, one in enumerate(self.suspects, start=1):
            why = "NCCL says so" if one.is_told else "no log says so"
            more = ", so there is more to it" if one.apart >= FAR else ""
            yield (
                f"Suspect {number}: {one.name} ({why}; its forecast is off by "
                f"{math.expm1(one.apart):.0%}{more}). Test: {one.test}."
            )


def bus_bandwidths(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the bus bandwidth of every row in bytes per second; NaN for unknown collectives."""
    values = [
        bus_factor(row["collective"], int(row["ranks"])) * row["size_bytes"] / row[SECONDS]
        if row["collective"] in COLLECTIVES and row[SECONDS] > 0
        else math.nan
        for row in rows.to_dict("records")
    ]
    return pd.Series(values, rows.index, dtype=float)


def judged(rows: pd.DataFrame, gpu: str, network: str, facts: NcclFacts | None = None) -> Judged:
    """Return what was measured beside what hardware of these names should do.

    ``facts`` of the same run confirm suspects, or rule them out.

    ``rows`` have collective, ranks, nodes, size_bytes and seconds, and may have ``traced``, on how
    many ranks it was seen. Raises InputError for rows that no cluster has.
    """
    rows = rows.assign(busbw=bus_bandwidths(rows))
    known = rows["collective"].isin(COLLECTIVES) & (rows["ranks"] > 1) & (rows[SECONDS] > 0)
    known &= rows["ranks"] % rows["nodes"] == 0
    asked = rows[known].drop(columns="gpus_per_node", errors="ignore")
    fitted = _of_published()
    words = {"gpu": gpu, "network": network, "settings": ""}
    questions = completed(asked.assign(**words)) if len(asked) else asked
    found = forecast(fitted, questions) if len(asked) else {}
    for name, column in (("expected", "time_us"), ("low", "low"), ("high", "high")):
        rows.loc[known, name] = found[column] * US if found else math.nan
    choice = [
        " ".join(
            chosen(setting_of(row), np.array([row["size_bytes"]]), _parameters(fitted, row))[0]
        )
        for row in (questions.to_dict("records") if len(asked) else [])
    ]
    rows.loc[known, "chosen"] = choice
    is_slow = rows[SECONDS] > rows["high"]
    is_partly = rows.get("traced", rows["ranks"]) < rows["ranks"]
    rows["verdict"] = np.select(
        [~known, is_slow & is_partly, is_slow, rows[SECONDS] < rows["low"]],
        [UNKNOWN, UNTRACED, SLOW, FAST],
        AS_FORECAST,
    )
    told = facts or NcclFacts()
    logged, asked_for = gpu_in(told.gpu), gpu_in(gpu)
    other = ""
    if logged and asked_for and logged.family != asked_for.family:
        other = f"The log is of {told.gpu}, and the forecast of {asked_for.name}: give its GPU."
    slow = rows[known & (rows["verdict"] == SLOW)]
    if not len(slow):
        return Judged(rows, (), other)
    likeliest = _likeliest(fitted, questions, rows.loc[questions.index], told)
    return Judged(rows, likeliest, other)


@functools.cache
def _of_published() -> FittedCollectives:
    return fit_collectives(rows_to_fit(None))


def _parameters(fitted: FittedCollectives, row: dict[str, Any]) -> Parameters:
    return parameters(fitted.draws_for(row)[0])


def _likeliest(
    fitted: FittedCollectives, questions: pd.DataFrame, rows: pd.DataFrame, facts: NcclFacts
) -> tuple[Suspect, ...]:
    """Return the suspects that are told, then those whose forecasts come closest.

    That is to the rows that are slow, and to the others, of which a suspect says nothing new.
    """
    slow = (rows["verdict"] == SLOW).to_numpy()
    found = []
    asked = questions.to_dict("records")
    before = forecast(fitted, questions)["time_us"] * US
    taken = rows[SECONDS].to_numpy()
    nothing = float(np.median(np.abs(np.log(before / taken))[slow]))  # explained
    for one in SUSPECTS:
        is_told = one.told(facts)
        if is_told is False:
            continue
        changes = [one.change(row) for row in asked]
        if any(change is None for change in changes):
            continue
        changed = [row | (change or {}) for row, change in zip(asked, changes, strict=True)]
        times = forecast(fitted, pd.DataFrame(changed))["time_us"] * US
        if np.allclose(times[slow], before[slow], rtol=0.05):
            continue
        off = np.abs(np.log(times / taken))
        apart = max(float(np.median(off[part])) for part in (slow, ~slow) if part.any())
        if is_told or apart < min(FAR, nothing):
            found.append(replace(one, apart=apart, is_told=bool(is_told)))
    return tuple(sorted(found, key=lambda one: (not one.is_told, one.apart))[:SHOWN_SUSPECTS])
