"""Tensors without values whose arithmetic costs next to nothing.

On torch's meta device sums and quotients are worked out in Python, 70 us each, which was most of
a dry run. The shape of such a result is that of an operand: the operand stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

ELEMENTWISE = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
) | {"clone", "detach", "true_divide", "rsub"}


class SizeOnly(Tensor):
    """A tensor of floats on the meta device, whose values nobody asks for."""

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Return an operand of the result's size for arithmetic, else what torch does."""
        if func.__name__ in ELEMENTWISE:
            tensors = [one for one in args if isinstance(one, Tensor)]
            first = tensors[0]
            if all(one.shape == first.shape and one.dtype == first.dtype for one in tensors[1:]):
                return first
        return super().__torch_function__(func, types, args, kwargs or {})


def size_only(tensor: Tensor) -> Tensor:
    """Return a float tensor of the meta device with cheap arithmetic."""
    return tensor.as_subclass(SizeOnly)
