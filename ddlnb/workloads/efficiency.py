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
OTHER = "matrix units, others"
CONVOLUTIONS = "convolutions"  # a network whose FLOPs are mostly theirs


@dataclass(frozen=True)
class Efficiency:
    """What programs reach of a data sheet.

    ``matrix`` is the share of FLOP/s, ``memory`` that of the memory's bandwidth, ``host`` the
    seconds that the host takes for an operation. ``spread`` is the standard deviation of the
    logarithm of estimated over measured seconds of models that were left out of the fit.
    """

    matrix: Known
    memory: Known
    host: Known
    spread: float


def kind_of(gpu: Gpu, precision: str, convolves: bool) -> str:
    """Return what computes, in the words of the file of fitted values."""
    units = "cores" if precision in ON_CORES else "matrix units"
    if convolves:
        return f"{units}, {CONVOLUTIONS}"
    return units if precision in ON_CORES else f"{units}, {gpu.generation}"


def efficiency_of(gpu: Gpu, precision: str, *, convolves: bool = False) -> Efficiency:
    """Return what programs reach on such a GPU at a precision, or on any where nobody measured."""
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, PRECISIONS)
    known = _fitted()
    kind = kind_of(gpu, precision, convolves)
    matrix = known.matrix.get(kind, known.matrix[OTHER])
    memory = known.memory[CONVOLUTIONS if convolves else "others"]
    spread = known.spread.get(kind, 0.0)
    if gpu.family not in known.measured.get(kind, ()):
        spread = max(spread, known.spread["others"])
    return Efficiency(matrix, memory, known.host, spread)


@dataclass(frozen=True)
class _Fitted:
    """What data/hardware/roofline.yaml says; ``measured`` are families of GPUs by kind."""

    matrix: Mapping[str, Known]
    memory: Mapping[str, Known]
    host: Known
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
    measured: dict[str, tuple[str, ...]]
    spread: dict[str, float]

    def fitted(self) -> _Fitted:
        """Return the values."""
        return _Fitted(
            {kind: entry.known(float) for kind, entry in self.matrix.items()},
            {kind: entry.known(float) for kind, entry in self.memory.items()},
            self.host.known(seconds_from),
            self.measured,
            self.spread,
        )
