"""One page of the report: its template, filled in, and an executed notebook as such a page.

Pages stand on their own: no script, no style and no font comes from another host.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.files import write_atomically
from ddlnb.survey.notebooks import Notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode


PAGES = Path(__file__).with_name("pages")
PNG = "image/png"
HEADING = re.compile(r'<h2 id="([^"]+)">(.*?)<a class="anchor-link"')


@dataclass(frozen=True)
class Picture:
    """A figure of an executed notebook: what it says of itself, and where it is in the report."""

    file: str
    caption: str
    alt: str
    title: str
    link: str
    data: str

    @property
    def element(self) -> str:
        """The picture on the page of its notebook: it opens large, and stands on its own."""
        image = f'<img src="data:{PNG};base64,{self.data}" alt="{html.escape(self.alt)}">'
        anchor = self.link.partition("#")[2]
        return (
            f'<figure id="{anchor}"><a href="figures/{self.file}">{image}</a>'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


def read_executed(path: Path) -> NotebookNode:
    """Return the content of an executed notebook."""
    import nbformat

    return nbformat.read(path, as_version=4)


def pictures_of(content: NotebookNode, notebook: Notebook) -> list[Picture]:
    """Return the figures of an executed notebook in their order.

    A figure that says nothing of itself has the notebook's claim as its caption.
    """
    found: list[Picture] = []
    for output in _outputs(content):
        if PNG in output.get("data", {}):
            about = output.get("metadata", {}).get(PNG, {})
            caption = about.get("caption") or _sentence(notebook.claim)
            number = len(found) + 1
            found.append(
                Picture(
                    file=f"{notebook.name}-{number}.png",
                    caption=caption,
                    alt=about.get("alt") or f"{notebook.title}: {caption}",
                    title=notebook.title,
                    link=f"{notebook.name}.html#figure-{number}",
                    data=output["data"][PNG].replace("\n", ""),
                )
            )
    return found


def write_pictures(pictures: list[Picture], folder: Path) -> None:
    """Write each picture into a PNG file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / picture.file).write_bytes(base64.b64decode(picture.data))


def write_page(
    content: NotebookNode,
    pictures: list[Picture],
    page: Path,
    title: str,
    before: Notebook | None = None,
    after: Notebook | None = None,
) -> Path:
    """Write an executed notebook as one page, between two others, and return the page's path.

    ``pictures`` are those of the notebook: they become figures with their captions.
    """
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
    _put_figures(content, pictures)
    body, _ = exporter.from_notebook_node(content)
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.DOTALL)  # of widgets, unused here
    contents = [(anchor, re.sub("<.*?>", "", text)) for anchor, text in HEADING.findall(body)]
    around = {"before": before, "after": after, "contents": contents}
    style = HtmlFormatter().get_style_defs(".highlight")
    return write_atomically(
        page, render("notebook.html", title=title, page=body, style=style, **around)
    )


def _put_figures(content: NotebookNode, pictures: list[Picture]) -> None:
    """Replace pictures by elements that have captions, and drop the captions beneath them."""
    waiting = iter(pictures)
    for output in _outputs(content):
        if PNG in output.get("data", {}):
            output["data"], output["metadata"] = {"text/html": next(waiting).element}, {}
    for cell in content["cells"]:
        if "outputs" in cell:
            cell["outputs"] = [output for output in cell["outputs"] if not _is_caption(output)]


def _is_caption(output: dict[str, Any]) -> bool:
    return bool(output.get("metadata", {}).get("text/markdown", {}).get("is_caption"))


def _outputs(content: NotebookNode) -> Iterator[dict[str, Any]]:
    for cell in content["cells"]:
        yield from cell.get("outputs", [])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def render(template: str, **values: Any) -> str:
    """Return a page: a template of the folder of pages, filled in with the values."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        autoescape=True, trim_blocks=True, loader=FileSystemLoader(PAGES), auto_reload=False
    )
    environment.filters["anchor"] = lambda text: re.sub(r"\W+", "-", str(text).casefold())
    return environment.get_template(template).render(values)
