"""Results as tidy rows: tables, timelines, statistics and checks."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    check="checks",
    read_collective_logs="collective_logs",
    read_collectives="collectives",
)
