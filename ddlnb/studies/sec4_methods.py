"""The tables that notebooks show: the methods, their plans, quotes, and claims about speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np
import pandas as pd

from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Plan
from ddlnb.results.published import fig4_cells, quoted, quotes
from ddlnb.results.rows import MEASURES
from ddlnb.studies.sec2_intensity import IntensityRow
from ddlnb.units import show_bytes
from ddlnb.workloads.intensity import c2c
from ddlnb.workloads.workload import Workload

# (item of the survey, faster method, slower method, in words); section 4.2.2 and 4.2.3.
SPEED_CLAIMS = (
    ("A44", "BSP-A2A", "BSP-PS", "BSP-A2A beats BSP-PS in most cells (s. 4.2.2)"),
    ("A45", "WFBP-PS", "WFBP-A2A", "WFBP-PS is well above WFBP-A2A on slow networks (s. 4.2.2)"),
    ("A46", "MG-WFBP", "WFBP-PS", "MG-WFBP is equal to or better than WFBP-PS (s. 4.2.2)"),
    ("A48", "WFBP-PS", "BSP-PS", "WFBP is not slower than BSP, with PS (s. 4.2.3)"),
    ("A48", "WFBP-A2A", "BSP-A2A", "WFBP is not slower than BSP, all-to-all (s. 4.2.3)"),
    ("A49", "MG-WFBP", "WFBP-A2A", "MG-WFBP is clearly above WFBP-A2A (s. 4.2.3)"),
)
ABSENT = (
    "The published cells of Fig. 4 are not in this edition: data/published/fig4_upto8.csv\n"
    "could not be obtained. The speed-ups that the survey's text quotes stand below instead."
)


def methods_table() -> pd.DataFrame:
    """The seven methods: the survey's words for each, and the settings of this edition."""
    return pd.DataFrame(
        [
            {
                "method": method.name,
                "synchronisation": method.synchronisation,
                "scheduling": method.scheduling or "-",
                "architecture": method.architecture,
                "messages": method.bucketing.__name__.replace("_", " "),
                "start": method.launch.value,
                "priority": "yes" if method.priority else "no",
                "forward needs": method.gate.value,
                "partition": _size(method.partition_bytes),
                "credit": _size(method.credit_bytes),
            }
            for method in METHODS.values()
        ]
    ).set_index("method")


def _size(count: int | None) -> str:
    return show_bytes(count) if count else "-"


def sentences() -> str:
    """The survey's six-aspect sentence of every method, one per line."""
    return "\n".join(f"{method.name}: {method.sentence()}." for method in METHODS.values())


def plans(
    workload: Workload,
    cost: AlphaBeta,
    *,
    servers: int = 2,
    partition: str | int | None = None,
    credit: str | int | None = None,
) -> dict[str, Plan]:
    """The plan of every method for one workload."""
    return {
        name: method.tuned(partition=partition, credit=credit).plan(
            workload, cost=cost, servers=servers
        )
        for name, method in METHODS.items()
    }


