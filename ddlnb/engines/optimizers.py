"""The optimizers by name, each with the settings it has throughout this edition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ddlnb.errors import UnknownName

if TYPE_CHECKING:
    import torch
    from torch import nn

MakeOptimizer = Callable[[Iterable["nn.Parameter"]], "torch.optim.Optimizer"]


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    from torch.optim import SGD

    return SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    from torch.optim import Adam

    return Adam(parameters, lr=1e-3)


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    from torch.optim import AdamW

    return AdamW(parameters, lr=1e-3)


OPTIMIZERS: dict[str, MakeOptimizer] = {"sgd": _sgd, "adam": _adam, "adamw": _adamw}


def get_optimizer(name: str | MakeOptimizer) -> MakeOptimizer:
    """Return the optimizer factory of that name, or the factory itself. Raises UnknownName."""
    if callable(name):
        return name
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]


def optimizer_name(optimizer: str | MakeOptimizer) -> str:
    """Return what tables call an optimizer: its name, and the keywords of a partial.

    >>> from functools import partial
    >>> optimizer_name(partial(sorted, reverse=True))
    'sorted(reverse=True)'
    """
    if isinstance(optimizer, str):
        return optimizer
    inner = getattr(optimizer, "func", optimizer)
    keywords = getattr(optimizer, "keywords", {})
    shown = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
    return getattr(inner, "__name__", type(optimizer).__name__) + (f"({shown})" * bool(shown))
