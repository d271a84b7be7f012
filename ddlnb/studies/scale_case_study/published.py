"""Large runs that others published, beside forecasts of a fit that has not seen their paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ddlnb.parallelism.forecast.cases import FULL
from ddlnb.parallelism.forecast.fit.observations import PAPERS, observed, rows_of
from ddlnb.parallelism.forecast.fit.unseen_validation import papers_forecast
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.layouts import scale
from ddlnb.parallelism.forecast.parameters import kept
from ddlnb.parallelism.goodput.records import DAY
from ddlnb.parallelism.transformer import Transformer, gpt

FRAMEWORK = "megatron"
NEAR = 0.2
PAPER_NAMES = {
    "2104.04473": "Megatron-LM, SC21",
    "2205.05198": "selective recomputation",
    "2401.10241": "zero bubble",
}


def published_runs() -> pd.DataFrame:
    """Return every published run beside its forecast, in tokens per second and GPU.

    The fit of a row has not seen the other rows of its paper either (``left_out``). ``fitted`` is
    the kept fit, which has seen all. ``constant`` is a trivial forecast: the median MFU of the
    other papers. ``model`` says how the run was made: what the figure colours.
    """
    runs, tables = observed(PAPERS), rows_of(PAPERS)
    fitted = forecast(runs.cases).tokens_per_s_per_gpu
    frames = []
    for one, found in papers_forecast(kept()):
        own = np.flatnonzero(runs.papers == one.left_out)
        asked = one.runs.cases
        frames.append(
            pd.DataFrame(
                {
                    "left_out": PAPER_NAMES[one.left_out],
                    "of": one.runs.models,
                    "model": [_kind(tables[index].text("table"), again) for index, again in zip(
                        own, asked.recomputation, strict=True)],
                    "gpus": asked.gpus.astype(int),
                    "layout": [f"dp{dp:.0f} tp{tp:.0f} pp{pp:.0f}" for dp, tp, pp in zip(
                        asked.dp, asked.tp, asked.pp, strict=True)],
                    "measured": one.runs.rates,
                    "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
                    "low": found.low,
                    "high": found.high,
                    "fitted": fitted[own],
                    "constant": one.constant,
                }
            )
        )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def _kind(table: str, again: float) -> str:
    schedule = table.rpartition(" ")[2]
    if schedule.startswith("1F1B"):
        return "interleaved 1F1B" if schedule == "1F1B-I" else "1F1B"
    return "full recomputation" if again == FULL else "selective recomputation"


def published_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the largest run of every model and way of a paper: published, forecast, errors."""
    largest = rows.groupby(["left_out", "of", "model"], sort=False).tail(1)
    table = largest.set_index(["left_out", "of", "model"]).rename(
        columns={"measured": "published", "tokens_per_s_per_gpu": "forecast"}
    )
    table["error (%)"] = 100 * (table["forecast"] / table["published"] - 1)
    table["constant MFU (%)"] = 100 * (table["constant"] / table["published"] - 1)
    columns = ["gpus", "layout", "published", "forecast", "low", "high"]
    return table[[*columns, "error (%)", "constant MFU (%)"]].round(1)


def published_sentences(rows: pd.DataFrame) -> list[str]:
    """Return how far off the forecasts of papers that the fit had not seen are, and where most."""

    def off(column: str, part: pd.DataFrame = rows) -> pd.Series:
        return (part[column] / part["measured"] - 1).abs()

    ours = off("tokens_per_s_per_gpu")
    inside = rows["measured"].between(rows["low"], rows["high"])
    worst = rows.loc[ours.idxmax()]
    by_paper = ", ".join(
        f"{paper} {off('tokens_per_s_per_gpu', part).median():.1%} ({len(part)} runs)"
        for paper, part in rows.groupby("left_out", sort=False)
    )
    return [
        f"Of papers that the fit has not seen, {len(rows)} runs on {rows['gpus'].min()} to "
        f"{rows['gpus'].max():,} GPUs are forecast with a median error of {ours.median():.1%}: "
        f"{by_paper}.",
        f"{(ours <= NEAR).sum()} of {len(rows)} are within 20 %, {inside.sum()} in their 90 % "
        f"interval. The fit that has seen them all is off by {off('fitted').median():.1%}, the "
        f"median MFU of the other papers by {off('constant').median():.1%}.",
        f"Furthest off is {worst['of']} on {worst['gpus']} GPUs ({worst['left_out']}): "
        f"{worst['tokens_per_s_per_gpu'] / worst['measured'] - 1:+.0%}.",
    ]


# arXiv 2104.04473, section 5.1: model, tokens, GPUs, TFLOP/s of a GPU, sequences of a step, days.
GPT3 = gpt("GPT-3 175B", 96, 12288, 96, 51200, 2048)
TRILLION = gpt("GPT 1008B", 128, 25600, 160, 51200, 2048)
DAYS = (
    (GPT3, 300e9, 1024, 140e12, 1536, 34.0),
    (TRILLION, 450e9, 3072, 163e12, 3072, 84.0),
)
PUBLISHED_PETAFLOPS = 502.0  # of the second, abstract
A100_PEAK = 312e12


def training_days(
    cases: Sequence[tuple[Transformer, float, int, float, int, float]] = DAYS,
) -> pd.DataFrame:
    """Return days of training by formula, by the FLOPs of the layers, forecast, and published.

    ``formula``: 8 FLOPs per token and parameter over the GPUs' published rate (arXiv 2104.04473,
    equation 4, items D06 and D07); ``layers``: with the FLOPs of every layer instead; ``forecast``:
    with the throughput of the best layout that `ddlnb.scale` finds, which knows no published rate.
    ``petaflops``: of all GPUs; ``share`` of their peak.
    """
    rows = {}
    for model, tokens, gpus, rate, batch, published in cases:
        shape = model.shape
        best = scale(
            model, "A100-80GB", gpus // 8, framework=FRAMEWORK, precision="fp16",
            global_batch=batch,
        ).rows(1)[0]  # fmt: skip
        flops = shape.iteration_flops(1, "full") / model.sequence
        rows[model.name] = {
            "gpus": gpus,
            "formula": 8 * tokens * shape.parameters / (gpus * rate) / DAY,
            "layers": tokens * flops / (gpus * rate) / DAY,
            "forecast": tokens / (best["tokens_per_s_per_gpu"] * gpus) / DAY,
            "published": published,
            "layout": best["layout"],
            "petaflops": gpus * rate / 1e15,
            "share": rate / A100_PEAK,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")


def days_sentences(table: pd.DataFrame) -> list[str]:
    """Return the computed and forecast days of training beside the published ones."""
    said = [
        f"{model} on {row['gpus']:,} GPUs: {row['formula']:.1f} days by the formula, "
        f"{row['layers']:.1f} with the FLOPs of every layer; published are {row['published']:.0f}. "
        f"The best layout that is found, `{row['layout']}`, is forecast to take "
        f"{row['forecast']:.0f}"
        + ("." if "full" in row["layout"] else ": it computes nothing twice.")
        for model, row in table.iterrows()
    ]
    last = table.iloc[-1]
    return [
        *said,
        f"All GPUs of the largest run compute {last['petaflops']:.1f} PFLOP/s, {last['share']:.0%} "
        f"of their peak; published are {PUBLISHED_PETAFLOPS:.0f}.",
    ]
