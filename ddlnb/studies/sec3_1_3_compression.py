"""What compressors take, lose and save: bits, errors beside their bounds, residuals, traffic.

Every number is made by running the compressors, which also declare what is quoted of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddlnb.compression.base import Codec, Compressor, Memory, Round
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.feedback import RESIDUAL, average_with_feedback
from ddlnb.compression.profile import CompressionProfile, compression_profile
from ddlnb.compression.random_k import RandomK
from ddlnb.compression.top_k import TopK
from ddlnb.errors import NotFinite, require, require_whole
from ddlnb.paths import DATA
from ddlnb.plans.requests import AllGather, AllReduce, Flow, lockstep
from ddlnb.training.cost.traffic import compression_ratio, requests
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.runs.orderings import judged
from ddlnb.training.settings import training_settings
from ddlnb.units import MS

if TYPE_CHECKING:
    import pandas as pd


def traffic_claims(elements: int = 25_000_000, workers: int = 32) -> pd.DataFrame:
    """What is quoted about traffic, beside the ratio to a dense ring that our requests have.

    One row per claim: claim, quoted, tag, computed. Of one vector of so many elements.
    """
    import pandas as pd

    shape, n = [(elements,)], workers
    top, tree, sign = (_one(name) for name in ("top-k(0.001)", "gtop-k(0.001)", "ef-sign"))
    payload = requests(top, shape, n)[0].bytes
    sign_payload = requests(sign, shape, n)[0].bytes
    whole_tree = compression_ratio(tree, shape, n)
    rows = [
        ("top-k(0.001), one message: D / 2k", 500.0, "[d]", 4 * elements / payload),
        (
            f"top-k(0.001) gathered, {n} workers: D / nk",
            1000 / n,
            "[d]",
            compression_ratio(top, shape, n),
        ),
        (
            f"top-k(1/{n}) gathered, {n} workers",
            1.0,
            "[d]",
            compression_ratio(_one(f"top-k({1 / n!r})"), shape, n),
        ),
        (
            f"gtop-k(0.001), {n} workers, up the tree only",
            1000 * (n - 1) / n / math.log2(n),
            "[d]",
            2 * whole_tree,
        ),
        (
            f"gtop-k(0.001), {n} workers, with the way back",
            500 * (n - 1) / n / math.log2(n),
            "[d]",
            whole_tree,
        ),
        ("signs, one message", 32.0, "[A s.3.1.3]", 4 * elements / sign_payload),
        (
            f"signs gathered, {n} workers: 64 / n",
            64 / n,
            "[d]",
            compression_ratio(sign, shape, n),
        ),
    ]
    return pd.DataFrame(rows, columns=["claim", "quoted", "tag", "computed"])


def break_even(counts: Iterable[int], elements: int = 25_000_000) -> pd.DataFrame:
    """By the number of workers: the density at which top-k sends as much as a dense ring.

    Found from the ratio at a density of 0.001, to which it is in inverse proportion.
    """
    import pandas as pd

    top = _one("top-k(0.001)")
    rows = [(n, 0.001 * compression_ratio(top, [(elements,)], n), 1 / n) for n in counts]
    return pd.DataFrame(rows, columns=["workers", "density", "1 / n"]).set_index("workers")


def _one(name: str) -> Compressor:
    compressor = get_compressor(name)
    assert compressor is not None
    return compressor


COMPARED = (
    *("fp16", "bf16", "signsgd", "ef-sign", "qsgd(127)", "qsgd(7)", "terngrad"),
    *("top-k(0.01)", "top-k(0.001)", "gtop-k(0.001)", "random-k(0.01)", "dgc(0.001)"),
    *("powersgd(1)", "powersgd(4)"),
)
SIDE = 1024  # of the square matrix whose bits are counted
MEGA = 1_000_000
MEASURED = DATA / "measured"
GATHERED = 8  # workers whose payloads are decoded


def compressor_table(
    compressors: Iterable[str] = COMPARED,
    profile: str | CompressionProfile = "cpu-1thread",
    side: int = SIDE,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per compressor: bits per coordinate as serialised, quoted ratios, seconds.

    Bits are those of a message of a square matrix of normal numbers; ``entropy`` is that of what
    its codes stand for, in bits per coordinate: what no coding of single values can go below (NaN
    where a message is no string of codes). ``encode_ms`` and ``decode_ms`` are milliseconds per
    million coordinates on this profile, the latter with payloads of GATHERED workers.
    """
    import pandas as pd

    profile = compression_profile(profile)
    tensor = torch.randn(side, side, generator=torch.Generator().manual_seed(seed))
    rows = []
    for compressor in _all(compressors):
        bits = 8 * message_bytes(compressor, tensor) / tensor.numel()
        seconds = profile.of(compressor)
        rows.append(
            {
                "compressor": str(compressor),
                "feedback": compressor.feedback,
                "bits": bits,
                "ratio": 32 / bits,
                "quoted": str(compressor.quoted_ratio((side, side)) or "-"),
                "entropy": entropy_bits(compressor, tensor),
                "encode_ms": seconds.before(MEGA) / MS,
                "decode_ms": seconds.after(MEGA, GATHERED) / MS,
            }
        )
    return pd.DataFrame(rows).set_index("compressor")


def message_bytes(compressor: Compressor, tensor: Tensor) -> int:
    """Bytes that one worker makes of its own tensor, counted on what it really asks for.

    All tensors to reduce, payloads to gather and messages of the second of two workers.
    """
    counted: list[int] = []
    flows = [compressor.average(tensor, Round(rank, 2, 0), {}) for rank in range(2)]
    lockstep([flows[0], _counted(flows[1], counted)])
    return sum(counted)


