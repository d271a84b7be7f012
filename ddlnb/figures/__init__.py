"""One function per figure: tidy frames or timelines in, a matplotlib Figure out.

Nothing is computed here but positions on paper. Drawing changes no global setting, and every figure
says where its numbers come from. A figure has a ``caption``, which ends with the first sentence of
its function's docstring, and an ``alternative_text``, which says what is seen.

>>> import ddlnb
>>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
>>> timeline = ddlnb.simulate(workload, "two-cores-4-workers", "MG-WFBP")
>>> ddlnb.figures.timelines({"MG-WFBP": timeline})
<DescribedFigure size 1100x202 with 1 Axes>

Importing it is quick: each figure is loaded on first use. No module has the name of a figure, which
it would hide.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "advice": (
        "advice_options",
        "advice_reasons",
        "scaling_curves",
    ),
    "agreement": ("simulated_against_measured",),
    "architectures": (
        "all_reduce_times",
        "architecture_bottleneck",
    ),
    "attributes": ("attribute_cells",),
    "breakdown": ("breakdown_bars",),
    "calibration": (
        "parameter_intervals",
        "residuals",
    ),
    "claims": ("claim_verdicts",),
    "collective_maps": (
        "best_collectives",
        "cut_slowdowns",
        "simulation_speed",
    ),
    "collectives": ("collective_rates",),
    "colours": ("colour_of",),
    "compression": (
        "compression_losses",
        "feedback_residuals",
    ),
    "convergence": (
        "convergence_rates",
        "gossip_mixing",
    ),
    "drift": ("drift_iterations",),
    "forecast": ("forecast_bars",),
    "gantt": (
        "schedules",
        "timelines",
    ),
    "goodput": (
        "checkpoint_curve",
        "failure_times",
        "time_spent",
    ),
    "intensity": ("intensity_bars",),
    "layers": (
        "layer_gains",
        "layer_pairs",
        "phase_slowdowns",
        "traffic_maps",
    ),
    "layouts": (
        "layout_errors",
        "layout_forecasts",
        "layout_map",
    ),
    "learning": (
        "large_batch_quality",
        "learning_curves",
    ),
    "links": (
        "effective_bandwidth",
        "protocol_times",
    ),
    "lossy": (
        "lossy_against_emulated",
        "lossy_traffic",
        "target_speedups",
        "time_to_target",
    ),
    "networks": ("network_loads",),
    "overview": ("techniques_overview",),
    "parallelism": ("parallelism_schematic",),
    "pipelines": (
        "layout_times",
        "pipeline_schedules",
    ),
    "search": ("search_gains",),
    "sec5_challenges": (
        "density_steps",
        "gradient_histograms",
        "layer_bars",
        "level_curves",
        "loss_by_bytes",
        "period_bars",
    ),
    "servers": ("servers_needed",),
    "sliders": ("explorer",),
    "svg": ("timeline_svg",),
    "synchronisation": (
        "loss_against_traffic",
        "staleness_histogram",
        "synchronisation_timelines",
        "throughput_with_a_slow_worker",
        "waiting_against_bound",
    ),
    "stragglers": ("job_stragglers",),
    "taxonomy": ("taxonomy_tree",),
    "throughput": (
        "engine_bars",
        "over_baselines",
        "throughput_bars",
    ),
    "unlike": (
        "unlike_shares",
        "unlike_ways",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ddlnb.figures' has no attribute {name!r}")
    value = getattr(import_module(f"ddlnb.figures.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
