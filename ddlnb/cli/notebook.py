"""Magics of notebooks, which ``%load_ext ddlnb`` brings."""

from __future__ import annotations

import html
import tempfile
from pathlib import Path
from typing import Any

from ddlnb.cli.questions import Hardware
from ddlnb.cli.trace import page_of
from ddlnb.errors import require
from ddlnb.traces.read import read_ranks

FRAME = '<div><iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe></div>'


def load(shell: Any) -> None:
    """Give the shell of a notebook our magics."""

    def ddlnb_trace(line: str, cell: str) -> None:
        """Run the cell under torch.profiler and show the page of what it computed and sent.

        ``%%ddlnb_trace NAME`` also keeps what was traced in a variable (`ddlnb.read_trace`). A cell
        that fails shows its error alone.
        """
        from torch.profiler import profile

        name = line.strip()
        require(
            not name or name.isidentifier(),
            f"%%ddlnb_trace takes the name of a variable or nothing, not {name!r}",
        )
        with profile(record_shapes=True) as profiler:
            done = shell.run_cell(cell)
        if done.success:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "cell.json")
                profiler.export_chrome_trace(str(file))
                job = read_ranks([file])
            if name:
                shell.user_ns[name] = job
            shell.display_pub.publish({"text/html": _framed(page_of(job, Hardware()))})

    shell.register_magic_function(ddlnb_trace, "cell")


def _framed(page: str) -> str:
    return FRAME.format(page=html.escape(page))
