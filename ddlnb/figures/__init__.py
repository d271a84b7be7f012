"""One function per figure: tidy frames or timelines in, a matplotlib Figure out.

Each is in a module of its own; this one is the list of them. Drawing changes no global setting,
and every figure says where its numbers come from.
"""

from ddlnb.figures.architectures import all_reduce_times, architecture_bottleneck
from ddlnb.figures.attributes import attribute_cells
from ddlnb.figures.calibration import cost_against_workers, parameter_intervals, residuals
from ddlnb.figures.claims import claim_verdicts
from ddlnb.figures.compression import compression_losses, feedback_residuals
from ddlnb.figures.convergence import gossip_mixing
from ddlnb.figures.emulated import over_baselines
from ddlnb.figures.engines import engine_bars
from ddlnb.figures.forecast import forecast_bars
from ddlnb.figures.intensity import intensity_bars
from ddlnb.figures.large_batch import large_batch_quality
from ddlnb.figures.learning import learning_curves
from ddlnb.figures.links import effective_bandwidth
from ddlnb.figures.losses import loss_bars
from ddlnb.figures.lossy import iteration_parts, lossy_traffic, time_to_target
from ddlnb.figures.lossy_emulated import lossy_against_emulated
from ddlnb.figures.parallelism import parallelism_schematic
from ddlnb.figures.protocols import protocol_times
from ddlnb.figures.rates import convergence_rates
from ddlnb.figures.schedules import schedules
from ddlnb.figures.sec5_challenges import (
    density_steps,
    gradient_histograms,
    layer_bars,
    level_curves,
    loss_by_bytes,
    period_bars,
)
from ddlnb.figures.simulated import simulated_against_measured
from ddlnb.figures.style import colour_of
from ddlnb.figures.synchronisation import (
    loss_against_traffic,
    staleness_histogram,
    synchronisation_timelines,
    waiting_against_bound,
)
from ddlnb.figures.target import target_speedups
from ddlnb.figures.taxonomy import taxonomy_tree
from ddlnb.figures.throughput import throughput_bars
from ddlnb.figures.timelines import timelines

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
