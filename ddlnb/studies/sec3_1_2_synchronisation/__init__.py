"""Relaxed synchronisation: who waits, how stale updates are, and what it costs (3.1.2)."""

from ddlnb.studies.sec3_1_2_synchronisation.learning import (
    converging,
    period_summary,
    period_table,
    same_traffic,
)
from ddlnb.studies.sec3_1_2_synchronisation.slow_worker import (
    slow_worker_findings,
    slowdown_table,
    slowdowns,
)
from ddlnb.studies.sec3_1_2_synchronisation.verdicts import judge, synchronisation_findings
from ddlnb.studies.sec3_1_2_synchronisation.waiting import (
    METHODS,
    activities,
    comparison_table,
    mean_staleness,
    staleness,
    waits,
)

__all__ = [
    "METHODS",
    "activities",
    "comparison_table",
    "converging",
    "judge",
    "mean_staleness",
    "period_summary",
    "period_table",
    "same_traffic",
    "slow_worker_findings",
    "slowdown_table",
    "slowdowns",
    "staleness",
    "synchronisation_findings",
    "waits",
]
