"""What is kept of models that have profiles: to build and run one takes seconds, to read this none.

``python -m ddlnb.workloads.kept_models`` writes the files of data/models anew.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache

from ddlnb.files import MODELS
from ddlnb.workloads.memory import Footprint, bytes_per_sample, footprint_of
from ddlnb.workloads.task import Task, build_on_meta

WITH_PROFILES = ("resnet50", "bert-base", "bert-large")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class KeptModel:
    """The trained parameters of a model, and what its passes hold, with its own samples.

    ``shapes`` are those of the trained parameters by name, in the model's order; ``trained_bytes``
    and ``frozen_bytes`` those of all parameters; ``bytes_per_sample`` is that of
    `ddlnb.workloads.memory.Footprint`.
    """

    shapes: dict[str, Shape]
    trained_bytes: int
    frozen_bytes: int
    bytes_per_sample: float

    def footprint(self, optimizer: str = "adam") -> Footprint:
        """Return what `ddlnb.workloads.memory.footprint` does, without building the model."""
        return footprint_of(self.trained_bytes, self.frozen_bytes, self.bytes_per_sample, optimizer)


@cache
def kept_model(name: str) -> KeptModel | None:
    """Return what is kept of the built-in model of this name, None if nothing is.

    >>> from ddlnb.workloads.kept_models import kept_model
    >>> kept_model("bert-large").trained_bytes
    1344904432
    >>> kept_model("gpt2-xl") is None
    True
    """
    if name not in WITH_PROFILES:
        return None
    fields = json.loads((MODELS / f"{name}.json").read_text())
    shapes = {key: tuple(sides) for key, sides in fields.pop("shapes").items()}
    return KeptModel(shapes, **fields)


def seen_on_meta(task: Task) -> KeptModel:
    """Return the same of any task, found on the meta device; raises what `footprint` raises."""
    module = build_on_meta(task)
    trained = {key: one for key, one in module.named_parameters() if one.requires_grad}
    frozen = [one for one in module.parameters() if not one.requires_grad]
    return KeptModel(
        {key: tuple(one.shape) for key, one in trained.items()},
        sum(one.nbytes for one in trained.values()),
        sum(one.nbytes for one in frozen),
        bytes_per_sample(task, module),
    )


def main() -> None:
    """Write the file of every model."""
    from ddlnb.workloads.catalogue import TASKS

    for name in WITH_PROFILES:
        text = json.dumps(asdict(seen_on_meta(TASKS[name])), indent=1)
        (MODELS / f"{name}.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
