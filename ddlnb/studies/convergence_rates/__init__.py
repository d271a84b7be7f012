"""Rates of convergence, mixing and divergence of local SGD, compression and gossip."""

from ddlnb.studies.convergence_rates.divergence import (
    divergence_pattern,
    pattern_table,
    pattern_verdicts,
)
from ddlnb.studies.convergence_rates.mixing import consensus_rounds, gap_check, spectral_gaps
from ddlnb.studies.convergence_rates.rates import rate_study
from ddlnb.studies.convergence_rates.slopes import rate_slopes, slope_findings, slope_table
from ddlnb.studies.convergence_rates.theory import local_steps_allowed

__all__ = [
    "consensus_rounds",
    "divergence_pattern",
    "gap_check",
    "local_steps_allowed",
    "pattern_table",
    "pattern_verdicts",
    "rate_slopes",
    "rate_study",
    "slope_findings",
    "slope_table",
    "spectral_gaps",
]
