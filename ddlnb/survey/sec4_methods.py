"""The seven methods of section 4.1 as a table, their plans, and sentences about both."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import SURVEYED
from ddlnb.plans.plan import Plan
from ddlnb.survey.items import Rows, tabled
from ddlnb.units import listed as listed, show_bytes
from ddlnb.workloads.workload import Workload


def methods_table() -> pd.DataFrame:
    """The seven methods: the survey's words for each, and the settings of this edition."""
    return pd.DataFrame(
        [
            {
                "method": method.name,
                "synchronisation": method.synchronisation,
                "scheduling": method.scheduling or "-",
                "architecture": method.architecture,
                "messages": method.bucketing.name,
                "start": method.launch.value,
                "priority": "yes" if method.priority else "no",
                "forward needs": method.gate.value,
                "partition": _size(method.partition_bytes),
                "credit": _size(method.credit_bytes),
            }
            for method in SURVEYED.values()
        ]
    ).set_index("method")


def _size(count: int | None) -> str:
    return show_bytes(count) if count else "-"


def sentences() -> str:
    """The survey's six-aspect sentence of every method, one per line."""
    return "\n".join(f"{method.name}: {method.sentence()}." for method in SURVEYED.values())


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
        for name, method in SURVEYED.items()
    }


@tabled(index=["method"])
def plans_table(plans_by_method: Mapping[str, Plan]) -> Rows:
    """One row per plan: its messages, and how often it sends each element of the gradients."""
    for name, plan in plans_by_method.items():
        times = _times_sent(plan)
        yield {
            "method": name,
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
