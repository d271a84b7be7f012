"""Timelines as `ddlnb trace` prints, writes and draws them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ddlnb.cli.options import print_table
from ddlnb.errors import require
from ddlnb.files import write_atomically
from ddlnb.units import show_seconds

if TYPE_CHECKING:
    from ddlnb.results.timeline import Timeline


def show_lines(lines: Mapping[str, Timeline]) -> None:
    """Print what one rank does in an iteration of each timeline."""
    rows: list[dict[str, Any]] = []
    for name, line in lines.items():
        each = 1 / line.iterations
        kinds = ("forward", "backward", "message", "wait", "update")
        ranks = len({span.rank for span in line.spans})
        seconds = {kind: line.seconds(kind) * each / ranks for kind in kinds}
        rows.append({"": name, **{kind: show_seconds(value) for kind, value in seconds.items()}})
    if rows:
        print_table(rows, False, "Seconds of an iteration on one rank, by what is done in them")


def write_lines(lines: Mapping[str, Timeline], perfetto: Path | None, figure: Path | None) -> None:
    """Write timelines as Chrome traces, and draw them, into the files that are asked for."""
    for name, line in lines.items():
        if perfetto is not None:
            require(perfetto.suffix == ".json", f"trace file {str(perfetto)!r} must end in .json")
            path = perfetto if len(lines) == 1 else perfetto.with_stem(f"{perfetto.stem}-{name}")
            typer.echo(f"trace: {line.write_chrome_trace(path)} (open it at ui.perfetto.dev)")
    if figure is not None:
        from ddlnb.figures import timelines

        drawn = {name: line.on(min(s.rank for s in line.spans)) for name, line in lines.items()}
        typer.echo(f"picture: {write_picture(timelines(drawn, rank=None), figure)}")


def write_picture(figure: Any, path: Path) -> Path:
    """Write a figure as its suffix says, and return its path."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix[1:], dpi=150, bbox_inches="tight")
    return write_atomically(path, image.getvalue())
