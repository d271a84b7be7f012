"""What a forecast says to do, in words: on the machines there are, and with servers added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlnb.results.columns import RATE

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.clusters.cluster import Cluster

CHANCE = 0.1  # of the draws in which a method is the best: as much is no matter of chance alone
TIE = 0.02  # of the best throughput: less is not worth a change of method


def advice(rows: pd.DataFrame, on: Cluster) -> str:
    """Return what to take at the largest size: on the machines there are, and with servers added.

    A method ties with the best one if it is as good within TIE, or itself the best in CHANCE or
    more of the draws.
    """
    largest = rows[rows["gpus"] == rows["gpus"].max()]
    is_extra = largest["servers"].gt(0) & (on.server_place == "extra machines")
    is_extra &= largest["gpus"] > on.gpus_per_node
    size = f"On {largest['gpus'].iloc[0]} GPUs of {on.name}"
    alone, helped = largest[~is_extra], largest[is_extra]
    if not len(helped):
        return f"{size} {_take(alone)}."
    best = helped.loc[helped[RATE].idxmax()]
    more = f"{best['servers']} more machines as servers"
    if not len(alone):
        return f"{size} with {more} {_take(helped)}."
    gain = _against(best, alone.loc[alone[RATE].idxmax()])
    return f"{size} without further machines {_take(alone)}. With {more}, {gain}."


def _take(rows: pd.DataFrame) -> str:
    """Return the best of these methods, those that tie with it, and the next one."""
    order = rows.sort_values(RATE, ascending=False)
    best = order.iloc[0]
    speedup = f"speed-up {best['speedup']:.2f} ({best['speedup'] / best['gpus']:.0%} of linear)"
    said = f"take {best['method']}: {speedup}"
    others = order.iloc[1:]
    is_tie = [_is_tie(other, best) for _, other in others.iterrows()]
    if any(is_tie):
        said += f"; {', '.join(others.loc[is_tie, 'method'])} ties with it"
    behind = others.loc[[not tie for tie in is_tie]]
    if len(behind):
        said += (
            f"; {behind.iloc[0]['method']} is {1 - behind.iloc[0][RATE] / best[RATE]:.0%} behind"
        )
    return said


def _against(helped: pd.Series, alone: pd.Series) -> str:
    """Return what the best method with servers gains over the best one without."""
    first, second = sorted((helped, alone), key=lambda row: -row[RATE])
    if _is_tie(second, first):
        return f"{helped['method']} ties with it: they gain nothing"
    ratio = helped[RATE] / alone[RATE]
    if ratio < 1:
        return f"{helped['method']} is {1 - ratio:.0%} slower: they gain nothing"
    return f"{helped['method']} is {ratio - 1:.0%} faster: speed-up {helped['speedup']:.2f}"


def _is_tie(row: pd.Series, best: pd.Series) -> bool:
    """Return whether a method is as good as the best one, or is the best in some draws."""
    return bool(row[RATE] >= (1 - TIE) * best[RATE] or row["chance_best"] >= CHANCE)
