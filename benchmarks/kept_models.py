"""Write what is kept of the models that have profiles of GPUs anew: data/models.

python -m benchmarks.kept_models
"""

import json
from dataclasses import asdict, replace

import torch

from ddlnb.files import MODELS, write_atomically
from ddlnb.workloads.kept_traces import FOLDER, LEAST
from ddlnb.workloads.memory import WITH_PROFILES, seen_on_meta
from ddlnb.workloads.models import TASKS
from ddlnb.workloads.tracing import trace


def text_of(name: str) -> str:
    """Return what the file of a model's trace says, a line for every layer and gradient."""
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
    told = (
        {key: value for key, value in asdict(one).items() if value is not None}
        for one in few.gradients
    )
    gradients = ",\n".join(map(json.dumps, told))
    return f'{head},\n"layers": {{\n{rows}}},\n"gradients": [\n{gradients}]}}\n'


def main() -> None:
    """Write both files of every model."""
    for name in WITH_PROFILES:
        half = seen_on_meta(TASKS[name], torch.bfloat16).bytes_per_sample
        both = replace(seen_on_meta(TASKS[name]), half_bytes_per_sample=half)
        write_atomically(MODELS / f"{name}.json", f"{json.dumps(asdict(both), indent=1)}\n")
        write_atomically(FOLDER / f"{name}.json", text_of(name))


if __name__ == "__main__":
    main()
