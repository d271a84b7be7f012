"""Measure how fast payloads are made: every codec against a plain copy and a public alternative.

    python -m benchmarks.compression_speed [--elements 25000000] [--threads 2] [--only signs ...]

Runs alternate: every run is divided by the copy just before it, from one array into another that is
already in memory. The table has the medians of these ratios, and their range. An alternative makes
what its row says, which may be less than what the codec makes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.command import command
from benchmarks.repeated import seconds_of
from ddlnb.compression.base import Codec, Round
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.packing import flat_values, pack_signs
from ddlnb.files import machine

SPECS = ("qsgd(7)", "qsgd(7, 512)", "top-k(0.001)")
ROUND = Round(rank=0, workers=1, step=0)


class Candidate(NamedTuple):
    """Something to time, and the bytes that it makes."""

    compressor: str
    what: str
    run: Callable[[], object]
    bytes: int


def candidates(tensor: Tensor) -> Iterator[Candidate]:
    """Return every codec, signs alone, and their alternatives."""
    for spec in (*COMPRESSORS, *SPECS):
        codec = get_compressor(spec)
        if isinstance(codec, Codec):
            payload = codec.encode(tensor, ROUND, {})
            encode = partial(codec.encode, tensor, ROUND, {})
            decode = partial(codec.decode, payload, len(tensor))
            yield Candidate(spec, "encode", encode, payload.nbytes)
            yield Candidate(spec, "decode", decode, tensor.nbytes)
    signs = partial(pack_signs, flat_values(tensor))
    yield Candidate("signs", "packing.pack_signs", signs, -(-len(tensor) // 8))
    for row, what, run in alternatives(tensor):
        yield Candidate(row, what, run, sum(part.nbytes for part in run()))


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
    listed = [one for one in candidates(tensor) if not only or one.compressor in only]
    runs = [
        (number, seconds_of(lambda: target.copy_(tensor)), seconds_of(candidate.run))
        for _ in range(repetitions)
        for number, candidate in enumerate(listed)
    ]
    taken = pd.DataFrame(runs, columns=["number", "copy", "seconds"])
    by_candidate = taken.assign(ratio=taken["seconds"] / taken["copy"]).groupby("number")
    table = pd.DataFrame(listed).drop(columns="run").join(
        by_candidate.agg(
            seconds=("seconds", "median"), ratio=("ratio", "median"),
            lowest=("ratio", "min"), highest=("ratio", "max"),
        )
    )  # fmt: skip
    copying = {"compressor": "copy", "what": "torch copy_", "bytes": tensor.nbytes}
    copying |= {"seconds": taken["copy"].median(), "ratio": 1.0, "lowest": 1.0, "highest": 1.0}
    table = pd.concat([pd.DataFrame([copying]), table], ignore_index=True)
    first = {name: place for place, name in enumerate(table["compressor"].unique())}
    return table.sort_values("compressor", key=lambda names: names.map(first), kind="stable")


def main(
    *,
    elements: int = 25_000_000,
    threads: int = 2,
    repetitions: int = 7,
    only: Sequence[str] = (),
    csv: Path | None = None,
) -> None:
    """Print the table, of --only some rows (qsgd, signs, ...); it is written to --csv as well."""
    torch.set_num_threads(threads)
    table = measured(elements, repetitions, only)
    if csv:
        table.to_csv(csv, index=False)
    print(f"{elements} elements, {threads} threads on {machine()}")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))


if __name__ == "__main__":
    command(main)
