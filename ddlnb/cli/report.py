"""The report of a reproduction: executed notebooks as HTML, their figures, and a table of contents.

Pages stand on their own: no script, no style and no font comes from another host.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from ddlnb.cli.notebooks import Notebook
from ddlnb.files import write_atomically
from ddlnb.units import show_seconds

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.88rem; }
td, th { padding: 0.3rem 0.7rem; text-align: left; vertical-align: top;
         border-bottom: 1px solid #ddd; }
img { max-width: 100%; }
pre { background: #f6f6f4; padding: 0.6rem 0.8rem; overflow-x: auto; font-size: 0.85rem; }
figure { margin: 1.5rem 0; } figcaption { color: #555; font-size: 0.88rem; }
.failed { color: #b3261e; } .quiet { color: #666; }
.output_area, .jp-OutputArea { overflow-x: auto; }
.anchor-link { display: none; }
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook: ``status`` is done, kept (from an earlier call), failed, or
    not here, where this machine lacks something that it needs; ``error`` says what.

    ``made`` is the provenance of its execution, empty where none was noted.
    """

    notebook: Notebook
    status: str
    seconds: float = float("nan")
    error: str = ""
    made: Mapping[str, str] = field(default_factory=dict)


def write_pages(outcomes: Iterable[Outcome], folder: Path, profile: str) -> Path:
    """The path of the report's first page; one page and the figures of every notebook beside it."""
    outcomes = list(outcomes)
    figures = {}
    for outcome in outcomes:
        name = outcome.notebook.name
        executed = folder / f"{name}.ipynb"
        for old in (folder / "figures").glob(f"{name}-*.png"):
            old.unlink()
        if not outcome.error and executed.exists():
            write_page(executed, folder / f"{name}.html", outcome.notebook.title)
            figures[name] = extract_figures(executed, folder / "figures")
        else:
            (folder / f"{name}.html").unlink(missing_ok=True)
    return write_atomically(folder / "index.html", _index(outcomes, figures, profile))


def write_page(executed: Path, page: Path, title: str) -> Path:
    """The executed notebook as one HTML page."""
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
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.DOTALL)  # widgets; we have none
    colours = HtmlFormatter().get_style_defs(".highlight")
    back = '<p class="quiet"><a href="index.html">all notebooks</a></p>'
    return write_atomically(page, _page(title, f"{back}\n{body}", colours))


def extract_figures(executed: Path, folder: Path) -> list[Path]:
    """The PNG files of all figures in an executed notebook, named after it and numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads(executed.read_text(encoding="utf-8"))
    images = [
        output["data"]["image/png"]
        for cell in content["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    paths = []
    for number, image in enumerate(images, start=1):
        paths.append(folder / f"{executed.stem}-{number}.png")
        paths[-1].write_bytes(base64.b64decode("".join(image)))
    return paths


def _index(outcomes: list[Outcome], figures: dict[str, list[Path]], profile: str) -> str:
    rows = "\n".join(_row(outcome) for outcome in outcomes)
    gallery = "\n".join(
        f'<figure><a href="{outcome.notebook.name}.html"><img src="figures/{path.name}" '
        f'alt="{escape(outcome.notebook.title)}"></a>'
        f"<figcaption>{escape(outcome.notebook.title)}</figcaption></figure>"
        for outcome in outcomes
        for path in figures.get(outcome.notebook.name, [])
    )
    heads = ("Notebook", "Survey", "Claim", "Run time", "Executed", "Status", "")
    head = "".join(f"<th>{text}</th>" for text in heads)
    measured_on = _measured_on(outcomes)
    title = f"Executable survey of communication in distributed deep learning: {profile}"
    return _page(
        title,
        f"<h1>{escape(title)}</h1>\n<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>"
        f"</table>\n<h2>Measured on</h2>\n<table>{measured_on}</table>\n<h2>Figures</h2>\n"
        f"{gallery}",
    )


def _measured_on(outcomes: list[Outcome]) -> str:
    """Machine and versions of the outcomes: once if all agree, else with the notebooks of each."""
    rows = []
    for key in ("machine", "versions"):
        names: dict[str, list[str]] = {}
        for outcome in outcomes:
            if key in outcome.made:
                names.setdefault(outcome.made[key], []).append(outcome.notebook.name)
        for value, where in names.items():
            said = value if len(names) == 1 else f"{value} ({', '.join(where)})"
            rows.append(f"<tr><th>{key}</th><td>{escape(said)}</td></tr>")
    return "\n".join(rows)


def _executed(made: Mapping[str, str]) -> str:
    """When, and at which commit if there was one."""
    time, commit = made.get("time", "-"), made.get("commit", "")
    return f"{time}, commit {commit}" if commit else time


def _row(outcome: Outcome) -> str:
    notebook = outcome.notebook
    failed = bool(outcome.error)
    suffix = ".failed.ipynb" if failed else ".ipynb"
    title = escape(notebook.title)
    page = title if failed else f'<a href="{notebook.name}.html">{title}</a>'
    survey = f"s. {notebook.section}" if notebook.section else ""
    if notebook.figure:
        survey = f"{survey}, {notebook.figure}"
    error = f'<span class="failed">{outcome.status}: {escape(outcome.error)}</span>'
    cells = (
        page,
        escape(survey),
        escape(notebook.claim),
        show_seconds(outcome.seconds),
        escape(_executed(outcome.made)),
        error if failed else outcome.status,
        f'<a href="{notebook.name}{suffix}">ipynb</a>',
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _page(title: str, body: str, style: str = "") -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
