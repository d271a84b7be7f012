"""Table 1 of the survey: its words beside words that are derived from numbers."""

from ddlnb.studies.table1_attributes.attributes import (
    compared,
    scales_table,
    verdict_counts,
    word_findings,
    words_table,
)
from ddlnb.studies.table1_attributes.system import (
    hidden_shares,
    median_hidden,
    network_costs,
    network_table,
    system_numbers,
)
from ddlnb.studies.table1_attributes.training import iterations_needed, training_numbers

__all__ = [
    "compared",
    "hidden_shares",
    "iterations_needed",
    "median_hidden",
    "network_costs",
    "network_table",
    "scales_table",
    "system_numbers",
    "training_numbers",
    "verdict_counts",
    "word_findings",
    "words_table",
]
