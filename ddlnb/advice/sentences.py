"""Advice in words: what to do, why it takes so long, what would pay, and what is not known."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ddlnb.advice.explain import NEGLIGIBLE, Gap, LastMessage
from ddlnb.advice.options import Kind, LossyOption, bucket_option, method_options
from ddlnb.advice.question import Question
from ddlnb.advice.score import THROUGHPUT
from ddlnb.clusters.cluster import ASSUMED_ERROR
from ddlnb.plans.methods import in_torch
from ddlnb.search.search import SearchResult
from ddlnb.simulator.recommendation import POOR, TIE, all_wait_for, sizes_in_words
from ddlnb.simulator.simulate import steady_seconds
from ddlnb.units import gpus_in_words, listed, show_bytes, show_rate, show_rates, show_seconds

NAMED = 4  # options that change learning: the table has all


def sentences(
    question: Question,
    rows: pd.DataFrame,
    reasons: pd.DataFrame,
    waits: LastMessage | None,
    gap: Gap | None,
    search: SearchResult | None = None,
) -> list[str]:
    """Return the advice, sentence by sentence; what does not apply is left out."""
    said = [
        _as_fast(rows),
        _what(question, rows),
        _ours(rows),
        _bound(search),
        _scaling(question, rows),
        why(reasons, waits),
        _machines(rows),
        _learning(rows),
        _fewer(question, rows),
        _buy(question, rows, reasons),
    ]
    if gap is not None:
        said = [str(gap), *map(str, gap.likeliest), _meanwhile(question, gap), *said]
    return [one for one in said if one]


def _meanwhile(question: Question, gap: Gap) -> str:
    """Say what methods make for as long as the cluster is what the first suspect says."""
    slow = gap.suspects[0].cluster if gap.suspects else None
    if slow is None or question.cluster.workers == 1:
        return ""
    there = replace(question, cluster=slow)
    options = [*method_options(there), *bucket_option(there)]
    cells = {one.name: one.cell for one in options if not one.server_machines}
    played = steady_seconds(list(cells.values()))
    seconds = dict(zip(cells, (one.iteration_seconds for one in played), strict=True))
    best = min(seconds, key=lambda name: seconds[name])
    rates = {name: show_rate(cells[name].samples / seconds[name]) for name in seconds}
    rates |= {gap.method: show_rate(gap.measured)}
    said = (
        "The options are forecast for the cluster as it is given. If the first suspect is right, "
    )
    if gap.measured < gap.low:
        said = "The options are forecast as if the first suspect was mended. As long as it is not, "
    said += f"DDP makes {rates['DDP']} samples/s"
    if seconds["DDP"] <= (1 + TIE) * seconds[best]:
        return f"{said}, and no method without further machines is faster."
    return f"{said}; the fastest without further machines is {best} with {rates[best]}."


def _what(question: Question, rows: pd.DataFrame) -> str:
    best = rows.iloc[0]
    if best["gpus"] == 1:
        return f"One GPU of {question.cluster.name} exchanges nothing: {_rate(best)}."
    level = (_same(rows)[THROUGHPUT] / best[THROUGHPUT] - 1).abs() <= TIE
    ties = _same(rows)[level]["option"].tolist()[1:]
    said = f"; {', '.join(ties)} {'ties' if len(ties) == 1 else 'tie'} with it" if ties else ""
    return (
        f"On {best['gpus']} GPUs of {question.cluster.name} take {_named(best)}: "
        f"{_rate(best)}{_sure(best)}{said}."
    )


def _ours(rows: pd.DataFrame) -> str:
    """Say what the methods gain that PyTorch does not have, and by what a script has them."""
    first = rows.iloc[0]
    faster = _same(rows)[_same(rows)[THROUGHPUT] > (1 + TIE) * first[THROUGHPUT]]
    faster = faster.sort_values(THROUGHPUT, ascending=False)
    if not in_torch(first["option"]) or faster.empty:
        return ""
    best, *others = faster.to_dict("records")
    further = "".join(
        f"; {one['option']} {one[THROUGHPUT] / first[THROUGHPUT]:.2f} times" for one in others
    )
    return (
        f"ddlnb.DistributedModel in place of DDP makes {_rate(best)} by {_named(best)}, "
        f"{best[THROUGHPUT] / first[THROUGHPUT]:.2f} times as much{_sure(best)}{further}."
    )


def _same(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what computes the same on the same GPUs, with no machines beyond the first's."""
    same = rows[(rows["learning"] == "") & (rows["kind"] != str(Kind.FEWER))]
    return same[same["server_machines"] <= rows["server_machines"].iloc[0]]


