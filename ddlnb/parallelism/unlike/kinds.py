"""The kinds of GPUs in a cluster: how many, and how fast each of them trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ddlnb.errors import InputError, require, require_positive, require_whole
from ddlnb.hardware.catalogue import get_gpu

REACHED = 0.4  # of the peak of a data sheet: what large models commonly reach


@dataclass(frozen=True)
class Kind:
    """GPUs of one kind: ``count`` of them, each with ``speed`` in FLOP/s as training reaches it.

    ``port`` are the bytes/s of each one's share of the network, ``memory`` its bytes, infinite
    where it does not matter. Raises InputError for what no GPU has.

    >>> Kind("fast", 2, speed=1e14, port=1e10).total
    200000000000000.0
    """

    name: str
    count: int
    speed: float
    port: float
    memory: float = math.inf

    def __post_init__(self) -> None:
        require_whole(count=self.count)
        require_positive(speed=self.speed, port=self.port)
        require(self.memory > 0, f"memory {self.memory!r} must be above 0 bytes")

    @property
    def total(self) -> float:
        """FLOP/s of all of them."""
        return self.count * self.speed


Kinds = tuple[Kind, ...]


def gpu_kinds(
    counts: Mapping[str, int], precision: str = "fp16", reached: float = REACHED
) -> Kinds:
    """Return the kinds of a cluster from the data sheets of its GPUs, the fastest first.

    ``reached`` is the share of the peak at this precision that training reaches, the same for all
    kinds. Raises UnknownName for a GPU or a precision that it has no rate for, InputError for
    counts below 1 and shares that are not above 0 and at most 1.

    >>> [(kind.name, round(kind.speed / 1e12, 1)) for kind in gpu_kinds({"V100": 4, "A100": 4})]
    [('A100-SXM4-80GB', 124.8), ('V100-SXM2-32GB', 50.0)]
    """
    if not counts:
        raise InputError("there are no GPUs; name at least one kind, such as {'A100': 4}")
    require(0 < reached <= 1, f"reached {reached!r} must be above 0 and at most 1")
    kinds = []
    for name, count in counts.items():
        gpu = get_gpu(name)
        kinds.append(Kind(gpu.name, count, reached * gpu.peak(precision), gpu.port, gpu.memory))
    return by_speed(kinds)


def by_speed(kinds: Kinds | list[Kind]) -> Kinds:
    """Return the kinds, the fastest first. Raises InputError for one that is named twice."""
    names = [kind.name for kind in kinds]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"GPU {', '.join(twice)} is named twice; add up how many there are")
    return tuple(sorted(kinds, key=lambda kind: -kind.speed))


def speeds(kinds: Kinds) -> tuple[float, ...]:
    """Return the speed of every GPU, kind by kind."""
    return tuple(kind.speed for kind in kinds for _ in range(kind.count))
