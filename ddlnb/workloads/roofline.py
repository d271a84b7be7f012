"""What takes a workload's seconds: the hardware of a profile, beside that of a cluster.

A cluster names its GPU by a word, such as "a100"; a profile measured on one has the GPU's own name,
such as "NVIDIA A100-SXM4-80GB". Both mean the same if the word is made of whole parts of the name.

What programs reach of data sheets, as it was fitted to open measurements.

Seconds from a data sheet: FLOPs over FLOP/s, bytes over bytes/s, and the host that launches.

A GPU's pass through a layer takes

    t = F / (P e) + B / (W m)

with the layer's FLOPs F and bytes B, the GPU's FLOP/s P at the precision and the bytes/s W of its
memory. The shares e and m that programs reach are fitted to open measurements (`Efficiency`). The
terms are added: kernels rarely compute and move at full rate at once, and the sum forecast left-out
models better than the larger of both did.

The host hands over one operation after the other, and runs ahead of the GPU. A pass ends when the
GPU is through with it, and not before the host has handed over all operations up to it: many small
ones take as long in every precision. What a library launches by itself inside of one operation, as
for the steps of a recurrent layer, costs the host less.

Networks of convolutions are another program with shares of their own: PyTorch computes them with
channels first, where normalisations and layout changes go by elements, so that their bytes do not
shrink with the precision. What the loss moves does not shrink anywhere: it stays in 32 bits. On
cores in fp32, convolutions of 3 x 3 take fewer multiplications than their FLOPs say, by a factor
that is fitted as well (`winograd`); FLOPs themselves stay as they are counted.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", Communications of the ACM 52(4), 2009, for bounds; the rest is ours.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from statistics import NormalDist

from pydantic import BaseModel, ConfigDict

from ddlnb.errors import InputError, UnknownName, require, require_positive
from ddlnb.files import HARDWARE, read_yaml
from ddlnb.hardware.catalogue import find, get_gpu, gpus
from ddlnb.hardware.gpu import ON_CORES, PRECISIONS, Gpu
from ddlnb.hardware.interconnect import Known, KnownEntry
from ddlnb.units import seconds_from
from ddlnb.workloads.workload import Layer, Workload

OF_NAME = re.compile(r"_b\d+_(.+)$")  # profiles are named MODEL_bBATCH_HARDWARE


def is_same_hardware(one: str, other: str) -> bool:
    """Return whether two names may mean the same hardware; an empty one means any.

    >>> is_same_hardware("NVIDIA A100-SXM4-80GB", "a100"), is_same_hardware("a100", "a10")
    (True, False)
    >>> is_same_hardware("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti")
    True
    >>> is_same_hardware("a100-80gb", "NVIDIA A100-SXM4-80GB")  # by data/hardware
    True
    """
    if not one or not other:
        return True
    known = find(one, gpus())
    if known is not None and known == find(other, gpus()):
        return True
    return _word(one) in _runs(other) or _word(other) in _runs(one)


def require_same_hardware(workload: Workload, cluster: str, hardware: str) -> None:
    """Raise InputError for seconds of other hardware than that of the cluster of this name."""
    if is_same_hardware(workload.hardware, hardware):
        return
    raise InputError(
        f"the seconds of workload {workload.model!r} are those of {workload.hardware!r}, and "
        f"cluster {cluster!r} has {hardware!r}; give the samples per second of one of its GPUs "
        f"(--throughput, or from_throughput), profile the model there, or scale the seconds "
        f"yourself: workload.scaled(FACTOR, WHY, hardware={hardware!r})"
    )


def require_named_for(name: str, hardware: str) -> None:
    """Raise InputError if the name of a profile says that it is of other hardware than this."""
    said = OF_NAME.search(name)
    if said is None or is_same_hardware(said.group(1), hardware):
        return
    fitting = hardware if _word(hardware) == hardware.replace("-", "") else _word(hardware)
    raise InputError(
        f"profile name {name!r} says {said.group(1)!r}, and its seconds are those of "
        f"{hardware!r}; name it {name[: said.start(1)]}{fitting}, or profile the model there"
    )


def _word(name: str) -> str:
    return "".join(_parts(name))


def _parts(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _runs(name: str) -> set[str]:
    """Return what neighbouring parts of a name make when joined."""
    parts = _parts(name)
    return {
        "".join(parts[start:stop])
        for start in range(len(parts))
        for stop in range(start + 1, len(parts) + 1)
    }


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


SIZES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}  # bytes of activations
SLOWEST = 1e-7  # of the FLOP/s: no training on a GPU is so slow
Z90 = NormalDist().inv_cdf(0.95)  # a 90 % interval is so many standard deviations to both sides
BACKWARD = 2.0  # of the forward work, where nobody counted: gradients of inputs and of weights


@dataclass(frozen=True)
class Work:
    """FLOPs, bytes of operations with and without FLOPs, and operations of a pass through a layer.

    A pass with work is one operation at least, where nobody counted them. ``winograd_flops`` are
    those of the FLOPs that take fewer multiplications, ``kernels`` what libraries launch inside of
    operations.
    """

    flops: float
    matrix_bytes: float
    bytes: float
    operations: float = 0.0
    winograd_flops: float = 0.0
    kernels: float = 0.0

    @property
    def launches(self) -> float:
        """How many operations the host hands over; none without work."""
        has_work = bool(self.flops or self.matrix_bytes or self.bytes)
        return max(self.operations, 1.0) if has_work else 0.0

    def seconds(self, gpu: Gpu, precision: str, efficiency: Efficiency) -> float:
        """Return how long the GPU takes, whatever its host does."""
        computing = self.computed(efficiency.winograd.value) / efficiency.matrix.value
        moved = self.matrix_bytes + self.bytes
        moving = moved / (gpu.memory_bandwidth * efficiency.memory.value)
        return computing / gpu.peak(precision) + moving

    def computed(self, winograd: float) -> float:
        """Return the FLOPs that are left where `winograd_flops` are so many times fewer."""
        return self.flops - self.winograd_flops * (1 - 1 / winograd)

    def host_seconds(self, efficiency: Efficiency) -> float:
        """Return how long the host takes to hand all of it over."""
        return self.launches * efficiency.host.value + self.kernels * efficiency.launch.value

    def times(self, all: float) -> Work:
        """Return so many times the work."""
        return Work(*(all * one for one in astuple(self)))

    def in_size(self, matrix: float, others: float) -> Work:
        """Return the work with its bytes, with and without FLOPs, times these factors."""
        return replace(self, matrix_bytes=matrix * self.matrix_bytes, bytes=others * self.bytes)


def estimate(
    workload: Workload,
    gpu: str | Gpu,
    precision: str = "",
    *,
    samples_per_second: float | None = None,
) -> Workload:
    """Return the workload with the seconds that a GPU's data sheet and open measurements tell.

    ``precision`` is one of the GPU's (fp32, tf32, fp16, bf16, fp8), by default `usual_precision`;
    half precision halves the bytes. ``spread`` says how far off such estimates are. With one
    measured rate, the estimate gives only the shares of the layers, and the rate their sum: then
    the spread is 0. Raises InputError for a workload without work and an impossible rate,
    UnknownName for other hardware or precisions.

    >>> import ddlnb
    >>> workload = ddlnb.trace("resnet50", 64)
    >>> slow, fast = (ddlnb.estimate(workload, name, "fp32") for name in ("T4", "RTX2080Ti"))
    >>> fast.compute_seconds < slow.compute_seconds
    True
    >>> given = ddlnb.estimate(workload, "RTX2080Ti", samples_per_second=253.1)
    >>> round(given.local_batch / given.compute_seconds, 1)
    253.1
    """
    kind = get_gpu(gpu)
    chosen = precision or usual_precision(workload, kind)
    kind.peak(chosen)
    require(
        workload.flops > 0,
        f"workload {workload.model!r} has no FLOPs to estimate seconds from; take it from trace()",
    )
    convolving, recurring = convolves(workload), recurs(workload)
    efficiency = efficiency_of(kind, chosen, convolves=convolving, recurs=recurring)
    forward, backward = _passes(workload, kind, chosen, efficiency)
    source = (
        f"estimated from the data sheet of {kind.name} at {chosen}: {efficiency.matrix.value:.0%} "
        f"of its FLOP/s, {efficiency.memory.value:.0%} of its memory bandwidth"
    )
    if efficiency.winograd.value > 1 and any(one.forward_winograd_flops for one in workload.layers):
        source += f", convolutions of 3 x 3 with {efficiency.winograd.value:.2g} times fewer FLOPs"
    if recurring:
        source += "; recurrent layers as calls of cuDNN, which no fit has seen"
    seconds = workload.with_seconds(forward, backward, source, kind.word)
    if samples_per_second is None:
        return replace(seconds, spread=_spread(workload, kind, chosen, efficiency))
    _require_possible(workload, kind, samples_per_second)
    factor = workload.local_batch / samples_per_second / seconds.compute_seconds
    told = f"one GPU at {samples_per_second:g} samples/s, shared out as {source}"
    return replace(seconds.scaled(factor, told), spread=0.0)


def _require_possible(workload: Workload, gpu: Gpu, samples_per_second: float) -> None:
    """Raise InputError for a rate that would be more FLOP/s than the GPU has, or next to none."""
    require_positive(samples_per_second=samples_per_second)
    rate = workload.flops / workload.local_batch * samples_per_second
    most = max(gpu.flops.values())
    require(
        SLOWEST <= rate / most <= 1,
        f"throughput {samples_per_second:g} samples/s of {workload.model!r} means {rate:.3g} "
        f"FLOP/s, and {gpu.name} computes {SLOWEST * most:.3g} to {most:.3g}; give the samples per "
        f"second of one GPU",
    )


def convolves(workload: Workload) -> bool:
    """Return whether most of the FLOPs are those of layers with convolutions."""
    layers = {one.layer for one in workload.gradients if len(one.shape or ()) > 3}
    of_them = [one for one in workload.layers if one.name in layers]
    return sum(one.forward_flops for one in of_them) > 0.5 * sum(
        one.forward_flops for one in workload.layers
    )


def recurs(workload: Workload) -> bool:
    """Return whether libraries launch kernels by themselves, as for the steps of a sequence."""
    return any(one.forward_kernels for one in workload.layers)


def usual_precision(workload: Workload, gpu: Gpu) -> str:
    """Return how such a workload is usually trained on such a GPU.

    Gradients of two bytes: bf16, or fp16 where there is none. Of four: tf32, or fp32.
    """
    size = max(gradient.bytes_per_element for gradient in workload.gradients)
    order = {2: ("bf16", "fp16"), 4: ("tf32",), 8: ("fp64",)}.get(size, ())
    return next((one for one in order if one in gpu.flops), "fp32")


def _spread(workload: Workload, gpu: Gpu, precision: str, efficiency: Efficiency) -> float:
    """Return the spread of programs like this one, and what the assumed launch adds to it."""
    if not recurs(workload):
        return efficiency.spread
    low, high = (
        sum(sum(seconds.values()) for seconds in _passes(workload, gpu, precision, at))
        for at in (
            replace(efficiency, launch=replace(efficiency.launch, value=end))
            for end in (efficiency.launch.low, efficiency.launch.high)
        )
    )
    return math.hypot(efficiency.spread, math.log(high / low) / (2 * Z90))


def _passes(
    workload: Workload, gpu: Gpu, precision: str, efficiency: Efficiency
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of layers forward, and of gradients backward, by name."""
    forward, backward = passes_of(workload, precision)
    host = gpu_free = 0.0
    ends = []
    for work in (*forward.values(), *backward.values()):
        host += work.host_seconds(efficiency)
        taken = work.seconds(gpu, precision, efficiency)
        ends.append(max(gpu_free + taken, host) if work.launches else gpu_free)
        gpu_free = ends[-1]
    seconds = [end - start for start, end in pairwise([0.0, *ends])]
    of_layers = dict(zip(forward, seconds, strict=False))
    return of_layers, dict(zip(backward, seconds[len(forward) :], strict=True))


