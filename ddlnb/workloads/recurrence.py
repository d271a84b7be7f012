"""Recurrent layers as GPUs run them: one call of a library for all steps of a sequence.

Without a GPU torch takes `nn.LSTM`, `nn.GRU` and `nn.RNN` apart: the host hands over every small
operation of every step, and the gradients of weights are added up in memory once a step. cuDNN gets
the sequence as a whole, and so does the trace:

- one product of the inputs of all steps with their weights;
- in every step one product of the state with the recurrent weights, which are read again, and one
  kernel for everything else;
- backward the same with the gradients, and one product over all steps for every matrix of weights.

Kernels that keep recurrent weights on the chip from step to step exist (persistent ones), but torch
takes them for few shapes and in half precision only. Where the weights fit into a GPU's second
cache, reading them again is faster than counted here.

Source: J. Appleyard, T. Kocisky, P. Blunsom, "Optimizing performance of recurrent neural networks
on GPUs", arXiv 1604.01946, 2016, section 3; cuDNN API, CUDNN_RNN_ALGO_STANDARD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
# What the kernel of a step reads and writes: both products and what backward needs of the gates;
# the states before, the states after, the outputs.
GATES_MOVED, STATES_MOVED = 3, 3
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
        kwargs = kwargs or {}
        if func not in RECURRENT or _is_packed(args) or _has_values(args[2][0]):
            return func(*args, **kwargs)
        stream, states, weights, _, layers, _, _, is_bidirectional, is_batch_first = args
        ways = 2 if is_bidirectional else 1
        states = [states] if isinstance(states, Tensor) else list(states)
        per_layer = len(weights) // (layers * ways)
        return tuple(sequence(stream, states, list(weights), per_layer, ways, is_batch_first))


def _has_values(weights: Tensor) -> bool:
    return not (weights.is_meta or isinstance(weights, FakeTensor))


def _is_packed(arguments: Sequence[Any]) -> bool:
    """Return whether samples have lengths of their own, after which states and weights stand."""
    return isinstance(arguments[3], list | tuple)


@torch.library.custom_op("ddlnb::sequence", mutates_args=())
def sequence(
    stream: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    per_layer: int,
    ways: int,
    is_batch_first: bool,
) -> list[Tensor]:
    """Return the outputs of the last layer and the states after the last step, without values.

    ``per_layer`` are the tensors of weights that a layer has in one of its one or two ``ways``.
    """
    raise NotImplementedError("ddlnb::sequence counts work, and computes no values")


@sequence.register_fake
def _shapes(
    stream: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    per_layer: int,
    ways: int,
    is_batch_first: bool,
) -> list[Tensor]:
    outputs = stream.new_empty((*stream.shape[:2], ways * states[0].shape[-1]))
    return [outputs, *(torch.empty_like(one) for one in states)]


@torch.library.custom_op("ddlnb::sequence_backward", mutates_args=())
def sequence_backward(
    stream: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    per_layer: int,
    ways: int,
    is_batch_first: bool,
) -> list[Tensor]:
    """Return the gradients of the inputs, the states and the weights, without values."""
    raise NotImplementedError("ddlnb::sequence_backward counts work, and computes no values")


@sequence_backward.register_fake
def _gradient_shapes(
    stream: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    per_layer: int,
    ways: int,
    is_batch_first: bool,
) -> list[Tensor]:
    return [torch.empty_like(one) for one in (stream, *states, *weights)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.inputs = inputs


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    states = len(ctx.inputs[1])
    of_stream, *others = sequence_backward(*ctx.inputs)
    return of_stream, others[:states], others[states:], None, None, None


sequence.register_autograd(_backward, setup_context=_keep)


@dataclass(frozen=True)
class Moved:
    """Bytes of products and of everything else, and kernels that the library launches."""

    matrix_bytes: int
    bytes: int
    kernels: int


def forward_moved(
    stream: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    per_layer: int,
    ways: int,
    is_batch_first: bool,
) -> Moved:
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
    return Moved(size * matrix, size * others, kernels)


def backward_moved(
    stream: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    per_layer: int,
    ways: int,
    is_batch_first: bool,
) -> Moved:
    """Return what the backward call moves: as the forward call, and the gradients of weights."""
    again = forward_moved(stream, states, weights, per_layer, ways, is_batch_first)
    matrices = [one.shape for one in weights if one.ndim == 2]
    positions = prod(stream.shape[:2])
    of_weights = stream.element_size() * sum(_product(positions, one) for one in matrices)
    return Moved(again.matrix_bytes + of_weights, again.bytes, again.kernels + len(matrices))


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


FLOPS = {
    torch.ops.ddlnb.sequence: _forward_flops,
    torch.ops.ddlnb.sequence_backward: _backward_flops,
}  # by shapes, in the form that torch's counter takes
MOVED: dict[Any, Callable[..., Moved]] = {
    torch.ops.ddlnb.sequence: forward_moved,
    torch.ops.ddlnb.sequence_backward: backward_moved,
}
