"""Seconds from a data sheet: FLOPs over FLOP/s, bytes over bytes/s, and the host that launches.

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
shrink with the precision. How a program was written (`SOFTWARE`) changes that: a compiled one hands
over a graph in which neighbouring operations are fused, with channels last in half precision, and a
tuned one is what a vendor made of it, with kernels of its own. Both predict only the masked words
of BERT, as its authors do. So fewer bytes are moved, by a fitted share, and convolutions reach
another share of the matrix units.

What the loss moves does not shrink anywhere: it stays in 32 bits. On cores in fp32, convolutions of
3 x 3 take fewer multiplications than their FLOPs say, by a factor that is fitted as well
(`winograd`); FLOPs themselves stay as they are counted.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", Communications of the ACM 52(4), 2009, for bounds; the rest is ours.

Where a rate was measured, it gives the sum of the seconds, and the work of the layers their shares.
A cluster names its GPU by a word, such as "a100", and a profile that was measured on one has the
GPU's own name: forecasts refuse seconds of other hardware.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist

from pydantic import BaseModel, ConfigDict

from ddlnb.errors import InputError, require, require_known, require_positive
from ddlnb.files import HARDWARE
from ddlnb.hardware.catalogue import get_gpu, is_same_hardware
from ddlnb.hardware.gpu import ON_CORES, PRECISIONS, Gpu
from ddlnb.hardware.machine import Known
from ddlnb.reading import read_yaml
from ddlnb.workloads.workload import Work, Workload

PROCESSORS = 1e3, 1e18  # FLOP/s: a calculator, and ten times any processor of 2026
# Of GPUs in single precision: 17 for a V100, 22 for an RTX 2080 Ti, 13 for an A100 (data sheets).
FLOPS_PER_BYTE = 20.0
PATH = HARDWARE / "roofline.yaml"
CONVOLUTIONS = "convolutions"  # a network whose FLOPs are mostly theirs
MATRIX_CONVOLUTIONS = f"matrix units, {CONVOLUTIONS}"
# What computes on generations of GPUs that nobody measured.
OTHER, OTHER_CONVOLUTIONS = "matrix units, others", f"cores, {CONVOLUTIONS}, others"
RECURRENT = "recurrent layers"
EAGER = "eager"
SOFTWARE = (EAGER, "compiled", "tuned")  # how a program was written; the default is the first
# Of the words of a sentence, those that are predicted (J. Devlin et al., BERT, 2019), and the
# layers of transformers' BERT that do so.
MASKED, PREDICTING = 0.15, "cls."
WINOGRAD_PRECISION = "fp32"  # in which libraries take the algorithm
MOST_WINOGRAD = 4.0  # times fewer products of 3 x 3, F(4 x 4, 3 x 3): Lavin and Gray, CVPR 2016
WITHOUT = Known(1.0, 1.0, 1.0, "no faster algorithm is taken")


@dataclass(frozen=True)
class Efficiency:
    """What programs reach of a data sheet.

    ``matrix`` is the share of FLOP/s, ``memory`` that of the memory's bandwidth, ``host`` the
    seconds that the host takes for an operation, ``launch`` those of a kernel that a library
    launches inside of one. ``moved`` is the share of the bytes of operations without FLOPs that a
    program moves. ``winograd`` is how many times fewer FLOPs convolutions take that
    `takes_winograd`, 1 in precisions that do without. ``spread`` is the standard deviation of the
    logarithm of estimated over measured seconds of models that were left out of the fit.
    """

    matrix: Known
    memory: Known
    host: Known
    launch: Known
    moved: Known
    winograd: Known
    spread: float


def kind_of(gpu: Gpu, precision: str, convolves: bool, software: str = EAGER) -> str:
    """Return what computes, in the words of the file of fitted values."""
    if precision in ON_CORES:
        return f"cores, {CONVOLUTIONS}, {gpu.generation}" if convolves else "cores"
    return (
        written(MATRIX_CONVOLUTIONS, software) if convolves else f"matrix units, {gpu.generation}"
    )


def halves_sums(gpu: Gpu, precision: str) -> bool:
    """Return whether the sheet has half the rate for sums in fp32: GeForce, in half precision."""
    is_half = precision in ("fp16", "bf16")
    return is_half and gpu.chip is not None and gpu.chip.name.endswith(" halved")


def written(what: str, software: str) -> str:
    """Return what a number is of, with how the program was written unless it is the default.

    >>> written("others", "eager"), written("others", "tuned")
    ('others', 'others, tuned')
    """
    return what if software == EAGER else f"{what}, {software}"


def others_of(kind: str) -> str:
    """Return the kind that stands for other generations of GPUs; itself where it is of all.

    >>> others_of("matrix units, Volta"), others_of("cores")
    ('matrix units, others', 'cores')
    """
    if kind.startswith(f"cores, {CONVOLUTIONS}"):
        return OTHER_CONVOLUTIONS
    return kind if kind == "cores" or kind.startswith(MATRIX_CONVOLUTIONS) else OTHER


def efficiency_of(
    gpu: Gpu,
    precision: str,
    *,
    convolves: bool = False,
    recurs: bool = False,
    software: str = EAGER,
) -> Efficiency:
    """Return what programs reach on such a GPU at a precision, or on any where nobody measured.

    ``software`` is how they were written. Nobody measured programs that ``recurs`` on any GPU: how
    far off they are is assumed.
    """
    require_known("precision", precision, PRECISIONS)
    require_known("software", software, SOFTWARE)
    known = _fitted()
    kind = kind_of(gpu, precision, convolves, software)
    kind = kind if kind in known.matrix else others_of(kind)
    matrix = known.matrix[kind]
    factor = known.fp8 if precision in ("fp8", "fp4") else None
    if convolves and halves_sums(gpu, precision):
        factor = known.sums
    if factor is not None:
        matrix = replace(matrix.times(factor.value), source=f"{matrix.source}; {factor.source}")
    of = CONVOLUTIONS if convolves else "others"
    spread = known.spread.get(kind, known.spread.get(others_of(kind), known.spread["others"]))
    if gpu.family not in known.measured.get(kind, ()):
        spread = max(spread, known.spread["others"])
    if software != EAGER:
        spread = known.spread[written(of, software)]
    if recurs:
        spread = max(spread, known.spread[RECURRENT])
    return Efficiency(
        matrix=matrix,
        memory=known.memory[of],
        host=known.host if software == EAGER else known.graph,
        launch=known.launch,
        moved=known.moved.get(written(of, software), WITHOUT),
        winograd=known.winograd if precision == WINOGRAD_PRECISION else WITHOUT,
        spread=spread,
    )


class RooflineFile(BaseModel):
    """The keys of data/hardware/roofline.yaml; `Efficiency` has their meanings.

    ``measured`` are families of GPUs by kind, ``graph`` is the host of programs that are not eager,
    ``fp8`` the share of FLOP/s in fp8 over that of other precisions, ``sums`` that of convolutions
    where sheets have half the rate for sums in fp32, over others.
    """

    model_config = ConfigDict(extra="forbid")

    matrix: dict[str, Known]
    memory: dict[str, Known]
    host: Known
    graph: Known
    launch: Known
    moved: dict[str, Known]
    winograd: Known
    fp8: Known
    sums: Known
    measured: dict[str, tuple[str, ...]]
    spread: dict[str, float]


@functools.cache
def _fitted() -> RooflineFile:
    return read_yaml(PATH, RooflineFile)


NAMED = {EAGER: "an eager program", "compiled": "a compiled program", "tuned": "a tuned program"}
SIZES = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 2,
    "fp4": 2,
}  # bytes of activations
SLOWEST = 1e-7  # of the FLOP/s: no training on a GPU is so slow
Z90 = NormalDist().inv_cdf(0.95)  # a 90 % interval is so many standard deviations to both sides
BACKWARD = 2.0  # of the forward work, where nobody counted: gradients of inputs and of weights


def estimate(
    workload: Workload,
    gpu: str | Gpu,
    precision: str = "",
    *,
    samples_per_second: float | None = None,
    software: str = EAGER,
) -> Workload:
    """Return the workload with the seconds that a GPU's data sheet and open measurements tell.

    ``precision`` is one of the GPU's (fp32, tf32, fp16, bf16, fp8), by default `usual_precision`;
    half precision halves the bytes, and is never slower than fp32, nor is tf32. ``software`` is how
    the program was written: eager, compiled or tuned by a vendor. ``spread`` says how far off such
    estimates are. With one measured rate, the estimate gives only the shares of the layers, and the
    rate their sum: then the spread is 0. Raises InputError for a workload without work and an
    impossible rate, UnknownName for other hardware or precisions.

    >>> import ddlnb
    >>> workload = ddlnb.trace("resnet50", 64)
    >>> slow, fast = (ddlnb.estimate(workload, name, "fp32") for name in ("T4", "RTX2080Ti"))
    >>> fast.compute_seconds < slow.compute_seconds
    True
    >>> given = ddlnb.estimate(workload, "RTX2080Ti", samples_per_second=253.1)
    >>> round(given.local_batch / given.compute_seconds, 1)
    253.1
    """
    require(
        isinstance(workload, Workload),
        f"workload {workload!r} is none; give the one of a model, ddlnb.trace({workload!r})",
    )
    kind = get_gpu(gpu)
    chosen = precision or usual_precision(workload, kind)
    kind.peak(chosen)
    require(
        workload.flops > 0,
        f"workload {workload.model!r} has no FLOPs to estimate seconds from; take it from trace()",
    )
    convolving, recurring = convolves(workload), recurs(workload)
    efficiency = efficiency_of(
        kind, chosen, convolves=convolving, recurs=recurring, software=software
    )
    forward, backward = _passes(workload, kind, chosen, efficiency, software)
    source = (
        f"estimated from the data sheet of {kind.name} at {chosen} for {NAMED[software]}: "
        f"{efficiency.matrix.value:.0%} of its FLOP/s, {efficiency.memory.value:.0%} of its memory "
        f"bandwidth"
    )
    if efficiency.winograd.value > 1 and any(one.forward_winograd_flops for one in workload.layers):
        source += f", convolutions of 3 x 3 with {efficiency.winograd.value:.2g} times fewer FLOPs"
    if recurring:
        source += "; recurrent layers as calls of cuDNN, which no fit has seen"
    seconds = workload.with_seconds(forward, backward, source, kind.word)
    if samples_per_second is None:
        found = replace(seconds, spread=_spread(workload, kind, chosen, efficiency, software))
        if chosen in ON_CORES or "fp32" not in kind.flops:
            return found
        # A library takes what it has for fp32 where that is faster, as on GeForce and on Pascal.
        plain = estimate(workload, kind, "fp32", software=software)
        return min(found, plain, key=lambda one: one.compute_seconds)
    _require_possible(workload, kind, samples_per_second)
    factor = workload.local_batch / samples_per_second / seconds.compute_seconds
    told = f"one GPU at {samples_per_second:g} samples/s, shared out as {source}"
    return replace(seconds.scaled(factor, told), spread=0.0)


def _require_possible(workload: Workload, gpu: Gpu, samples_per_second: float) -> None:
    """Raise InputError for a rate that would be more FLOP/s than the GPU has, or next to none.

    Products that a library may save are none that a GPU needs.
    """
    require_positive(samples_per_second=samples_per_second)
    faster = sum(
        (layer.forward_flops + layer.backward_flops)
        * (layer.forward_winograd_flops / layer.forward_flops)
        for layer in workload.layers
        if layer.forward_flops
    )
    needed = workload.flops - faster * (1 - 1 / MOST_WINOGRAD)
    each = samples_per_second / workload.local_batch
    rate, most = workload.flops * each, max(gpu.flops.values())
    by_winograd = needed * each <= gpu.flops.get("fp32", 0.0)
    require(
        rate / most >= SLOWEST and (rate <= most or by_winograd),
        f"throughput {samples_per_second:g} samples/s of {workload.model!r} means {rate:.3g} "
        f"FLOP/s, and {gpu.name} computes {SLOWEST * most:.3g} to {most:.3g}; give the samples per "
        f"second of one GPU",
    )


def from_throughput(
    workload: Workload,
    samples_per_second: float,
    source: str,
    flops_per_byte: float = FLOPS_PER_BYTE,
    hardware: str = "",
) -> Workload:
    """The workload with the seconds that a worker of this throughput needs, shared out by work.

    Work is FLOPs, and bytes of operations without any; ``flops_per_byte`` says how many FLOPs take
    as long as a byte: the processor's FLOP/s over its memory bandwidth. A layer without work takes
    no time. The backward seconds of a layer lie on the first of its gradients that the backward
    pass produces, because autograd computes the layer's gradients together and then hands them over
    one after the other. ``hardware`` is the processor of this throughput. Raises InputError for a
    throughput that no processor has.

    >>> import ddlnb
    >>> traced = ddlnb.trace("resnet50", 64)
    >>> from ddlnb.workloads import from_throughput
    >>> workload = from_throughput(traced, 253.1, "my log of May", hardware="rtx2080ti")
    >>> round(workload.local_batch / workload.compute_seconds, 1)
    253.1
    """
    require_positive(samples_per_second=samples_per_second)
    require(
        workload.flops > 0,
        f"workload {workload.model!r} has no FLOPs to share the time by; take it from trace()",
    )
    rate = workload.flops / workload.local_batch * samples_per_second
    slowest, fastest = PROCESSORS
    require(
        slowest <= rate <= fastest,
        f"throughput {samples_per_second:g} samples/s of {workload.model!r} means {rate:.3g} "
        f"FLOP/s, and processors compute {slowest:g} to {fastest:g}; give the samples per second "
        f"of one GPU",
    )
    forward = {
        layer.name: layer.forward_flops + flops_per_byte * layer.forward_bytes
        for layer in workload.layers
    }
    left = {
        layer.name: layer.backward_flops + flops_per_byte * layer.backward_bytes
        for layer in workload.layers
    }
    backward = {one.name: left.pop(one.layer, 0.0) for one in workload.gradients}
    work = sum(forward.values()) + sum(backward.values())
    seconds = workload.local_batch / samples_per_second / work
    return workload.with_seconds(
        {name: value * seconds for name, value in forward.items()},
        {name: value * seconds for name, value in backward.items()},
        source,
        hardware,
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


def _spread(
    workload: Workload, gpu: Gpu, precision: str, efficiency: Efficiency, software: str
) -> float:
    """Return the spread of programs like this one, and what the assumed launch adds to it."""
    if not recurs(workload):
        return efficiency.spread
    low, high = (
        sum(sum(seconds.values()) for seconds in _passes(workload, gpu, precision, at, software))
        for at in (
            replace(efficiency, launch=replace(efficiency.launch, value=end))
            for end in (efficiency.launch.low, efficiency.launch.high)
        )
    )
    return math.hypot(efficiency.spread, math.log(high / low) / (2 * Z90))


def _passes(
    workload: Workload, gpu: Gpu, precision: str, efficiency: Efficiency, software: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of layers forward, and of gradients backward, by name."""
    forward, backward = passes_of(workload, precision, software)
    host = gpu_free = 0.0
    ends = []
    for work in (*forward.values(), *backward.values()):
        host += work.launches * efficiency.host.value + work.kernels * efficiency.launch.value
        taken = gpu_seconds(work, gpu, precision, efficiency)
        ends.append(max(gpu_free + taken, host) if work.launches else gpu_free)
        gpu_free = ends[-1]
    seconds = [end - start for start, end in pairwise([0.0, *ends])]
    of_layers = dict(zip(forward, seconds, strict=False))
    return of_layers, dict(zip(backward, seconds[len(forward) :], strict=True))


