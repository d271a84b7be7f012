"""Measure how fast payloads are made: every codec against a plain copy and a public alternative.

    python -m benchmarks.compression_speed [--elements 25000000] [--threads 2] [--only signs ...]

Runs alternate: every run is divided by the copy just before it, from one array into another that is
already in memory. The table has the medians of these ratios, and their range. An alternative makes
what its row says, which may be less than what the codec makes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ddlnb.compression.base import Codec, Round
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.packing import flat_values, pack_signs
from ddlnb.files import machine

SPECS = ("qsgd(7)", "qsgd(7, 512)", "top-k(0.001)")
ROUND = Round(rank=0, workers=1, step=0)


@dataclass(frozen=True)
class Candidate:
    """Something to time, and the bytes that it makes."""

    row: str
    what: str
    run: Callable[[], object]
    bytes: int


def candidates(tensor: Tensor) -> list[Candidate]:
    """Return every codec, signs alone, and their alternatives."""
    found = []
    for spec in (*COMPRESSORS, *SPECS):
        codec = get_compressor(spec)
        if isinstance(codec, Codec):
            payload = codec.encode(tensor, ROUND, {})
            found += [
                Candidate(spec, "encode", _encoding(codec, tensor), payload.nbytes),
                Candidate(spec, "decode", _decoding(codec, payload, len(tensor)), tensor.nbytes),
            ]
    values = flat_values(tensor)
    bits = -(-len(tensor) // 8)
    found.append(Candidate("signs", "packing.pack_signs", lambda: pack_signs(values), bits))
    for row, what, run in alternatives(tensor):
        made = run()
        found.append(Candidate(row, what, run, sum(part.nbytes for part in made)))
    return found


def alternatives(tensor: Tensor) -> list[tuple[str, str, Callable[[], tuple]]]:
    """Return plain formulations in numpy and torch: their row, their name, and their function."""
    values, kept = tensor.numpy(), max(1, len(tensor) // 1000)

    def qsgd() -> tuple:
        norm = tensor.norm()
        return norm, (tensor * (127 / norm) + torch.rand_like(tensor)).floor_().to(torch.int8)

    def ternary() -> tuple:
        magnitudes = tensor.abs()
        largest = magnitudes.max()
        return largest, (torch.bernoulli(magnitudes / largest) * tensor.sign()).to(torch.int8)

    def largest_entries() -> tuple:
        chosen = tensor.abs().topk(kept, sorted=False).indices
        return chosen.int(), tensor[chosen]

    return [
        ("fp16", "torch half()", lambda: (tensor.half(),)),
        ("bf16", "torch bfloat16()", lambda: (tensor.bfloat16(),)),
        ("signs", "numpy.packbits", lambda: (np.packbits(values < 0),)),
        (
            "ef-sign",
            "numpy.packbits, torch",
            lambda: (np.packbits(values < 0), tensor.abs().mean()),
        ),
        ("qsgd", "plain torch, int8", qsgd),
        ("terngrad", "plain torch, int8", ternary),
        ("top-k(0.001)", "torch.topk", largest_entries),
    ]


def measured(elements: int, repetitions: int, only: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row per candidate: bytes, seconds, and the ratio to a copy with its range."""
    tensor = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    target = torch.empty_like(tensor)
    listed = [one for one in candidates(tensor) if not only or one.row in only]
    copies: list[float] = []
    seconds: list[list[float]] = [[] for _ in listed]
    ratios: list[list[float]] = [[] for _ in listed]
    for _ in range(repetitions):
        for number, candidate in enumerate(listed):
            copies.append(_seconds(lambda: target.copy_(tensor)))
            seconds[number].append(_seconds(candidate.run))
            ratios[number].append(seconds[number][-1] / copies[-1])
    rows = [("copy", "torch copy_", tensor.nbytes, statistics.median(copies), 1.0, 1.0, 1.0)]
    for candidate, taken, ratio in zip(listed, seconds, ratios, strict=True):
        middle = statistics.median(ratio)
        found = (statistics.median(taken), middle, min(ratio), max(ratio))
        rows.append((candidate.row, candidate.what, candidate.bytes, *found))
    columns = ["compressor", "what", "bytes", "seconds", "ratio", "lowest", "highest"]
    table = pd.DataFrame(rows, columns=columns)
    order = {row: position for position, row in enumerate(dict.fromkeys(table["compressor"]))}
    return table.sort_values("compressor", key=lambda names: names.map(order), kind="stable")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=(), help="rows to measure: qsgd, signs, ...")
    parser.add_argument("--csv", help="write the table to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = measured(options.elements, options.repetitions, options.only)
    if options.csv:
        table.to_csv(options.csv, index=False)
    print(f"{options.elements} elements, {options.threads} threads on {machine()}")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))


def _encoding(codec: Codec, tensor: Tensor) -> Callable[[], object]:
    return lambda: codec.encode(tensor, ROUND, {})


def _decoding(codec: Codec, payload: Tensor, elements: int) -> Callable[[], object]:
    return lambda: codec.decode(payload, elements)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
