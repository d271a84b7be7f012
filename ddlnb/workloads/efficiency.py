"""What programs reach of data sheets, as it was fitted to open measurements."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from ddlnb.errors import UnknownName
from ddlnb.files import read_yaml
from ddlnb.hardware.chip import ON_CORES
from ddlnb.hardware.gpu import PRECISIONS, Gpu
from ddlnb.hardware.interconnect import Known, KnownEntry
from ddlnb.paths import HARDWARE
from ddlnb.units import seconds_from

PATH = HARDWARE / "roofline.yaml"
CONVOLUTIONS = "convolutions"  # a network whose FLOPs are mostly theirs
MATRIX_CONVOLUTIONS = f"matrix units, {CONVOLUTIONS}"
# What computes on generations of GPUs that nobody measured.
OTHER, OTHER_CONVOLUTIONS = "matrix units, others", f"cores, {CONVOLUTIONS}, others"
RECURRENT = "recurrent layers"
WINOGRAD_PRECISION = "fp32"  # in which libraries take the algorithm
WITHOUT = Known(1.0, 1.0, 1.0, "no faster algorithm is taken")


@dataclass(frozen=True)
class Efficiency:
    """What programs reach of a data sheet.

    ``matrix`` is the share of FLOP/s, ``memory`` that of the memory's bandwidth, ``host`` the
    seconds that the host takes for an operation, ``launch`` those of a kernel that a library
    launches inside of one. ``winograd`` is how many times fewer FLOPs convolutions take that
    `takes_winograd`, 1 in precisions that do without. ``spread`` is the standard deviation of the
    logarithm of estimated over measured seconds of models that were left out of the fit.
    """

    matrix: Known
    memory: Known
    host: Known
    launch: Known
    winograd: Known
    spread: float


def kind_of(gpu: Gpu, precision: str, convolves: bool) -> str:
    """Return what computes, in the words of the file of fitted values."""
    if precision in ON_CORES:
        return f"cores, {CONVOLUTIONS}, {gpu.generation}" if convolves else "cores"
    return MATRIX_CONVOLUTIONS if convolves else f"matrix units, {gpu.generation}"


def others_of(kind: str) -> str:
    """Return the kind that stands for other generations of GPUs; itself where it is of all.

    >>> others_of("matrix units, Volta"), others_of("cores")
    ('matrix units, others', 'cores')
    """
    if kind.startswith(f"cores, {CONVOLUTIONS}"):
        return OTHER_CONVOLUTIONS
    return kind if kind in ("cores", MATRIX_CONVOLUTIONS) else OTHER


def efficiency_of(
    gpu: Gpu, precision: str, *, convolves: bool = False, recurs: bool = False
) -> Efficiency:
    """Return what programs reach on such a GPU at a precision, or on any where nobody measured.

    Nobody measured programs that ``recurs`` on any GPU: how far off they are is assumed.
    """
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, PRECISIONS)
    known = _fitted()
    kind = kind_of(gpu, precision, convolves)
    kind = kind if kind in known.matrix else others_of(kind)
    matrix = known.matrix[kind]
    memory = known.memory[CONVOLUTIONS if convolves else "others"]
    spread = known.spread.get(kind, known.spread.get(others_of(kind), 0.0))
    if gpu.family not in known.measured.get(kind, ()):
        spread = max(spread, known.spread["others"])
    if recurs:
        spread = max(spread, known.spread[RECURRENT])
    fewer = known.winograd if precision == WINOGRAD_PRECISION else WITHOUT
    return Efficiency(matrix, memory, known.host, known.launch, fewer, spread)


@dataclass(frozen=True)
class _Fitted:
    """What data/hardware/roofline.yaml says; ``measured`` are families of GPUs by kind."""

    matrix: Mapping[str, Known]
    memory: Mapping[str, Known]
    host: Known
    launch: Known
    winograd: Known
    measured: Mapping[str, tuple[str, ...]]
    spread: Mapping[str, float]


@functools.cache
def _fitted() -> _Fitted:
    return read_yaml(PATH, RooflineFile).fitted()


class RooflineFile(BaseModel):
    """The keys of data/hardware/roofline.yaml; `Efficiency` has their meanings."""

    model_config = ConfigDict(extra="forbid")

    matrix: dict[str, KnownEntry]
    memory: dict[str, KnownEntry]
    host: KnownEntry
    launch: KnownEntry
    winograd: KnownEntry
    measured: dict[str, tuple[str, ...]]
    spread: dict[str, float]

    def fitted(self) -> _Fitted:
        """Return the values."""
        return _Fitted(
            {kind: entry.known(float) for kind, entry in self.matrix.items()},
            {kind: entry.known(float) for kind, entry in self.memory.items()},
            self.host.known(seconds_from),
            self.launch.known(seconds_from),
            self.winograd.known(float),
            self.measured,
            self.spread,
        )