def gpu_seconds(work: Work, gpu: Gpu, precision: str, efficiency: Efficiency) -> float:
    """Return how long the GPU takes, whatever its host does."""
    computing = work.computed(efficiency.winograd.value) / efficiency.matrix.value
    moved = work.matrix_bytes + efficiency.moved.value * work.bytes
    moving = moved / (gpu.memory_bandwidth * efficiency.memory.value)
    return computing / gpu.peak(precision) + moving


def passes_of(
    workload: Workload, precision: str, software: str = EAGER
) -> tuple[dict[str, Work], dict[str, Work]]:
    """Return the work of layers forward, and of gradients backward, in a precision, in order.

    Autograd computes the gradients of a layer together, and hands them over one after the other:
    the first has their work. The loss belongs to the last layer forward, and to the first gradient.
    """
    forward = {layer.name: layer.forward for layer in workload.layers}
    left = {layer.name: layer.backward for layer in workload.layers}
    if not any(layer.backward_flops for layer in workload.layers):
        left = {name: work.times(BACKWARD) for name, work in forward.items()}
    backward = {one.name: left.pop(one.layer, Work()) for one in workload.gradients}
    share = SIZES[precision] / max(one.bytes_per_element for one in workload.gradients)
    is_eager = software == EAGER
    others = max(1.0, share) if is_eager and convolves(workload) else share
    of_loss = (next(reversed(forward)), next(iter(backward)))

    def written_so(name: str, work: Work, loss: str) -> Work:
        predicted = 1.0 if is_eager or not name.startswith(PREDICTING) else MASKED
        size = max(1.0, share) if name == loss else others
        return replace(
            work,
            flops=predicted * work.flops,
            matrix_bytes=predicted * share * work.matrix_bytes,
            bytes=predicted * size * work.bytes,
        )

    return tuple(  # type: ignore[return-value]
        {name: written_so(name, work, loss) for name, work in passes.items()}
        for passes, loss in zip((forward, backward), of_loss, strict=True)
    )


def require_same_hardware(workload: Workload, cluster: str, hardware: str) -> None:
    """Raise InputError for seconds of other hardware than that of the cluster of this name."""
    if workload.hardware == hardware or is_same_hardware(workload.hardware, hardware):
        return
    raise InputError(
        f"the seconds of workload {workload.model!r} are those of {workload.hardware!r}, and "
        f"cluster {cluster!r} has {hardware!r}; give the samples per second of one of its GPUs "
        f"(--throughput, or from_throughput), profile the model there, or scale the seconds "
        f"yourself: workload.scaled(FACTOR, WHY, hardware={hardware!r})"
    )
