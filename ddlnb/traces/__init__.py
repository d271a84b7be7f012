"""Traces that others recorded, read as ours: of one GPU, of an engine, of a whole job."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    what_if="jobs.what_if",
)