def plans_table(plans_by_method: Mapping[str, Plan]) -> pd.DataFrame:
    """One row per plan: its messages, and how often it sends each element of the gradients."""
    rows = {name: _plan_facts(plan) for name, plan in plans_by_method.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def _plan_facts(plan: Plan) -> dict[str, object]:
    times = _times_sent(plan)
    return {
        "messages": len(plan.messages),
        "smallest": show_bytes(min(plan.message_bytes)),
        "largest": show_bytes(max(plan.message_bytes)),
        "exchange": plan.exchange,
        "servers": plan.servers,
        "elements": times.size,
        "least_times_sent": int(times.min()),
        "most_times_sent": int(times.max()),
    }


def _times_sent(plan: Plan) -> np.ndarray:
    """For every element of all gradients, counted anew: in how many messages it is."""
    times = {g.name: np.zeros(g.elements, dtype=int) for g in plan.gradients}
    for message in plan.messages:
        for piece in message.pieces:
            times[piece.gradient][piece.start : piece.stop] += 1
    return np.concatenate(list(times.values()))


def intensity_table(rows: Iterable[IntensityRow]) -> pd.DataFrame:
    """The audit, one row per model and convention, the published intensity beside ours."""
    frame = pd.DataFrame([asdict(row) for row in rows])
    return frame.round({"intensity": 0, "relative_error": 3}).set_index(["model", "convention"])


def c2c_table(rows: Iterable[IntensityRow], batches: Mapping[str, int]) -> pd.DataFrame:
    """C2C of the models, with the published intensities and with ours, relative to the first model.

    ``batches`` gives each model's local batch. Ours is forward + backward with FMA = 1.
    """
    ours = {r.model: r.intensity for r in rows if r.convention == "forward + backward, FMA = 1"}
    first = next(iter(batches))
    table = []
    for model, batch in batches.items():
        published = quoted("A06", f"intensity of {model}")
        table.append(
            {
                "model": model,
                "local_batch": batch,
                "published_c2c": c2c(published, batch),
                "our_c2c": c2c(ours[model], batch),
            }
        )
    frame = pd.DataFrame(table).set_index("model")
    for column in ("published_c2c", "our_c2c"):
        frame[f"{column.split('_')[0]}_relative"] = frame[column] / frame.loc[first, column]
    return frame


def quotes_table(ids: Iterable[str]) -> pd.DataFrame:
    """The values that the survey's text quotes under these ids."""
    known = quotes()
    rows = [asdict(quote) for quote_id in ids for quote in known[quote_id]]
    return pd.DataFrame(rows).set_index("id")


def beside_published(rows: pd.DataFrame, model: str | None = None) -> pd.DataFrame:
    """The rows, followed by the published cells of Fig. 4 (of one model) where there are any."""
    cells = fig4_cells()
    if model is not None:
        cells = cells[cells["model"] == model]
    return pd.concat([rows, cells], ignore_index=True) if len(cells) else rows


def about_published() -> str:
    """Whether the published cells of Fig. 4 are there, in words."""
    cells = fig4_cells()
    return f"{len(cells)} published cells of Fig. 4 are there." if len(cells) else ABSENT


def throughput_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Throughput, its deviation, speed-up, waiting time and messages by workers and method."""
    kept = ["throughput_samples_per_s", "std", "speedup", "exposed_communication_seconds"]
    return rows.set_index(["gpus", "method"])[[*kept, "messages"]].round(4)


def claims_here(rows: pd.DataFrame) -> pd.DataFrame:
    """The survey's claims about speed against these rows: a ratio, its spread and what it says.

    The ratio is that of the throughputs, its spread one standard deviation of the ratio as the
    repetitions give it. A ratio closer to 1 than its spread says nothing, and neither does one
    without a spread, of methods that ran only once.
    """
    found = []
    for gpus, part in rows.groupby("gpus"):
        by_method = part.set_index("method")
        for item, faster, slower, claim in SPEED_CLAIMS:
            if faster in by_method.index and slower in by_method.index:
                ratio, spread = _ratio(by_method.loc[faster], by_method.loc[slower])
                said = _verdict(ratio, spread)
                line = {"item": item, "claim": claim, "workers": gpus, "ratio": ratio}
                found.append({**line, "spread": spread, "here": said})
    columns = ["item", "claim", "workers", "ratio", "spread", "here"]
    return pd.DataFrame(found, columns=columns).round({"ratio": 2, "spread": 2}).set_index("item")


def _ratio(left: pd.Series, right: pd.Series) -> tuple[float, float]:
    measure = MEASURES[0]
    ratio = float(left[measure] / right[measure])
    return ratio, ratio * math.hypot(left["std"] / left[measure], right["std"] / right[measure])


def _verdict(ratio: float, spread: float) -> str:
    if math.isnan(spread):
        return "one run says nothing"
    if abs(ratio - 1) <= spread:
        return "within the spread"
    return "as claimed" if ratio > 1 else "the other way round"
