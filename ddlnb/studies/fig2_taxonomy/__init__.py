"""Fig. 2: the taxonomy made of the registries, and which of its choices fit together."""

from ddlnb.studies.fig2_taxonomy.combinations import (
    combination_findings,
    combinations,
    refusals,
    scheduling_refusals,
    sentences,
)
from ddlnb.studies.fig2_taxonomy.tree import LEVELS, Aspect, taxonomy, taxonomy_table

__all__ = [
    "LEVELS",
    "Aspect",
    "combination_findings",
    "combinations",
    "refusals",
    "scheduling_refusals",
    "sentences",
    "taxonomy",
    "taxonomy_table",
]