def entropy_bits(compressor: Compressor, tensor: Tensor) -> float:
    """The entropy of single values of what a codec's payload stands for; NaN for other ones.

    NaN also for payloads of entries and their places, which do not stand for a string of codes.
    """
    if not isinstance(compressor, Codec) or isinstance(compressor, TopK | RandomK):
        return math.nan
    payload = compressor.encode(tensor, Round(0, 1, 0), {})
    values = compressor.decode(payload, tensor.numel())
    counts = values.unique(return_counts=True)[1].double()
    shares = counts / counts.sum()
    return abs(float(-(shares * shares.log2()).sum()))


def digits_gradients(after: int = 20, count: int = 1, seed: int = 0) -> list[tuple[Tensor, ...]]:
    """Gradients of the digits task, a tuple of tensors for each of so many further batches.

    Of one worker with plain SGD, after so many steps; parameters then stay as they are.
    """
    require_whole(0, after=after, seed=seed)
    require_whole(count=count)
    job = training_settings("digits", "bsp", workers=1, steps=max(1, after), seed=seed).job()
    worker = job.worker(0)
    if after:
        Lockstep([worker], job.method.synchronisation.loop, after).run()
    found = []
    for _ in range(count):
        flat = worker.gradient().clone()
        found.append(tuple(flat[a:b].view(shape) for a, b, shape in worker.pieces()))
    return found


def normal_like(tensors: Sequence[Tensor], seed: int = 0) -> tuple[Tensor, ...]:
    """Tensors of these shapes, of normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(tensor.shape, generator=generator) for tensor in tensors)


def compression_errors(
    tensors: Sequence[Tensor],
    what: str,
    compressors: Iterable[str] = COMPARED,
    draws: int = 30,
) -> pd.DataFrame:
    """One row per compressor: what it loses of the squared norm of these tensors, and the bound.

    Each tensor is compressed on its own, without memory, ``draws`` times. ``loss`` is the mean,
    ``bound`` what theory says (`Compressor.error_bound`, weighted with squared norms), and
    ``left`` the share of the loss that stays when the draws are averaged: 1/draws without bias, 1 for those that draw
    nothing. Raises InputError if all tensors are zero.
    """
    import pandas as pd

    require_whole(2, draws=draws)
    tensors = [tensor for tensor in tensors if tensor.abs().max() > 0]
    require(bool(tensors), "there is nothing to lose in tensors of zeros")
    squares = [_squares(tensor) for tensor in tensors]
    rows = []
    for compressor in _all(compressors):
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


def residual_growth(compressors: Iterable[str], gradients: Sequence[Tensor]) -> pd.DataFrame:
    """What error feedback keeps, step by step, of one worker that is fed these gradients in turn.

    Columns: compressor, step, residual (its norm over the root mean square of the gradients'
    norms), source. A compressor that loses more than it is given, in the mean, adds up errors; its
    rows end where float32 does. Raises InputError for compressors that refuse feedback.
    """
    import pandas as pd

    norm = math.sqrt(sum(_squares(gradient) for gradient in gradients) / len(gradients))
    require(norm > 0, "gradients of zeros leave no residual")
    rows = []
    for compressor in _all(compressors):
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


def _counted(flow: Flow, counted: list[int]) -> Flow:
    """The flow, with the bytes of what it asks for written down."""
    answer = None
    while True:
        try:
            request = flow.send(answer)
        except StopIteration as finished:
            return finished.value
        counted.append(_request_bytes(request))
        answer = yield request


def _request_bytes(request: Any) -> int:
    if isinstance(request, AllReduce):
        return int(request.tensor.numel() * request.tensor.element_size())
    if isinstance(request, AllGather):
        return len(request.payload)
    return sum(len(payload) for payload in request.outgoing.values())


def _alone(compressor: Compressor, tensor: Tensor, draw: int) -> Tensor:
    """What a single worker gets back."""
    (averaged,) = lockstep([compressor.average(tensor, Round(0, 1, draw), {})])
    average: Tensor = averaged.average
    return average


def _all(names: Iterable[str]) -> list[Compressor]:
    return [one for one in map(get_compressor, names) if one is not None]


def _squares(tensor: Tensor) -> float:
    return tensor.double().square().sum().item()


def kept_curves(folder: Path = MEASURED) -> pd.DataFrame | None:
    """The curves of the newest study of orderings that the folder holds; None without one."""
    import pandas as pd

    files = sorted(folder.glob("*orderings*/curves.csv"))
    return pd.read_csv(files[-1]) if files else None


def orderings_table(curves: pd.DataFrame, kept: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per ordering of two methods of these curves, and what kept curves say of it.

    ``verdict`` is that of `orderings.judged`, ``kept`` the verdict of the kept curves with
    ``kept_workers`` workers, one row for each number of them; "-" where they do not tell.
    """
    found = judged(curves).drop(columns=["source"]).rename(columns={"why": "said to be because of"})
    if kept is None:
        return found.assign(kept="-", kept_workers="-")
    pair = ["better", "worse"]
    then = judged(kept)[[*pair, "workers", "verdict"]]
    then = then.rename(columns={"verdict": "kept", "workers": "kept_workers"})
    both = found.merge(then.astype({"kept_workers": str}), on=pair, how="left")
    return both.fillna({"kept": "-", "kept_workers": "-"})
