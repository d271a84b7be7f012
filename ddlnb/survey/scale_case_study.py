"""A large model on many GPUs, step by step, and large runs that others published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.advice.question import Prices
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.config import get_shape
from ddlnb.parallelism.forecast.cases import FULL
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.layouts import OF_SHARDS, Ranking, scale
from ddlnb.parallelism.forecast.published import PAPERS, observed, rows_of
from ddlnb.parallelism.forecast.validation import papers_forecast
from ddlnb.parallelism.goodput.compare import spares_and_elastic
from ddlnb.parallelism.goodput.failures import DAY, HOUR
from ddlnb.parallelism.goodput.simulate import DRAWS, MONTH, Job
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import memory
from ddlnb.parallelism.model import Transformer, gpt
from ddlnb.registry import several
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.scale_forecast import best_layouts as best_layouts
from ddlnb.units import GIB, counted

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
    needs = {text: memory(shape, Layout.parse(text)) for text in several(layouts)}
    rows = {text: [getattr(one, name) for name in (*PARTS, "total")] for text, one in needs.items()}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=[*PARTS, "total"]) / GIB
    share = table["total"] * GIB / whole
    return table.assign(share=share, fits=share <= 1).rename_axis("layout")


def fit_sentences(table: pd.DataFrame) -> list[str]:
    """Return which layouts of a table of memory fit, and what fills those that do not."""
    lacks = table[~table["fits"]]
    largest = lacks[list(PARTS)].idxmax(axis=1)
    return [
        f"{table['fits'].sum()} of {len(table)} layouts fit, before what allocators and libraries "
        f"take.",
        *(
            f"`{layout}` does not: it needs {row['share']:.1f} times the memory of a GPU; the "
            f"largest part is for {PARTS[largest[layout]]} ({row[largest[layout]]:,.0f} GiB)."
            for layout, row in lacks.iterrows()
        ),
    ]


# Parts of a step as the figure of layouts names them.
PARTS_OF_STEP = {
    "compute": "computation",
    "optimizer": "update",
    "bubble": "bubble",
    "tensor": "tp",
    "transfers": "pp",
    "reduction": "data",
    "other": "fixed",
    "slow": "slow",
}
MEANINGS = {
    "computation": "computation",
    "update": "the optimizer",
    "bubble": "the bubble",
    "tp": "tensor-parallel exchanges",
    "shards": OF_SHARDS,
    "pp": "transfers between stages",
    "data": "the data-parallel reduction",
    "fixed": "the rest",
    "slow": "slow runs",
}


def time_table(ranking: Ranking, top: int) -> pd.DataFrame:
    """Return the best layouts with the seconds of a step by what they go to, the best first.

    ``seconds`` is the sum of the parts, of which ``slow`` is what slow runs lose, by their chance;
    ``tokens_per_second`` what a GPU does in it. ``memory_gib`` is what the fullest rank needs.
    """
    found, best = ranking.outlook, ranking.best_of_splits()[:top]
    layouts = pd.Index([str(ranking.layout(index)) for index in best], name="layout")
    parts = pd.DataFrame([ranking.parts(index) for index in best], layouts)[list(PARTS_OF_STEP)]
    seconds = parts.sum(axis=1)
    gathers = [ranking.name_of("tensor", index) == OF_SHARDS for index in best]
    shards = parts["tensor"].where(gathers, 0.0)
    parts["tensor"] -= shards
    return parts.rename(columns=PARTS_OF_STEP).assign(
        shards=shards,
        seconds=seconds,
        tokens_per_second=(found.cases.step_tokens / found.cases.gpus)[best] / seconds,
        memory_gib=found.most_gib[best],
    )


def split_sentences(ranking: Ranking) -> list[str]:
    """Return the best layout, how fast and how sure, what its time goes to, and why others lose."""
    rows = ranking.rows(2)
    best, table = rows[0], time_table(ranking, 1).iloc[0]
    words = list(MEANINGS)
    lost = table[words].drop("computation").sort_values(ascending=False)
    gpus = int(ranking.outlook.cases.gpus[0])
    shares = lost.iloc[:2] / table["seconds"]
    named = shares[(shares >= PART) | (shares == shares.max())]
    parts = [f"{MEANINGS[word]} ({share:.0%})" for word, share in named.items()]
    said = [
        f"{len(ranking)} of {len(ranking.outlook.cases)} layouts fit on {gpus} GPUs; the fastest "
        f"is `{best['layout']}` with {best['memory_gib']:.0f} GiB.",
        f"It trains {best['tokens_per_s_per_gpu']:.0f} tokens/s per GPU (90 % interval "
        f"{best['low']:.0f} to {best['high']:.0f}), an MFU of {best['mfu']:.1%}; a step takes "
        f"{best['seconds']:.1f} s.",
        f"{table['computation'] / table['seconds']:.0%} of a step is computation; most of what is "
        f"not goes to {' and '.join(parts)}.",
    ]
    if best["chance_of_slow"] > 0:
        said.append(
            f"With a chance of {best['chance_of_slow']:.0%} its run is a slow one, whose transfers "
            "between stages lose a quarter of a second each: hence the low end of the interval."
        )
    if len(rows) > 1:
        behind = 1 - rows[1]["tokens_per_s_per_gpu"] / best["tokens_per_s_per_gpu"]
        said.append(
            f"The next split, `{rows[1]['layout']}`, is {behind:.1%} behind: {rows[1]['loses_by']}."
        )
    return said


PART = 0.005  # of a step: less is not named
BILLION, TRILLION = 1e9, 1e12


def job_of(ranking: Ranking) -> Job:
    """Return the job that trains with the best layout; elastic training leaves out its replicas."""
    best = ranking.layout(int(ranking.order[0]))
    per_node = int(ranking.outlook.cases.gpus_per_node[0])
    return Job(best.ranks, gpus_per_node=per_node, replica_gpus=best.tp * best.pp)


def spare_table(ranking: Ranking, spares: Sequence[int], draws: int = DRAWS) -> pd.DataFrame:
    """Return a month's goodput of the best layout, by spare nodes, waiting for nodes or elastic.

    ``per_node`` is the goodput over all nodes that are paid for, the spare ones as well.
    """
    return spares_and_elastic(job_of(ranking), several(spares), draws=draws)


def spare_labels(table: pd.DataFrame) -> list[str]:
    """Return a short label for every row of a table of spares."""
    return [
        counted(row.spare_nodes, "spare node") + (", elastic" if row.elastic else "")
        for row in table.itertuples()
    ]


def yield_row(
    ranking: Ranking, spares: Sequence[int], prices: Prices, draws: int = DRAWS
) -> dict[str, Any]:
    """Return what a month of the best layout yields, with the choice of spares that pays most.

    Tokens of a month, in billions, are throughput times goodput; ``billion_low`` and
    ``billion_high`` add the distances of their two 90 % intervals in quadrature, as logarithms: one
    is no cause of the other. Costs count every node that is paid for, also spare ones, at the price
    of a GPU and hour.
    """
    best = ranking.rows(1)[0]
    table = spare_table(ranking, spares, draws)
    month = table.loc[table["per_node"].idxmax()]
    gpus = int(month["gpus"])
    paid = gpus + int(month["spare_nodes"]) * int(month["gpus_per_node"])
    tokens = best["tokens_per_s_per_gpu"] * gpus * month["goodput"] * MONTH
    cost = prices.per_hour(paid, 0) * MONTH / HOUR

    def end(which: str, way: int) -> float:
        throughput = math.log(best[which] / best["tokens_per_s_per_gpu"])
        good = math.log(month[which] / month["goodput"])
        return float(tokens * math.exp(way * math.hypot(throughput, good)))

    low, high = end("low", -1), end("high", 1)

    return {
        "gpus": gpus,
        "layout": best["layout"],
        "tokens_per_s_per_gpu": best["tokens_per_s_per_gpu"],
        "spare_nodes": int(month["spare_nodes"]),
        "elastic": bool(month["elastic"]),
        "goodput": float(month["goodput"]),
        "failures": float(month["failures"]),
        "billion_tokens": tokens / BILLION,
        "billion_low": low / BILLION,
        "billion_high": high / BILLION,
        "days_per_trillion": TRILLION / tokens * MONTH / DAY,
        "cost_per_billion": cost / tokens * BILLION,
        "cost_low": cost / high * BILLION,
        "cost_high": cost / low * BILLION,
    }


def yield_table(
    model: str,
    gpu: str,
    nodes: Sequence[int],
    spares: Sequence[int],
    gpu_hour: float,
    draws: int = DRAWS,
) -> pd.DataFrame:
    """Return what a month yields and costs with so many nodes, each with its best layout.

    ``gpu_hour`` is the price of a GPU and hour in any currency. Raises InputError for a number of
    nodes on which nothing fits, and for a price that is none.
    """
    prices = Prices(gpu_hour=gpu_hour)
    rows = [yield_row(scale(model, gpu, count), spares, prices, draws) for count in several(nodes)]
    return pd.DataFrame(rows)


def yield_sentences(table: pd.DataFrame, gpus: int) -> list[str]:
    """Return what a month of so many GPUs yields and costs, and what more or fewer GPUs change."""
    one = table[table["gpus"] == gpus].iloc[0]
    cheapest = table.loc[table["cost_per_billion"].idxmin()]
    stand_in = "elastic training" if one["elastic"] else "waiting for broken nodes"
    said = [
        f"{one['goodput']:.0%} of a month on {gpus} GPUs is work that is kept, with "
        f"{one['failures']:.0f} failures, {counted(one['spare_nodes'], 'spare node')} and "
        f"{stand_in}.",
        f"That makes {one['billion_tokens']:.0f} billion tokens in a month "
        f"({one['billion_low']:.0f} to {one['billion_high']:.0f}), "
        f"{one['billion_tokens'] * 7 / 30:.0f} in a week; a trillion take "
        f"{one['days_per_trillion']:.0f} days.",
        f"A billion tokens cost {one['cost_per_billion']:.0f} ({one['cost_low']:.0f} to "
        f"{one['cost_high']:.0f}) in the currency of the price.",
    ]
    if cheapest["gpus"] != gpus:
        saved = 1 - cheapest["cost_per_billion"] / one["cost_per_billion"]
        said.append(
            f"They are cheapest on {cheapest['gpus']} GPUs, {saved:.0%} less, where a trillion "
            f"take {cheapest['days_per_trillion']:.0f} days."
        )
    return said


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
    for one, found in papers_forecast():
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
    paper = ["left_out", "of", "model"]
    table = rows.groupby(paper, sort=False).tail(1).set_index(paper).rename(
        columns={"measured": "published", "tokens_per_s_per_gpu": "forecast"}
    )  # fmt: skip
    for column, of in (("error (%)", "forecast"), ("constant MFU (%)", "constant")):
        table[column] = 100 * (table[of] / table["published"] - 1)
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
GPT_1008B = gpt("GPT 1008B", 128, 25600, 160, 51200, 2048)
DAYS = (
    (GPT3, 300e9, 1024, 140e12, 1536, 34.0),
    (GPT_1008B, 450e9, 3072, 163e12, 3072, 84.0),
)
PUBLISHED_PETAFLOPS = 502.0  # of the second, abstract
A100_PEAK = 312e12


@tabled(index=["model"])
def training_days(
    cases: Sequence[tuple[Transformer, float, int, float, int, float]] = DAYS,
) -> Rows:
    """Return days of training by formula, by the FLOPs of the layers, forecast, and published.

    ``formula``: 8 FLOPs per token and parameter over the GPUs' published rate (arXiv 2104.04473,
    equation 4, items D06 and D07); ``layers``: with the FLOPs of every layer instead; ``forecast``:
    with the throughput of the best layout that `ddlnb.scale` finds, which knows no published rate.
    ``petaflops``: of all GPUs; ``share`` of their peak.
    """
    for model, tokens, gpus, rate, batch, published in cases:
        shape = model.shape
        best = scale(
            model, "A100-80GB", gpus // 8, framework=FRAMEWORK, precision="fp16",
            global_batch=batch,
        ).rows(1)[0]  # fmt: skip
        flops = shape.iteration_flops(1, "full") / model.sequence
        yield {
            "model": model.name,
            "gpus": gpus,
            "formula": 8 * tokens * shape.parameters / (gpus * rate) / DAY,
            "layers": tokens * flops / (gpus * rate) / DAY,
            "forecast": tokens / (best["tokens_per_s_per_gpu"] * gpus) / DAY,
            "published": published,
            "layout": best["layout"],
            "petaflops": gpus * rate / 1e15,
            "share": rate / A100_PEAK,
        }


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


def case_findings(memory: pd.DataFrame, ranking: Ranking, yields: pd.DataFrame) -> Findings:
    """Return whether the model fits, how fast the best split is and why, what it yields, costs."""
    gpus = int(ranking.outlook.cases.gpus[0])
    return findings(
        *fit_sentences(memory), *split_sentences(ranking), *yield_sentences(yields, gpus)
    )


def published_findings(rows: pd.DataFrame, days: pd.DataFrame) -> Findings:
    """Return how far off forecasts of published runs are, and days of training by three ways."""
    return findings(*published_sentences(rows), *days_sentences(days))