def passes_of(workload: Workload, precision: str) -> tuple[dict[str, Work], dict[str, Work]]:
    """Return the work of layers forward, and of gradients backward, in a precision, in order.

    Autograd computes the gradients of a layer together, and hands them over one after the other:
    the first has their work. The loss belongs to the last layer forward, and to the first gradient.
    """
    forward = {layer.name: forward_of(layer) for layer in workload.layers}
    left = {layer.name: backward_of(layer) for layer in workload.layers}
    if not any(layer.backward_flops for layer in workload.layers):
        left = {name: work.times(BACKWARD) for name, work in forward.items()}
    nothing = Work(0.0, 0.0, 0.0)
    backward = {one.name: left.pop(one.layer, nothing) for one in workload.gradients}
    share = SIZES[precision] / max(one.bytes_per_element for one in workload.gradients)
    others = max(1.0, share) if convolves(workload) else share
    of_loss = (next(reversed(forward)), next(iter(backward)))
    return tuple(  # type: ignore[return-value]
        {
            name: work.in_size(share, max(1.0, share) if name == loss else others)
            for name, work in passes.items()
        }
        for passes, loss in zip((forward, backward), of_loss, strict=True)
    )


def forward_of(layer: Layer) -> Work:
    """Return the work of a layer's forward pass."""
    return Work(
        layer.forward_flops,
        layer.forward_matrix_bytes,
        layer.forward_bytes,
        layer.forward_operations,
        layer.forward_winograd_flops,
        layer.forward_kernels,
    )


def backward_of(layer: Layer) -> Work:
    """Return the work of a layer's backward pass."""
    return Work(
        layer.backward_flops,
        layer.backward_matrix_bytes,
        layer.backward_bytes,
        layer.backward_operations,
        layer.backward_winograd_flops,
        layer.backward_kernels,
    )
