"""A layout: how many ways a model, its batch and its optimizer are split, and which rank is where.

Its text form lists what differs from one worker: ``dp8 tp2 pp4 zero1 mb2 acc16``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from ddlnb.errors import InputError, UnknownName, require, require_whole

AXES = ("tp", "cp", "dp", "pp")  # from neighbouring ranks to distant ones
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
RECOMPUTATIONS = ("none", "selective", "full")
CONTEXTS = ("ring", "all-to-all")
_SHORT = {"mb": "micro_batch", "acc": "micro_batches"}
_COUNTS = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "micro_batches")
_TOKEN = re.compile(r"(dp|tp|pp|cp|ep|vpp|zero|mb|acc)=?(\d+)")


@dataclass(frozen=True)
class Layout:
    """How training is split over ``ranks`` = dp * tp * pp * cp workers.

    - dp: replicas that train on different samples; tp: ranks that share every matrix; pp: stages;
      cp: ranks that share a sequence; ep: ranks among the replicas that share the experts.
    - vpp: chunks of layers that a stage holds, for the interleaved schedule.
    - zero: what the replicas shard: 1 optimizer states, 2 gradients too, 3 parameters too (FSDP).
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
    sequence_parallel: bool = False
    gather_again: bool = True
    recomputation: str = "none"
    schedule: str = "1f1b"
    context: str = "ring"
    micro_batch: int = 1
    micro_batches: int = 1
    order: tuple[str, ...] = AXES

    def __post_init__(self) -> None:
        require_whole(**{name: getattr(self, name) for name in _COUNTS})
        require(self.zero in (0, 1, 2, 3), f"zero {self.zero!r} must be 0, 1, 2 or 3")
        for what, options in (
            ("schedule", SCHEDULES),
            ("recomputation", RECOMPUTATIONS),
            ("context", CONTEXTS),
        ):
            if getattr(self, what) not in options:
                raise UnknownName(what, getattr(self, what), options)
        require_divides("ep", self.ep, "dp", self.dp)
        require(
            sorted(self.order) == sorted(AXES),
            f"order {'-'.join(self.order)!r} must name each of {', '.join(AXES)} once",
        )
        require(
            self.tp > 1 or not self.sequence_parallel,
            "sequence parallelism (sp) splits what tensor parallelism repeats: give tp above 1",
        )
        if self.schedule == "interleaved":
            require(
                self.vpp > 1, f"the interleaved schedule needs vpp of 2 or more, not {self.vpp}"
            )
            if self.micro_batches % self.pp:
                least = -(-self.micro_batches // self.pp) * self.pp
                raise InputError(
                    f"the interleaved schedule needs micro_batches that are a multiple of pp "
                    f"{self.pp}, not {self.micro_batches}; the next one is {least}"
                )
        else:
            require(
                self.vpp == 1,
                f"vpp {self.vpp} needs the interleaved schedule, not {self.schedule!r}",
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
        """Number of ranks over which ZeRO shards: dp * cp, which see the same parameters."""
        return self.dp * self.cp

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout of a text such as ``dp8 tp2 pp4 zero1 mb2``; InputError for others.

        Words: dp, tp, pp, cp, ep, vpp, zero, mb (micro_batch) and acc (micro_batches) with a
        number; ``sp``; a schedule; ``selective`` or ``full`` recomputation; ``ring`` or
        ``all-to-all``; ``keep`` (gathered inputs are kept); ``order=tp-cp-dp-pp``.
        """
        given: dict[str, object] = {}
        for word in text.replace(",", " ").split():
            name, value = _read(word.lower())
            require(name not in given, f"layout {text!r} gives {name} twice")
            given[name] = value
        if given.get("vpp", 1) != 1:
            given.setdefault("schedule", "interleaved")
        return cls(**given)  # type: ignore[arg-type]

    def __str__(self) -> str:
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                words.append(_written(field.name, value))
        if self.vpp > 1:
            words.remove("interleaved")
        return " ".join(words) or "dp1"


def require_divides(part: str, divisor: int, whole: str, number: int, model: str = "") -> None:
    """Raise InputError, with all numbers that would do, unless the divisor divides the number."""
    if number % divisor:
        of = f" of model {model!r}" if model else ""
        fitting = ", ".join(str(one) for one in range(1, number + 1) if number % one == 0)
        raise InputError(
            f"{part} {divisor} does not divide {whole} {number}{of}; use one of {fitting}"
        )


def _read(word: str) -> tuple[str, object]:
    if match := _TOKEN.fullmatch(word):
        return _SHORT.get(match[1], match[1]), int(match[2])
    if word in ("sp", "keep"):
        return ("sequence_parallel", True) if word == "sp" else ("gather_again", False)
    if word.startswith("order="):
        return "order", tuple(word.removeprefix("order=").split("-"))
    for name, options in (
        ("schedule", SCHEDULES),
        ("recomputation", RECOMPUTATIONS[1:]),
        ("context", CONTEXTS),
    ):
        if word in options:
            return name, word
    numbered = [f"{name}N" for name in ("dp", "tp", "pp", "cp", "ep", "vpp", "zero", "mb", "acc")]
    plain = ["sp", *SCHEDULES, *RECOMPUTATIONS[1:], *CONTEXTS, "keep", "order=A-B-C-D"]
    raise UnknownName("word in a layout:", word, numbered + plain)


def _written(name: str, value: object) -> str:
    if name == "order":
        return "order=" + "-".join(value)  # type: ignore[arg-type]
    if name in ("sequence_parallel", "gather_again"):
        return "sp" if name == "sequence_parallel" else "keep"
    if isinstance(value, str):
        return value
    return {"micro_batch": "mb", "micro_batches": "acc"}.get(name, name) + str(value)
