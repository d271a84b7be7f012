"""Compression: its bits, its losses, its traffic, and how it learns (3.1.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import Tensor

from ddlnb.compression.base import RESIDUAL, Codec, Compressor, Memory, Round, average_with_feedback
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.profile import CompressionProfile, compression_profile
from ddlnb.compression.random_k import RandomK
from ddlnb.compression.top_k import TopK
from ddlnb.errors import NotFinite, require, require_whole
from ddlnb.figures.style import (
    GREY,
    PALETTE,
    doubling_axis,
    legend,
    legend_mark,
    line_look,
    names_down,
    say_source,
    short,
    styled,
)
from ddlnb.plans.requests import AllGather, AllReduce, answer_together, lockstep
from ddlnb.survey.items import Rows, tabled, with_half_widths
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.training.cost.requests import compression_ratio, requests, traffic_table
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.runs.compare import Comparison
from ddlnb.training.runs.summaries import judged
from ddlnb.training.settings import training_settings
from ddlnb.units import MB, MS
from ddlnb.workloads.workload import read_profile

COMPARED = (
    *("fp16", "bf16", "signsgd", "ef-sign", "qsgd(127)", "qsgd(7)", "terngrad"),
    *("top-k(0.01)", "top-k(0.001)", "gtop-k(0.001)", "random-k(0.01)", "dgc(0.001)"),
    *("powersgd(1)", "powersgd(4)"),
)
SIDE = 1024  # of the square matrix whose bits are counted
MEGA = 1_000_000
GATHERED = 8  # workers whose payloads are decoded


def compressors_named(names: Iterable[str]) -> list[Compressor]:
    """Return the compressors of these names, without those that mean none."""
    return [one for one in map(get_compressor, names) if one is not None]


@tabled(index=["compressor"], digits=3)
def compressor_table(
    compressors: Iterable[str] = COMPARED,
    profile: str | CompressionProfile = "cpu-1thread",
    side: int = SIDE,
    seed: int = 0,
) -> Rows:
    """Return bits per coordinate as serialised, ratios and seconds, one row per compressor.

    Bits are those of a message of a square matrix of normal numbers; the entropy is that of what
    its codes stand for, in bits per coordinate: what no coding of single values can go below (NaN
    where a message is no string of codes). Milliseconds are per million coordinates on this
    profile; decoding is of the payloads of GATHERED workers.
    """
    profile = compression_profile(profile)
    tensor = torch.randn(side, side, generator=torch.Generator().manual_seed(seed))
    for compressor in compressors_named(compressors):
        bits = 8 * message_bytes(compressor, tensor) / tensor.numel()
        seconds = profile.of(compressor)
        yield {
            "compressor": str(compressor),
            "feedback": compressor.feedback,
            "bits": bits,
            "ratio": 32 / bits,
            "expected": str(compressor.quoted_ratio((side, side)) or "-"),
            "entropy (bits)": entropy_bits(compressor, tensor),
            "encode (ms)": seconds.before(MEGA) / MS,
            "decode (ms)": seconds.after(MEGA, GATHERED) / MS,
        }


def message_bytes(compressor: Compressor, tensor: Tensor) -> int:
    """Return the bytes that one worker makes of its own tensor, counted on what it asks for.

    Counted are all tensors to reduce, payloads to gather and messages of the second of two workers.
    """
    flows = [compressor.average(tensor, Round(rank, 2, 0), {}) for rank in range(2)]
    requests, counted = [next(flow) for flow in flows], 0
    try:
        while True:
            counted += _request_bytes(requests[1])
            answers = answer_together(requests)
            requests = [flow.send(answer) for flow, answer in zip(flows, answers, strict=True)]
    except StopIteration:
        return counted


def entropy_bits(compressor: Compressor, tensor: Tensor) -> float:
    """Return the entropy of single values of what a codec's payload stands for, in bits.

    It is NaN for what is no codec, and for payloads of entries and their indices, which do not
    stand for a string of codes.
    """
    if not isinstance(compressor, Codec) or isinstance(compressor, TopK | RandomK):
        return math.nan
    payload = compressor.encode(tensor, Round(0, 1, 0), {})
    values = compressor.decode(payload, tensor.numel())
    counts = values.unique(return_counts=True)[1].double()
    shares = counts / counts.sum()
    return abs(float(-(shares * shares.log2()).sum()))


def _request_bytes(request: Any) -> int:
    if isinstance(request, AllReduce):
        return int(request.tensor.nbytes)
    if isinstance(request, AllGather):
        return len(request.payload)
    return sum(len(payload) for payload in request.outgoing.values())


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
    gradients = (worker.gradient().clone() for _ in range(count))
    return [
        tuple(flat[start:stop].view(shape) for start, stop, shape in worker.pieces)
        for flat in gradients
    ]


def normal_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors of these shapes, of normally distributed numbers."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(tensor.shape, generator=generator) for tensor in tensors)


@tabled()
def compression_errors(
    tensors: Sequence[Tensor],
    what: str,
    compressors: Iterable[str] = COMPARED,
    draws: int = 30,
) -> Rows:
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
    for compressor in compressors_named(compressors):
        bounds = [compressor.error_bound(tensor) for tensor in tensors]
        sent = [
            torch.stack([_alone(compressor, tensor, draw) for draw in range(draws)])
            for tensor in tensors
        ]
        pairs = list(zip(sent, tensors, strict=True))
        lost = sum(_squares(drawn - tensor) / draws for drawn, tensor in pairs)
        biased = sum(_squares(drawn.double().mean(0) - tensor) for drawn, tensor in pairs)
        bound = sum(one.loss * size for one, size in zip(bounds, squares, strict=True))
        yield {
            "compressor": str(compressor),
            "on": what,
            "law": " and ".join(sorted({one.law for one in bounds})),
            "loss": lost / sum(squares),
            "bound": bound / sum(squares),
            "exact": all(one.exact for one in bounds),
            "left": biased / lost if lost else math.nan,
            "draws": draws,
            "formula": bounds[0].formula,
            "source": "measured",
        }


def errors_of_digits(gradient: Sequence[Tensor], draws: int = 30) -> pd.DataFrame:
    """Return `compression_errors` of a gradient of digits, and of normal numbers like it."""
    inputs = {"gradient of digits": gradient, "normal numbers": normal_like(gradient)}
    return pd.concat(
        [compression_errors(tensors, what, draws=draws) for what, tensors in inputs.items()]
    )


@tabled("compressor", "step", "residual", source="measured")
def residual_growth(compressors: Iterable[str], gradients: Sequence[Tensor]) -> Rows:
    """Return what error feedback keeps, step by step, while one worker is fed these gradients.

    Columns: compressor, step, residual (its norm over the root mean square of the gradients'
    norms), source. A compressor that on average loses more than it is given adds up errors; its
    rows end where float32 does. Raises InputError for compressors that refuse feedback.
    """
    norm = math.sqrt(sum(_squares(gradient) for gradient in gradients) / len(gradients))
    require(norm > 0, "gradients of zeros leave no residual")
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
            yield str(compressor), step + 1, math.sqrt(_squares(memory[RESIDUAL])) / norm


def _alone(compressor: Compressor, tensor: Tensor, draw: int) -> Tensor:
    """Return what a single worker gets back."""
    [averaged] = lockstep([compressor.average(tensor, Round(0, 1, draw), {})])
    return averaged.average


def _squares(tensor: Tensor) -> float:
    return tensor.double().square().sum().item()


PROFILE = "resnet50_b64_rtx2080ti"
DRAWN = (
    *("ef-sign", "qsgd(127)", "terngrad", "top-k(0.1)", "top-k(0.01)", "top-k(0.001)"),
    *("gtop-k(0.001)", "random-k(0.001)", "powersgd(4)"),
)


def traffic_of_resnet50(workers: Sequence[int]) -> pd.DataFrame:
    """Return the bytes that a worker sends per iteration of ResNet-50, by compressor."""
    named = dict(zip(DRAWN, compressors_named(DRAWN), strict=True))
    return traffic_table(read_profile(PROFILE), named, workers)


def traffic_claims(elements: int = 25_000_000, workers: int = 32) -> pd.DataFrame:
    """Return what is expected of the traffic of one vector, beside what our requests make of it.

    One row per claim: claim, expected, tag, computed; both numbers are ratios to a dense ring. Of
    those with the tag [d] the formula is derived here.
    """
    shape, n = [(elements,)], workers
    top, tree, sign = compressors_named(["top-k(0.001)", "gtop-k(0.001)", "ef-sign"])
    (even,) = compressors_named([f"top-k({1 / n!r})"])
    payload = requests(top, shape, n)[0].bytes
    sign_payload = requests(sign, shape, n)[0].bytes
    gathered, up_the_tree = 1000 / n, 1000 * (n - 1) / n / math.log2(n)
    of_top, of_tree = compression_ratio(top, shape, n), compression_ratio(tree, shape, n)
    of_even, of_sign = compression_ratio(even, shape, n), compression_ratio(sign, shape, n)
    rows = [
        ("top-k(0.001), one message: D / 2k", 500.0, "[d]", 4 * elements / payload),
        (f"top-k(0.001) gathered, {n} workers: D / nk", gathered, "[d]", of_top),
        (f"top-k(1/{n}) gathered, {n} workers", 1.0, "[d]", of_even),
        (f"gtop-k(0.001), {n} workers, up the tree only", up_the_tree, "[d]", 2 * of_tree),
        (f"gtop-k(0.001), {n} workers, and back down", up_the_tree / 2, "[d]", of_tree),
        ("signs, one message", 32.0, "[A s.3.1.3]", 4 * elements / sign_payload),
        (f"signs gathered, {n} workers: 64 / n", 64 / n, "[d]", of_sign),
    ]
    return pd.DataFrame(rows, columns=["claim", "expected", "tag", "computed"])


def learning_table(learnt: Comparison) -> pd.DataFrame:
    """Return rate, final loss with its interval, diverged runs and traffic, one row per method."""
    found = learnt.summary().set_index("method")
    table = with_half_widths(found, "test_loss")
    table.insert(0, "learning rate", found["learning_rate"].round(4))
    megabytes = (found["bytes"] / MB).round(3)
    return table.assign(**{"diverged": found["diverged"], "traffic per worker (MB)": megabytes})


def orderings_table(curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per ordering of two methods of these curves, with its verdict, to be read.

    Curves of one seed decide none: they have one row that says so.
    """
    if curves["seed"].nunique() < 2:
        return pd.DataFrame({"verdict": ["undecided: one seed says nothing of others; take two"]})
    found = judged(curves).drop(columns=["source"])
    return found.round(4).rename(columns={"why": "said to be because of"})


