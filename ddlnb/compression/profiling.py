"""Measures what compressors take of a worker's time, on a CPU or a GPU, without a network.

The flow of one worker is driven by hand: what it spends before its first request and after it is
its own time, what passes between a request and its answer is not counted.
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
from torch import Tensor

from ddlnb.compression.base import Averaged, Compressor, Memory, Round
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.seconds import CompressionProfile, CompressorSeconds, Line, grown
from ddlnb.errors import InputError, require, require_whole
from ddlnb.exchange import AllGather, Messages, answer_together
from ddlnb.machine import machine
from ddlnb.threads import torch_threads

SIDES = (32, 128, 512, 1024)  # of square tensors: 1 Ki to 1 Mi elements
WORKERS = (2, 8)


@dataclass(frozen=True)
class Sample:
    """Least seconds of one worker for one tensor, among so many workers."""

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
    """Seconds of the compressors, by default all of the catalogue, fitted over some tensors.

    Each is measured in its form for whole models, too, where that is another one.
    Tensors are squares with these sides, so that low ranks have something to find. A compressor
    that fails on the device is left out, with the reason. Raises InputError if there is no such
    device.
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
        where = _where(device)
    rows = tuple(asdict(sample) for sample in samples)
    return CompressionProfile(where, found, feedback, left_out, rows)


def measure(
    compressor: Compressor, side: int, workers: int, repeats: int = 5, device: str = "cpu"
) -> Sample:
    """Least seconds of worker 0 of so many, for a square of normally distributed numbers.

    The least, as whatever else the machine does can only add to them.
    """
    tensor = torch.randn(side, side)
    memories: list[Memory] = [{} for _ in range(workers)]
    taken = []
    for step in range(repeats + 1):  # the first one warms up
        flows = _Flows(compressor, tensor, workers, step, memories, device)
        taken.append(flows.run())
    encode, decode = (min(part) for part in zip(*taken[1:], strict=True))
    return Sample(str(compressor), side * side, workers, encode, decode)


def growth_of(compressor: Compressor) -> str:
    """With what the work after the first request grows, by the requests that are made."""
    asked = {one.request for one in compressor.traffic((64, 64), 8)}
    return "workers" if AllGather in asked else "levels" if Messages in asked else "none"


def fit(samples: Sequence[Sample], growth: str) -> CompressorSeconds:
    """The lines with the least squared relative error, no term negative."""
    from scipy.optimize import nnls

    encode = _fit_line([(one.elements, one.encode_seconds) for one in samples])
    elements = np.array([float(one.elements) for one in samples])
    times = np.array([float(grown(growth, one.workers)) for one in samples])
    seconds = np.array([one.decode_seconds for one in samples])
    scale = elements.max()
    ones = np.ones_like(elements)
    columns = np.stack([ones, elements / scale, times, times * elements / scale], axis=1)
    (a, b, c, d), _ = nnls(columns / seconds[:, None], ones)
    return CompressorSeconds(
        encode, Line(float(a), float(b / scale)), Line(float(c), float(d / scale)), growth
    )


def _fit_line(points: Sequence[tuple[int, float]]) -> Line:
    from ddlnb.collectives import fit_alpha_beta

    line = fit_alpha_beta([x for x, _ in points], [y for _, y in points])
    return Line(line.startup_seconds, line.seconds_per_byte)


class _Flows:
    """The flows of all workers, or of one whose peers send what it sends itself."""

    def __init__(
        self,
        compressor: Compressor,
        tensor: Tensor,
        workers: int,
        step: int,
        memories: Sequence[Memory],
        device: str,
    ):
        asked = {one.request for one in compressor.traffic(tuple(tensor.shape), workers)}
        ranks = range(workers if Messages in asked else 1)
        self._alone = len(ranks) < workers
        self._workers, self._device = workers, device
        self._flows = [
            compressor.average(tensor, Round(rank, workers, step), memories[rank]) for rank in ranks
        ]

    def run(self) -> tuple[float, float]:
        """Seconds of worker 0 before its first request and after it."""
        answers: list[Any] = [None] * len(self._flows)
        spent = []
        while True:
            requests = []
            for rank, flow in enumerate(self._flows):
                started = self._now()
                try:
                    requests.append(flow.send(answers[rank]))
                except StopIteration:
                    pass
                finally:
                    if rank == 0:
                        spent.append(self._now() - started)
            if not requests:
                return spent[0], sum(spent[1:])
            answers = self._answers(requests)

    def _answers(self, requests: list[Any]) -> list[Any]:
        if not self._alone:
            return answer_together(requests)
        (request,) = requests
        if isinstance(request, AllGather):
            return [[request.payload] * self._workers]
        return [request.tensor * self._workers]

    def _now(self) -> float:
        if self._device != "cpu":
            torch.accelerator.synchronize()
        return perf_counter()


def _feedback(side: int, repeats: int, device: str) -> float:
    """Seconds that error feedback adds: one addition and one subtraction."""
    from ddlnb.compression.feedback import average_with_feedback

    tensor = torch.randn(side, side)
    memory: Memory = {}
    taken = []
    for step in range(repeats + 2):  # the first has no residual, the second warms up
        flow = average_with_feedback(_Identity(), tensor, Round(0, 1, step), memory)
        started = perf_counter()
        for _ in flow:
            pass
        if device != "cpu":
            torch.accelerator.synchronize()
        taken.append(perf_counter() - started)
    return min(taken[2:])


class _Identity(Compressor):
    name = "identity"
    feedback = "optional"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Any:
        return Averaged(tensor, tensor)
        yield

    def traffic(self, shape: tuple[int, ...], workers: int) -> list:
        return []


def _on(device: str) -> AbstractContextManager[Any]:
    """Also what compressors make themselves lies on the device."""
    return nullcontext() if device == "cpu" else torch.device(device)


def _require_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); "
            f"leave it out to measure on the CPU"
        ) from error


def _where(device: str) -> str:
    day = datetime.now(UTC).date().isoformat()
    torch_version = torch.__version__.split("+")[0]
    if device != "cpu":
        place = torch.get_device_module(device).get_device_name(device)
    else:
        threads = torch.get_num_threads()
        place = f"{machine()}, {threads} thread{'s' if threads > 1 else ''}"
    return f"measured on {place}, {day}, torch {torch_version}"
