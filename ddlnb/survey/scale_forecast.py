"""Layouts of large models: how far off forecasts of left-out runs are, and which layout is best."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ddlnb.errors import UnknownName
from ddlnb.figures.style import PALETTE, facets, legend, say_source, styled
from ddlnb.files import DATA
from ddlnb.parallelism.forecast.frameworks import describe
from ddlnb.parallelism.forecast.layouts import Ranking, scale
from ddlnb.parallelism.forecast.published import observed
from ddlnb.parallelism.forecast.validation import scores
from ddlnb.results.schema import read_frame
from ddlnb.survey.items import Findings, findings

KEPT_ROWS = DATA / "forecasts" / "scale_cross_validation.csv"
OURS, NEVER_SLOW = "ours", "ours, never slow"
TRIVIAL = ("constant MFU", "nearest neighbour", "least split")
SHARES = ("median", "near", "pick", "held", "memory", "fits")
WORDS = {
    "median": "median error (%)", "near": "within 20 % (%)", "factor": "mean factor",
    "pick": "picked of best (%)", "held": "in the interval (%)", "memory": "error of memory (%)",
    "fits": "said to fit (%)",
}  # fmt: skip


def left_out() -> pd.DataFrame:
    """Return the kept rows of cross-validation: one per left-out run and forecast.

    They are written by ``python -m benchmarks.scale_validation --write``.
    """
    return read_frame(KEPT_ROWS)


def left_out_by(rows: pd.DataFrame, kinds: list[str]) -> pd.DataFrame:
    """Return our forecasts of runs that were left out so. Raises UnknownName for other kinds."""
    for kind in kinds:
        if kind not in set(rows["kind"]):
            raise UnknownName("kind of left-out runs", kind, rows["kind"].unique())
    return rows[(rows["forecast"] == OURS) & rows["kind"].isin(kinds)]


def scores_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores by what was left out and by forecast, as shares."""
    return pd.DataFrame(scores(rows.to_dict("records")))


def score_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores over all folds of a kind, in words and per cent, a row per forecast."""
    whole = scores_of(rows).query("left_out == 'all'").drop(columns="left_out")
    whole[list(SHARES)] = (100 * whole[list(SHARES)]).round(1)
    return whole.round({"factor": 3}).set_index(["kind", "forecast"]).rename(columns=WORDS)


def errors_by_degree(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of every fold, for forecasts that have an error: a rule only picks."""
    found = scores_of(rows)
    named = found["forecast"].isin((OURS, *TRIVIAL))
    return found[(found["left_out"] != "all") & found["median"].notna() & named]


def parameter_table() -> pd.DataFrame:
    """Return the parameters of the fit: value, unit, meaning."""
    return pd.DataFrame(describe()).set_index("parameter")[["value", "unit", "meaning"]]


