"""The error of one round of a compressor with its bound, and what error feedback keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd
import torch
from torch import Tensor

from ddlnb.compression.base import Compressor, Memory, Round
from ddlnb.compression.feedback import RESIDUAL, average_with_feedback
from ddlnb.errors import NotFinite, require, require_whole
from ddlnb.plans.requests import lockstep
from ddlnb.studies.sec3_1_3_compression.messages import COMPARED, compressors_named
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.settings import training_settings

FED = (
    *("ef-sign", "top-k(0.01)", "random-k(0.01)", "powersgd(4)"),
    *("qsgd(127)", "qsgd(7)", "qsgd(7, 49)", "terngrad"),
)


def digits_gradients(after: int = 20, count: int = 1) -> list[tuple[Tensor, ...]]:
    """Return gradients of the digits task, a tuple of tensors for each of ``count`` batches.

    They are those of one worker after ``after`` steps of plain SGD; from then on its parameters
    stay as they are.
    """
    require_whole(0, after=after)
    require_whole(count=count)
    job = training_settings("digits", "bsp", workers=1, steps=max(1, after)).job()
    worker = job.worker(0)
    if after:
        Lockstep([worker], job.method.synchronisation.loop, after).run()
    found = []
    for _ in range(count):
        flat = worker.gradient().clone()
        found.append(tuple(flat[a:b].view(shape) for a, b, shape in worker.pieces))
    return found


def normal_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors of these shapes, of normally distributed numbers."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(tensor.shape, generator=generator) for tensor in tensors)


def compression_errors(
    tensors: Sequence[Tensor],
    what: str,
    compressors: Iterable[str] = COMPARED,
    draws: int = 30,
) -> pd.DataFrame:
    """Return what compressors lose of the squared norm of these tensors, beside the bounds.

    Each tensor is compressed on its own, without memory, ``draws`` times. ``loss`` is the mean,
    ``bound`` what theory says (`Compressor.error_bound`, weighted with squared norms), and ``left``
    the share of the loss that remains when the draws are averaged: 1/draws for what is unbiased, 1
    for what draws nothing. Raises InputError if all tensors are zero.
    """
    require_whole(2, draws=draws)
    tensors = [tensor for tensor in tensors if tensor.abs().max() > 0]
    require(bool(tensors), "there is nothing to lose in tensors of zeros")
    squares = [_squares(tensor) for tensor in tensors]
    rows = []
    for compressor in compressors_named(compressors):
        bounds = [compressor.error_bound(tensor) for tensor in tensors]
        lost, biased = 0.0, 0.0
        for tensor in tensors:
            sent = torch.stack([_alone(compressor, tensor, draw) for draw in range(draws)])
            lost += _squares(sent - tensor) / draws
            biased += _squares(sent.double().mean(0) - tensor)
        bound = sum(one.loss * size for one, size in zip(bounds, squares, strict=True))
        laws = {one.law for one in bounds}
        rows.append(
            {
                "compressor": str(compressor),
                "on": what,
                "law": " and ".join(sorted(laws)),
                "loss": lost / sum(squares),
                "bound": bound / sum(squares),
                "exact": all(one.exact for one in bounds),
                "left": biased / lost if lost else math.nan,
                "draws": draws,
                "formula": bounds[0].formula,
                "source": "measured",
            }
        )
    return pd.DataFrame(rows)


def errors_of_digits(gradient: Sequence[Tensor], draws: int = 30) -> pd.DataFrame:
    """Return `compression_errors` of a gradient of digits, and of normal numbers like it."""
    inputs = {"gradient of digits": gradient, "normal numbers": normal_like(gradient)}
    return pd.concat(
        [compression_errors(tensors, what, draws=draws) for what, tensors in inputs.items()]
    )


def error_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return `compression_errors` by compressor and input, to be read."""
    table = errors.set_index(["compressor", "on"])
    numbers = table[["loss", "bound", "left"]].map("{:.3g}".format)
    return table[["law", "formula", "exact"]].join(numbers)


def residuals_of_digits(gradients: Sequence[Sequence[Tensor]]) -> pd.DataFrame:
    """Return the `residual_growth` of FED on the largest tensor of every gradient."""
    return residual_growth(FED, [max(tensors, key=Tensor.numel) for tensors in gradients])


def residual_growth(compressors: Iterable[str], gradients: Sequence[Tensor]) -> pd.DataFrame:
    """Return what error feedback keeps, step by step, while one worker is fed these gradients.

    Columns: compressor, step, residual (its norm over the root mean square of the gradients'
    norms), source. A compressor that on average loses more than it is given adds up errors; its
    rows end where float32 does. Raises InputError for compressors that refuse feedback.
    """
    norm = math.sqrt(sum(_squares(gradient) for gradient in gradients) / len(gradients))
    require(norm > 0, "gradients of zeros leave no residual")
    rows = []
    for compressor in compressors_named(compressors):
        require(
            compressor.feedback != "refused",
            f"{compressor} has no error feedback: {compressor.why_no_feedback}",
        )
        memory: Memory = {}
        for step, gradient in enumerate(gradients):
            try:
                lockstep([average_with_feedback(compressor, gradient, Round(0, 1, step), memory)])
            except NotFinite:  # beyond float32
                break
            kept = math.sqrt(_squares(memory[RESIDUAL])) / norm
            rows.append((str(compressor), step + 1, kept))
    frame = pd.DataFrame(rows, columns=["compressor", "step", "residual"])
    return frame.assign(source="measured")


def _alone(compressor: Compressor, tensor: Tensor, draw: int) -> Tensor:
    """Return what a single worker gets back."""
    (averaged,) = lockstep([compressor.average(tensor, Round(0, 1, draw), {})])
    average: Tensor = averaged.average
    return average


def _squares(tensor: Tensor) -> float:
    return tensor.double().square().sum().item()
