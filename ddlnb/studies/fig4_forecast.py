"""What the notebooks about Fig. 4 ask of its forecasts: quotes, errors by cell, claims.

Everything works on the rows of `ddlnb.simulator.forecast`; published cells join where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ddlnb.calibration.testbed import CLUSTERS, GPUS, as_run, fig4_workload
from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import METHODS
from ddlnb.results.published import FIG4_KEY, fig4_cells, quoted
from ddlnb.results.table import GPUS_PER_NODE
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell

RATE = "throughput_samples_per_s"
LARGE = "bert-large"  # the model whose batch the memory of the survey's GPU limits
LARGE_BATCH = 128  # of the run with V100s that the text tells of (A43)
NVLINK = "v100-nvlink"


@dataclass(frozen=True)
class QuotedSpeedup:
    """A speed-up in section 4.2.1 and the cells it is about; without a network it is any's."""

    id: str
    item: str
    model: str
    gpus: int
    network: str | None = None
    local_batch: int | None = None

    @property
    def value(self) -> float:
        """The speed-up as it is printed."""
        return quoted(self.id, self.item)

    @property
    def seen(self) -> bool:
        """Whether the clusters in data are fitted to it: those of one node of the testbed are."""
        return self.gpus <= GPUS_PER_NODE and self.network is None


QUOTED = (
    QuotedSpeedup("A40", "speedup of resnet50 on 4 GPUs", "resnet50", 4),
    QuotedSpeedup("A40", "speedup of resnet50 on 32 GPUs with 100GbIB", "resnet50", 32, "100GbIB"),
    QuotedSpeedup("A41", "speedup of bert-base on 4 GPUs", "bert-base", 4),
    QuotedSpeedup(
        "A41", "speedup of bert-base on 32 GPUs with 100GbIB", "bert-base", 32, "100GbIB"
    ),
    QuotedSpeedup("A42", "most speedup of bert-large on 4 GPUs", LARGE, 4, local_batch=8),
    QuotedSpeedup(
        "A43",
        "speedup of bert-large at batch 128 on 4 V100-32GB with NVLink",
        LARGE,
        4,
        "NVLink",
        LARGE_BATCH,
    ),
)


# Forecasts beyond the cells of Fig. 4.


def forecast_larger_batch(local_batch: int = LARGE_BATCH, draws: int = 0) -> pd.DataFrame:
    """Forecasts of BERT-Large at a batch that the survey's GPU has no memory for (A57)."""
    workload = fig4_workload(LARGE).at_batch(local_batch)
    clusters = [get_cluster(name, count) for name in CLUSTERS.values() for count in GPUS]
    cells = [Cell(workload, cluster, as_run(name)) for cluster in clusters for name in METHODS]
    return forecast_cells(cells, draws=draws)


def forecast_nvlink(local_batch: int = LARGE_BATCH, draws: int = 0) -> pd.DataFrame:
    """Forecasts of BERT-Large on four GPUs joined by NVLink (A43), by the all-to-all methods.

    The GPUs are taken to be as fast as the survey's, and their seconds to grow with the batch.
    """
    workload, cluster = fig4_workload(LARGE).at_batch(local_batch), get_cluster(NVLINK)
    methods = [as_run(method) for method in METHODS.values() if method.architecture == "A2A"]
    return forecast_cells([Cell(workload, cluster, method) for method in methods], draws=draws)


# Quotes, cells and errors.


def quotes_beside(*forecasts: pd.DataFrame) -> pd.DataFrame:
    """The quoted speed-ups that these rows forecast, beside the speed-up of the best method.

    ``the_fit`` says whether the calibration of the clusters has seen the quote; those with more
    than 8 GPUs are held out, nothing is ever fitted to them.
    """
    rows, found = pd.concat(forecasts, ignore_index=True), []
    for quote in QUOTED:
        cells = rows[(rows["model"] == quote.model) & (rows["gpus"] == quote.gpus)]
        for column in ("network", "local_batch"):
            if (wanted := getattr(quote, column)) is not None:
                cells = cells[cells[column] == wanted]
        if cells.empty:
            continue
        best = cells.loc[cells["speedup"].idxmax()]
        found.append(
            {
                "id": quote.id,
                "model": quote.model,
                "gpus": quote.gpus,
                "network": quote.network or "any",
                "published": quote.value,
                "simulated": best["speedup"],
                "difference_percent": 100 * (best["speedup"] / quote.value - 1),
                "best_method": best["method"],
                "the_fit": "has seen it" if quote.seen else "has not seen it",
            }
        )
    columns = ["published", "simulated", "difference_percent", "best_method", "the_fit"]
    return pd.DataFrame(found, columns=["id", "model", "gpus", "network", *columns]).set_index("id")


def forecast_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Throughput with its 90 % interval, speed-up and the chance to be the best, by GPUs."""
    kept = [RATE, "low", "high", "speedup", "chance_best"]
    return rows.set_index(["gpus", "method"])[kept]


def errors_by_cell(rows: pd.DataFrame, published: pd.DataFrame | None = None) -> pd.DataFrame:
    """The published cells that the rows forecast, with the relative error; often none."""
    cells = fig4_cells() if published is None else published
    ours = rows[[*FIG4_KEY, RATE, "low", "high"]].rename(columns={RATE: "simulated"})
    theirs = cells[[*FIG4_KEY, RATE]].rename(columns={RATE: "published"})
    theirs = theirs.astype({column: ours[column].dtype for column in FIG4_KEY})
    both = ours.merge(theirs, on=FIG4_KEY)
    both["relative_error"] = both["simulated"] / both["published"].astype(float) - 1
    both["in_interval"] = both["published"].between(both["low"], both["high"])
    columns = ["published", "simulated", "relative_error", "low", "high", "in_interval"]
    return both.set_index(FIG4_KEY)[columns]


def about_errors(errors: pd.DataFrame) -> str:
    """The errors in one sentence, or that there is no published cell to tell them from."""
    if errors.empty:
        return (
            "No published cell of these forecasts is in this edition (data/published), so their "
            "errors cannot be told: what stands above is a forecast and nothing else."
        )
    absolute = errors["relative_error"].abs()
    inside = int(errors["in_interval"].sum())
    said = f"{len(errors)} published cells: mean absolute error {absolute.mean():.1%}"
    return f"{said}, largest {absolute.max():.1%}; {inside} within the 90 % interval."


# Claims.
