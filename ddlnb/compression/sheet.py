"""Seconds that a compressor takes on a GPU nobody measured: kernels that start, bytes that move.

    seconds = kernels s + bytes / (m B)

for one tensor, with s the seconds that the host takes to start an operation, m the share of the
memory's bandwidth B that such operations reach (both fitted in data/hardware/roofline.yaml) and B
of the GPU's data sheet. Each compressor declares its kernels and bytes (`OnGpu`). They are those of
its passes over the tensor in a framework that runs one operation after the other; a program that
fuses them, or leaves some to the CPU, differs by a factor, for which ``factor`` stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ddlnb.compression.base import Compressor, Passes, Uncompressed
from ddlnb.compression.profile import (
    CompressionProfile,
    CompressorSeconds,
    Line,
    compression_profile,
)
from ddlnb.errors import require
from ddlnb.hardware.catalogue import get_gpu, gpu_in
from ddlnb.plans.requests import AllGather, Messages
from ddlnb.workloads.roofline import efficiency_of

SHEET = "sheet"  # the name of this profile, of the GPU of the cluster
FEEDBACK = Passes(2, 24)  # the residual is added, and what was sent is taken from it


@dataclass(frozen=True)
class SheetProfile(CompressionProfile):
    """A profile that has seconds of every compressor that declares its work on a GPU."""

    start_seconds: float = field(kw_only=True)
    bytes_per_second: float = field(kw_only=True)

    def of(self, compressor: Compressor) -> CompressorSeconds:
        """Return its seconds there. Raises InputError where it does not declare its work."""
        if isinstance(compressor, Uncompressed):
            return CompressorSeconds()
        work = compressor.on_gpu
        require(
            work is not None,
            f"{compressor} does not declare its kernels and bytes on a GPU; declare on_gpu, give a "
            f"measured profile as compression, or 'free' for a bound",
        )
        assert work is not None
        growth = growth_of(compressor)
        decode = self.line(work.decode)
        if growth == "none":
            return CompressorSeconds(self.line(work.encode), decode)
        return CompressorSeconds(self.line(work.encode), decode_each=decode, growth=growth)

    def line(self, passes: Passes) -> Line:
        """Return the seconds of passes over a tensor."""
        per_element = passes.bytes_per_element / self.bytes_per_second
        return Line(passes.kernels * self.start_seconds, per_element)


def growth_of(compressor: Compressor) -> str:
    """Return with what the work after the first request grows, by the requests that are made."""
    asked = {one.request for one in compressor.traffic((64, 64), 8)}
    return "workers" if AllGather in asked else "levels" if Messages in asked else "none"


def sheet_profile(gpu: str, factor: float = 1.0) -> SheetProfile:
    """Return the seconds of compressors on a GPU by its data sheet, ``factor`` times as many.

    Raises UnknownName for a GPU that has no sheet here.

    >>> from ddlnb.compression.qsgd import QSGD
    >>> seconds = sheet_profile("A100").of(QSGD())
    >>> round(1e3 * seconds.before(25_000_000), 2), round(1e3 * seconds.after(25_000_000, 8), 2)
    (1.69, 4.73)
    """
    kind = get_gpu(gpu)
    known = efficiency_of(kind, "fp32")
    profile = SheetProfile(
        f"by the data sheet of {kind.name}",
        {},
        start_seconds=factor * known.host.value,
        bytes_per_second=kind.memory_bandwidth * known.memory.value / factor,
    )
    object.__setattr__(profile, "feedback", profile.line(FEEDBACK))
    return profile


def compression_on(name: str | CompressionProfile, hardware: str) -> CompressionProfile:
    """Return the named profile; of SHEET, that of the hardware's own data sheet.

    Raises UnknownName for another profile that there is not, and InputError for SHEET and hardware
    that has none, such as a CPU.
    """
    if name != SHEET:
        return compression_profile(name)
    gpu = gpu_in(hardware)
    require(
        gpu is not None,
        f"the seconds of compression on {hardware!r} follow from no data sheet; give a profile "
        f"that was measured there (data/profiles/compression), or 'free' for a bound",
    )
    assert gpu is not None
    return sheet_profile(gpu.name)
