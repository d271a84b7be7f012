"""Recommend a lossy method on a cluster, or not and why, from the parts of its time to a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlnb.training.method import training_method
from ddlnb.units import MB, show_seconds

if TYPE_CHECKING:
    import pandas as pd

HIDDEN = 0.05  # exposed communication up to this share of an iteration counts as hidden
MARGIN = 0.01  # a gain or loss up to this share of the time to a target counts as none, everywhere
YES, UNSURE, NO = "use it", "no clear gain", "do not"


@dataclass(frozen=True)
class Recommendation:
    """A choice among YES, UNSURE and NO, with the ``reason`` that decides it and its numbers."""

    machine: str
    workers: int
    method: str
    choice: str
    speedup: float
    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        what = "compress" if training_method(self.method).compressor else "relax synchronisation"
        said = {YES: what, UNSURE: f"no clear reason to {what}", NO: f"do not {what}"}[self.choice]
        if math.isnan(self.low):
            found = f"is {self.speedup:.2f}x the dense best"
        elif self.is_tie:
            found = f"ties with the dense best ({self.low:.2f}x to {self.high:.2f}x)"
        else:
            found = f"is {self.speedup:.2f}x ({self.low:.2f} to {self.high:.2f}) the dense best"
        return f"{said} here: {self.method} {found}; {self.reason}"

    @property
    def is_tie(self) -> bool:
        """Whether the interval of the speed-up contains 1: neither is known to be quicker."""
        return self.low <= 1 <= self.high


def recommendations(table: pd.DataFrame) -> list[Recommendation]:
    """Return one recommendation for every lossy row of `ddlnb.time_to_target`."""
    found = []
    for _, group in table.groupby(["machine", "task", "workers"], sort=False):
        rows = group.to_dict("records")
        dense = [row for row in rows if row["is_dense"]]
        found += [
            recommendation(row, _on_as_many_machines(row, dense))
            for row in rows
            if not row["is_dense"]
        ]
    return found


def _on_as_many_machines(
    row: Mapping[str, Any], dense: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the quickest lossless row that takes no more machines for servers than this one."""
    allowed = [one for one in dense if one["server_machines"] <= row["server_machines"]]
    return min(allowed, key=lambda one: float(one["iteration_seconds"]))


def recommendation(row: Mapping[str, Any], dense: Mapping[str, Any]) -> Recommendation:
    """Return the recommendation on one method, given its row and that of the quickest lossless one.

    A gain counts when the whole interval of the speed-up is above 1 by more than MARGIN, and when
    more than HIDDEN of an iteration was there to be gained. A single seed has no interval and
    settles only that a target is never reached.
    """
    speedup, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if row["reached"] < row["seeds"]:
        choice = NO
    elif math.isnan(low):
        choice = UNSURE
    else:
        surely, maybe = low > 1 + MARGIN, high > 1 + MARGIN
        if _hidden(dense):
            choice = UNSURE if surely else NO
        else:
            choice = YES if surely else UNSURE if maybe else NO
    reason = _gain(row, dense) if choice == YES else _obstacle(row, dense)
    return Recommendation(
        row["machine"], int(row["workers"]), row["method"], choice, speedup, low, high, reason
    )


def _gain(row: Mapping[str, Any], dense: Mapping[str, Any]) -> str:
    before, after = dense["iteration_seconds"], row["iteration_seconds"]
    return (
        f"an iteration takes {show_seconds(after)} instead of {show_seconds(before)}, "
        f"and it needs {row['iterations_over_dense']:.2f} times the iterations"
    )


def _obstacle(row: Mapping[str, Any], dense: Mapping[str, Any]) -> str:
    """Say what stands in the way: the first reason that applies."""
    exposed, saved = dense["waiting_seconds"], dense["waiting_seconds"] - row["waiting_seconds"]
    whole, compression = dense["iteration_seconds"], row["compression_seconds"]
    if row["reached"] < row["seeds"]:
        return (
            f"{row['seeds'] - row['reached']} of {row['seeds']} runs do not reach the target in "
            f"the steps of the curves; train longer to see whether they would"
        )
    if _hidden(dense):
        return (
            f"communication is hidden already: {show_seconds(exposed)} of {show_seconds(whole)} "
            f"are exposed, so nothing can gain more than {exposed / (whole - exposed):.1%} "
            f"per iteration"
        )
    if row["gathers"] and row["bytes"] >= row["ring_bytes"]:
        return (
            f"its all-gather grows with the workers: with {row['workers']} a link carries "
            f"{row['bytes'] / MB:.1f} MB both ways, no less than the {row['ring_bytes'] / MB:.1f} "
            f"MB of a dense ring"
        )
    if saved <= 0:
        return (
            f"it leaves no less communication exposed: {show_seconds(row['waiting_seconds'])} "
            f"against {show_seconds(exposed)}"
        )
    if compression > saved:
        return (
            f"compression takes {show_seconds(compression)} and saves {show_seconds(saved)} "
            f"of exposed communication"
        )
    if row["seeds"] == 1:
        return "a single seed has no interval; run two or more"
    faster = whole / row["iteration_seconds"]
    return (
        f"it needs {row['iterations_over_dense']:.2f} times the iterations, "
        f"and each is only {faster:.2f} times as fast"
    )


def _hidden(dense: Mapping[str, Any]) -> bool:
    return dense["waiting_seconds"] <= HIDDEN * dense["iteration_seconds"]
