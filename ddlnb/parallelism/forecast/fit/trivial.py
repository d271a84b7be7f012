"""Three trivial forecasts, which a forecast must beat to be worth its parameters."""

from __future__ import annotations

import numpy as np

from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.fit.observations import Observations
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.parameters import Fitted


def constant_share(known: Observations, asked: Cases) -> Column:
    """Return tokens/s per GPU if every run had the median of the known runs' MFU."""
    return np.asarray(np.median(mfu(known)) * asked.peak / asked.model_flops)


def nearest_neighbour(known: Observations, asked: Cases) -> Column:
    """Return tokens/s per GPU with the MFU of the nearest known run.

    Distance: the sum of the doublings between their parameters, GPUs, tp, pp, dp, micro batch and
    ZeRO. Of several runs that are as near, the median.
    """
    there, here = _place(known.cases), _place(asked)
    distance = np.abs(here[:, None, :] - there[None, :, :]).sum(axis=2)
    nearest = distance <= distance.min(axis=1, keepdims=True) + 1e-9
    shares = np.where(nearest, mfu(known)[None, :], np.nan)
    return np.asarray(np.nanmedian(shares, axis=1) * asked.peak / asked.model_flops)


def least_split(asked: Cases, fitted: Fitted) -> Column:
    """Return a rank of layouts: those that fit with the fewest ways to split the model first.

    A rule of thumb that picks; among alike ones the larger micro batch. Lower is better.
    """
    fits = forecast(asked, fitted).fits
    split = 100 * np.log2(asked.tp * asked.pp) - np.log2(asked.micro_batch)
    return np.asarray(np.where(fits, 0, 2000) + split)


def mfu(known: Observations) -> Column:
    """Return the MFU of every run, by the FLOPs of `Cases.model_flops`."""
    return np.asarray(known.rates * known.cases.model_flops / known.cases.peak)


def _place(cases: Cases) -> Column:
    columns = (cases.parameters, cases.gpus, cases.tp, cases.pp, cases.dp, cases.micro_batch,
               2**cases.zero)  # fmt: skip
    return np.log2(np.stack(columns, axis=1))