def fastest(rows: pd.DataFrame) -> pd.Series:
    """Return the fastest option that computes the same on the same machines."""
    return rows.loc[_same(rows)[THROUGHPUT].idxmax()]


def _named(row: Mapping[Hashable, Any] | pd.Series) -> str:
    return f"{'the ' if row['kind'] == str(Kind.PLAN) else ''}{_sized(row)}"


def _sure(row: Mapping[Hashable, Any] | pd.Series) -> str:
    chance = row["chance_best"]
    return "" if math.isnan(chance) else f", the fastest in {chance:.0%} of the draws"


def _sized(row: Mapping[Hashable, Any] | pd.Series) -> str:
    """Return an option with its partition and credit, where it has both."""
    has_both = "credit=" in row["settings"]
    return f"{row['option']} with {sizes_in_words(row['settings'])}" if has_both else row["option"]


def _as_fast(rows: pd.DataFrame) -> str:
    """Say, before all else, which smaller number of GPUs is no slower than all of them."""
    best, row = fastest(rows), _smaller(rows)
    if row is None:
        return ""
    times = row[THROUGHPUT] / best[THROUGHPUT]
    what = "One GPU alone is" if row["gpus"] == 1 else f"{_in_words(_sized(row))} are"
    how = "no slower than" if times <= 1 + TIE else f"{times:.2f} times as fast as"
    return f"{what} {how} all {best['gpus']}: {_rate(row)}. Use no more, or send less."


def _in_words(option: str) -> str:
    """Return an option on fewer GPUs within a sentence: "4 GPUs by DeAR"."""
    return option.replace(", ", " by ", 1)


def _smaller(rows: pd.DataFrame) -> pd.Series | None:
    """Return the fewest GPUs that no other number beats, all of them among these; None for all."""
    smaller = rows[rows["kind"] == str(Kind.FEWER)]
    most = max(fastest(rows)[THROUGHPUT], smaller[THROUGHPUT].max())
    found = smaller[smaller[THROUGHPUT] >= (1 - TIE) * most]
    return None if found.empty else found.loc[found["gpus"].idxmin()]


def _bound(search: SearchResult | None) -> str:
    """Say how much faster any plan could be that sends whole gradients without servers."""
    if search is None:
        return ""
    return (
        f"No plan that sends the same without servers takes less than "
        f"{show_seconds(search.lower_bound_seconds)} per iteration; the searched one takes "
        f"{show_seconds(search.iteration_seconds)}, {search.gap:.1%} more."
    )


def is_poor(option: pd.Series) -> bool:
    """Whether an option on several GPUs leaves so little of them that it is advised against."""
    return bool(option["gpus"] > 1 and option["speedup"] / option["gpus"] < POOR)


def _scaling(question: Question, rows: pd.DataFrame) -> str:
    """Say how much of linear scaling the fastest is, and warn where it is poor."""
    best = fastest(rows)
    if best["gpus"] == 1:
        return ""
    share = best["speedup"] / best["gpus"]
    what = "That" if best.name == rows.index[0] else "The fastest"
    times = f"{best['speedup']:.{1 if best['speedup'] >= 1 else 2}f}"
    said = f"{what} is {times} times one GPU, {share:.0%} of linear"
    if not is_poor(best):
        return f"{said}."
    if waiting := all_wait_for(best["speedup"], int(best["gpus"]), question.cluster):
        return f"{said}: {waiting}."
    return f"{said}: do not train like this, but send less, or use fewer GPUs or a faster network."


def _rate(row: Mapping[Hashable, Any] | pd.Series) -> str:
    if math.isnan(row["low"]):
        return f"{show_rate(row[THROUGHPUT])} samples/s"
    return f"{show_rate(row[THROUGHPUT])} samples/s ({show_rates(row['low'], row['high'])})"


def why(reasons: pd.DataFrame, waits: LastMessage | None = None) -> str:
    """Return why an iteration takes so long: what each counterfactual gains."""
    parts = [
        f"with {what}: {times:.2f}x"
        for what, times in zip(reasons["what"], reasons["times_as_fast"], strict=True)
        if times > 1 + NEGLIGIBLE
    ]
    seconds = show_seconds(reasons["iteration_seconds"].iloc[0])
    last = f"; {waits}" if waits is not None else ""
    found = "; ".join(parts) or "nothing that was changed would make it faster"
    return f"Why an iteration takes {seconds}: {found}{last}."


