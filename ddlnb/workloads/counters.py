"""Counters of what operations take: FLOPs, bytes, operations, and the bytes that live at a time.

**Bytes that go through memory**, with those that compute next to nothing apart. Normalisations,
activations, additions, embeddings and losses read and write every value and do a few FLOPs with
each, so their time is bytes over memory bandwidth. Matrix products, convolutions and fused
attention, whose FLOPs torch counts, are counted apart: their bytes are the inputs, read once, and
the outputs, written once, which is the least that they can move. An operation is what a host hands
over to a GPU: about one kernel. Views hand over nothing.

**Recurrent layers as GPUs run them**: one call of a library for all steps of a sequence. Without a
GPU torch takes `nn.LSTM`, `nn.GRU` and `nn.RNN` apart: the host hands over every small operation of
every step, and the gradients of weights are added up in memory once a step. cuDNN gets the sequence
as a whole, and so does the trace:

- one product of the inputs of all steps with their weights;
- in every step one product of the state with the recurrent weights, which are read again, and one
  kernel for everything else;
- backward the same with the gradients, and one product over all steps for every matrix of weights.

Kernels that keep recurrent weights on the chip from step to step exist (persistent ones), but torch
takes them for few shapes and in half precision only. Where the weights fit into a GPU's second
cache, reading them again is faster than counted here. Source: J. Appleyard, T. Kocisky, P. Blunsom,
"Optimizing performance of recurrent neural networks on GPUs", arXiv 1604.01946, 2016, section 3;
cuDNN API, CUDNN_RNN_ALGO_STANDARD.

**Convolutions with fewer multiplications** than FLOPs are counted. Winograd's minimal filtering
transforms tiles of the input and the filter, multiplies the two value by value, and transforms
back. An output tile of m x m from a filter of 3 x 3 takes (m + 2)^2 products in place of 9 m^2:
2.25 times fewer for F(2x2, 3x3), 4 times for F(4x4, 3x3). The transforms are paid once per channel,
so that few channels gain nothing. The same holds for the gradients of inputs and of weights, which
are such convolutions as well. cuDNN has them for filters of 3 x 3 with stride 1 and without
dilation. That it takes them in single precision, and plain products where matrix units round to
tf32, fp16 or bf16, is assumed. Groups are left out: a group has few channels. FLOPs stay what they
are everywhere; only seconds are fewer. Source: A. Lavin, S. Gray, "Fast algorithms for
convolutional neural networks", CVPR 2016, sections 4 and 6; cuDNN API,
CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD and _WINOGRAD_NONFUSED.

**Bytes that live** at the peak of an iteration beside parameters and gradients, without holding
any. Autograd keeps tensors from the forward to the backward pass, and passes make others that live
for a moment: at the start of the backward pass the gradient of a language model's logits exists
twice, in 32 bits, beside the kept probabilities.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ddlnb.workloads.task import Task
from ddlnb.workloads.workload import Work

aten: Any = torch.ops.aten
VIEWS_UNDECLARED = {"_unsafe_view"}  # a view whose schema does not say so
RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
# What the kernel of a step reads and writes: both products and what backward needs of the gates;
# the states before, the states after, the outputs.
GATES_MOVED, STATES_MOVED = 3, 3
FEW_CHANNELS = 16  # of which Winograd's transforms cost as much as they save: assumed
FILTER = {aten.convolution: 1, aten.convolution_backward: 2}  # which argument is the filter
Shape = Sequence[int]


class RecurrentCalls(TorchFunctionMode):
    """Hands recurrent layers over as one operation; tensors with values run what torch runs."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function."""
        # Of samples with lengths of their own, the fourth argument are the weights.
        if func not in RECURRENT or isinstance(args[3], list | tuple) or _has_values(args[2][0]):
            return func(*args, **(kwargs or {}))
        stream, states, weights, _, layers, _, _, is_bidirectional, is_batch_first = args
        ways = 2 if is_bidirectional else 1
        states = [states] if isinstance(states, Tensor) else list(states)
        per_layer = len(weights) // (layers * ways)
        return tuple(sequence(stream, states, list(weights), per_layer, ways, is_batch_first))


