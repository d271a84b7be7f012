"""One function per figure: tidy frames or timelines in, a matplotlib Figure out.

Each is in a module of its own; this one is the list of them. Drawing changes no global setting,
and every figure says where its numbers come from.
"""

from ddlnb.figure_architectures import all_reduce_times, architecture_bottleneck
from ddlnb.figure_attributes import attribute_cells
from ddlnb.figure_bandwidth import effective_bandwidth
from ddlnb.figure_calibration import cost_against_workers, parameter_intervals, residuals
from ddlnb.figure_challenges import (
    density_steps,
    gradient_histograms,
    layer_bars,
    level_curves,
    loss_by_bytes,
    period_bars,
)
from ddlnb.figure_claims import claim_verdicts
from ddlnb.figure_compression import compression_losses, feedback_residuals
from ddlnb.figure_emulated import over_baselines
from ddlnb.figure_engines import engine_bars
from ddlnb.figure_forecast import forecast_bars
from ddlnb.figure_gossip import gossip_mixing
from ddlnb.figure_intensity import intensity_bars
from ddlnb.figure_large_batch import large_batch_quality
from ddlnb.figure_losses import loss_bars
from ddlnb.figure_lossy import iteration_parts, lossy_traffic, time_to_target
from ddlnb.figure_lossy_emulated import lossy_against_emulated
from ddlnb.figure_parallelism import parallelism_schematic
from ddlnb.figure_protocols import protocol_times
from ddlnb.figure_rates import convergence_rates
from ddlnb.figure_schedules import schedules
from ddlnb.figure_simulated import simulated_against_measured
from ddlnb.figure_style import colour_of
from ddlnb.figure_synchronisation import (
    loss_against_traffic,
    staleness_histogram,
    synchronisation_timelines,
    waiting_against_bound,
)
from ddlnb.figure_target import target_speedups
from ddlnb.figure_taxonomy import taxonomy_tree
from ddlnb.figure_throughput import throughput_bars
from ddlnb.figure_timelines import timelines
from ddlnb.figure_training import learning_curves

__all__ = [
    "all_reduce_times",
    "architecture_bottleneck",
    "attribute_cells",
    "claim_verdicts",
    "colour_of",
    "compression_losses",
    "convergence_rates",
    "cost_against_workers",
    "density_steps",
    "effective_bandwidth",
    "engine_bars",
    "feedback_residuals",
    "forecast_bars",
    "gossip_mixing",
    "gradient_histograms",
    "intensity_bars",
    "iteration_parts",
    "large_batch_quality",
    "layer_bars",
    "learning_curves",
    "level_curves",
    "loss_against_traffic",
    "loss_bars",
    "loss_by_bytes",
    "lossy_against_emulated",
    "lossy_traffic",
    "over_baselines",
    "parallelism_schematic",
    "parameter_intervals",
    "period_bars",
    "protocol_times",
    "residuals",
    "schedules",
    "simulated_against_measured",
    "staleness_histogram",
    "synchronisation_timelines",
    "target_speedups",
    "taxonomy_tree",
    "throughput_bars",
    "time_to_target",
    "timelines",
    "waiting_against_bound",
]