def slow_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of all left-out models with and without the chance of slow runs."""
    of_models = rows[(rows["kind"] == "model") & rows["forecast"].isin((OURS, NEVER_SLOW))]
    return score_table(of_models).droplevel("kind")[
        [WORDS[one] for one in ("median", "near", "factor", "pick")]
    ]


def ranked(model: str, gpu: str, nodes: int, sequence: int) -> Ranking:
    """Return the layouts of a model on a machine, ranked, in the framework of the fitted runs."""
    return scale(model, gpu, nodes, sequence=sequence, framework="nanotron")


def best_layouts(ranking: Ranking, top: int) -> pd.DataFrame:
    """Return the best layouts, and why each is slower than the one above it."""
    table = pd.DataFrame(ranking.rows(top)).set_index("layout").drop(columns="frameworks")
    table["mfu"] = (100 * table["mfu"]).round(1)
    return table.round({"tokens_per_s_per_gpu": 0, "low": 0, "high": 0, "memory_gib": 1,
                        "chance_of_slow": 2, "seconds": 2})  # fmt: skip


def rates_by_split(ranking: Ranking) -> pd.DataFrame:
    """Return tokens/s per GPU of the best layout of every split: tp by pp, NaN if none fits."""
    cases, rates = ranking.outlook.cases, ranking.outlook.tokens_per_s_per_gpu
    splits = pd.DataFrame({"tp": cases.tp, "pp": cases.pp, "rate": rates})
    fits = splits.index.isin(ranking.order)
    best = splits.assign(rate=splits["rate"].where(fits)).groupby(["tp", "pp"])["rate"].max()
    return best.unstack("pp")


def findings_of(rows: pd.DataFrame) -> Findings:
    """Return what the scores say, in sentences."""
    found = scores_of(rows).set_index(["kind", "left_out", "forecast"])

    def score(kind: str, which: str, forecast: str, what: str) -> Any:
        if (kind, which, forecast) not in found.index:
            raise UnknownName("fold", (kind, which, forecast), map(str, found.index))
        return found.loc[(kind, which, forecast), what]

    most = int(observed().cases.gpus.max())
    worst = errors_by_degree(rows[rows["forecast"] == OURS]).sort_values("median").iloc[-1]
    trivial = min(score("model", "all", name, "median") for name in TRIVIAL[:2])
    return findings(
        f"Of a model that the fit had not seen, half of the runs are forecast within "
        f"{score('model', 'all', OURS, 'median'):.1%}; the better trivial forecast is off by "
        f"{trivial:.0%}.",
        f"On {most} GPUs, forecast from at most {most // 2}, the median error is "
        f"{score('gpus', f'{most} GPUs', OURS, 'median'):.1%}, and the layout that is picked has "
        f"{score('gpus', f'{most} GPUs', OURS, 'pick'):.1%} of the best measured throughput.",
        f"Without the chance of slow runs it would pick one with "
        f"{score('gpus', f'{most} GPUs', NEVER_SLOW, 'pick'):.0%}.",
        f"{score('gpus', f'{most} GPUs', OURS, 'held'):.0%} of the runs on {most} GPUs are in "
        f"their 90 % interval, and {score('model', 'all', OURS, 'held'):.0%} of those of models "
        f"left out.",
        f"Furthest off is what was left out with {worst['left_out']}: {worst['median']:.0%}.",
    )


KINDS = {"model": "a model", "gpus": "most GPUs"}
NO_LAYOUT = "#f0f0f0"


@styled
def layout_errors(scores: pd.DataFrame, source: str) -> plt.Figure:
    """Median error of forecasts by the degree that was left out, beside trivial forecasts.

    ``scores`` have the columns kind, left_out, forecast and median; a panel per kind, a bar per
    degree and forecast.
    """
    counts = scores.groupby("kind", sort=False)["left_out"].nunique()
    names = list(scores["forecast"].unique())
    figure, panels = facets(
        scores, "kind", width=(3, 1.0 * counts.mean()), height=3.8, sharey=True,
        width_ratios=list(counts),
    )  # fmt: skip
    width = 0.8 / len(names)
    for ax, kind, part in panels:
        errors = 100 * part.pivot_table("median", "left_out", "forecast", sort=False)
        for i, name in enumerate(names):
            places = np.arange(len(errors)) + (i - (len(names) - 1) / 2) * width
            ax.bar(places, errors.get(name, np.nan), width, color=PALETTE[i + 1])
        labels = [left_out.removeprefix("llama-").replace(" GPUs", "") for left_out in errors.index]
        ax.set_xticks(range(len(errors)), labels)
        ax.set(yscale="log", title=f"left out: {KINDS.get(kind, kind)}", xlabel="what was left out")
    panels[0][0].set_ylabel("median error (%)")
    marks = [Line2D([], [], color=PALETTE[i + 1], linewidth=6, label=name)
             for i, name in enumerate(names)]  # fmt: skip
    legend(figure, marks)
    return say_source(figure, source, "a rule that only picks has no error")


@styled
def layout_map(rates: pd.DataFrame, title: str, source: str) -> plt.Figure:
    """Throughput of the best layout of every split, by degrees of tensor and pipeline parallelism.

    ``rates`` has tp in its index, pp in its columns, and tokens/s per GPU, NaN where nothing fits.
    """
    size = (0.85 * len(rates.columns) + 2.6, 0.5 * len(rates) + 1.6)
    figure, ax = plt.subplots(figsize=size)
    values = rates.to_numpy(float)
    ax.set_facecolor(NO_LAYOUT)
    shown = ax.imshow(values, cmap="viridis", vmin=0, aspect="auto")
    half = np.nanmax(values) / 2
    for (y, x), value in np.ndenumerate(values):
        said = f"{value:.0f}" if np.isfinite(value) else "-"
        bright = np.isfinite(value) and value < half
        ax.text(x, y, said, ha="center", va="center", fontsize=8,
                color="white" if bright else "black")  # fmt: skip
    ax.set_xticks(range(len(rates.columns)), [str(int(pp)) for pp in rates.columns])
    ax.set_yticks(range(len(rates)), [str(int(tp)) for tp in rates.index])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(
        xlabel="stages of the pipeline (pp)",
        ylabel="ranks of a tensor (tp)",
        title=f"{title}: tokens/s per GPU",
    )
    ax.grid(False)
    figure.colorbar(shown, ax=ax)
    return say_source(
        figure, source, "grey: degrees do not divide, nothing fits, or no schedule runs it"
    )
