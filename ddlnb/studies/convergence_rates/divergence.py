"""Which gossip algorithm stands which compression: published for ResNet-20, and run here.

DCD- and ECD-PSGD lose what the compression loses, CHOCO sends it later. Published are test
accuracies of ResNet-20 on CIFAR-10, a ring of 8 workers, 300 epochs, from Table 1 of the CHOCO
paper for deep learning (arXiv 1907.09356 [k], the submission copy read [P]). Here a small task is
trained briefly, so that only the pattern can be compared: what works and what fails. By the
same rule for both, a run fails when it diverges or when its accuracy is below FAILED of that of
the same training without compression. Random coordinates are multiplied by D/k here: the theory
of DCD and ECD asks for an unbiased compression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlnb.errors import UnknownName, require
from ddlnb.training.method import training_method
from ddlnb.training.runs.by_cell import runs_by
from ddlnb.training.runs.compare import compare

if TYPE_CHECKING:
    import pandas as pd

FAILED = 0.9
PUBLISHED_EXACT = 92.64  # per cent, the all-reduce baseline [P]
DIVERGED = math.nan
ALGORITHMS = ("dcd", "ecd", "choco")
EXACT = "d-psgd(ring, before)"
WORKS, FAILS = "works", "fails"
BUCKET = 128  # entries that share a norm: our choice


@dataclass(frozen=True)
class Column:
    """One compression of the published table: what it is here, and per cent by ALGORITHMS [P].

    ``gamma`` and ``scale`` are CHOCO's here: the more is lost, the smaller. A scale is 1 / (1 + u)
    with u = min(D/s^2, sqrt(D)/s) for QSGD with s levels and buckets of D, and D/k - 1 for random
    coordinates, which CHOCO then takes as they are.
    """

    name: str
    compressor: str
    gamma: float
    scale: float
    published: tuple[float, float, float]


def _qsgd(bits: int, gamma: float, published: tuple[float, float, float]) -> Column:
    levels = 2 ** (bits - 1) - 1
    error = min(BUCKET / levels**2, math.sqrt(BUCKET) / levels)
    scale = round(1 / (1 + error), 3)
    return Column(f"QSGD {bits} bit", f"qsgd({levels}, {BUCKET})", gamma, scale, published)


def _random(share: float, gamma: float, published: tuple[float, float, float]) -> Column:
    name = f"rand {round(100 * share)} %"
    return Column(name, f"random-k({share}, True)", gamma, share, published)


COLUMNS = (
    _qsgd(16, 0.9, (92.51, 92.02, 92.34)),
    _qsgd(8, 0.9, (92.36, 59.11, 92.30)),
    _qsgd(4, 0.5, (23.56, DIVERGED, 91.92)),
    _qsgd(2, 0.1, (DIVERGED, DIVERGED, 91.41)),
    _random(0.5, 0.5, (92.05, DIVERGED, 92.54)),
    _random(0.1, 0.1, (DIVERGED, DIVERGED, 91.87)),
    _random(0.01, 0.02, (DIVERGED, DIVERGED, 91.32)),
    Column("top 50 %", "top-k(0.5)", 0.5, 1.0, (92.40, 17.03, 92.54)),
    Column("top 10 %", "top-k(0.1)", 0.3, 1.0, (91.97, 16.78, 92.29)),
    Column("top 1 %", "top-k(0.01)", 0.1, 1.0, (89.79, 18.03, 91.73)),
    Column("sign", "ef-sign", 0.3, 1.0, (92.40, DIVERGED, 92.46)),
)


def columns(names: Sequence[str] = ()) -> list[Column]:
    """Return the compressions of these names, by default all. Raises UnknownName."""
    known = {one.name: one for one in COLUMNS}
    for name in names:
        if name not in known:
            raise UnknownName("compression of the published table", name, known)
    return [known[name] for name in names or known]


def methods_of(column: Column) -> dict[str, str]:
    """Return the training method of each of ALGORITHMS with this compression."""
    return {
        "dcd": f"dcd-psgd(ring) + {column.compressor}",
        "ecd": f"ecd-psgd(ring) + {column.compressor}",
        "choco": f"choco(ring, {column.gamma}, {column.scale}) + {column.compressor}",
    }


def divergence_pattern(
    names: Sequence[str] = (),
    *,
    task: str = "digits",
    workers: int = 8,
    steps: int = 150,
    seeds: int = 1,
    lr: float | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Return a row per compression and algorithm: the outcome here, and the published one.

    Columns: compression, algorithm, method, accuracy (here, per cent, the worst seed; NaN if it
    diverged), here and there (WORKS or FAILS), published (per cent; NaN: diverged), same. The
    first row is the exact algorithm, which decides what failing means. ``options`` are those of
    `ddlnb.compare`. Raises UnknownName.
    """
    import pandas as pd

    chosen = columns(names)
    asked = [method for column in chosen for method in methods_of(column).values()]
    curves = compare(
        task, [EXACT, *asked], seeds=seeds, workers=workers, steps=steps, lr=lr, **options
    ).curves
    worst = {
        method: min(map(_accuracy, runs.values()))
        for (method,), runs in runs_by(curves, "method").items()
    }
    exact = worst[str(training_method(EXACT))]
    require(exact > 0, f"{EXACT} itself diverged; take a smaller learning rate than {lr}")
    rows = [_row("none", "d-psgd", EXACT, exact, exact, PUBLISHED_EXACT)]
    for column in chosen:
        for (algorithm, method), there in zip(
            methods_of(column).items(), column.published, strict=True
        ):
            here = worst[str(training_method(method))]
            rows.append(_row(column.name, algorithm, method, here, exact, there))
    return pd.DataFrame(rows).assign(task=task, workers=workers, steps=steps, tag="[P]")


