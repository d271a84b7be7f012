"""What tracing shows of the models that have profiles of GPUs, from a file: torch need not load.

From two samples on, whatever `ddlnb.trace` counts grows by the same amount with every sample, so
that a part that does not grow and one of each sample make the trace of any batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from ddlnb.files import MODELS, write_atomically
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


def text_of(name: str) -> str:
    """Return what the file of a model says, a line for every layer and gradient."""
    from ddlnb.workloads.models import TASKS
    from ddlnb.workloads.tracing import trace

    few, more = (trace(name, samples) for samples in (LEAST, LEAST + 1))
    layers = {}
    for one, other in zip(few.layers, more.layers, strict=True):
        here, there = asdict(one), asdict(other)
        counted = [what for what, count in there.items() if count and what != "name"]
        each = {what: there[what] - here[what] for what in counted}
        layers[one.name] = {what: (here[what] - LEAST * each[what], each[what]) for what in counted}
    kept = {"local_batch": TASKS[name].local_batch, "source": few.source}
    head = json.dumps(kept).removesuffix("}")
    rows = ",\n".join(f"{json.dumps(layer)}: {json.dumps(row)}" for layer, row in layers.items())
    gradients = ",\n".join(json.dumps(asdict(one)) for one in few.gradients)
    return f'{head},\n"layers": {{\n{rows}}},\n"gradients": [\n{gradients}]}}\n'


if __name__ == "__main__":
    for _name in WITH_PROFILES:
        write_atomically(FOLDER / f"{_name}.json", text_of(_name))
