"""What a forecast says in words: which method to take, and what a reader must know beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ddlnb.clusters.cluster import ASSUMED_ERROR, Cluster
from ddlnb.clusters.effects import EFFECTS
from ddlnb.plans.methods import BASELINES, METHODS, Method
from ddlnb.results.schema import RATE
from ddlnb.units import bytes_from, listed, show_bytes, show_rate

POOR = 0.5  # of linear speed-up: below, GPUs wait for one another more than they compute
TIE = 0.02  # of the best throughput: less is not worth a change
SIZES = ("partition=", "credit=")  # in the column settings
CHANCE = 0.1  # of the draws in which a method is the best: as much is no matter of chance alone


def recommended(rows: pd.DataFrame, on: Cluster) -> str:
    """Return what to take at the largest size: on the machines there are, and with servers added.

    A method ties with the best one if it is as good within TIE; one that is itself the best in
    CHANCE or more of the draws is named. Where even the best speed-up is below POOR of linear, the
    advice says that one should not.
    """
    largest = rows[rows["gpus"] == rows["gpus"].max()]
    if rows["gpus"].max() == 1:
        return (
            f"One GPU of {on.name} exchanges nothing: {show_rate(largest[RATE].max())} samples/s "
            f"by any method."
        )
    is_extra = largest["servers"].gt(0) & (on.server_place == "extra machines")
    is_extra &= largest["gpus"] > on.gpus_per_node
    size = f"On {largest['gpus'].iloc[0]} GPUs of {on.name}"
    alone, helped = largest[~is_extra], largest[is_extra]
    warning = _warning(rows, largest, on)
    if not len(helped):
        return f"{size} {_take(alone)}.{warning}"
    best = helped.loc[helped[RATE].idxmax()]
    more = f"{best['servers']} more machines as servers"
    if not len(alone):
        return f"{size} with {more} {_take(helped)}.{warning}"
    return (
        f"{size} without further machines {_take(alone)}. With {more}, "
        f"{_against(best, alone.loc[alone[RATE].idxmax()])}.{warning}"
    )


def all_wait_for(speedup: float, gpus: int, on: Cluster) -> str:
    """Return who all others wait for, and what to do, if that is why GPUs do so little; else ""."""
    slow = {rank: factor for rank, factor in on.heterogeneity.compute if rank < gpus}
    most = max(slow.values(), default=1.0)
    # Without whoever takes longer than this the speed-up is half of linear, at most.
    enough = 1 / POOR - gpus / speedup + most
    if gpus == 1 or len(slow) == gpus or not 1 <= enough < most:
        return ""
    last = sorted(rank for rank, factor in slow.items() if factor > enough)
    who, do, them = ("workers", " up to", "them") if len(last) > 1 else ("worker", "s", "it")
    return (
        f"all wait for {who} {', '.join(map(str, last))}, which compute{do} {most:g} times as "
        f"long: replace {them}, leave {them} out, or give {them} a smaller share of the batch "
        f"(ddlnb layouts balance), and ask again, to see what else is slow"
    )


def _warning(rows: pd.DataFrame, largest: pd.DataFrame, on: Cluster) -> str:
    """Return that one should not train on so many GPUs, if one should not; else nothing."""
    best = largest.loc[largest["speedup"].idxmax()]
    gpus, speedup = best["gpus"], best["speedup"]
    if gpus == 1 or speedup >= POOR * gpus:
        return ""
    if waiting := all_wait_for(speedup, gpus, on):
        return f" But at best {gpus} GPUs do the work of {speedup:.1f}, as {waiting}."
    if speedup <= 1:
        found = f"{gpus} GPUs are no faster than one"
    else:
        found = f"{gpus} GPUs do the work of {speedup:.1f}, and {gpus - speedup:.0f} are wasted"
    fewer = rows[rows["gpus"] < gpus]
    fewer = fewer[fewer["speedup"] >= (1 - TIE) * max(speedup, fewer["speedup"].max())]
    way_out = "use fewer GPUs"
    if len(fewer):
        enough = fewer.loc[fewer["gpus"].idxmin()]
        way_out = f"use {enough['gpus']} (speed-up {enough['speedup']:.2f} by {enough['method']})"
    return (
        f" But do not train like this: even so, {found}. Rather {way_out}, a larger batch per GPU "
        f"or a faster network, or send less (ddlnb forecast lossy)."
        + (f" Mend first what is uneven: {on.heterogeneity}." if str(on.heterogeneity) else "")
    )


def over_baseline(rows: pd.DataFrame) -> pd.Series:
    """Return each throughput over that of PyTorch's own on as many GPUs, NaN where it is not."""
    return rows[RATE] / rows["gpus"].map(
        rows[rows["method"].isin(BASELINES)].groupby("gpus")[RATE].first()
    )


