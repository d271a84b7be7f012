"""Error feedback: what was not sent is kept and added to the next tensor.

Source: Seide et al. 2014; Karimireddy et al. 2019 (arXiv 1901.09847). It costs as much memory as
the gradient on every worker.

The residual is a gradient, as in Seide et al. Algorithm 1 of Karimireddy et al. keeps an update, a
gradient times the learning rate of its step. At a constant rate the two are equal; under a
schedule, what is sent late moves the model here by the rate of the step in which it arrives.
"""

from __future__ import annotations

from torch import Tensor

from ddlnb.compression.base import Averaged, Codec, Compressor, Memory, Round
from ddlnb.plans.requests import Flow

RESIDUAL = "residual"


def average_with_feedback(
    compressor: Compressor, tensor: Tensor, round_: Round, memory: Memory
) -> Flow:
    """Average the tensor plus the residual as the compressor does, and keep what is not sent.

    At every moment what was sent and the residual add up to the sum of the tensors.
    """
    corrected = tensor + memory[RESIDUAL] if RESIDUAL in memory else tensor
    averaged: Averaged = yield from compressor.average(corrected, round_, memory)
    memory[RESIDUAL] = corrected - averaged.sent
    return averaged


def encode_with_feedback(codec: Codec, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
    """Return the payload of the tensor plus the residual, and keep what it does not hold."""
    corrected = tensor + memory[RESIDUAL] if RESIDUAL in memory else tensor
    payload = codec.encode(corrected, round_, memory)
    memory[RESIDUAL] = corrected - codec.decode(payload, tensor.numel()).view_as(tensor)
    return payload
