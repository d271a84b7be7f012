"""Small tables for the figures of advice, search, scaling and time lost."""

from __future__ import annotations

import math
from dataclasses import asdict

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.pictures import drift_iterations
from ddlnb import figures
from ddlnb.parallelism.goodput.failures import failure_records, fit_failure_rate
from ddlnb.parallelism.goodput.simulate import Job, goodput
from ddlnb.plans.methods import METHODS

RATE = "throughput_samples_per_s"


def options() -> pd.DataFrame:
    """One option of every group that has a colour, and one without an interval."""
    lines = [
        ("MG-WFBP", "method", 0, "", 100.0),
        ("BSP-A2A", "method", 0, "", 80.0),
        ("WFBP-PS", "method", 2, "", 120.0),
        ("batch 128 per GPU, MG-WFBP", "larger batch", 0, "a step averages more", 150.0),
        ("local(4)", "local steps", 0, "nobody measured it", 140.0),
        ("8 GPUs, MG-WFBP", "fewer machines", 0, "", 55.0),
    ]
    frame = pd.DataFrame(lines, columns=["option", "kind", "server_machines", "learning", RATE])
    known = frame["option"] != "local(4)"
    return frame.assign(
        low=(0.9 * frame[RATE]).where(known, math.nan),
        high=(1.2 * frame[RATE]).where(known, math.nan),
    )


def reasons() -> pd.DataFrame:
    lines = [
        ("as it is", 1.0, False),
        ("twice the bandwidth between nodes", 1.3, True),
        ("no latency", 1.02, False),
        ("no communication", 1.6, False),
    ]
    frame = pd.DataFrame(lines, columns=["what", "times_as_fast", "can_be_bought"])
    return frame.assign(iteration_seconds=0.2 / frame["times_as_fast"])


def sizes() -> pd.DataFrame:
    lines = [
        {"method": name, "gpus": gpus, "efficiency": (0.99 - 0.02 * number) ** place}
        for number, name in enumerate(METHODS)
        for place, gpus in enumerate((1, 2, 4, 8, 16, 32))
    ]
    frame = pd.DataFrame(lines)
    frame[RATE] = 50 * frame["gpus"] * frame["efficiency"]
    return frame.assign(low=0.9 * frame[RATE], high=1.1 * frame[RATE])


def searched() -> pd.DataFrame:
    lines = [
        {"model": model, "network": network, "best_ms": best, "searched_ms": 11.0, "bound_ms": 10.0}
        for network in ("10GbE", "100GbIB")
        for model, best in (("resnet50", 12.0), ("bert-base", 18.0))
    ]
    return pd.DataFrame(lines).assign(**{"best of the seven": "ByteScheduler-A2A"})


def drifting() -> pd.DataFrame:
    lines = [
        {"contender": plan, "repetition": repetition, "iteration": i, "seconds": seconds[i > 2]}
        for plan, seconds in (("kept", (0.1, 0.5)), ("made anew", (0.1, 0.3)))
        for repetition in range(2)
        for i in range(6)
    ]
    rows = pd.DataFrame(lines).assign(drift="1Gb/s becomes 100Mb/s", change=3)
    return rows.assign(takeover=rows["contender"].map({"made anew": 4.0}))


def months() -> pd.DataFrame:
    jobs = [Job(gpus=1024), Job(gpus=1024, elastic=True)]
    found = [goodput(job, draws=5) for job in jobs]
    return pd.DataFrame(
        [
            {"goodput": one.goodput.estimate, "low": one.goodput.low, "high": one.goodput.high}
            | asdict(one.spent)
            for one in found
        ]
    )


def intervals() -> Figure:
    seconds = [60, 240, 900, 3600]
    rows = pd.DataFrame({"interval_seconds": seconds, "formula": [0.6, 0.85, 0.9, 0.8]})
    rows["simulated"] = rows["formula"] - 0.01
    return figures.checkpoint_curve(rows, {"Young": 700.0, "Daly": 650.0})


DRAWN = {
    "advice_options": lambda: figures.advice_options(options()),
    "advice_options of layouts": lambda: figures.advice_options(
        options().rename(columns={RATE: "throughput_tokens_per_s"})
    ),
    "advice_reasons": lambda: figures.advice_reasons(reasons()),
    "scaling_curves": lambda: figures.scaling_curves(sizes(), 0.8, "a model on a cluster"),
    "drift_iterations": lambda: drift_iterations(drifting()),
    "search_gains": lambda: figures.search_gains(searched()),
    "time_spent": lambda: figures.time_spent(months(), ["waits", "elastic"]),
    "checkpoint_curve": intervals,
    "failure_times": lambda: figures.failure_times(failure_records(), fit_failure_rate()),
}