@styled
def lossy_traffic(table: pd.DataFrame) -> plt.Figure:
    """Bytes per worker and iteration against the workers, by compressor; the dense ring is thick.

    ``table`` is a `traffic_table`. Both axes are logarithmic. Lines that rise in proportion to the
    workers are all-gathers.
    """
    figure, ax = plt.subplots(figsize=(8.5, 5.0))
    names = sorted(table["compressor"].unique(), key=lambda name: name != "none")  # stable
    for number, name in enumerate(names, start=0 if names[0] == "none" else 1):
        part = table[table["compressor"] == name].sort_values("workers")
        look = {"linewidth": 3, "label": "dense ring"} if name == "none" else {"label": short(name)}
        look |= line_look(number) | {"marker": "o", "markersize": 4}
        ax.plot(part["workers"], part["bytes"] / MB, **look)
    ax.set_yscale("log")
    doubling_axis(ax, sorted(table["workers"].unique()))
    ax.set(
        xlabel="workers",
        ylabel="MB per worker and iteration",
        title=f"{table['model'].iloc[0]}: what is gathered grows with the workers",
    )
    legend(figure)
    return say_source(figure, table, "requests of each compressor, tensor by tensor")


MARKERS = ("o", "s", "^", "D")


@styled
def compression_losses(table: pd.DataFrame) -> plt.Figure:
    """The share of the squared norm that each compressor loses, and in grey its bound.

    ``table`` is one or several of `compression_errors`, one colour for each that was compressed.
    Beyond the dashed line more is lost than there was.
    """
    names, inputs = list(table["compressor"].unique()), list(table["on"].unique())
    figure, ax = plt.subplots(figsize=(8.0, 1.6 + 0.32 * len(names)))
    apart = 0.5 / len(inputs)
    for number, what in enumerate(inputs):
        part = table[table["on"] == what].set_index("compressor").reindex(names)
        lines = [line + (number - (len(inputs) - 1) / 2) * apart for line in range(len(names))]
        bounds = [bound if math.isfinite(bound) else math.nan for bound in part["bound"]]
        ax.plot(bounds, lines, "|", color=GREY, markersize=11, markeredgewidth=2)
        colour, marker = PALETTE[number + 1], MARKERS[number % len(MARKERS)]
        ax.plot(part["loss"], lines, marker, color=colour, markersize=6, label=what)
    ax.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    ax.set_xscale("log")
    names_down(ax, [short(name) for name in names], ruled=True)
    ax.set_xlabel("mean squared error over squared norm, one round without memory")
    handles, _ = ax.get_legend_handles_labels()
    handles.append(legend_mark(GREY, "|", "bound", markersize=11))
    legend(figure, handles, "upper center", columns=4)
    return say_source(figure, table, "tensor by tensor; no mark: no bound")


@styled
def feedback_residuals(table: pd.DataFrame) -> plt.Figure:
    """What error feedback keeps back, step by step, by compressor.

    ``table`` is from `residual_growth`.
    """
    figure, ax = plt.subplots(figsize=(8.0, 4.2))
    for number, (name, rows) in enumerate(table.groupby("compressor", sort=False)):
        ax.plot(rows["step"], rows["residual"], label=short(str(name)), **line_look(number))
    ax.set(yscale="log", xlabel="step", ylabel="norm of the residual over that of a gradient")
    legend(figure)
    return say_source(figure, table, "one worker, fed gradient after gradient")
