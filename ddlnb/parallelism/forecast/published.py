"""Runs that others published: cases with what was measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.files import PUBLISHED
from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS
from ddlnb.parallelism.forecast.table import Row, cases
from ddlnb.results.schema import read_cells

RUNS = {name: PUBLISHED / one.runs for name, one in FRAMEWORKS.items() if one.runs}
H100, FOUNDRY, PAPERS = (RUNS[name] for name in ("nanotron", "fsdp", "megatron"))
MEASURED = "ok"
ARXIV = re.compile(r"\d{4}\.\d{5}")


@dataclass(frozen=True)
class Observations:
    """Runs: cases, the model of each by name, tokens/s per GPU and GiB (NaN where not printed).

    ``papers``: the paper of each by its number on arXiv; its source where that has none.
    """

    cases: Cases
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
    return [row for row in table if measured in (None, row.cells["status"] == MEASURED)]


@lru_cache(maxsize=8)
def observed(path: Path = H100) -> Observations:
    """Return the measured runs of a published table."""
    rows = rows_of(path)
    return Observations(
        cases(rows),
        np.array([row.text("model") for row in rows]),
        np.array([_paper(row.text("source")) for row in rows]),
        np.array([row.number("tokens_per_s_per_gpu") for row in rows]),
        np.array([row.number("memory_gb", default=np.nan) for row in rows]),
    )


def _paper(source: str) -> str:
    found = ARXIV.search(source)
    return found[0] if found else source
