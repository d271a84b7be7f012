"""Engines of others: their entries of the catalogue, and what both need.

That is whether they are here, importing them, variables that they take, dtypes that they sum.

Importing it loads neither torch nor the engines.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.engines.engine import Engine
from ddlnb.errors import MissingPart, ModelError
from ddlnb.plans.methods import Method
from ddlnb.plans.plan import Plan
from ddlnb.plans.requests import SPLIT

if TYPE_CHECKING:
    import torch
    from torch import nn

BUILT_BY = "scripts/install_engines.sh builds it"


def lacking(name: str, parts: Mapping[str, str]) -> str:
    """Return what this machine lacks to run an engine, without importing it; "" if nothing.

    ``parts`` are the files, as patterns in its package, without which it was built without a part.
    """
    found = find_spec(name.lower())
    folders = found.submodule_search_locations if found else None
    if not folders:
        return f"{name} is not installed; {BUILT_BY}"
    for part, pattern in parts.items():
        if not any(Path(folder).glob(pattern) for folder in folders):
            return f"{name} was built without {part}; {BUILT_BY}"
    return ""


def imported(name: str, module: str) -> Any:
    """Return a module of an engine. Raises MissingPart with the reason and the fix."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPart(
            f"{name} cannot be imported ({error}); {BUILT_BY} for the torch that is installed"
        ) from error


def require_summed(name: str, module: nn.Module, known: Collection[torch.dtype]) -> torch.dtype:
    """Return the dtype of the trained parameters. Raises ModelError if an engine does not sum it.

    ``known`` are the dtypes that it sums here.
    """
    dtypes = {p.dtype: parameter for parameter, p in module.named_parameters() if p.requires_grad}
    for dtype, parameter in dtypes.items():
        if dtype not in known:
            raise ModelError(
                f"parameter {parameter!r} has dtype {dtype}, which {name} does not sum here; "
                f"convert the model to one of {', '.join(map(str, known))}"
            )
    return next(iter(dtypes))


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block; then restore what was there before.

    >>> with environment({"DDLNB_EXAMPLE": "1"}):
    ...     os.environ["DDLNB_EXAMPLE"]
    '1'
    >>> "DDLNB_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # the block may have removed it itself
            else:
                os.environ[name] = value


def _not_for_horovod(method: Method, plan: Plan | None, device: str) -> str:
    if plan is not None and plan.collectives:
        return "has one all-reduce of its own for all messages, and the plan names collectives"
    if plan is not None and plan.compressed_by:
        compressions = " and ".join(plan.compressed_by)
        return f"sends gradients as they are, and the plan compresses messages by {compressions}"
    return ""


HOROVOD = Engine(
    "horovod",
    "Horovod: our plans on its all-reduces, and its own DistributedOptimizer",
    "ddlnb.foreign_engines.horovod.engine:start",
    baseline="horovod",
    exchanges=frozenset({"all_reduce", SPLIT}),
    refusal=_not_for_horovod,
    missing=partial(lacking, "Horovod", {"PyTorch": "torch/mpi_lib_v2*.so"}),
)
BYTEPS = Engine(
    "byteps",
    "BytePS: our plans on its parameter servers, priorities and credit",
    "ddlnb.foreign_engines.byteps.engine:start",
    "ddlnb.foreign_engines.byteps.engine:serve",
    exchanges=frozenset({"push_pull"}),
    missing=partial(
        lacking,
        "BytePS",
        {f"byteps.{part}": f"{part}/c_lib*.so" for part in ("torch", "server")},
    ),
)
