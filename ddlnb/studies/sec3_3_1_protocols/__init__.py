"""Protocols: what a message costs by the channel that carries it (3.3.1)."""

from ddlnb.studies.sec3_3_1_protocols.measured import (
    about_the_link,
    beside_quoted,
    latency_table,
    measure_protocols,
)
from ddlnb.studies.sec3_3_1_protocols.published import rdma_parts, survey_table

__all__ = [
    "about_the_link",
    "beside_quoted",
    "latency_table",
    "measure_protocols",
    "rdma_parts",
    "survey_table",
]