def _take(rows: pd.DataFrame) -> str:
    """Return the best of these methods, those that tie with it, and the next one.

    PyTorch's own is taken where it ties, as every script has it.
    """
    order = rows.sort_values(RATE, ascending=False)
    is_there = order["method"].isin(BASELINES)
    has_it = is_there & (order[RATE] >= (1 - TIE) * order[RATE].max())
    order = order.assign(has_it=has_it).sort_values("has_it", ascending=False, kind="stable")
    best = order.iloc[0]
    said = f"take {best['method']}: speed-up {best['speedup']:.2f} "
    said += f"({best['speedup'] / best['gpus']:.0%} of linear)"
    if is_there.any() and best["method"] not in BASELINES:
        said += f", {over_baseline(rows)[best.name]:.2f} times DDP"
    others = order.iloc[1:]
    is_level = others[RATE] >= (1 - TIE) * best[RATE]
    may_win = ~is_level & (others["chance_best"] >= CHANCE)
    if level := others.loc[is_level, "method"].tolist():
        said += f"; {', '.join(level)} {'ties' if len(level) == 1 else 'tie'} with it"
    for row in others[may_win].to_dict("records"):
        said += f"; {row['method']} is the fastest in {row['chance_best']:.0%} of the draws"
    silent = is_level | may_win | others["method"].isin(BASELINES)
    if behind := others[~silent].to_dict("records"):
        said += f"; {behind[0]['method']} is {1 - behind[0][RATE] / best[RATE]:.0%} behind"
    return said


def _against(helped: pd.Series, alone: pd.Series) -> str:
    """Return what the best method with servers gains over the best one without."""
    ratio, name = helped[RATE] / alone[RATE], helped["method"]
    if 1 - TIE <= ratio <= 1 / (1 - TIE):
        return f"{name} ties with it: they gain nothing"
    second, who = (helped, "") if ratio < 1 else (alone, f"{alone['method']} is ")
    wins = f", though {who}the fastest in {second['chance_best']:.0%} of the draws"
    wins = wins if second["chance_best"] >= CHANCE else ""
    if ratio < 1:
        return f"{name} is {1 - ratio:.0%} slower{wins or ': they gain nothing'}"
    return f"{name} is {ratio - 1:.0%} faster (speed-up {helped['speedup']:.2f}){wins}"


def remarks(
    rows: pd.DataFrame, on: Cluster, methods: Sequence[Method], *, drawn: bool
) -> list[str]:
    """Return the remarks of the core that apply to these rows; often there is none.

    ``methods`` are those that were forecast, and ``drawn`` says whether intervals were asked for.
    """
    said = [_left_out(on, methods), _within_a_node(rows, on, methods), _tuned(rows, methods)]
    if drawn:
        said.append(_assumed(on))
    return [one for one in said if one]


def _left_out(on: Cluster, methods: Sequence[Method]) -> str:
    ours = [one.name for one in methods if one.name not in BASELINES]
    able = [one.name for one in METHODS.values() if one.architecture != "PS"]
    if on.takes_servers or ours != able:
        return ""  # chosen by name
    lacking = listed([name for name in METHODS if name not in able])
    why = "(server_place)" if on.server_place is None else f"on {on.topology or 'its network'}"
    return f"{on.name} has no parameter servers {why}, so that {lacking} are left out."


def _within_a_node(rows: pd.DataFrame, on: Cluster, methods: Sequence[Method]) -> str:
    served = {one.name for one in methods if one.architecture == "PS"}
    within = rows[rows["method"].isin(served) & rows["gpus"].between(2, on.gpus_per_node)]
    if within.empty:
        return ""
    counts = listed([str(count) for count in sorted(within["gpus"].unique())])
    names = listed(list(dict.fromkeys(within["method"])))
    verb = "reduces" if within["method"].nunique() == 1 else "reduce"
    return (
        f"On {counts} GPUs, within one node, no parameter server takes part, as in BytePS: {names} "
        f"{verb} gradients inside the node."
    )


def _tuned(rows: pd.DataFrame, methods: Sequence[Method]) -> str:
    """Return which sizes were found at the largest number of GPUs, where any were looked for."""
    gpus = rows["gpus"].max()
    settings = rows[rows["gpus"] == gpus].set_index("method")["settings"]
    found = [f"{one.name} has {sizes_in_words(settings[one.name])}" for one in methods if one.tunes]
    if not found or gpus == 1:
        return ""
    return (
        f"Partition and credit are tuned in simulation (--partition and --credit take yours): on "
        f"{gpus} GPUs {listed(found)}."
    )


def tuned_in_words(method: Method) -> str:
    """Return the sizes of a method that were found for a cluster (`sized_on`)."""
    return f"{method.name} is tuned in simulation: {sizes_in_words(method.sizes)}."


def sizes_in_words(settings: str) -> str:
    """Return the sizes of a method that the column ``settings`` names, "" without any.

    >>> sizes_in_words("partition=4096000B credit=64000000B")
    'a partition of 4.1 MB and a credit of 64 MB'
    """
    sizes = [word.split("=") for word in settings.split() if word.startswith(SIZES)]
    return " and ".join(f"a {name} of {show_bytes(bytes_from(size))}" for name, size in sizes)


def _assumed(on: Cluster) -> str:
    known = [f"{name} within a factor of {EFFECTS[name].unit.within:g}" for name in on.assumed]
    if on.model_error == ASSUMED_ERROR:
        known.append(f"simulated seconds within a model_error of {ASSUMED_ERROR:.0%}")
    if not known:
        return ""
    return (
        f"Intervals are wide where {on.name} gives none, and assume to be known: "
        f"{listed(known)}. Give your own to narrow them (docs/own_cluster.md)."
    )
