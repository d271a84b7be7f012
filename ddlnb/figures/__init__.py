"""One function per figure: tidy frames or timelines in, a matplotlib Figure out.

Nothing is computed here but positions on paper. Drawing changes no global setting, and every figure
says where its numbers come from. The first sentence of a function's docstring is the caption of its
figure in the report.

>>> import ddlnb
>>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
>>> timeline = ddlnb.simulate(workload, "two-cores-4-workers", "MG-WFBP")
>>> ddlnb.figures.timelines({"MG-WFBP": timeline})
<Figure size 1100x202 with 1 Axes>
"""

from ddlnb.figures.agreement import simulated_against_measured
from ddlnb.figures.architectures import all_reduce_times, architecture_bottleneck
from ddlnb.figures.attributes import attribute_cells
from ddlnb.figures.breakdown import breakdown_bars
from ddlnb.figures.calibration import parameter_intervals, residuals
from ddlnb.figures.claims import claim_verdicts
from ddlnb.figures.collectives import collective_rates
from ddlnb.figures.colours import colour_of
from ddlnb.figures.compression import compression_losses, feedback_residuals
from ddlnb.figures.convergence import convergence_rates, gossip_mixing
from ddlnb.figures.forecast import forecast_bars
from ddlnb.figures.intensity import intensity_bars
from ddlnb.figures.learning import large_batch_quality, learning_curves
from ddlnb.figures.links import effective_bandwidth, protocol_times
from ddlnb.figures.lossy import (
    lossy_against_emulated,
    lossy_traffic,
    target_speedups,
    time_to_target,
)
from ddlnb.figures.networks import network_loads
from ddlnb.figures.overview import techniques_overview
from ddlnb.figures.parallelism import parallelism_schematic
from ddlnb.figures.sec5_challenges import (
    density_steps,
    gradient_histograms,
    layer_bars,
    level_curves,
    loss_by_bytes,
    period_bars,
)
from ddlnb.figures.synchronisation import (
    loss_against_traffic,
    staleness_histogram,
    synchronisation_timelines,
    waiting_against_bound,
)
from ddlnb.figures.taxonomy import taxonomy_tree
from ddlnb.figures.throughput import engine_bars, over_baselines, throughput_bars
from ddlnb.figures.timelines import schedules, timelines

__all__ = [
    "all_reduce_times",
    "architecture_bottleneck",
    "attribute_cells",
    "breakdown_bars",
    "claim_verdicts",
    "collective_rates",
    "colour_of",
    "compression_losses",
    "convergence_rates",
    "density_steps",
    "effective_bandwidth",
    "engine_bars",
    "feedback_residuals",
    "forecast_bars",
    "gossip_mixing",
    "gradient_histograms",
    "intensity_bars",
    "large_batch_quality",
    "layer_bars",
    "learning_curves",
    "level_curves",
    "loss_against_traffic",
    "loss_by_bytes",
    "lossy_against_emulated",
    "lossy_traffic",
    "network_loads",
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
    "techniques_overview",
    "throughput_bars",
    "time_to_target",
    "timelines",
    "waiting_against_bound",
]
