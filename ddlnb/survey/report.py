"""The report of a reproduction: findings, a gallery, the survey's index, a page a notebook."""

from __future__ import annotations

import base64
import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.files import write_atomically
from ddlnb.results.statistics import Verdict
from ddlnb.survey.evidence import AGREES, DECIDED, DISAGREES, Entry
from ddlnb.survey.notebooks import Notebook, Outcome

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

    def picture(number: int, output: dict[str, Any]) -> Picture:
        about = output.get("metadata", {}).get(PNG, {})
        caption = about.get("caption") or _sentence(notebook.claim)
        return Picture(
            file=f"{notebook.name}-{number}.png",
            caption=caption,
            alt=about.get("alt") or f"{notebook.title}: {caption}",
            title=notebook.title,
            link=f"{notebook.name}.html#figure-{number}",
            data=output["data"][PNG].replace("\n", ""),
        )

    drawn = (output for output in _outputs(content) if PNG in output.get("data", {}))
    return [picture(number, output) for number, output in enumerate(drawn, 1)]


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

    def is_caption(output: dict[str, Any]) -> bool:
        return bool(output.get("metadata", {}).get("text/markdown", {}).get("is_caption"))

    for cell in content["cells"]:
        if "outputs" in cell:
            cell["outputs"] = [output for output in cell["outputs"] if not is_caption(output)]


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


UNJUDGED = "not judged"
# By verdict: what is said of statements, and the heading above them; the most important first.
SAID = {
    Verdict.CONTRADICTED: ("do not hold here", "What does not hold here"),
    DISAGREES: ("the simulator does not share", "What the simulator does not share"),
    Verdict.UNDECIDED: ("are undecided", "What is undecided"),
    Verdict.HOLDS: ("hold", "What holds"),
    AGREES: ("the simulator shares", "What the simulator shares"),
    DECIDED["arithmetic"]: ("are arithmetic", "What is arithmetic"),
    DECIDED["definition"]: ("hold by definition", "What holds by definition"),
    DECIDED["question"]: ("are questions", "What is a question"),
    UNJUDGED: ("could not be judged", ""),
}
OPEN = (Verdict.CONTRADICTED, DISAGREES, Verdict.UNDECIDED)  # lists that are not folded


def write_pages(
    outcomes: Iterable[Outcome], folder: Path, profile: str, found: Mapping[str, Entry]
) -> Path:
    """Write the report's first page and a page for every notebook; return the path of the first.

    ``found`` are the entries of the survey's index: what holds and what does not comes first.
    """
    outcomes, done = list(outcomes), []
    gallery: dict[str, list[Picture]] = {}
    for outcome in outcomes:
        name = outcome.notebook.name
        for old in (folder / "figures").glob(f"{name}-*.png"):
            old.unlink()
        if outcome.error or not (folder / f"{name}.ipynb").exists():
            (folder / f"{name}.html").unlink(missing_ok=True)
        else:
            done.append(outcome.notebook)
    for before, notebook, after in zip([None, *done], done, [*done[1:], None], strict=False):
        content = read_executed(folder / f"{notebook.name}.ipynb")
        pictures = pictures_of(content, notebook)
        write_pictures(pictures, folder / "figures")
        page = folder / f"{notebook.name}.html"
        write_page(content, pictures, page, notebook.title, before, after)
        if pictures:
            gallery.setdefault(notebook.heading, []).extend(pictures)
    first = render(
        "first.html",
        title=f"Executable survey of communication in distributed deep learning: {profile}",
        found=_by_verdict(found.values()),
        said=SAID,
        unfolded=OPEN,
        gallery=gallery,
        outcomes=outcomes,
        origins=_origins(outcomes),
    )
    return write_atomically(folder / "index.html", first)


def write_index(found: dict[str, Entry], folder: Path) -> Path:
    """Write the page of the report that lists every item, and return its path."""
    counts = Counter(entry.verdict for entry in found.values())
    ordered = sorted(found.values(), key=lambda entry: (entry.item.section, entry.item.id))
    sections = {key: list(own) for key, own in groupby(ordered, lambda entry: entry.item.section)}
    page = render("survey.html", title="The survey, item by item", sections=sections, counts=counts)
    return write_atomically(folder / "survey.html", page)


def _by_verdict(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries by the worst verdict of each, the worst first; the others are unjudged."""
    found: dict[str, list[Entry]] = {word: [] for word in SAID}
    for entry in entries:
        worst = entry.verdict.split(", ")[0]
        found[worst if worst in SAID else UNJUDGED].append(entry)
    return {word: those for word, those in found.items() if those}


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
