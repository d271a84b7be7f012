"""What the rates of data sheets are made of: multiprocessors and clocks, pins and lanes.

A sheet's FLOP/s are multiprocessors times FLOPs in a clock times clock, its bytes/s of memory are
pins times bits/s of one, and a network's rate is lanes times bits/s on the wire times the share of
them that is data. Files of data/hardware give both sides, so that arithmetic finds a wrong one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from pydantic import BaseModel, ConfigDict, Field, RootModel

from ddlnb.errors import UnknownName
from ddlnb.files import read_yaml
from ddlnb.paths import HARDWARE
from ddlnb.units import BITS_PER_BYTE, GB

MHZ = 1e6
ON_CORES = ("fp64", "fp32")  # precisions that matrix units are not made for


@dataclass(frozen=True)
class Chip:
    """Multiprocessors of a GPU, their clocks in Hz, and FLOPs that one finishes in a clock.

    ``matrix_clock`` is that of matrix units, ``per_clock`` by precision: dense, FMA = 2, with sums
    in fp32. On chips that are called "halved" such sums go at half the rate of those in fp16.

    >>> from ddlnb import get_gpu
    >>> chip = get_gpu("A100").chip
    >>> chip, round(chip.flops("bf16") / 1e12)
    (Chip('GA100', 108 x 1410 MHz), 312)
    """

    name: str
    multiprocessors: int
    clock: float
    matrix_clock: float
    per_clock: Mapping[str, int] = field(hash=False)
    source: str

    def flops(self, precision: str) -> float:
        """Return FLOP/s at a precision. Raises UnknownName for one that it has no units for."""
        if precision not in self.per_clock:
            raise UnknownName(f"precision of {self.name}", precision, self.per_clock)
        clock = self.clock if precision in ON_CORES else self.matrix_clock
        return self.multiprocessors * clock * self.per_clock[precision]

    def __repr__(self) -> str:
        return f"Chip({self.name!r}, {self.multiprocessors} x {self.clock / MHZ:.0f} MHz)"


@dataclass(frozen=True)
class MemoryBus:
    """Pins of a GPU's memory, and bits/s of each."""

    bits: int
    pin_rate: float

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the memory."""
        return self.bits * self.pin_rate / BITS_PER_BYTE


@dataclass(frozen=True)
class Line:
    """Lanes of a network's port, bits/s of each on the wire, and the share of them that is data.

    >>> Line(4, 14.0625e9, Fraction(64, 66)).bandwidth * 8 / 1e9  # FDR, "56 Gb/s"
    54.54545454545455
    """

    lanes: int
    lane_rate: float
    data: Fraction

    @property
    def bandwidth(self) -> float:
        """Bytes/s of data in one direction."""
        return self.lanes * self.lane_rate * float(self.data) / BITS_PER_BYTE


class ChipEntry(BaseModel):
    """The chip of a GPU: its name in data/hardware/chips.yaml, and what of it this GPU has."""

    model_config = ConfigDict(extra="forbid")

    name: str
    multiprocessors: int = Field(ge=1)
    boost_MHz: float = Field(gt=0)
    matrix_MHz: float | None = Field(default=None, gt=0)

    def chip(self) -> Chip:
        """Return the chip. Raises UnknownName."""
        if self.name not in _chips():
            raise UnknownName("chip", self.name, _chips())
        known, clock = _chips()[self.name], self.boost_MHz * MHZ
        matrix = clock if self.matrix_MHz is None else self.matrix_MHz * MHZ
        return Chip(self.name, self.multiprocessors, clock, matrix, known.per_clock, known.source)


class MemoryBusEntry(BaseModel):
    """The memory's bus of a GPU."""

    model_config = ConfigDict(extra="forbid")

    bits: int = Field(ge=32)
    Gbps: float = Field(gt=0)

    def bus(self) -> MemoryBus:
        """Return the bus."""
        return MemoryBus(self.bits, self.Gbps * GB)


class LineEntry(BaseModel):
    """The line of a network's port."""

    model_config = ConfigDict(extra="forbid")

    lanes: int = Field(ge=1)
    Gbps: float = Field(gt=0)
    code: str = Field(pattern=r"^\d+/\d+$")

    def line(self) -> Line:
        """Return the line."""
        return Line(self.lanes, self.Gbps * GB, Fraction(self.code))


class PerClockEntry(BaseModel):
    """A chip of data/hardware/chips.yaml."""

    model_config = ConfigDict(extra="forbid")

    per_clock: dict[str, int]
    source: str = Field(min_length=8)


@functools.cache
def _chips() -> Mapping[str, PerClockEntry]:
    return read_yaml(HARDWARE / "chips.yaml", RootModel[dict[str, PerClockEntry]]).root
