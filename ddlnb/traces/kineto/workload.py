"""The workload that a Kineto trace shows: layers, gradients, and how long each of them takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from ddlnb.errors import InputError, require
from ddlnb.traces.kineto.events import Recording
from ddlnb.traces.kineto.passes import Arrival, Passes, passes_of
from ddlnb.units import counted
from ddlnb.workloads.workload import Gradient, Layer, Workload

BYTES_OF = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<float>": 8,
}


def workload_of(
    trace: Recording, model: Workload | None = None, local_batch: int | None = None
) -> Workload:
    """Return the workload of a trace; seconds are medians over its iterations.

    ``model`` is the workload that ``ddlnb.trace`` returns: it gives layers and gradients their
    names and their work, and its gradients must have the shapes of the trace's, where the trace has
    them. Without it, layers are named by modules (``with_stack=True``) or operations, gradients by
    their layers, and the trace must have shapes (``record_shapes=True``) and the batch be given.
    Raises InputError where trace and model differ or something that is needed was not recorded.
    """
    passes = passes_of(trace)
    known = (
        _named(trace, passes[0], local_batch) if model is None else _joined(trace, passes, model)
    )
    order = [layer.name for layer in known.layers]
    marks = [_layer_starts(one, known) for one in passes]
    forward = {
        name: statistics.median(
            _until_next(starts, one, name) for starts, one in zip(marks, passes, strict=True)
        )
        for name in order
    }
    backward = {
        gradient.name: statistics.median(_since_before(one, number) for one in passes)
        for number, gradient in enumerate(known.gradients)
    }
    where = trace.device if trace.gpu else "the CPU"
    source = (
        f"trace {trace.name!r} of torch.profiler on {where}, {counted(len(passes), 'iteration')}"
    )
    return known.with_seconds(forward, backward, source, trace.device if trace.gpu else "")


def _layer_starts(one: Passes, known: Workload) -> dict[str, float]:
    """Return when each layer began its forward pass, in the order in which they began.

    A layer whose operations no flow leads to belongs to the one before it.
    """
    starts: dict[str, float] = {}
    for gradient, arrival in zip(known.gradients, one.arrivals, strict=True):
        if arrival.forward is not None:
            starts[gradient.layer] = min(arrival.began, starts.get(gradient.layer, math.inf))
    return dict(sorted(starts.items(), key=lambda item: item[1]))


def _until_next(starts: dict[str, float], one: Passes, name: str) -> float:
    """Return the seconds from the start of a layer to that of the next one."""
    if name not in starts:
        return 0.0 if starts else one.turn - one.start if name == "" else 0.0
    later = [at for at in starts.values() if at > starts[name]]
    begin = one.start if starts[name] == min(starts.values()) else starts[name]
    return max(0.0, min(later, default=one.turn) - begin)


def _since_before(one: Passes, number: int) -> float:
    before = one.arrivals[number - 1].ready if number else one.turn
    return max(0.0, one.arrivals[number].ready - before)


def _joined(trace: Recording, passes: Sequence[Passes], model: Workload) -> Workload:
    """Return the model's workload, if its gradients are those of the trace, in the trace's order.

    Precision changes in which order a layer's weight and bias arrive. Where the trace has shapes,
    each arrival is the first of the model's gradients of its shape that has not yet arrived.
    """
    arrivals = passes[0].arrivals
    require(
        len(arrivals) == len(model.gradients),
        f"{trace.name!r} has {counted(len(arrivals), 'gradient')} in an iteration and model "
        f"{model.model!r} has {len(model.gradients)}; name the model that was traced",
    )
    waiting = list(model.gradients)
    arrived: list[Gradient] = []
    for number, arrival in enumerate(arrivals):
        fits = (g for g in waiting if None in (arrival.shape, g.shape) or g.shape == arrival.shape)
        gradient = next(fits, None)
        if gradient is None:
            expected = model.gradients[number]
            raise InputError(
                f"gradient {number + 1} of {trace.name!r} has shape {arrival.shape}, that of model "
                f"{model.model!r} is {expected.name!r} of {expected.shape}; name the model that "
                f"was traced"
            )
        waiting.remove(gradient)
        arrived.append(gradient)
    return replace(model, gradients=tuple(arrived))


def _named(trace: Recording, one: Passes, local_batch: int | None) -> Workload:
    """Return the layers and gradients that the trace itself names, without seconds."""
    require(
        local_batch is not None,
        f"{trace.name!r} does not say how many samples a batch had; give the batch, or the model",
    )
    lacking = next((a for a in one.arrivals if a.shape is None or a.dtype not in BYTES_OF), None)
    if lacking is not None:
        raise InputError(
            f"{trace.name!r} does not say how large its gradients are; record it with "
            f"record_shapes=True, or give the model that was traced"
        )
    names = [arrival.layer or "forward" for arrival in one.arrivals]
    gradients = [
        Gradient(
            f"{name}.{names[:number].count(name)}",
            name,
            math.prod(arrival.shape or ()),
            BYTES_OF[arrival.dtype],
            shape=arrival.shape,
        )
        for number, (name, arrival) in enumerate(zip(names, one.arrivals, strict=True))
    ]
    layers = [Layer(name) for name in _in_forward_order(names, one.arrivals)]
    source = f"structure of trace {trace.name!r}"
    return Workload(trace.name, local_batch or 1, tuple(layers), tuple(gradients), source)


def _in_forward_order(names: Sequence[str], arrivals: Sequence[Arrival]) -> list[str]:
    first = {
        name: min(
            (a.forward for n, a in zip(names, arrivals, strict=True) if n == name and a.forward),
            default=0.0,
        )
        for name in names
    }
    return sorted(first, key=lambda name: first[name])
