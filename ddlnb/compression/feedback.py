"""Error feedback: what was not sent is kept and added to the next tensor.

Source: Seide et al. 2014; Karimireddy et al. 2019 (arXiv 1901.09847). It costs as much memory as
the gradient on every worker.

What is kept is gradient, as Seide et al. have it. Algorithm 1 of Karimireddy et al. keeps updates,
gradients times the learning rate of their step. At a constant rate the two are equal; under a
schedule what is sent late moves the model here by the rate of the step at which it arrives.
"""

from __future__ import annotations

from torch import Tensor

from ddlnb.compression.base import Averaged, Codec, Compressor, Memory, Round
from ddlnb.plans.requests import Flow

RESIDUAL = "residual"


def average_with_feedback(
    compressor: Compressor, tensor: Tensor, round_: Round, memory: Memory
) -> Flow:
    """As ``compressor.average``, of the tensor and the residual; what is not sent is kept.

    At every moment the sum of what was sent and the residual is the sum of the tensors.
    """
    corrected = tensor + memory[RESIDUAL] if RESIDUAL in memory else tensor
    averaged: Averaged = yield from compressor.average(corrected, round_, memory)
    memory[RESIDUAL] = corrected - averaged.sent
    return averaged


def encode_with_feedback(codec: Codec, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
    """The payload of the tensor and the residual; what it does not stand for is kept."""
    corrected = tensor + memory[RESIDUAL] if RESIDUAL in memory else tensor
    payload = codec.encode(corrected, round_, memory)
    memory[RESIDUAL] = corrected - codec.decode(payload, tensor.numel()).view_as(tensor)
    return payload
