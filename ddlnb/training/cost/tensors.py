"""The tensors of a workload as a compressor sees them: shapes, in the order of the parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

from ddlnb.compression.base import Compressor
from ddlnb.errors import require
from ddlnb.workloads.kept_models import kept_model
from ddlnb.workloads.workload import Workload

Shape = tuple[int, ...]
CompressedPiece = tuple[Compressor, Shape]


def tensor_shapes(workload: Workload) -> dict[str, Shape]:
    """Return the shape of every gradient by name, in the order of the model's parameters.

    Shapes and order are those of the built-in model that the workload describes. Of any other model
    the shapes are those that its profile kept, vectors where it kept none, in the order in which
    gradients become ready. Raises InputError when a built-in model of that name has other tensors.
    """
    if not is_built_in(workload):
        return {one.name: one.shape or (one.elements,) for one in workload.gradients}
    sizes = {gradient.name: gradient.elements for gradient in workload.gradients}
    shapes = _shapes_of_model(workload.model)
    require(
        {name: math.prod(shape) for name, shape in shapes.items()} == sizes,
        f"workload {workload.model!r} has other tensors than the model of that name; "
        f"profile it again, or give it a name of its own",
    )
    return dict(shapes)


def require_shapes(workload: Workload, compressor: Compressor) -> None:
    """Raise InputError if the compressor needs shapes of tensors, and nobody kept them.

    Profiles of earlier editions have none.
    """
    require(
        not compressor.needs_shapes
        or is_built_in(workload)
        or all(one.shape is not None for one in workload.gradients),
        f"{compressor} sends a matrix as two thin ones, and the profile of {workload.model!r} does "
        f"not have the shapes of its tensors; profile it again (ddlnb.profile keeps them), or "
        f"choose another compressor",
    )


def is_built_in(workload: Workload) -> bool:
    """Return whether the workload is of a built-in model, whose parameters are known."""
    from ddlnb.training.tasks.catalogue import LEARNING_TASKS
    from ddlnb.workloads.catalogue import TASKS

    return workload.model in TASKS or workload.model in LEARNING_TASKS


def pieces(workload: Workload, whole_model: bool) -> list[Shape]:
    """Return the shapes that are compressed on their own: all tensors, or one vector of them."""
    return [(workload.parameters,)] if whole_model else list(tensor_shapes(workload).values())


def compressed_pieces(compressor: Compressor, shapes: Iterable[Shape]) -> list[CompressedPiece]:
    """Pair every shape with the compressor that it gets: layer-wise choices give each its own."""
    shapes = list(shapes)
    return list(zip(compressor.for_pieces(len(shapes)), shapes, strict=True))


@cache  # a large model takes a quarter of a second to build, even without values
def _shapes_of_model(name: str) -> dict[str, Shape]:
    if kept := kept_model(name):
        return kept.shapes
    import torch

    from ddlnb.training.tasks.catalogue import get_learning_task
    from ddlnb.workloads.catalogue import TASKS

    with torch.device("meta"):
        module = TASKS[name].build() if name in TASKS else get_learning_task(name).build(0)
    return {key: tuple(p.shape) for key, p in module.named_parameters() if p.requires_grad}
