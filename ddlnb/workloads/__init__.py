"""Workloads: what is trained, how long it computes and what it sends."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    from_throughput="roofline",
    replayed="replay",
)
