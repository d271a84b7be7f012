"""One function per figure: tidy frames or timelines in, a matplotlib Figure out.

Each is in a module of its own; this one is the list of them. Drawing changes no global setting,
and every figure says where its numbers come from.
"""

from ddlnb.figure_bandwidth import effective_bandwidth
from ddlnb.figure_intensity import intensity_bars
from ddlnb.figure_parallelism import parallelism_schematic
from ddlnb.figure_style import colour_of
from ddlnb.figure_throughput import throughput_bars
from ddlnb.figure_timelines import timelines

__all__ = [
    "colour_of",
    "effective_bandwidth",
    "intensity_bars",
    "parallelism_schematic",
    "throughput_bars",
    "timelines",
]
