"""What became of a notebook that was to be executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddlnb.cli.notebooks import Notebook


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook.

    ``status`` is done, kept (from an earlier call), failed, or not here, where this machine lacks
    something that it needs; ``error`` says what. ``made`` is the provenance of its execution, empty
    where none was noted.
    """

    notebook: Notebook
    status: str
    seconds: float = float("nan")
    error: str = ""
    made: Mapping[str, str] = field(default_factory=dict)