def _machines(rows: pd.DataFrame) -> str:
    """Say what further machines for servers would bring."""
    best = fastest(rows)
    served = rows[(rows["server_machines"] > best["server_machines"]) & (rows["learning"] == "")]
    if served.empty:
        return ""
    is_level = served[THROUGHPUT] >= (1 - TIE) * served[THROUGHPUT].max()
    top = served.loc[served.loc[is_level, "server_machines"].idxmin()]
    gain = top[THROUGHPUT] / best[THROUGHPUT]
    machines = f"{top['server_machines']} more machines as servers ({_sized(top)})"
    if gain <= 1 + TIE:
        return f"{_first(machines)} gain nothing."
    dearer = top["cost"] / best["cost"] - 1
    if math.isfinite(dearer):
        said = f"{abs(dearer):.0%} {'more' if dearer > 0 else 'less'}"
        return f"{_first(machines)} gain {gain - 1:.0%}, and a sample costs {said} with them."
    return (
        f"{_first(machines)} gain {gain - 1:.0%}: they pay if they add less than that to the "
        f"price of an hour."
    )


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _learning(rows: pd.DataFrame) -> str:
    """Say which options gain that change learning, and how much they may lose there."""
    best = fastest(rows)
    found = rows[(rows["learning"] != "") & (rows[THROUGHPUT] > (1 + TIE) * best[THROUGHPUT])]
    parts = [
        f"{row['option']} is {row[THROUGHPUT] / best[THROUGHPUT]:.2f}x per sample "
        f"({row['learning']})"
        for row in found.sort_values(THROUGHPUT, ascending=False).to_dict("records")
    ]
    if not parts:
        return ""
    more = f"; and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    return (
        f"What changes learning pays only if throughput grows by more than the samples needed do: "
        f"{'; '.join(parts[:NAMED])}{more}."
    )


def _fewer(question: Question, rows: pd.DataFrame) -> str:
    """Say which smaller number of GPUs costs less by the sample, and how much longer it takes."""
    best = fastest(rows)
    if _as_fast(rows):
        return ""
    smaller = rows[rows["kind"] == str(Kind.FEWER)]
    column = "cost" if question.prices.are_given else "gpu_hours"
    fewer = smaller[smaller[column] < (1 - TIE) * best[column]]
    if fewer.empty:
        return ""
    row = fewer.loc[fewer[column].idxmin()]
    what = "cost" if question.prices.are_given else "GPU hours"
    takes = "take" if row["gpus"] > 1 else "alone takes"
    how = f" ({row['option']})" if row["gpus"] > 1 else ""
    return (
        f"{gpus_in_words(int(row['gpus']))} {takes} "
        f"{best[THROUGHPUT] / row[THROUGHPUT]:.2f} times as long, for "
        f"{row[column] / best[column]:.0%} of the {what} of a sample{how}."
    )


def _buy(question: Question, rows: pd.DataFrame, reasons: pd.DataFrame) -> str:
    """Return what would pay; where fewer GPUs do as well, what would make all of them faster.

    Those in one node gain nothing by the network between nodes; of others nothing is said.
    """
    row = _smaller(rows)
    if row is None:
        return pays(reasons)
    if row["gpus"] > question.cluster.gpus_per_node:
        return ""
    level = row[THROUGHPUT] / rows[THROUGHPUT].iloc[0]
    faster = reasons[
        reasons["what"].str.contains("between nodes")
        & (reasons["times_as_fast"] > (1 + TIE) * level)
    ]
    everyone = f"all {rows['gpus'].iloc[0]} GPUs faster than {_in_words(row['option'])}"
    if faster.empty:
        return f"No bandwidth that was tried would make {everyone}."
    parts = [
        f"{what} ({times / level:.2f}x)"
        for what, times in zip(faster["what"], faster["times_as_fast"], strict=True)
    ]
    return f"What would make {everyone}: {'; '.join(parts)}."


