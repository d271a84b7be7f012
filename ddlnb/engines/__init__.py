"""Engines: a plan on real gradients, in real processes."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    MeasurementSettings="settings",
    record_timelines="measure",
)
