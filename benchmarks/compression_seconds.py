"""Measure all compressors on this machine, and keep the seconds as a profile.

python -m benchmarks.compression_seconds [--threads 1] [--device cuda] [--also "top-k(0.001)"]
    [--write NAME]

Nothing is sent. All workers' flows are driven by hand, each with numbers of its own. What the first
worker spends before its first request and after it is its own time; what passes between a request
and its answer is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.command import command
from ddlnb.compression.base import Compressor, Memory, Round
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.profile import (
    CompressionProfile,
    CompressorSeconds,
    Line,
    beyond,
    grown,
    growth_of,
    write_compression_profile,
)
from ddlnb.errors import InputError, require, require_whole
from ddlnb.files import machine
from ddlnb.plans.requests import Flow, answer_together
from ddlnb.units import counted
from ddlnb.workloads.profiling import torch_threads

MILLION = 1_000_000
WHOLE = 25_000_000  # elements of a model


SIDES = (32, 128, 512, 1024, 4096)  # of square tensors: 1 Ki to 16 Mi elements
WORKERS = (2, 8)


@dataclass(frozen=True)
class Sample:
    """The fewest seconds that one of the workers took for one tensor."""

    compressor: str
    elements: int
    workers: int
    encode_seconds: float
    decode_seconds: float


def profile_compression(
    compressors: Iterable[str | Compressor] | None = None,
    *,
    sides: Sequence[int] = SIDES,
    workers: Sequence[int] = WORKERS,
    repeats: int = 5,
    threads: int | None = None,
    device: str = "cpu",
) -> CompressionProfile:
    """Measure compressors, by default all of the catalogue, and fit their seconds.

    Each is also measured in its form for whole models, if that differs. Tensors are squares with
    these sides, so that low ranks have something to find. A compressor that fails on the device is
    left out, with the reason. Raises InputError if there is no such device.
    """
    require_whole(repeats=repeats)
    require(len(set(sides)) >= 2, f"sides {list(sides)} must hold two different numbers")
    require(len(set(workers)) >= 2, f"workers {list(workers)} must hold two different numbers")
    require(min(workers) >= 2, f"workers {list(workers)} must be at least 2: one sends nothing")
    _require_device(device)
    asked = [kind() for kind in COMPRESSORS.values()] if compressors is None else compressors
    named = [one for one in map(get_compressor, asked) if one is not None]
    chosen = list(dict.fromkeys(form for one in named for form in (one, one.for_whole_model())))
    found: dict[str, CompressorSeconds] = {}
    left_out: dict[str, str] = {}
    samples: list[Sample] = []
    with torch_threads(threads), _on(device):
        for one in chosen:
            try:
                taken = [
                    measure(one, side, count, repeats, device)
                    for side in sides
                    for count in workers
                ]
            except (RuntimeError, TypeError, ValueError) as error:
                left_out[str(one)] = f"fails on {device}: {str(error).splitlines()[0]}"
                continue
            found[str(one)] = fit(taken, growth_of(one))
            samples += taken
        feedback = _fit_line([(side**2, _feedback(side, repeats, device)) for side in sides])
        source = _source(device)
    rows = tuple(asdict(sample) for sample in samples)
    return CompressionProfile(source, found, feedback, left_out, rows)


def measure(
    compressor: Compressor, side: int, workers: int, repeats: int = 5, device: str = "cpu"
) -> Sample:
    """Return the fewest seconds that worker 0 took for a square of normal numbers.

    Whatever else the machine does can only add to them, so the fewest are the best estimate.
    """
    tensors = [torch.randn(side, side) for _ in range(workers)]
    memories: list[Memory] = [{} for _ in range(workers)]
    taken = []
    for step in range(repeats + 1):  # the first one warms up
        flows = [
            compressor.average(tensor, Round(rank, workers, step), memory)
            for rank, (tensor, memory) in enumerate(zip(tensors, memories, strict=True))
        ]
        taken.append(_timed(flows, device))
    encode, decode = (min(part) for part in zip(*taken[1:], strict=True))
    return Sample(str(compressor), side * side, workers, encode, decode)


def fit(samples: Sequence[Sample], growth: str) -> CompressorSeconds:
    """Return the lines with the least squared relative error, no term negative."""
    encode = _fit_line([(one.elements, one.encode_seconds) for one in samples])
    elements = np.array([float(one.elements) for one in samples])
    times = np.array([float(grown(growth, one.workers)) for one in samples])
    terms = _terms(elements)
    seconds = np.array([one.decode_seconds for one in samples])
    found = _least_squares(np.hstack([terms, times[:, None] * terms]), seconds)
    return CompressorSeconds(encode, Line(*found[:3]), Line(*found[3:]), growth)


def _fit_line(points: Sequence[tuple[int, float]]) -> Line:
    elements, seconds = np.array(points, dtype=float).T
    return Line(*_least_squares(_terms(elements), seconds))


def _terms(elements: np.ndarray) -> np.ndarray:
    """Return what the numbers of a `Line` are multiplied by: a row for every tensor."""
    return np.stack([np.ones_like(elements), elements, [*map(beyond, elements)]], axis=1)


def _least_squares(columns: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return the numbers with the least squared relative error, none negative."""
    from scipy.optimize import nnls

    scales = columns.max(0)
    scales[scales == 0] = 1.0
    found, _ = nnls(columns / scales / seconds[:, None], np.ones_like(seconds))
    return (found / scales).tolist()


