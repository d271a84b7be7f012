"""Section 5.3: how much to compress, with one density for all layers or one for each."""

from ddlnb.studies.sec5_3_compression_level.answers import (
    digits_layer_times,
    hidden_densities,
    hidden_findings,
    layer_findings,
    layer_table,
    level_findings,
    level_table,
    train_levels,
)
from ddlnb.studies.sec5_3_compression_level.density import level_times, level_verdicts
from ddlnb.studies.sec5_3_compression_level.layer_density import density_by_layer, hidden_table

__all__ = [
    "density_by_layer",
    "digits_layer_times",
    "hidden_densities",
    "hidden_findings",
    "hidden_table",
    "layer_findings",
    "layer_table",
    "level_findings",
    "level_table",
    "level_times",
    "level_verdicts",
    "train_levels",
]
