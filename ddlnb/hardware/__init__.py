"""Hardware by name: GPUs, networks and machines with the numbers of their data sheets."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    get_gpu="catalogue",
    get_interconnect="catalogue",
    get_machine="catalogue",
    Gpu="gpu",
    Interconnect="machine",
    Machine="machine",
)
