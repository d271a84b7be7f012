"""Slides of a section, made of its executed notebooks: claims, algorithms, pictures, findings.

They are shown by reveal.js, which the package sphinx-revealjs brings; nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.survey.notebooks import Notebook

if TYPE_CHECKING:
    from nbconvert import SlidesExporter
    from nbformat import NotebookNode

TEMPLATES = Path(__file__).with_name("pages")
REVEAL = ("dist/reveal.js", "dist/reveal.css", "dist/theme/white.css")
PICTURES = ("image/png", "image/svg+xml")
FORMULA = re.compile(r"(`+).*?\1|\$\$(.+?)\$\$|\$(?=\S)([^$]+?)(?<=\S)\$", re.DOTALL)
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()\s]+\)")
SHOWN_WITH_CODE, SAYS = "algorithm", "finding"  # tags of cells


def deck(title: str, notebooks: Iterable[tuple[Notebook, NotebookNode]]) -> str:
    """Return a page of slides: a column for every notebook, each part of it beneath the title."""
    import nbformat
    from pygments.formatters import HtmlFormatter

    cells = [nbformat.v4.new_markdown_cell(f"# {title}", metadata=_slide("slide"))]
    for notebook, content in notebooks:
        for cell in slides_of(content, notebook.title):
            cell["id"] = f"slide-{len(cells)}"  # notebooks share their cells' numbers
            cells.append(cell)
    style = HtmlFormatter().get_style_defs(".highlight")
    book = nbformat.v4.new_notebook(cells=cells, metadata={"title": title})
    page, _ = _exporter().from_notebook_node(book, resources={"highlighting": style})
    return page


@cache
def _exporter() -> SlidesExporter:
    """Return the exporter of all decks, which reads its templates once."""
    from nbconvert import SlidesExporter
    from traitlets.config import Config

    config = Config({"TagRemovePreprocessor": {"enabled": True, "remove_input_tags": ["picture"]}})
    return SlidesExporter(
        config=config,
        template_file=str(TEMPLATES / "slides.html.j2"),
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        reveal_url_prefix="reveal",
        reveal_theme="white",
    )


def slides_of(content: NotebookNode, title: str) -> list[NotebookNode]:
    """Return the cells of an executed notebook that are slides.

    These are the title with its claim, every heading with its first paragraph and formulas, the
    algorithm, and pictures with the finding beneath. Other code and tables stay in the notebook.
    """
    shown: list[NotebookNode] = []
    for number, cell in enumerate(content["cells"]):
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "markdown":
            if cell["source"].startswith("#"):
                text = f"# {title}\n{cell['source'].partition(chr(10))[2]}" if number == 0 else None
                cell["source"] = with_mathml(_beginning(text or cell["source"]))
                shown.append(_as(cell, "slide" if number == 0 else "subslide"))
        elif cell["cell_type"] == "code":
            if SHOWN_WITH_CODE in tags:
                shown.append(_as(cell, "subslide"))
            elif SAYS in tags or _is_drawn(cell):
                after_picture = SAYS in tags and bool(shown) and shown[-1]["cell_type"] == "code"
                shown.append(_as(cell, "-" if after_picture else "subslide", [*tags, "picture"]))
    return shown


def with_mathml(text: str) -> str:
    r"""Return Markdown whose formulas are MathML, which needs no script; code stays as it is.

    >>> with_mathml("`$a$` is $a$").startswith('`$a$` is <math')
    True
    """
    from latex2mathml.converter import convert

    def formula(found: re.Match[str]) -> str:
        _, block, inline = found.groups()
        if not (block or inline):
            return found.group()
        return convert(block or inline, display="block" if block else "inline")

    return FORMULA.sub(formula, text)


def reveal_files() -> dict[str, bytes]:
    """Return the files of reveal.js by their place beside the slides."""
    root = files("sphinx_revealjs") / "_static" / "revealjs"
    found = {f"reveal/{name}": (root / name).read_bytes() for name in REVEAL}
    theme = f"reveal/{REVEAL[-1]}"  # whose fonts stay behind: systems have their own
    found[theme] = re.sub(rb"@import [^;]*;", b"", found[theme])
    return found


def _beginning(text: str) -> str:
    """Return the heading, the first paragraph and the formulas of a cell, without links."""
    blocks = re.split(r"\n\s*\n", text.strip())
    kept = [one for n, one in enumerate(blocks) if n < 2 or one.startswith("$$")]
    if blocks[0].count("\n"):  # a paragraph follows the heading at once
        kept = [one for n, one in enumerate(blocks) if n < 1 or one.startswith("$$")]
    return LINK.sub(r"\1", "\n\n".join(kept))


def _is_drawn(cell: NotebookNode) -> bool:
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return any(
        kind in one or "<svg" in str(one.get("text/html", "")) for one in data for kind in PICTURES
    )


def _slide(kind: str) -> dict[str, Mapping[str, str]]:
    return {"slideshow": {"slide_type": kind}}


def _as(cell: NotebookNode, kind: str, tags: Sequence[str] = ()) -> NotebookNode:
    cell["metadata"] = {**_slide(kind), "tags": list(tags)}
    return cell
