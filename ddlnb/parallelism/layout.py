"""A layout: how many ways a model, its batch and its optimizer are split, and which rank is where.

Its text form lists what differs from one worker: ``dp8 tp2 pp4 zero1 mb2 acc16``. The groups of
every axis say which ranks exchange with which, and how they lie on nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, UnknownName, look_up, require, require_known, require_whole
from ddlnb.parallelism.schedules import SCHEDULES

AXES = ("tp", "cp", "dp", "pp")  # from neighbouring ranks to distant ones
RECOMPUTATIONS = ("none", "selective", "full")
CONTEXTS = ("ring", "all-to-all")
# What words of a layout stand for: counts with a number behind them, and fields with a value each.
_COUNTS = {word: word for word in ("dp", "tp", "pp", "cp", "ep", "vpp", "zero", "shard", "lora")}
_COUNTS |= {"mb": "micro_batch", "acc": "micro_batches"}
_SWITCHES = {"sp": ("sequence_parallel", True), "keep": ("gather_again", False)}
_CHOICES: dict[str, Collection[str]] = {
    "schedule": SCHEDULES,
    "recomputation": RECOMPUTATIONS,
    "context": CONTEXTS,
}


def equal_parts(layers: int, parts: int) -> int:
    """Return the layers of each of equal parts of a model, 0 if its layers make none.

    Where layers alone do not, embedding and head count as one each.

    >>> equal_parts(32, 8), equal_parts(126, 16), equal_parts(61, 16)
    (4, 8, 0)
    """
    return next((n // parts for n in (layers, layers + 2) if n % parts == 0), 0)


@dataclass(frozen=True)
class Layout:
    """How training is split over ``ranks`` = dp * tp * pp * cp workers.

    - dp: replicas that train on different samples; tp: ranks that share every matrix; pp: stages;
      cp: ranks that share a sequence; ep: ranks among the replicas that share the experts.
    - vpp: chunks of layers that a stage holds, for the interleaved schedule.
    - zero: what the replicas shard: 1 optimizer states, 2 gradients too, 3 parameters too (FSDP).
    - shard: over how many neighbouring replicas ZeRO shards, as hybrid sharding (HSDP) does; the
      groups hold copies of each other. 0: over all of them.
    - lora: the rank of adapters beside every matrix of blocks, of which alone there are gradients
      and optimizer states (arXiv 2106.09685). 0: all parameters are trained.
    - sequence_parallel: what tensor parallelism would repeat is split along the sequence; with
      gather_again its gathered inputs are not kept, but gathered once more in the backward pass.
    - recomputation: of nothing, of the core of attention (selective), or of whole layers (full).
    - context: how the ranks of cp attend to each other's tokens.
    - micro_batch: samples per forward pass; micro_batches: how many of them make an iteration.
    - order: the axes from neighbouring ranks to distant ones.

    Raises InputError, with the values that would do, for numbers that exclude each other.

    >>> layout = Layout.parse("dp8 tp2 pp4 zero1 mb2 acc16")
    >>> layout.ranks, layout.samples, str(layout)
    (64, 256, 'dp8 tp2 pp4 zero1 mb2 acc16')
    >>> Layout(dp=6, ep=4)
    Traceback (most recent call last):
    ddlnb.errors.InputError: ep 4 does not divide dp 6; use one of 1, 2, 3, 6
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    zero: int = 0
    shard: int = 0
    lora: int = 0
    sequence_parallel: bool = False
    gather_again: bool = True
    recomputation: str = "none"
    schedule: str = "1f1b"
    context: str = "ring"
    micro_batch: int = 1
    micro_batches: int = 1
    order: tuple[str, ...] = AXES

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in _COUNTS.values()}
        for name in ("zero", "shard", "lora"):  # which may be 0
            require_whole(0, **{name: counts.pop(name)})
        require_whole(**counts)
        require(self.zero in (0, 1, 2, 3), f"zero {self.zero!r} must be 0, 1, 2 or 3")
        for what, options in _CHOICES.items():
            require_known(what, getattr(self, what), options)
        require_divides("ep", self.ep, "dp", self.dp)
        require(
            not self.shard or (self.zero > 0 and self.ep == 1),
            f"shard {self.shard} says over how many replicas ZeRO shards: give zero1, zero2 or "
            f"zero3, and no ep",
        )
        require_divides("shard", self.shards, "dp * cp", self.dp * self.cp)
        require(
            sorted(self.order) == sorted(AXES),
            f"order {'-'.join(self.order)!r} must name each of {', '.join(AXES)} once",
        )
        require(
            self.tp > 1 or not self.sequence_parallel,
            "sequence parallelism (sp) splits what tensor parallelism repeats: give tp above 1",
        )
        if SCHEDULES[self.schedule].chunked:
            require(
                self.vpp > 1,
                f"the {self.schedule} schedule needs vpp of 2 or more, not {self.vpp}",
            )
            if self.micro_batches % self.pp:
                least = -(-self.micro_batches // self.pp) * self.pp
                raise InputError(
                    f"the {self.schedule} schedule needs micro_batches that are a multiple of pp "
                    f"{self.pp}, not {self.micro_batches}; the next one is {least}"
                )
        else:
            require(
                self.vpp == SCHEDULES[self.schedule].chunks,
                f"vpp {self.vpp} needs the interleaved schedule, not {self.schedule!r}, which has "
                f"vpp {SCHEDULES[self.schedule].chunks}",
            )

    @property
    def ranks(self) -> int:
        """Number of ranks: dp * tp * pp * cp (the expert axis is a part of dp)."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def samples(self) -> int:
        """Samples of one iteration over all replicas: the global batch."""
        return self.dp * self.micro_batch * self.micro_batches

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards: of dp * cp that see the same parameters all, or some."""
        return self.shard or self.dp * self.cp

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout of a text such as ``dp8 tp2 pp4 zero1 mb2``; InputError for others.

        Words: dp, tp, pp, cp, ep, vpp, zero, shard, lora, mb (micro_batch) and acc (micro_batches)
        with a number; ``sp``; a schedule; ``selective`` or ``full`` recomputation; ``ring`` or
        ``all-to-all``; ``keep`` (gathered inputs are kept); ``order=tp-cp-dp-pp``.
        """
        given: dict[str, object] = {}
        for word in text.replace(",", " ").split():
            name, value = _read(word.lower())
            require(name not in given, f"layout {text!r} gives {name} twice")
            given[name] = value
        if given.get("vpp", 1) != 1:
            given.setdefault("schedule", "interleaved")
        given.setdefault("vpp", SCHEDULES[str(given.get("schedule", "1f1b"))].chunks)
        return cls(**given)  # type: ignore[arg-type]

    def __str__(self) -> str:
        changed = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
        if self.schedule == "interleaved":  # vpp says it
            del changed["schedule"]
        return " ".join(_written(name, value) for name, value in changed.items()) or "dp1"


def require_divides(part: str, divisor: int, whole: str, number: int, model: str = "") -> None:
    """Raise InputError, with all numbers that would do, unless the divisor divides the number."""
    if number % divisor:
        of = f" of model {model!r}" if model else ""
        fitting = ", ".join(str(one) for one in range(1, number + 1) if number % one == 0)
        raise InputError(
            f"{part} {divisor} does not divide {whole} {number}{of}; use one of {fitting}"
        )


def _read(word: str) -> tuple[str, object]:
    """Return the field that a word is about, and its value."""
    if (match := re.fullmatch(r"([a-z]+)=?(\d{1,12})", word)) and match[1] in _COUNTS:
        return _COUNTS[match[1]], int(match[2])
    if word in _SWITCHES:
        return _SWITCHES[word]
    if word.startswith("order="):
        return "order", tuple(word.removeprefix("order=").split("-"))
    named = {
        value: name for name, values in _CHOICES.items() for value in values if value != "none"
    }
    if word not in named:
        numbered = [f"{name}N" for name in _COUNTS]
        plain = ["sp", *named, "keep", "order=A-B-C-D"]
        raise UnknownName(
            "word in a layout:",
            word,
            numbered + plain,
            otherwise="FSDP is written dpN zero3, HSDP dpN zero3 shardN, and ZeRO-2 dpN zero2",
        )
    return named[word], word


def _written(name: str, value: Any) -> str:
    """Return the word for a field that differs from one worker's."""
    words = {field: word for word, field in _COUNTS.items()}
    words |= {field: word for word, (field, _) in _SWITCHES.items()}
    if name == "order":
        return "order=" + "-".join(value)
    if name in _CHOICES:
        return str(value)
    return words[name] + ("" if isinstance(value, bool) else str(value))


GROUPS = (*AXES, "ep", "data", "expert-data", "shard", "copies", "ends")


def group_size(layout: Layout, axis: str) -> int:
    """Return how many ranks exchange with each other along an axis.

    Beside tp, cp, dp and pp: ``ep`` shares the experts; ``data`` holds the same parameters (dp and
    cp together); ``expert-data`` the same experts; ``shard`` shares what ZeRO shards, ``copies``
    hold the same shard, with hybrid sharding; ``ends`` are the first and the last stage, which
    share a tied embedding. Raises UnknownName for another axis.
    """
    sizes: dict[str, int] = {
        **{name: getattr(layout, name) for name in AXES},
        "ep": layout.ep,
        "data": layout.dp * layout.cp,
        "expert-data": layout.dp // layout.ep * layout.cp,
        "shard": layout.shards,
        "copies": layout.dp * layout.cp // layout.shards,
        "ends": min(2, layout.pp),
    }
    return look_up("axis", axis, sizes)


def groups(layout: Layout, axis: str) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of every group along an axis, in order; every rank is in one group.

    But for ``ends``, where only the first and the last stage are.

    >>> groups(Layout(dp=2, tp=2), "tp"), groups(Layout(dp=2, tp=2), "dp")
    (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    """
    return tuple(tuple(map(int, row)) for row in _array(layout, axis))


def position(layout: Layout, rank: int) -> dict[str, int]:
    """Return where a rank stands on every axis of the order.

    >>> position(Layout(dp=2, tp=2, pp=2), 6)
    {'tp': 0, 'cp': 0, 'dp': 1, 'pp': 1}
    """
    where = {}
    for axis in layout.order:
        rank, where[axis] = divmod(rank, getattr(layout, axis))
    return where


@lru_cache(maxsize=4096)
def _array(layout: Layout, axis: str) -> NDArray[np.int64]:
    """Return one row of ranks per group."""
    size = group_size(layout, axis)
    if axis in ("shard", "copies"):
        parts = _array(layout, "data").reshape(-1, group_size(layout, "copies"), layout.shards)
        return (parts if axis == "shard" else parts.transpose(0, 2, 1)).reshape(-1, size)
    degrees: dict[str, int] = {}  # the outer ones first
    for name in layout.order[::-1]:
        degrees[name] = getattr(layout, name)
        if name == "dp":  # its inner part are the ranks that share the experts
            degrees |= {"dp": layout.dp // layout.ep, "ep": layout.ep}
    along = {
        "dp": ["dp", "ep"],
        "data": [name for name in degrees if name in ("dp", "ep", "cp")],
        "expert-data": [name for name in degrees if name in ("dp", "cp")],
        "ends": ["pp"],
    }.get(axis, [axis])
    ranks = np.arange(layout.ranks).reshape([*degrees.values()])
    axes = sorted(degrees, key=lambda name: along.index(name) if name in along else -1)
    rows = ranks.transpose([[*degrees].index(name) for name in axes])
    rows = rows.reshape(-1, math.prod(degrees[name] for name in along))
    return rows[:, [0, -1][:size]] if axis == "ends" else rows
