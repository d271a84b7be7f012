"""Parameter servers compared with all-to-all, and what an all-reduce is made of (3.2)."""

from ddlnb.studies.sec3_2_architectures.all_reduces import (
    all_reduce_answer,
    by_formula,
    counts,
    crossing_table,
    topology_table,
)
from ddlnb.studies.sec3_2_architectures.architectures import architecture_table, made_up_workload
from ddlnb.studies.sec3_2_architectures.links import emulated_ranks
from ddlnb.studies.sec3_2_architectures.measured import measure_network

__all__ = [
    "all_reduce_answer",
    "architecture_table",
    "by_formula",
    "counts",
    "crossing_table",
    "emulated_ranks",
    "made_up_workload",
    "measure_network",
    "topology_table",
]
