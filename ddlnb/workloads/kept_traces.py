"""What tracing shows of the models that have profiles of GPUs, from a file: torch need not load.

From two samples on, whatever `ddlnb.trace` counts grows by the same amount with every sample, so
that a part that does not grow and one of each sample make the trace of any batch.
"""

from __future__ import annotations

from dataclasses import replace

from ddlnb.files import MODELS
from ddlnb.reading import read_json
from ddlnb.workloads.memory import WITH_PROFILES
from ddlnb.workloads.workload import Gradient, Layer, Workload

LEAST = 2  # samples: one that is spread over a batch of one is not copied
FOLDER = MODELS / "traced"


def kept_trace(name: str, local_batch: int | None = None) -> Workload | None:
    """Return the trace of a model at a batch, by default its own; None where none is kept.

    >>> workload = kept_trace("resnet50", 32)
    >>> workload.local_batch, workload.parameters
    (32, 25557032)
    >>> kept_trace("small-conv", 32) is None
    True
    """
    if name not in WITH_PROFILES or (local_batch is not None and local_batch < LEAST):
        return None
    kept = read_json(FOLDER / f"{name}.json")
    samples = kept["local_batch"] if local_batch is None else local_batch
    layers = tuple(
        Layer(layer, **{what: fixed + samples * each for what, (fixed, each) in counts.items()})
        for layer, counts in kept["layers"].items()
    )
    gradients = tuple(
        replace(one, shape=tuple(one.shape or ()))
        for one in (Gradient(**fields) for fields in kept["gradients"])
    )
    return Workload(name, samples, layers, gradients, kept["source"])
