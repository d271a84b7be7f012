"""Bytes that an iteration holds at its peak beside parameters and gradients, without holding any.

Autograd keeps tensors from the forward to the backward pass, and passes make others that live for a
moment: at the start of the backward pass the gradient of a language model's logits exists twice, in
32 bits, beside the kept probabilities.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddlnb.workloads.tasks import Task

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
