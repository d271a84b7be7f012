"""Does the model fit: what a rank stores by layout, as a sum over layers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ddlnb.choices import several
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.forecast.shapes import get_shape
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import memory
from ddlnb.units import GIB

PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "gathered": "what ZeRO-3 gathers",
}


def memory_table(model: str, layouts: Sequence[str], gpu: str) -> pd.DataFrame:
    """Return GiB of a rank of the first stage by layout, and whether the GPU has that.

    Sequences are as long as the model's own.
    Columns: parameters, gradients, optimizer, activations, gathered (by ZeRO-3), total, ``share``
    of the GPU's memory and ``fits``. What allocators and libraries take is not in it. Raises
    InputError for a layout that does not divide the model.
    """
    shape = get_shape(model).shape
    whole = get_gpu(gpu).memory
    rows = {}
    for text in several(layouts):
        found = memory(shape, Layout.parse(text))
        rows[text] = {part: getattr(found, part) / GIB for part in PARTS} | {
            "total": found.total / GIB,
            "share": found.total / whole,
            "fits": found.total <= whole,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis("layout")


def fit_sentences(table: pd.DataFrame) -> list[str]:
    """Return which layouts of a table of memory fit, and what fills those that do not."""
    fits, lacks = table[table["fits"]], table[~table["fits"]]
    said = [f"{len(fits)} of {len(table)} layouts fit, before what allocators and libraries take."]
    for layout, row in lacks.iterrows():
        largest = max(PARTS, key=lambda part: row[part])
        said.append(
            f"`{layout}` does not: it needs {row['share']:.1f} times the memory of a GPU, most of "
            f"it for {PARTS[largest]} ({row[largest]:,.0f} GiB)."
        )
    return said
