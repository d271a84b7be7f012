"""Runs that others published: cases with what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError
from ddlnb.files import PUBLISHED
from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.mixture import Open, mixed
from ddlnb.parallelism.forecast.row import Row
from ddlnb.parallelism.forecast.table import alternatives, cases, read_open
from ddlnb.results.schema import read_cells

H100 = PUBLISHED / "nanotron_h100_upto64.csv"
FOUNDRY = PUBLISHED / "foundry_a100_80gb_upto16.csv"
PAPERS = PUBLISHED / "large_scale_papers.csv"
MEASURED = "ok"
TERA = 1e12
ARXIV = re.compile(r"\d{4}\.\d{5}")


@dataclass(frozen=True)
class Observations:
    """Runs: cases, the model of each by name, tokens/s per GPU and GiB (NaN where not printed).

    ``opened`` has what else a row may mean, where it leaves something open.

    ``papers``: the paper of each by its number on arXiv; its source where that has none.
    """

    cases: Cases
    opened: Open
    models: NDArray[np.str_]
    papers: NDArray[np.str_]
    rates: Column
    memory: Column

    def __len__(self) -> int:
        return len(self.cases)

    def select(self, which: NDArray[Any]) -> Observations:
        """Return the runs of a mask, or of indices."""
        return Observations(
            self.cases.select(which),
            self.opened.select(which),
            self.models[which],
            self.papers[which],
            self.rates[which],
            self.memory[which],
        )

    @property
    def seconds(self) -> Column:
        """Seconds of a step, from tokens per second: what is printed as MFU is not comparable."""
        return self.cases.step_tokens / (self.rates * self.cases.gpus)


def rows_of(path: Path, measured: bool | None = True) -> list[Row]:
    """Return the rows of a published table: those that were measured, the others, or all (None)."""
    table = [Row(line, cells) for line, cells in enumerate(read_cells(path), 2)]
    return [
        row for row in table if measured in (None, row.cells.get("status", MEASURED) == MEASURED)
    ]


@lru_cache(maxsize=8)
def observed(path: Path = H100) -> Observations:
    """Return the measured runs of a published table."""
    return observations(rows_of(path))


def observations(rows: Sequence[Row]) -> Observations:
    """Return measured runs of rows of a table."""
    opened = read_open([alternatives(row) for row in rows])
    read = opened.cases.select(mixed(opened).likeliest)
    return Observations(
        read,
        opened,
        np.array([row.text("model") for row in rows]),
        np.array([_paper(row.text("source")) for row in rows]),
        measured_rates(rows, read),
        np.array([row.number("memory_gb", default=np.nan) for row in rows]),
    )


# Megatron-LM counts FLOPs of matrices of 4 h x h parameters' worth of work (SC21, equation 3, with
# full recomputation, 8 instead of 6 per parameter), of whole attention, and of the head.
PRINTED_FLOPS = 96


def measured_rates(rows: Sequence[Row], read: Cases) -> Column:
    """Return tokens/s per GPU: as printed, by the seconds of an iteration, or by TFLOP/s.

    Raises InputError for a row that has none of these.
    """
    tokens = read.step_tokens / read.gpus
    work = PRINTED_FLOPS * read.layers * read.hidden**2
    work = work * (
        1 + read.sequence / 6 / read.hidden + read.vocab / 16 / read.layers / read.hidden
    )
    rates = []
    for row, each, flops in zip(rows, tokens, work, strict=True):
        if row.text("tokens_per_s_per_gpu"):
            rates.append(row.number("tokens_per_s_per_gpu"))
        elif row.text("iteration_s"):
            rates.append(float(each) / row.number("iteration_s"))
        else:
            rates.append(row.number("hardware_tflops_per_gpu") * TERA / float(flops))
    return np.array(rates)


def _paper(source: str) -> str:
    found = ARXIV.search(source)
    return found[0] if found else source


# All tables of large models of this edition, and words of a source's name with what it is called
# here; a table whose rows name no source has one.
OPEN = (
    "nanotron_h100_upto64",
    "nanotron_h100_8b_and_128",
    "foundry_a100_80gb_upto16",
    "foundry_a100_40gb",
    "vtrain_one_node_a100",
    "large_scale_papers",
    "llm_other_clusters",
)
SOURCES = {
    r"2104\.04473": "SC21",
    r"2205\.05198": "Korthikanti",
    r"2401\.10241": "zero bubble",
    r"Foundry": "foundry",
    r"^NVIDIA": "NVIDIA",
    r"^\w+": "",
}


def source_of(table: str, cells: Mapping[str, str]) -> str:
    """Return who measured a published run, in a word or two.

    >>> source_of("llm_other_clusters", {"source": "IBM fms-fsdp README"})
    'IBM'
    """
    said = cells.get("source") or table.partition("_")[0]
    pattern = next(one for one in SOURCES if re.search(one, said))
    found = re.search(pattern, said)
    return SOURCES[pattern] or (found[0] if found else said)


# Some sources give shapes in headings and notes, as in "NHIDDEN=13824 / NLAYERS=84".
SHAPES = {"hidden": r"n?hidden=(\d+)", "layers": r"n?layers=(\d+)", "heads": r"nheads=(\d+)",
          "seq_len": r"\(else (\d+) by"}  # fmt: skip
MATRICES = 12  # of h x h in a layer of a GPT


def with_shape(cells: Mapping[str, str]) -> dict[str, str]:
    """Return cells with the shape that a heading or a note gives, where cells of it are empty.

    A batch that a heading gives to its rows is theirs, whatever all others of the page have. The
    vocabulary is what the matrices of the layers leave of the parameters.
    """
    said = f"{cells.get('table', '')} {cells.get('notes', '')}"
    found = dict(cells)
    for column, pattern in SHAPES.items():
        if not found.get(column) and (match := re.search(pattern, said, re.IGNORECASE)):
            found[column] = match[1]
    if batch := re.search(r"\bGBS=(\d+)", said):
        found["global_batch_seqs"] = batch[1]
    shape = [found.get(column) for column in ("layers", "hidden", "params_b")]
    if not found.get("vocab") and all(shape):
        layers, hidden, billions = (float(number or 0) for number in shape)
        left = billions * 1e9 - MATRICES * layers * hidden**2
        found["vocab"] = str(round(max(left, hidden**2) / hidden))
    return found


@lru_cache(maxsize=1)
def open_runs() -> tuple[dict[str, Observations], tuple[str, ...]]:
    """Return all measured runs of this edition by their source, and what of them is unreadable."""
    by_source: dict[str, list[Row]] = {}
    unread: list[str] = []
    for table in OPEN:
        for row in rows_of(PUBLISHED / f"{table}.csv"):
            row = replace(row, cells=with_shape(row.cells))
            try:
                measured_rates([row], cases([row]))
            except InputError as error:
                unread.append(f"{table}: {error}")
            else:
                by_source.setdefault(source_of(table, row.cells), []).append(row)
    return {name: observations(rows) for name, rows in by_source.items()}, tuple(unread)
