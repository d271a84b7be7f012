"""Which convolutions libraries compute with fewer multiplications than FLOPs are counted.

Winograd's minimal filtering transforms tiles of the input and the filter, multiplies the two value
by value, and transforms back. An output tile of m x m from a filter of 3 x 3 takes (m + 2)^2
products in place of 9 m^2: 2.25 times fewer for F(2x2, 3x3), 4 times for F(4x4, 3x3). The
transforms are paid once per channel, so that few channels gain nothing. The same holds for the
gradients of inputs and of weights, which are such convolutions as well.

cuDNN has them for filters of 3 x 3 with stride 1 and without dilation. That it takes them in single
precision, and plain products where matrix units round to tf32, fp16 or bf16, is assumed. Groups are
left out: a group has few channels. FLOPs stay what they are everywhere; only seconds are fewer.

Source: A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, sections
4 and 6; cuDNN API, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD and _WINOGRAD_NONFUSED.

Operations, and bytes that go through memory: with those that compute next to nothing apart.

Normalisations, activations, additions, embeddings and losses read and write every value and do a
few FLOPs with each, so their time is bytes over memory bandwidth. Matrix products, convolutions
and fused attention, whose FLOPs torch counts, are counted apart: their bytes are the inputs, read
once, and the outputs, written once, which is the least that they can move.

An operation is what a host hands over to a GPU: about one kernel. Views hand over nothing. A
recurrent layer is one operation whose library launches the kernels of all steps by itself.

Bytes that an iteration holds at its peak beside parameters and gradients, without holding any.

Autograd keeps tensors from the forward to the backward pass, and passes make others that live for a
moment: at the start of the backward pass the gradient of a language model's logits exists twice, in
32 bits, beside the kept probabilities.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ddlnb.workloads import recurrence
from ddlnb.workloads.task import Task

FEW = 16  # channels, of which transforms cost as much as they save: assumed
_FILTER = {  # which argument is the filter; stride, dilation and groups follow it
    torch.ops.aten.convolution: 1,
    torch.ops.aten.convolution_backward: 2,
}


def takes_winograd(operation: Any, arguments: Sequence[Any]) -> bool:
    """Return whether an operation is a convolution of this kind, forward or backward.

    >>> import torch
    >>> image, filters = torch.ones(1, 64, 8, 8), torch.ones(64, 64, 3, 3)
    >>> rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0])
    >>> [takes_winograd(torch.ops.aten.convolution, (image, filters, *rest, n)) for n in (1, 2)]
    [True, False]
    """
    if operation not in _FILTER:
        return False
    _, stride, _, dilation, transposed, _, groups, *_ = arguments[_FILTER[operation] + 1 :]
    outputs, inputs, *size = arguments[_FILTER[operation]].shape
    return (
        size == [3, 3]
        and all(one == 1 for one in (*stride, *dilation, groups))
        and not transposed
        and min(outputs, inputs) >= FEW
    )


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


INPUTS = ("query", "key", "value")


class LiveBytes(TorchDispatchMode):
    """Follows the bytes of tensors that operations make, until nobody holds them: ``peak``.

    >>> import torch
    >>> with LiveBytes() as held:
    ...     first = torch.ones(10, device="meta")
    ...     second = first + (first * 2)
    >>> held.peak, held.live
    (120, 80)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._held: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what it makes."""
        result = func(*args, **(kwargs or {}))
        before = {
            one.untyped_storage()._cdata
            for one in tree_leaves((args, kwargs))
            if isinstance(one, Tensor)
        }
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                self._note(one.untyped_storage(), before)
        return result

    def release(self, tensor: Tensor) -> None:
        """Count the tensor no longer, though it lives on."""
        self._free(tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes())

    def _note(self, storage: Any, known: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._held or key in known:  # a view, or written in place
            return
        self._held.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        if key in self._held:
            self._held.discard(key)
            self.live -= size


class _Fused(TorchFunctionMode):
    """Runs attention as the fused kernel of GPUs, which the meta device takes apart otherwise."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = dict(zip(INPUTS, args, strict=False)) | kwargs
        query, key, value = (given[name] for name in INPUTS)
        if query.ndim != 4:
            return func(*args, **kwargs)
        if key.shape[1] != query.shape[1]:  # heads that share keys and values
            groups = query.shape[1] // key.shape[1]
            key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(query, key, value, None, True)[0]


def peak_bytes(task: Task, module: nn.Module, samples: int) -> int:
    """Return the most that a forward and a backward pass on the meta device hold at a time.

    Parameters, samples and gradients are not in it.
    """
    batch = tuple(part.to("meta") for part in task.batch(samples, 0))
    held = LiveBytes()
    hooks = [
        one.register_post_accumulate_grad_hook(lambda trained: held.release(trained.grad))
        for one in module.parameters()
        if one.requires_grad
    ]
    module.zero_grad(set_to_none=True)
    with torch.device("meta"), held, _Fused():
        task.loss(module, batch).backward()
    for hook in hooks:
        hook.remove()
    return held.peak
