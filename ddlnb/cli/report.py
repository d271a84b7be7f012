"""Write the report of a reproduction: a gallery of its figures, and a page for every notebook.

Pages stand on their own: no script, no style and no font comes from another host.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddlnb.cli.notebooks import Notebook
from ddlnb.files import write_atomically

TEMPLATE = Path(__file__).with_name("report.html")


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


@dataclass(frozen=True)
class Picture:
    """A figure in the gallery: its file, one sentence about it, and the notebook it links to."""

    file: str
    caption: str
    title: str
    page: str


def write_pages(outcomes: Iterable[Outcome], folder: Path, profile: str) -> Path:
    """Write the report's first page and a page for every notebook; return the path of the first."""
    outcomes = list(outcomes)
    gallery: dict[str, list[Picture]] = {}
    for outcome in outcomes:
        notebook = outcome.notebook
        executed, page = (folder / f"{notebook.name}{end}" for end in (".ipynb", ".html"))
        for old in (folder / "figures").glob(f"{notebook.name}-*.png"):
            old.unlink()
        if outcome.error or not executed.exists():
            page.unlink(missing_ok=True)
            continue
        write_page(executed, page, notebook.title)
        if pictures := extract_figures(executed, folder / "figures", notebook):
            gallery.setdefault(notebook.heading, []).extend(pictures)
    first = render(
        title=f"Executable survey of communication in distributed deep learning: {profile}",
        gallery=gallery,
        outcomes=outcomes,
        origins=_origins(outcomes),
    )
    return write_atomically(folder / "index.html", first)


def write_page(executed: Path, page: Path, title: str) -> Path:
    """Write the executed notebook as one HTML page, and return the path of the page."""
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    exporter = HTMLExporter(
        template_name="basic",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        mathjax_url="",
        require_js_url="",
        mermaid_js_url="",
        jquery_url="",
    )
    body, _ = exporter.from_filename(str(executed))
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.DOTALL)  # of widgets, unused here
    style = HtmlFormatter().get_style_defs(".highlight")
    return write_atomically(page, render(title=title, page=body, style=style))


def extract_figures(executed: Path, folder: Path, notebook: Notebook) -> list[Picture]:
    """Write all figures of an executed notebook into PNG files, and return them with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: list[Picture] = []
    for cell in json.loads(executed.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            if image := output.get("data", {}).get("image/png"):
                path = folder / f"{notebook.name}-{len(pictures) + 1}.png"
                path.write_bytes(base64.b64decode("".join(image)))
                caption = _caption("".join(cell["source"])) or _sentence(notebook.claim)
                page = f"{notebook.name}.html"
                pictures.append(Picture(path.name, caption, notebook.title, page))
    return pictures


def _caption(source: str) -> str:
    """Return what the last figure function that the source calls says of itself; else nothing."""
    from ddlnb import figures

    drawn = [name for name in re.findall(r"\b(\w+)\(", source) if name in figures.__all__]
    if not drawn:
        return ""
    description = " ".join((getattr(figures, drawn[-1]).__doc__ or "").split())
    return _sentence(re.split(r"\. +(?=[A-Z`])", description)[0].rstrip("."))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _origins(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    """Return date, commit, machine and versions: once if all agree, else with their notebooks."""
    rows = []
    for key in ("time", "commit", "machine", "versions"):
        names: dict[str, list[str]] = {}
        for outcome in outcomes:
            if value := outcome.made.get(key):
                value = value.partition("T")[0] if key == "time" else value
                names.setdefault(value, []).append(outcome.notebook.name)
        for value, where in names.items():
            said = value if len(names) == 1 else f"{value} ({', '.join(where)})"
            rows.append(("date" if key == "time" else key, said))
    return rows


def render(**values: Any) -> str:
    """Return one page, which is what its values say: a first page, a notebook or the index."""
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text())
    return template.render(values)
