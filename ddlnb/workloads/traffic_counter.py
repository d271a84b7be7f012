"""Operations, and bytes that go through memory: with those that compute next to nothing apart.

Normalisations, activations, additions, embeddings and losses read and write every value and do a
few FLOPs with each, so their time is bytes over memory bandwidth. Matrix products, convolutions
and fused attention, whose FLOPs torch counts, are counted apart: their bytes are the inputs, read
once, and the outputs, written once, which is the least that they can move.

An operation is what a host hands over to a GPU: about one kernel. Views hand over nothing. A
recurrent layer is one operation whose library launches the kernels of all steps by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ddlnb.workloads import recurrence
from ddlnb.workloads.winograd import takes_winograd

VIEWS_UNDECLARED = {"_unsafe_view"}  # a view whose schema does not say so


def _cpu_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _cpu_attention_backward(out: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(out, query, key, value))


_aten: Any = torch.ops.aten
# What torch's own counter leaves out, by shapes: the fused attention of CPUs, recurrent layers.
FLOPS = {
    **recurrence.FLOPS,
    _aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
}


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes of the tensors that operations read and write.

    ``bytes`` are those of operations without FLOPs, ``matrix_bytes`` those of operations with;
    ``operations`` are how many there were of both, and ``kernels`` what libraries launch inside of
    one. ``winograd_flops`` are the FLOPs of convolutions that `takes_winograd`.

    >>> import torch
    >>> with TrafficCounter() as counter:
    ...     values = torch.ones(10, device="meta").relu().view(2, 5)
    ...     _ = values @ torch.ones(5, 3, device="meta")
    >>> counter.bytes, counter.matrix_bytes, counter.operations
    (180, 124, 4)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.matrix_bytes = 0
        self.operations = 0
        self.kernels = 0
        self.winograd_flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what it moves."""
        result = func(*args, **(kwargs or {}))
        if _is_view(func):
            return result
        self.operations += 1
        if func.overloadpacket in recurrence.MOVED:
            self._add(recurrence.MOVED[func.overloadpacket](*args))
            return result
        if takes_winograd(func.overloadpacket, args):
            self.winograd_flops += flop_registry[func.overloadpacket](*args, out_val=result)
        moved = sum(
            value.numel() * value.element_size()
            for value in tree_leaves((args, kwargs, result))
            if isinstance(value, Tensor)
        )
        if func.overloadpacket in flop_registry or func.overloadpacket in FLOPS:
            self.matrix_bytes += moved
        else:
            self.bytes += moved
        return result

    def _add(self, moved: recurrence.Moved) -> None:
        self.matrix_bytes += moved.matrix_bytes
        self.bytes += moved.bytes
        self.kernels += moved.kernels


def _is_view(func: Any) -> bool:
    """Return whether the result is the memory of an argument, and nothing is written."""
    returns = func._schema.returns
    return func.overloadpacket.__name__ in VIEWS_UNDECLARED or any(
        one.alias_info is not None and not one.alias_info.is_write for one in returns
    )
