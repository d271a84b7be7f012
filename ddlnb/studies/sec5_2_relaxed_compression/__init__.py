"""Section 5.2: relaxed synchronisation together with compression, and the gradients behind it."""

from ddlnb.studies.sec5_2_relaxed_compression.equal_bytes import (
    at_equal_bytes,
    bytes_findings,
    bytes_table,
    link_bytes,
    train_combined,
)
from ddlnb.studies.sec5_2_relaxed_compression.gradient_sizes import (
    similarity,
    similarity_findings,
    similarity_table,
    train_watched,
)

__all__ = [
    "at_equal_bytes",
    "bytes_findings",
    "bytes_table",
    "link_bytes",
    "similarity",
    "similarity_findings",
    "similarity_table",
    "train_combined",
    "train_watched",
]
