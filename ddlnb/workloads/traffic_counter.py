"""Bytes that go through memory in operations which compute next to nothing.

Normalisations, activations, additions, embeddings and losses read and write every value and do a
few FLOPs with each, so their time is bytes over memory bandwidth. Matrix products and convolutions
are left to the FLOP counter.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

VIEWS_UNDECLARED = {"_unsafe_view"}  # a view whose schema does not say so


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes of the tensors that operations without FLOPs read and write.

    >>> import torch
    >>> with TrafficCounter() as counter:
    ...     _ = torch.ones(10, device="meta").relu().view(2, 5)
    >>> counter.bytes
    120
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what it moves."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in flop_registry and not _is_view(func):
            values = tree_leaves((args, kwargs, result))
            self.bytes += sum(
                value.numel() * value.element_size()
                for value in values
                if isinstance(value, Tensor)
            )
        return result


def _is_view(func: Any) -> bool:
    """Return whether the result is the memory of an argument, and nothing is written."""
    returns = func._schema.returns
    return func.overloadpacket.__name__ in VIEWS_UNDECLARED or any(
        one.alias_info is not None and not one.alias_info.is_write for one in returns
    )
