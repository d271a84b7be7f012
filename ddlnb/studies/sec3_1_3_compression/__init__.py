"""Compression: its bits, its losses, its traffic, and how it learns (3.1.3)."""

from ddlnb.studies.sec3_1_3_compression.errors import (
    digits_gradients,
    error_table,
    errors_of_digits,
    residuals_of_digits,
)
from ddlnb.studies.sec3_1_3_compression.learning import (
    kept_curves,
    learn,
    learning_table,
    orderings_table,
)
from ddlnb.studies.sec3_1_3_compression.messages import compressor_table
from ddlnb.studies.sec3_1_3_compression.traffic import (
    traffic_claims_table,
    traffic_of_resnet50,
)

__all__ = [
    "compressor_table",
    "digits_gradients",
    "error_table",
    "errors_of_digits",
    "kept_curves",
    "learn",
    "learning_table",
    "orderings_table",
    "residuals_of_digits",
    "traffic_claims_table",
    "traffic_of_resnet50",
]
