"""Results as tidy rows: tables, timelines and statistics; what reads others is supplied."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(__name__)
