"""What each layer of communication brings alone, and what they bring together; simulated.

Follows the survey of layers (arXiv 2403.07585): strategy, collective library and network, designed
together, for one job (vertically) and for two (horizontally).
"""

from ddlnb.studies.layers_codesign.deadlines import deadline_findings, deadline_table
from ddlnb.studies.layers_codesign.factorial import (
    CHOICES,
    factorial_findings,
    gain_table,
    iterations,
    pair_table,
)
from ddlnb.studies.layers_codesign.placement import placement_findings, placement_table
from ddlnb.studies.layers_codesign.shared_tree import slowdown_table, tree_findings

__all__ = [
    "CHOICES",
    "deadline_findings",
    "deadline_table",
    "factorial_findings",
    "gain_table",
    "iterations",
    "pair_table",
    "placement_findings",
    "placement_table",
    "slowdown_table",
    "tree_findings",
]
