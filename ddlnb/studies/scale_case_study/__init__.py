"""A large model on many GPUs, step by step, and large runs that others published."""

from ddlnb.studies.scale_case_study.fitting import memory_table
from ddlnb.studies.scale_case_study.published import (
    published_runs,
    published_table,
    training_days,
)
from ddlnb.studies.scale_case_study.said import case_findings, published_findings
from ddlnb.studies.scale_case_study.splitting import time_table
from ddlnb.studies.scale_case_study.yielding import spare_labels, spare_table, yield_table
from ddlnb.studies.scale_forecast import best_layouts

__all__ = [
    "best_layouts",
    "case_findings",
    "memory_table",
    "published_findings",
    "published_runs",
    "published_table",
    "spare_labels",
    "spare_table",
    "time_table",
    "training_days",
    "yield_table",
]
