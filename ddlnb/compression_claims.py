"""What is quoted about compressors, beside what their requests have.

Quotes carry a tag of where they are from: "[A s.3.1.3]" is the survey's section, "[k]" is common
knowledge of the literature that was not read again, "[d]" is derived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlnb.compression.base import Compressor
from ddlnb.compression.catalogue import get_compressor
from ddlnb.errors import InputError
from ddlnb.training.cost.traffic import compression_ratio, requests

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Quote:
    """How many times fewer bytes a message has, as quoted: from ``low`` to ``high``."""

    low: float
    high: float
    tag: str

    def __str__(self) -> str:
        values = [f"{value:.4g}" for value in dict.fromkeys((self.low, self.high))]
        return f"{' to '.join(values)} {self.tag}"


def quoted(compressor: Compressor, shape: tuple[int, int]) -> Quote:
    """The quoted ratio of one message for a matrix of this shape. Raises InputError if none is."""
    rows, columns = shape
    name, elements = compressor.name, rows * columns
    options: dict[str, Any] = dict(vars(compressor))
    if name in ("fp16", "bf16"):
        return Quote(2, 2, "[d]")
    if name in ("signsgd", "ef-sign"):
        return Quote(32, 32, "[A s.3.1.3]")
    if name == "terngrad":
        return Quote(32 / math.log2(3), 32 / math.log2(3), "[d]")
    if name == "qsgd":
        bits = math.ceil(math.log2(2 * options["levels"] + 1))
        return Quote(32 / bits, 32 / bits, "[d]")
    if name == "dgc":
        return Quote(270, 600, "[k]")
    if name in ("top-k", "gtop-k"):
        return Quote(0.5 / options["density"], 0.5 / options["density"], "[d]")
    if name == "random-k":
        return Quote(1 / options["density"], 1 / options["density"], "[d]")
    if name == "powersgd":
        ratio = elements / (options["rank"] * (rows + columns))
        return Quote(ratio, ratio, "[d]")
    raise InputError(f"no ratio is quoted for {compressor}")


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
