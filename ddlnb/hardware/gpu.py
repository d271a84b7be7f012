"""A GPU as its data sheet has it, and what the rates of the sheet are made of.

A sheet's FLOP/s are multiprocessors times FLOPs in a clock times clock, and its bytes/s of memory
are pins times bits/s of one. Files of data/hardware give both sides, so that arithmetic finds a
wrong one. Classes here check and convert what such a file holds, when it is read as one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, RootModel, model_validator

from ddlnb.errors import look_up, require, require_known
from ddlnb.files import HARDWARE
from ddlnb.reading import read_yaml
from ddlnb.units import BITS_PER_BYTE, GB, GIB

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
ON_CORES = ("fp64", "fp32")  # precisions that matrix units are not made for
OTHERS = "others"  # a generation that stands for those of which nothing is known
LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s of a lane of PCIe in one direction
MHZ = 1e6
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Source = Annotated[str, Field(min_length=8)]
WITHOUT_OTHER_KEYS = ConfigDict(extra="forbid")


def in_units(key: str, factor: float) -> Any:
    """Return what a file calls a number above 0, and by what it is multiplied when it is read."""
    return Field(alias=key, gt=0), AfterValidator(lambda number: number * factor)


@functools.cache
def named(kind: Any) -> Any:
    """Return the schema of a file that has things of one kind by name; the name is a field."""

    class Named(RootModel[dict[str, kind]]):
        @model_validator(mode="before")
        @classmethod
        def _with_names(cls, entries: Any) -> Any:
            return {name: {"name": name, **entry} for name, entry in entries.items()}

    return Named


@dataclass(frozen=True)
class Generation:
    """What GPUs of a generation have in common.

    NCCL's tables have rows ``tuned_like`` it. ``usual`` is the GPU of which most was measured. The
    core of attention sustains what it does on a generation that it is ``core_like``, by ``source``.
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    tuned_like: str
    usual: str = ""
    core_like: str = ""
    source: str = ""


@functools.cache
def generations() -> Mapping[str, Generation]:
    """Return what is known of generations of GPUs by name: data/hardware/generations.yaml."""
    found: dict[str, Generation] = read_yaml(HARDWARE / "generations.yaml", named(Generation)).root
    return found


@dataclass(frozen=True)
class PerClock:
    """FLOPs that a multiprocessor of a chip finishes in a clock, by precision.

    They are dense, FMA = 2, with sums in fp32. On chips that are called "halved" such sums go at
    half the rate of those in fp16.
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    per_clock: dict[str, int]
    source: Source


@functools.cache
def _chips() -> Mapping[str, PerClock]:
    found: dict[str, PerClock] = read_yaml(HARDWARE / "chips.yaml", named(PerClock)).root
    return found


@dataclass(frozen=True)
class Chip:
    """Multiprocessors of a GPU, and their clocks in Hz; ``matrix_clock`` is that of matrix units.

    >>> from ddlnb.hardware import get_gpu
    >>> chip = get_gpu("A100").chip
    >>> chip, round(chip.flops("bf16") / 1e12)
    (Chip('GA100', 108 x 1410 MHz), 312)
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    multiprocessors: Annotated[int, Field(ge=1)]
    clock: Annotated[float, *in_units("boost_MHz", MHZ)]
    matrix_clock: Annotated[float, *in_units("matrix_MHz", MHZ)] = 0.0  # 0: the same

    def __post_init__(self) -> None:
        require_known("chip", self.name, _chips())
        object.__setattr__(self, "matrix_clock", self.matrix_clock or self.clock)

    @property
    def per_clock(self) -> Mapping[str, int]:
        """FLOPs that a multiprocessor finishes in a clock, by precision."""
        return _chips()[self.name].per_clock

    @property
    def source(self) -> str:
        """Where these come from."""
        return _chips()[self.name].source

    def flops(self, precision: str) -> float:
        """Return FLOP/s at a precision. Raises UnknownName for one that it has no units for."""
        require_known(f"precision of {self.name}", precision, self.per_clock)
        clock = self.clock if precision in ON_CORES else self.matrix_clock
        return self.multiprocessors * clock * self.per_clock[precision]

    def __repr__(self) -> str:
        return f"Chip({self.name!r}, {self.multiprocessors} x {self.clock / MHZ:.0f} MHz)"


