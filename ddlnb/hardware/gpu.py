"""What the rates of data sheets are made of: multiprocessors and clocks, pins and lanes.

A sheet's FLOP/s are multiprocessors times FLOPs in a clock times clock, its bytes/s of memory are
pins times bits/s of one, and a network's rate is lanes times bits/s on the wire times the share of
them that is data. Files of data/hardware give both sides, so that arithmetic finds a wrong one.

A GPU as its data sheet has it, and the file that it comes from.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from ddlnb.errors import UnknownName, require
from ddlnb.files import HARDWARE, read_yaml
from ddlnb.units import BITS_PER_BYTE, GB, GIB

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


PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s of a lane of PCIe in one direction
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]


@dataclass(frozen=True)
class Nvlink:
    """Links between the GPUs of a node, and bytes/s that a GPU sends over them in one direction.

    ``switched`` when every pair has the whole rate through switches, ``reduces`` when the switches
    can add as well. ``links`` is their number, 0 where a sheet counts them otherwise.
    """

    name: str
    bandwidth: float
    switched: bool
    reduces: bool
    links: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU: FLOP/s by precision (dense), memory, links, and where the numbers come from.

    ``flops`` are FLOP/s with FMA = 2, without sparsity, with sums in fp32 where the sheet has a
    choice. ``memory`` is in bytes (a GB of a sheet is 2**30), ``memory_bandwidth`` in bytes/s.
    ``nvlink`` is None for a GPU that has none, or only bridges of pairs. ``port`` are the bytes/s
    of its share of the network ports of the nodes that it is usually sold in. ``gpus_per_node`` is
    how many those have, 0 where that is not special; NVLink joins ``nvlink_domain`` GPUs of a rack,
    0 where it ends at the node. ``chip`` and ``memory_bus`` are what the rates are made of, None
    where makers do not publish it. ``family`` is the name without memory and socket, ``word`` the
    name in files of data/profiles.

    >>> import ddlnb
    >>> gpu = ddlnb.get_gpu("A100")
    >>> gpu.name, gpu.flops["bf16"], gpu.memory_bandwidth
    ('A100-SXM4-80GB', 312000000000000.0, 2039000000000.0)
    >>> gpu.source_of("port")
    'NVIDIA DGX A100 data sheet: 8 ports of 200 Gb/s'
    """

    name: str
    family: str
    generation: str
    year: int
    flops: Mapping[str, float] = field(hash=False)
    memory: int
    memory_bandwidth: float
    pcie_generation: int
    pcie_lanes: int
    nvlink: Nvlink | None
    port: float
    source: str
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    aliases: tuple[str, ...] = ()
    about: str = ""
    chip: Chip | None = None
    memory_bus: MemoryBus | None = None
    gpus_per_node: int = 0
    nvlink_domain: int = 0

    @property
    def word(self) -> str:
        """Its name as files of data/profiles write it."""
        return self.name.lower()

    @property
    def pcie_bandwidth(self) -> float:
        """Bytes/s of its PCIe slot in one direction."""
        return LANE[self.pcie_generation] * self.pcie_lanes * GB

    @property
    def inside_bandwidth(self) -> float:
        """Bytes/s that it sends to others in its node in one direction, by the data sheet."""
        return self.nvlink.bandwidth if self.nvlink else self.pcie_bandwidth

    def peak(self, precision: str) -> float:
        """Return FLOP/s at a precision. Raises UnknownName for one that it has no rate for."""
        if precision not in self.flops:
            raise UnknownName(
                f"precision of {self.name}",
                precision,
                self.flops,
                otherwise="say which by precision (--precision)",
            )
        return self.flops[precision]

    def source_of(self, number: str) -> str:
        """Return the data sheet of one of its numbers, by its name here."""
        return self.sources.get(number, self.source)

    def __repr__(self) -> str:
        return f"Gpu({self.name!r})"


class PcieEntry(BaseModel):
    """The slot of a GPU."""

    model_config = ConfigDict(extra="forbid")

    generation: int = Field(ge=min(LANE), le=max(LANE))
    lanes: int = Field(ge=1, le=16)


class NvlinkEntry(BaseModel):
    """Links between GPUs."""

    model_config = ConfigDict(extra="forbid")

    name: str
    GBps: float = Field(gt=0)
    switched: bool
    reduces: bool
    links: int = Field(default=0, ge=0)

    def nvlink(self) -> Nvlink:
        """Return the links."""
        return Nvlink(self.name, self.GBps * GB, self.switched, self.reduces, self.links)


class GpuEntry(BaseModel):
    """The keys of a GPU in data/hardware/gpus; `Gpu` has their meanings."""

    model_config = ConfigDict(extra="forbid")

    about: str = ""
    family: str
    aliases: tuple[str, ...]
    year: int = Field(ge=2006, le=2100)
    generation: str
    tflops: dict[Precision, float]
    memory_GB: float = Field(gt=0)
    memory_GBps: float = Field(gt=0)
    memory_bus: MemoryBusEntry | None = None
    chip: ChipEntry | None = None
    gpus_per_node: int = Field(default=0, ge=0)
    nvlink_domain: int = Field(default=0, ge=0)
    nvlink: NvlinkEntry | None = None
    pcie: PcieEntry
    port_Gbps: float = Field(gt=0)
    source: str = Field(min_length=8)
    sources: dict[Literal["memory", "nvlink", "port_Gbps"], str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _dense(self) -> GpuEntry:
        require("fp32" in self.tflops, "tflops lacks fp32; add it")
        require(all(rate > 0 for rate in self.tflops.values()), "tflops must be above 0")
        return self

    def gpu(self, name: str) -> Gpu:
        """Return the GPU under this name."""
        return Gpu(
            name=name,
            family=self.family,
            generation=self.generation,
            year=self.year,
            flops={precision: 1e12 * rate for precision, rate in self.tflops.items()},
            memory=round(self.memory_GB * GIB),
            memory_bandwidth=self.memory_GBps * GB,
            pcie_generation=self.pcie.generation,
            pcie_lanes=self.pcie.lanes,
            nvlink=None if self.nvlink is None else self.nvlink.nvlink(),
            port=self.port_Gbps / BITS_PER_BYTE * GB,
            source=self.source,
            sources={key.removesuffix("_Gbps"): text for key, text in self.sources.items()},
            aliases=self.aliases,
            about=self.about,
            chip=None if self.chip is None else self.chip.chip(),
            memory_bus=None if self.memory_bus is None else self.memory_bus.bus(),
            gpus_per_node=self.gpus_per_node,
            nvlink_domain=self.nvlink_domain,
        )