def _timed(flows: Sequence[Flow], device: str) -> tuple[float, float]:
    """Return the seconds of the first flow before its first request, and after it.

    It gets its answers first, before other flows have made anything of them.
    """
    answers: list[Any] = [None] * len(flows)
    spent = []
    while True:
        requests = []
        for rank, flow in enumerate(flows):
            started = _now(device)
            try:
                requests.append(flow.send(answers[rank]))
            except StopIteration:
                pass
            finally:
                if rank == 0:
                    spent.append(_now(device) - started)
        if not requests:
            return spent[0], sum(spent[1:])
        answers = answer_together(requests)


def _now(device: str) -> float:
    if device != "cpu":
        torch.accelerator.synchronize()
    return perf_counter()


def _feedback(side: int, repeats: int, device: str) -> float:
    """Return the seconds that error feedback adds: one addition and one subtraction."""
    tensor, residual = torch.randn(2, side, side)
    taken = []
    for _ in range(repeats + 1):  # the first one warms up
        started = _now(device)
        residual = (tensor + residual) - tensor
        taken.append(_now(device) - started)
    return min(taken[1:])


def _on(device: str) -> AbstractContextManager[Any]:
    """Let tensors that compressors make themselves lie on the device, too."""
    return nullcontext() if device == "cpu" else torch.device(device)


def _require_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); "
            f"leave it out to measure on the CPU"
        ) from error


def _source(device: str) -> str:
    day = datetime.now(UTC).date().isoformat()
    torch_version = torch.__version__.split("+")[0]
    if device != "cpu":
        processor = torch.get_device_module(device).get_device_name(device)
    else:
        threads = torch.get_num_threads()
        processor = f"{machine()}, {counted(threads, 'thread')}"
    return f"measured on {processor}, {day}, torch {torch_version}"


def relative_errors(profile: CompressionProfile) -> list[float]:
    """Return by what share the lines miss each measured time, in ascending order."""
    off = []
    for row in profile.samples:
        lines, elements = profile.compressors[row["compressor"]], row["elements"]
        off.append(abs(lines.before(elements) / row["encode_seconds"] - 1))
        off.append(abs(lines.after(elements, row["workers"]) / row["decode_seconds"] - 1))
    return sorted(off)


def main(
    *,
    threads: int = 1,
    device: str = "cpu",
    repeats: int = 7,
    also: Sequence[str] = (),
    write: str | None = None,
) -> None:
    """Print the seconds of two tensors among 16 workers.

    --also compressors with their parameters are measured, too. The profile is kept by the name
    after --write.
    """
    chosen = [*(kind() for kind in COMPRESSORS.values()), *also]
    profile = profile_compression(chosen, threads=threads, repeats=repeats, device=device)
    print(profile.source)
    for name, seconds in profile.compressors.items():
        shown = [
            f"{size // MILLION} M: encode {seconds.before(size) * 1e3:8.2f} ms, "
            f"decode {seconds.after(size, 16) * 1e3:8.2f} ms"
            for size in (MILLION, WHOLE)
        ]
        print(f"{name:28s} {'   '.join(shown)}")
    off = relative_errors(profile)
    print(
        f"The lines miss half of {len(off)} measured seconds by less than "
        f"{off[len(off) // 2]:.0%}, nine in ten by less than {off[9 * len(off) // 10]:.0%} "
        f"and the worst by {off[-1]:.0%}"
    )
    for name, reason in profile.left_out.items():
        print(f"{name:28s} left out: {reason}")
    if write:
        print(write_compression_profile(profile, write))


if __name__ == "__main__":
    command(main)
