"""Forecasts of what leaves something open: a mixture over what it may mean.

A row that does not say whether it computes activations again, or names a framework that nobody
knows, stands for several cases, with the shares of runs that are so. Memory overrules the shares:
what hardly fits was hardly run. The forecast is that of a case that more than half of the chance is
for, otherwise the median of all; the interval is that of all.

A layout of a search leaves open who runs it, where no framework is named. Layouts are compared by
what is expected of them, over frameworks and over runs that are slow or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.forecast import (
    INTERVAL,
    Outlook,
    forecast,
    rate,
)
from ddlnb.parallelism.forecast.frameworks import Fitted
from ddlnb.parallelism.forecast.step import LEAST, Step

DOUBT = 0.01  # of the shares of runs: what a forecast of memory may be wrong about


@dataclass(frozen=True)
class Open:
    """Rows as cases that each may be: ``owner`` is the row of a case, ``share`` its chance."""

    cases: Cases
    owner: NDArray[np.intp]
    share: Column

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.owner[-1]) + 1

    def select(self, which: NDArray[Any]) -> Open:
        """Return the rows of a mask, or of indices."""
        rows = np.arange(self.rows)[which]
        kept = [np.flatnonzero(self.owner == row) for row in rows]
        owner = np.repeat(np.arange(len(rows)), [len(one) for one in kept])
        cases = np.concatenate([*kept, np.zeros(0, dtype=int)])
        return Open(self.cases.select(cases), owner, self.share[cases])


@dataclass(frozen=True)
class Mixed:
    """What is forecast of every row; the outlook has its cases, ``likeliest`` the row's main one.

    Rates are tokens/s per GPU, ``fits`` says whether a row is likelier to fit than not.
    """

    outlook: Outlook
    likeliest: NDArray[np.intp]
    chance: Column
    tokens_per_s_per_gpu: Column
    low: Column
    high: Column
    chance_of_fit: Column
    fits: NDArray[np.bool_]


def mixed(asked: Open, fitted: Fitted | None = None, spread: Column | None = None) -> Mixed:
    """Return the forecast of rows; ``spread`` is that of every case instead of the fit's."""
    found = forecast(asked.cases, fitted, spread)
    prior = asked.share * (found.chance_of_fit + DOUBT)
    chance = prior / np.bincount(asked.owner, prior)[asked.owner]
    order = np.lexsort((-chance, asked.owner))
    likeliest = order[np.unique(asked.owner, return_index=True)[1]]
    whole = rate(asked.cases, np.ones(1))  # tokens per GPU: the same for what a row may mean
    ends = [
        found.quantile(share, chance, asked.owner)
        for share in (0.5, (1 - INTERVAL) / 2, (1 + INTERVAL) / 2)
    ]
    middle, high, low = (whole[likeliest] / one for one in ends)
    sure = chance[likeliest] > 0.5
    chance_of_fit = np.bincount(asked.owner, chance * found.chance_of_fit)
    return Mixed(
        outlook=found,
        likeliest=likeliest,
        chance=chance,
        tokens_per_s_per_gpu=np.where(sure, found.tokens_per_s_per_gpu[likeliest], middle),
        low=low,
        high=high,
        chance_of_fit=np.minimum(chance_of_fit, 1),
        fits=np.bincount(asked.owner, chance * found.fits) > 0.5,
    )


@dataclass(frozen=True)
class Expected(Outlook):
    """What is expected of rows: an outlook with one element each, of ``each`` of their cases.

    ``seconds`` are those of the mean throughput over the cases in which a row fits, and over slow
    runs and others; the parts of ``step`` are their share of it, and the rest is lost in slow runs.
    ``chance`` is that of a slow run, ``step.slow`` what such a run loses. ``cases`` are the first
    of every row; its memory is that of the case that needs most. ``everywhere`` marks rows that fit
    in all of their cases.
    """

    members: Open
    each: Outlook
    everywhere: NDArray[np.bool_]

    def _end(self, share: float) -> Column:
        asked = self.members
        return rate(self.cases, self.each.quantile(share, asked.share, asked.owner))


def expected(asked: Open, fitted: Fitted | None = None) -> Expected:
    """Return what is expected of rows: of the cases in which they fit, of all where in none."""
    each, owner = forecast(asked.cases, fitted), asked.owner
    some = np.bincount(owner, each.fits) > 0
    share = asked.share * (each.fits | ~some[owner])
    share = share / np.bincount(owner, share)[owner]
    first = np.unique(owner, return_index=True)[1]
    done = share / each.expected_seconds  # steps per second

    def over(values: Column, weight: Column = share) -> Column:
        return np.asarray(np.bincount(owner, weight * values), float)

    whole, chance = over(np.ones(len(owner)), done), over(each.chance)
    parts = {name: over(own, done) / whole for name, own in each.step.parts.items()}
    lost = over(each.chance * each.step.slow) / np.maximum(chance, LEAST)
    memory_gib, most_gib = (
        np.maximum.reduceat(np.where(share > 0, gib, 0), first)
        for gib in (each.memory_gib, each.most_gib)
    )
    return Expected(
        cases=asked.cases.select(first),
        step=Step(**parts, slow=lost, bound=each.step.bound[first]),
        spread=over(each.spread),
        chance=chance,
        seconds=1 / whole,
        memory_gib=memory_gib,
        most_gib=most_gib,
        chance_of_fit=over(each.chance_of_fit),
        fits=some,
        members=Open(asked.cases, owner, share),
        each=each,
        everywhere=np.bincount(owner, ~each.fits) == 0,
    )
