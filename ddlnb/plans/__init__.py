"""Plans as data, and the methods that make them."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    AlphaBeta="alpha_beta",
    Plan="plan",
    SURVEYED="methods",
)