def pays(reasons: pd.DataFrame) -> str:
    """Return what would pay if it were bought, and up to which price."""
    bought = reasons[reasons["can_be_bought"] & (reasons["times_as_fast"] > 1 + TIE)]
    parts: list[str] = []
    least = 1 + TIE
    for row in bought.to_dict("records"):
        if row["times_as_fast"] > least:  # twice as much of the same has to bring something more
            parts.append(
                f"{row['what']} if an hour costs at most {row['times_as_fast'] - 1:.0%} more"
            )
        least = (1 + TIE) * row["times_as_fast"] if "between" in row["what"] else 1 + TIE
    return f"What would pay: {'; '.join(parts)}." if parts else ""


NOTEWORTHY = 0.01  # relative: seconds that are known better are known


def unknowns(
    question: Question, lossy: Sequence[LossyOption], left_out: Sequence[str] = ()
) -> list[str]:
    """Return sentences, each on one thing that nobody measured or gave.

    ``left_out`` are lossy methods that were not judged, each with its reason.
    """
    cluster, workload = question.cluster, question.workload
    said = []
    if cluster.assumed:
        said.append(
            f"Nobody measured {listed(cluster.assumed)} of {cluster.name}: their intervals are "
            f"assumed, and wide. `ddlnb cluster fit` or your own values narrow them."
        )
    if cluster.model_error == ASSUMED_ERROR:
        said.append(
            f"How far simulated seconds are off on {cluster.name} is assumed: {ASSUMED_ERROR:.0%}."
        )
    if workload.spread >= NOTEWORTHY:
        said.append(
            f"The seconds of {workload.model} are known within {workload.spread:.0%} "
            f"({workload.source}); the throughput of one GPU would tell (--throughput)."
        )
    needed = question.memory_bytes(workload.local_batch)
    if math.isnan(needed):
        said.append(
            f"Whether larger batches of {workload.model} fit into memory is unknown: "
            f"{question.why_no_footprint}."
        )
    elif math.isnan(question.gpu_memory):
        said.append(
            f"Training takes about {show_bytes(int(needed))} of a GPU's memory; how much a GPU of "
            f"{cluster.name} has is unknown."
        )
    if lossy:
        from ddlnb.training.cost.estimate import as_one_vector

        compressed = [one.name for one in lossy if one.compresses]
        parts = [
            f"How many iterations lossy methods need on {workload.model} is unknown; those given "
            f"are of a small task.",
            "Their compression takes what the GPU's data sheet says." * bool(compressed),
            as_one_vector(workload, cluster, compressed),
        ]
        said.append(" ".join(filter(None, parts)))
    said += [f"Not judged: {one}." for one in left_out]
    if not question.prices.are_given:
        said.append("Prices were not given: costs are in GPU hours.")
    return said


def shown_options(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the options as texts, in columns that are worth their width."""
    has_memory = rows["memory_bytes"].notna().any()
    has_cost = rows["cost"].notna().any()
    has_draws = rows["draws"].any()
    is_ddp = rows["option"] == "DDP"
    over, base = ("over DDP", rows[is_ddp]) if is_ddp.any() else ("over 1st", rows)
    shown = []
    for row in rows.to_dict("records"):
        line = {
            "option": row["option"],
            "samples/s": show_rate(row[THROUGHPUT]),
            "90 % interval": show_rates(row["low"], row["high"]),
            over: f"{row[THROUGHPUT] / base[THROUGHPUT].iloc[0]:.2f}",
        }
        if has_memory:
            line["memory"] = show_bytes(int(row["memory_bytes"])) + _fits(row["fits"])
        line |= {"GPUs": row["gpus"], "servers": row["server_machines"]}
        line["best in"] = "-" if math.isnan(row["chance_best"]) else f"{row['chance_best']:.0%}"
        cost = row["cost" if has_cost else "gpu_hours"]
        what = "cost/M samples" if has_cost else "GPU h/M samples"
        line[what] = "no price" if math.isnan(cost) else f"{cost:.3g}"
        line["changes"] = row["kind"] if row["learning"] else "-"
        line |= {"draws": row["draws"]} if has_draws else {}
        shown.append(line)
    return shown


def _fits(fits: bool | None) -> str:
    return "" if fits is None or fits else " (does not fit)"


def shown_reasons(reasons: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the counterfactuals as texts."""
    return [
        {
            "with": row["what"],
            "iteration": show_seconds(row["iteration_seconds"]),
            "times as fast": f"{row['times_as_fast']:.2f}",
        }
        for row in reasons.to_dict("records")
    ]