def _accuracy(run: pd.DataFrame) -> float:
    """Return the per cent at the end of a run, below any other if it diverged."""
    last = run.iloc[-1]
    return -math.inf if last["diverged"] else 100 * float(last["test_accuracy"])


def _row(
    compression: str, algorithm: str, method: str, here: float, exact: float, there: float
) -> dict[str, object]:
    found, stated = outcome(here, exact), outcome(there, PUBLISHED_EXACT)
    return {
        "compression": compression,
        "algorithm": algorithm,
        "method": method,
        "accuracy": here if math.isfinite(here) else math.nan,
        "here": found,
        "published": there,
        "there": stated,
        "same": found == stated,
    }


def outcome(accuracy: float, exact: float) -> str:
    """Return WORKS or FAILS; NaN and infinity stand for a run that diverged.

    >>> outcome(89.79, 92.64), outcome(23.56, 92.64), outcome(float("nan"), 92.64)
    ('works', 'fails', 'fails')
    """
    return WORKS if math.isfinite(accuracy) and accuracy >= FAILED * exact else FAILS


def pattern_verdicts(pattern: pd.DataFrame) -> pd.DataFrame:
    """Return by algorithm how many compressions it stood here and there; ``same`` ones agree."""
    lossy = pattern[pattern["compression"] != "none"]
    grouped = lossy.groupby("algorithm", sort=False)
    return grouped.agg(
        compressions=("same", "size"),
        works_here=("here", lambda column: int((column == WORKS).sum())),
        works_published=("there", lambda column: int((column == WORKS).sum())),
        same=("same", "sum"),
    )


def pattern_table(pattern: pd.DataFrame) -> pd.DataFrame:
    """Return `divergence_pattern` to read, by compression and algorithm; accuracies in per cent."""
    table = pattern.set_index(["compression", "algorithm"]).round({"accuracy": 1, "published": 1})
    names = {"accuracy": "accuracy here (%)", "published": "accuracy published (%)"}
    shown = ["accuracy", "here", "published", "there", "same"]
    return table[shown].rename(columns=names)