@dataclass(frozen=True)
class MemoryBus:
    """Pins of a GPU's memory, and bits/s of each."""

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    bits: Annotated[int, Field(ge=32)]
    pin_rate: Annotated[float, *in_units("Gbps", GB)]

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the memory."""
        return self.bits * self.pin_rate / BITS_PER_BYTE


@dataclass(frozen=True)
class Pcie:
    """The slot of a GPU: its generation, and how many lanes it has."""

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    generation: Annotated[int, Field(ge=min(LANE), le=max(LANE))]
    lanes: Annotated[int, Field(ge=1, le=16)]

    @property
    def bandwidth(self) -> float:
        """Bytes/s in one direction."""
        return LANE[self.generation] * self.lanes * GB


@dataclass(frozen=True)
class Nvlink:
    """Links between the GPUs of a node, and bytes/s that a GPU sends over them in one direction.

    ``switched`` when every pair has the whole rate through switches, ``reduces`` when the switches
    can add as well. ``links`` is their number, 0 where a sheet counts them otherwise. ``mesh`` is
    for a mesh without switches: how many links lead from a GPU to others of the first n, by n.
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    bandwidth: Annotated[float, *in_units("GBps", GB)]
    switched: bool
    reduces: bool
    links: Annotated[int, Field(ge=0)] = 0
    mesh: dict[int, int] = field(default_factory=dict, hash=False)

    def among(self, gpus: int) -> float:
        """Return the share of the links of a GPU that rings among the first GPUs of a node use.

        >>> from ddlnb.hardware import get_gpu
        >>> v100, a100 = (get_gpu(name).nvlink for name in ("V100-SXM2-16GB", "A100"))
        >>> [round(v100.among(n), 2) for n in (2, 4, 8)], a100.among(4)
        ([0.17, 0.67, 1.0], 1.0)
        """
        reached = [links for count, links in self.mesh.items() if count <= gpus]
        return max(reached) / self.links if reached else 1.0


def _dense(tflops: dict[str, float]) -> dict[str, float]:
    require("fp32" in tflops, "tflops lacks fp32; add it")
    require(all(rate > 0 for rate in tflops.values()), "tflops must be above 0")
    return {precision: 1e12 * rate for precision, rate in tflops.items()}


@dataclass(frozen=True)
class Gpu:
    """A GPU: FLOP/s by precision (dense), memory, links, and where the numbers come from.

    ``flops`` are FLOP/s with FMA = 2, without sparsity, with sums in fp32 where the sheet has a
    choice. ``memory`` is in bytes (a GB of a sheet is 2**30), ``memory_bandwidth`` in bytes/s.
    ``nvlink`` is None for a GPU that has none, or only bridges of pairs. ``port`` are the bytes/s
    of its share of the network ports of the nodes that it is usually sold in. ``gpus_per_node`` is
    how many those have, 0 where that is not special; NVLink joins ``nvlink_domain`` GPUs of a rack,
    0 where it ends at the node. ``power`` are the watts that it may draw, 0 where they are not
    entered. ``chip`` and ``memory_bus`` are what the rates are made of, None
    where makers do not publish it. ``family`` is the name without memory and socket, ``word`` the
    name in files of data/profiles.

    >>> import ddlnb
    >>> gpu = ddlnb.hardware.get_gpu("A100")
    >>> gpu.name, gpu.flops["bf16"], gpu.memory_bandwidth
    ('A100-SXM4-80GB', 312000000000000.0, 2039000000000.0)
    >>> gpu.source_of("port")
    'NVIDIA DGX A100 data sheet: 8 ports of 200 Gb/s'
    """

    __pydantic_config__ = WITHOUT_OTHER_KEYS

    name: str
    family: str
    generation: str
    year: Annotated[int, Field(ge=2006, le=2100)]
    flops: Annotated[dict[Precision, float], Field(alias="tflops"), AfterValidator(_dense)] = field(
        hash=False
    )
    memory: Annotated[
        int, Field(alias="memory_GB", gt=0), BeforeValidator(lambda size: round(size * GIB))
    ]
    memory_bandwidth: Annotated[float, *in_units("memory_GBps", GB)]
    pcie: Pcie
    port: Annotated[float, *in_units("port_Gbps", GB / BITS_PER_BYTE)]
    source: Source
    nvlink: Nvlink | None = None
    sources: Annotated[
        dict[Literal["memory", "nvlink", "port_Gbps"], str],
        AfterValidator(
            lambda told: {key.removesuffix("_Gbps"): text for key, text in told.items()}
        ),
    ] = field(default_factory=dict, hash=False)
    aliases: tuple[str, ...] = ()
    about: str = ""
    chip: Chip | None = None
    memory_bus: MemoryBus | None = None
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    nvlink_domain: Annotated[int, Field(ge=0)] = 0
    power: Annotated[float, Field(alias="power_W", ge=0)] = 0.0

    @property
    def word(self) -> str:
        """Its name as files of data/profiles write it."""
        return self.name.lower()

    @property
    def pcie_bandwidth(self) -> float:
        """Bytes/s of its PCIe slot in one direction."""
        return self.pcie.bandwidth

    @property
    def inside_bandwidth(self) -> float:
        """Bytes/s that it sends to others in its node in one direction, by the data sheet."""
        return self.nvlink.bandwidth if self.nvlink else self.pcie_bandwidth

    def peak(self, precision: str) -> float:
        """Return FLOP/s at a precision. Raises UnknownName for one that it has no rate for."""
        rates: dict[str, float] = dict(self.flops.items())
        way_out = "say which by precision (--precision)"
        return look_up(f"precision of {self.name}", precision, rates, way_out)

    @property
    def kin(self) -> Generation:
        """What is known of its generation, or of others like it."""
        return generations().get(self.generation, generations()[OTHERS])

    def source_of(self, number: str) -> str:
        """Return the data sheet of one of its numbers, by its name here."""
        return next((told for key, told in self.sources.items() if key == number), self.source)

    def __repr__(self) -> str:
        return f"Gpu({self.name!r})"