def _has_values(weights: Tensor) -> bool:
    return not (weights.is_meta or isinstance(weights, FakeTensor))


# A recurrent layer as one operation, which counts work and computes no values: the outputs of the
# last layer and the states after the last step; and its gradients, of inputs, states and weights.
# ``per_layer`` are the tensors of weights that a layer has in one of its one or two ``ways``.
_CALL = "(Tensor stream, Tensor[] states, Tensor[] weights, int per_layer, int ways, bool first)"
torch.library.define("ddlnb::sequence", f"{_CALL} -> Tensor[]")
torch.library.define("ddlnb::sequence_backward", f"{_CALL} -> Tensor[]")
sequence = torch.ops.ddlnb.sequence


@torch.library.register_fake("ddlnb::sequence")
def _shapes(stream: Tensor, states: list[Tensor], _: Any, __: int, ways: int, ___: bool) -> Any:
    outputs = stream.new_empty((*stream.shape[:2], ways * states[0].shape[-1]))
    return [outputs, *(torch.empty_like(one) for one in states)]


@torch.library.register_fake("ddlnb::sequence_backward")
def _gradient_shapes(stream: Tensor, states: Any, weights: Any, *_: Any) -> list[Tensor]:
    return [torch.empty_like(one) for one in (stream, *states, *weights)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.inputs = inputs


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    states = len(ctx.inputs[1])
    of_stream, *others = torch.ops.ddlnb.sequence_backward(*ctx.inputs)
    return of_stream, others[:states], others[states:], None, None, None


torch.library.register_autograd("ddlnb::sequence", _backward, setup_context=_keep)


def forward_moved(
    stream: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    per_layer: int,
    ways: int,
    is_batch_first: bool,
) -> Work:
    """Return what the forward call moves."""
    positions = prod(stream.shape[:2])
    steps = stream.shape[1 if is_batch_first else 0]
    size = stream.element_size()
    matrix = others = kernels = 0
    for of_inputs, *of_states in _matrices([one.shape for one in weights], per_layer):
        matrix += _product(positions, of_inputs)
        matrix += sum(_product(positions, one, steps) for one in of_states)
        values = GATES_MOVED * of_inputs[0] + STATES_MOVED * states[-1].shape[-1]
        others += positions * values
        kernels += 1 + steps * (len(of_states) + 1)
    return Work(matrix_bytes=size * matrix, bytes=size * others, kernels=kernels)


def backward_moved(stream: Tensor, states: Any, weights: list[Tensor], *rest: Any) -> Work:
    """Return what the backward call moves: as the forward call, and the gradients of weights."""
    matrices = [one.shape for one in weights if one.ndim == 2]
    positions = prod(stream.shape[:2])
    of_weights = stream.element_size() * sum(_product(positions, one) for one in matrices)
    added = Work(matrix_bytes=of_weights, kernels=len(matrices))
    return forward_moved(stream, states, weights, *rest) + added


def _matrices(weights: Sequence[Shape], per_layer: int) -> Iterator[list[Shape]]:
    """Yield the matrices of every layer in every direction: of inputs, then of states."""
    for start in range(0, len(weights), per_layer):
        yield [one for one in weights[start : start + per_layer] if len(one) == 2]


def _product(positions: int, matrix: Shape, readings: int = 1) -> int:
    """Return the values that products of a matrix with all positions read and write."""
    return readings * prod(matrix) + positions * sum(matrix)


def _forward_flops(stream: Shape, states: Any, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    return 2 * prod(stream[:2]) * sum(prod(one) for one in weights if len(one) == 2)


def _backward_flops(*inputs: Any, **options: Any) -> int:
    return 2 * _forward_flops(*inputs, **options)


def _cpu_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _cpu_attention_backward(out: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(out, query, key, value))


# What torch's own counter leaves out, by shapes: the fused attention of CPUs, recurrent layers.
FLOPS = {
    torch.ops.ddlnb.sequence: _forward_flops,
    torch.ops.ddlnb.sequence_backward: _backward_flops,
    aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
}
MOVED: dict[Any, Callable[..., Work]] = {
    torch.ops.ddlnb.sequence: forward_moved,
    torch.ops.ddlnb.sequence_backward: backward_moved,
}


def takes_winograd(operation: Any, arguments: Sequence[Any]) -> bool:
    """Return whether an operation is a convolution of this kind, forward or backward.

    >>> import torch
    >>> image, filters = torch.ones(1, 64, 8, 8), torch.ones(64, 64, 3, 3)
    >>> rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0])
    >>> [takes_winograd(torch.ops.aten.convolution, (image, filters, *rest, n)) for n in (1, 2)]
    [True, False]
    """
    if operation not in FILTER:
        return False
    _, stride, _, dilation, transposed, _, groups, *_ = arguments[FILTER[operation] + 1 :]
    outputs, inputs, *size = arguments[FILTER[operation]].shape
    return (
        size == [3, 3]
        and all(one == 1 for one in (*stride, *dilation, groups))
        and not transposed
        and min(outputs, inputs) >= FEW_CHANNELS
    )


class TrafficCounter(TorchDispatchMode):
    """Adds up the work of operations, but for their FLOPs, which torch has a counter for.

    >>> import torch
    >>> with TrafficCounter() as counter:
    ...     values = torch.ones(10, device="meta").relu().view(2, 5)
    ...     _ = values @ torch.ones(5, 3, device="meta")
    >>> counter.work.bytes, counter.work.matrix_bytes, counter.work.operations
    (180.0, 124.0, 4.0)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what it moves."""
        result = func(*args, **(kwargs or {}))
        if not _is_view(func):
            self.work += Work(operations=1) + _moved(func.overloadpacket, args, kwargs, result)
        return result


def _moved(operation: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> Work:
    """Return the bytes and kernels of an operation, and the FLOPs that are fewer by Winograd."""
    if operation in MOVED:
        return MOVED[operation](*args)
    size = sum(one.nbytes for one in tree_leaves((args, kwargs, result)) if isinstance(one, Tensor))
    if operation not in flop_registry and operation not in FLOPS:
        return Work(bytes=size)
    is_faster = takes_winograd(operation, args)
    flops = flop_registry[operation](*args, out_val=result) if is_faster else 0
    return Work(matrix_bytes=size, winograd_flops=flops)


def _is_view(func: Any) -> bool:
    """Return whether the result is the memory of an argument, and nothing is written."""
    returns = func._schema.returns
    return func.overloadpacket.__name__ in VIEWS_UNDECLARED or any(
        one.alias_info is not None and not one.alias_info.is_write for one in returns
    )


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
        self.live = self.peak = 0
        self._held: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what it makes."""
        result = func(*args, **(kwargs or {}))
        before = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            self._note(storage, before)
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


def _storages(values: Any) -> list[Any]:
    return [one.untyped_storage() for one in tree_leaves(values) if isinstance(one, Tensor)]


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
        names = ("query", "key", "value")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key, value = (given[name] for name in names)
        if query.ndim != 4:
            return func(*args, **kwargs)
        key, value = each_with_its_own(query, key, value)
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(query, key, value, None, True)[0]


def each_with_its_own(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values for each head of the queries, where several share them."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return key, value
    return key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)


def peak_bytes(task: Task, module: nn.Module, samples: int) -> int:
    """Return the most that a forward and a backward pass on the meta device hold at a time.

    Parameters, samples and gradients are not in it.
    """
    held_as = next(module.parameters()).dtype
    batch = tuple(
        part.to("meta", held_as if part.is_floating_point() else part.dtype)
        for part in task.batch(samples, 0)
    )
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
