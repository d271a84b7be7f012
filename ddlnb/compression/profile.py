"""A compression profile: the seconds that compressors take, as lines in the number of elements.

It is a file in data/profiles/compression. `benchmarks.compression_seconds` measures it; the cost of
an iteration reads it. On a GPU nobody measured it is made of a data sheet (`sheet_profile`):
kernels that start, bytes that move,

    seconds = kernels s + bytes / (m B)

for one tensor, with s the seconds that the host takes to start an operation, m the share of the
memory's bandwidth B that such operations reach (both fitted in data/hardware/roofline.yaml) and B
of the GPU's data sheet. Each compressor declares its kernels and bytes (`OnGpu`). They are those of
its passes over the tensor in a framework that runs one operation after the other; a program that
fuses them, or leaves some to the CPU, differs by a factor, for which ``factor`` stands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddlnb.compression.base import Compressor, Passes, Uncompressed
from ddlnb.errors import InputError, UnknownName, require, require_known
from ddlnb.files import PROFILES, write_atomically
from ddlnb.hardware.catalogue import get_gpu, gpu_in
from ddlnb.plans.requests import AllGather, Messages
from ddlnb.reading import read_text, reading
from ddlnb.workloads.roofline import efficiency_of

FOLDER = PROFILES / "compression"
GROWTHS = ("none", "levels", "workers")
KNEE = 1 << 20  # elements, 4 MiB: larger tensors take more seconds per element
FAR = 2  # beyond this multiple of the largest measured tensor, seconds count as extrapolated


@dataclass(frozen=True)
class Line:
    """Seconds of a tensor: a latency, seconds per element, and more for elements beyond KNEE.

    A larger tensor is in no cache, and its memory comes fresh from the system.
    """

    latency_seconds: float = 0.0
    seconds_per_element: float = 0.0
    more_per_element: float = 0.0

    def seconds(self, elements: float) -> float:
        """Return the seconds for a tensor of this number of elements."""
        return (
            self.latency_seconds
            + self.seconds_per_element * elements
            + self.more_per_element * beyond(elements)
        )


@dataclass(frozen=True)
class CompressorSeconds:
    """What one compressor takes of a worker's time for one tensor.

    ``encode`` passes before the first request and ``decode`` after it. ``decode_each`` is added,
    by ``growth``, for every worker ("workers": all payloads are decoded), for every level of a tree
    ("levels"), or not at all ("none").
    """

    encode: Line = Line()
    decode: Line = Line()
    decode_each: Line = Line()
    growth: str = "none"

    def __post_init__(self) -> None:
        require_known("growth", self.growth, GROWTHS)

    def before(self, elements: int) -> float:
        """Return the seconds before the first request."""
        return self.encode.seconds(elements)

    def after(self, elements: int, workers: int) -> float:
        """Return the seconds after the first request, without those of the network."""
        times = grown(self.growth, workers)
        return self.decode.seconds(elements) + times * self.decode_each.seconds(elements)


@dataclass(frozen=True)
class CompressionProfile:
    """Seconds of the compressors, by their text, and of error feedback.

    ``source`` says where the seconds are from, ``left_out`` why a compressor could not be measured.
    """

    source: str
    compressors: Mapping[str, CompressorSeconds]
    feedback: Line = Line()
    left_out: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    def of(self, compressor: Compressor) -> CompressorSeconds:
        """Return the seconds of a compressor. Raises InputError if it was not measured."""
        from ddlnb.compression.base import Uncompressed

        if isinstance(compressor, Uncompressed):
            return CompressorSeconds()
        text = str(compressor)
        if text not in self.compressors:
            reason = self.left_out.get(text, f"it holds {', '.join(self.compressors) or 'none'}")
            raise InputError(
                f"the compression profile has no seconds for {text} ({reason}); measure it by "
                f"python -m benchmarks.compression_seconds --also '{text}', a compressor of your "
                f"own by profile_compression, or take the profile 'free'"
            )
        return self.compressors[text]

    @property
    def largest(self) -> float:
        """The elements of the largest tensor that was measured; infinite if none was."""
        return max((sample["elements"] for sample in self.samples), default=math.inf)

    def source_for(self, elements: int) -> str:
        """Return the source of the seconds of such a tensor, marked if they are extrapolated.

        >>> made = CompressionProfile("measured", {}, samples=({"elements": 1_000_000},))
        >>> made.source_for(50_000_000)
        'measured, extrapolated from 1 to 50 million elements'
        """
        if elements <= FAR * self.largest:
            return self.source
        low, high = (f"{count / 1e6:.3g}" for count in (self.largest, elements))
        return f"{self.source}, extrapolated from {low} to {high} million elements"

    def to_json(self) -> str:
        """Return the profile as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> CompressionProfile:
        """Return the profile that to_json wrote. Raises InputError for any other text."""
        from pydantic import TypeAdapter, ValidationError

        with reading("compression profile"):
            try:
                return TypeAdapter(cls).validate_json(text)
            except ValidationError as error:
                first = error.errors()[0]
                field = ".".join(map(str, first["loc"])) or "the text"
                raise InputError(f"not a compression profile: {field}: {first['msg']}") from error


class _Free(CompressionProfile):
    """A profile in which every compressor takes no time."""

    def of(self, compressor: Compressor) -> CompressorSeconds:
        return CompressorSeconds()


FREE: CompressionProfile = _Free("taking no time, an ideal", {})


def beyond(elements: float) -> float:
    """Return by how many elements a tensor is larger than KNEE."""
    return max(0.0, elements - KNEE)


def grown(growth: str, workers: int) -> int:
    """Return how often ``decode_each`` counts.

    >>> grown("workers", 16), grown("levels", 16), grown("none", 16)
    (16, 4, 0)
    """
    counts = {"none": 0, "levels": max(0, workers - 1).bit_length(), "workers": workers}
    return counts[growth]


def compression_profile(
    name: str | CompressionProfile, folder: Path = FOLDER
) -> CompressionProfile:
    """Return the named profile of data/profiles/compression, FREE for "free", or the given one.

    Raises UnknownName with the names that exist.
    """
    if isinstance(name, CompressionProfile):
        return name
    if name == "free":
        return FREE
    path = folder / f"{name}.json"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.json"))
        raise UnknownName("compression profile", name, [*known, "free"])
    return CompressionProfile.from_json(read_text(path))


def write_compression_profile(
    profile: CompressionProfile, name: str, folder: Path = FOLDER
) -> Path:
    """Write the file that ``compression_profile(name, folder)`` reads, and return its path."""
    require(Path(name).name == name, f"profile name {name!r} must be a plain file name")
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / f"{name}.json", profile.to_json() + "\n")


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
            f"{compressor} does not declare its kernels and bytes on a GPU; declare on_gpu, or "
            f"give a measured profile as compression (--compression), or 'free' for a bound",
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
    asked = {one.request for one in compressor.declared_traffic((64, 64), 8)}
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
    gpu, of = gpu_in(hardware), repr(hardware) if hardware else "hardware that is not named"
    require(
        gpu is not None,
        f"the seconds of compression on {of} follow from no data sheet; give a profile "
        f"that was measured there (data/profiles/compression), or 'free' for a bound",
    )
    assert gpu is not None
    return sheet_profile(gpu.name)
