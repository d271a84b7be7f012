"""Large batches: what they cost in accuracy, and what layer-wise rates bring back (3.1.1)."""

from ddlnb.studies.sec3_1_1_large_batch.quality import quality, quality_table, tuned_sgd_rate
from ddlnb.studies.sec3_1_1_large_batch.runs import (
    by_division,
    communication,
    communication_table,
    large_batches,
)
from ddlnb.studies.sec3_1_1_large_batch.verdicts import (
    large_batch_findings,
    recovered_table,
    verdict_table,
    verdicts,
)

__all__ = [
    "by_division",
    "communication",
    "communication_table",
    "large_batch_findings",
    "large_batches",
    "quality",
    "quality_table",
    "recovered_table",
    "tuned_sgd_rate",
    "verdict_table",
    "verdicts",
]
