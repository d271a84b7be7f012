"""The site of a reproduction: findings, a gallery, verdicts, a page a notebook, and the documents.

Pages are written as Markdown and notebooks, of which Sphinx with MyST makes the site; nothing is
executed. It needs no server and no network: formulas are MathML, all scripts are beside the pages.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddlnb.calibration.statistics import Verdict
from ddlnb.errors import DdlnbError
from ddlnb.files import NOTEBOOKS, ROOT, cores, write_atomically
from ddlnb.survey.evidence import AGREES, DECIDED, DISAGREES, Entry, place_of
from ddlnb.survey.items import ITEMS_TYPE
from ddlnb.survey.notebooks import Notebook, Outcome, all_notebooks
from ddlnb.survey.slides import deck, reveal_files

if TYPE_CHECKING:
    from nbformat import NotebookNode

T = TypeVar("T")
TEMPLATES = Path(__file__).with_name("pages")
PAGES, SITE = "pages", "site"  # folders of a build: what Sphinx reads, and what it writes
PNG, MARKDOWN = "image/png", "text/markdown"
WIDGET = "application/vnd.jupyter.widget-view+json"  # lives in a kernel
SOLUTION = "_solution"  # ends the names of what is kept away from the labs
READ_FIRST = ("index", "sec3_1_4_scheduling", "sec4_2_findings")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
IMPORTS = re.compile(r"(import|from) ")  # cells that begin so are folded
SPECIAL = re.compile(r"([\\`*_{}\[\]<>$|~#])")


@dataclass(frozen=True)
class Picture:
    """A figure of an executed notebook: what it says of itself, and its place on the site."""

    file: str
    caption: str
    alt: str
    width: int | None
    data: str

    @property
    def label(self) -> str:
        """The target of links to the figure."""
        return f"figure-{Path(self.file).stem}"

    @property
    def directive(self) -> str:
        """The figure with its caption, in MyST; pixels are shown at half their size."""
        width = f":width: {self.width}px\n" if self.width else ""
        return (
            f"```{{figure}} /figures/{self.file}\n:alt: {_line(self.alt)}\n:name: {self.label}\n"
            f"{width}:target: ../_images/{self.file}\n\n{plain(self.caption)}\n```\n"
        )


@dataclass(frozen=True)
class Shown:
    """A notebook on the site: its figures, and what it found in a sentence, if it says so."""

    notebook: Notebook
    pictures: Sequence[Picture]
    finding: str


def first_of(shown: Sequence[Shown]) -> list[Shown]:
    """Return those of READ_FIRST, each once, though some run under several names."""
    by_stem = {one.notebook.path.stem: one for one in reversed(shown)}
    return [by_stem[stem] for stem in READ_FIRST if stem in by_stem]


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
            width=about.get("width"),
            data=output["data"][PNG].replace("\n", ""),
        )

    drawn = (output for output in _outputs(content) if PNG in output.get("data", {}))
    return [picture(number, output) for number, output in enumerate(drawn, 1)]


def finding_of(content: NotebookNode) -> str:
    """Return the first computed finding of an executed notebook as Markdown; empty without one."""
    for cell in content["cells"]:
        if "finding" in cell["metadata"].get("tags", []):
            for output in cell.get("outputs", []):
                text = "".join(output.get("data", {}).get(MARKDOWN, ""))
                return text.removeprefix("**Finding.** ").strip()
    return ""


def prepare(
    content: NotebookNode,
    notebook: Notebook,
    pictures: Sequence[Picture],
    pages: Mapping[Path, str],
) -> NotebookNode:
    """Return an executed notebook as the site shows it: figures with captions, links within it.

    Cells that give evidence are targets of links. ``pages`` are the pages of the site by the files
    that they are made of.
    """
    import nbformat

    waiting = iter(pictures)
    for output in _outputs(content):
        data = output.get("data", {})
        data.pop(ITEMS_TYPE, None)
        if PNG in data:
            output["data"], output["metadata"] = {MARKDOWN: next(waiting).directive}, {}
        elif MARKDOWN in data:
            data[MARKDOWN] = relinked("".join(data[MARKDOWN]), notebook.path, pages)
    cells = []
    for cell in content["cells"]:
        if "outputs" in cell:
            cell["outputs"] = [one for one in cell["outputs"] if _is_shown(one)]
            target = f"({place_of(notebook, cell)})="
            cells.append(nbformat.v4.new_markdown_cell(target, id=f"to-{cell['id']}"))
            if IMPORTS.match(cell["source"]):
                cell["metadata"].setdefault("tags", []).append("hide-input")
        elif cell["cell_type"] == "markdown":
            cell["source"] = relinked(cell["source"], notebook.path, pages)
        cells.append(cell)
    cells[0]["source"] = re.sub(
        r"\A# .*", lambda _: f"# {plain(notebook.title)}", cells[0]["source"]
    )
    content["cells"] = cells
    content["metadata"].pop("widgets", None)
    return content


def _is_shown(output: Mapping[str, Any]) -> bool:
    is_caption = output.get("metadata", {}).get(MARKDOWN, {}).get("is_caption")
    return not is_caption and WIDGET not in output.get("data", {})


def _outputs(content: NotebookNode) -> Iterator[dict[str, Any]]:
    for cell in content["cells"]:
        yield from cell.get("outputs", [])


def relinked(text: str, here: Path, pages: Mapping[Path, str]) -> str:
    """Return Markdown of a file whose links lead to pages of the site; other files are named only.

    A link into references.bib becomes a citation.

    >>> pages = {Path("/notebooks/a.ipynb"): "notebooks/a1.ipynb"}
    >>> relinked("[A](a.ipynb#b), [c](../d.py), [e](references.bib#f)", Path("/notebooks/g"), pages)
    '[A](/notebooks/a1.ipynb#b), c, {cite:t}`f`'
    """

    def link(found: re.Match[str]) -> str:
        said, place = found.groups()
        if re.match(r"\w+:|#", place):
            return found.group()
        name, _, anchor = place.partition("#")
        if name.endswith("references.bib") and anchor:
            return f"{{cite:t}}`{anchor}`"
        path = Path(os.path.normpath(here.parent / name))
        if path.name == "CONTRIBUTING.md" and anchor == "glossary":
            return f"[{said}](/glossary.md)"
        if path not in pages:
            return said
        return f"[{said}](/{pages[path]}{'#' if anchor else ''}{anchor})"

    parts = FENCE.split(text)
    return "".join(
        part if number % 2 else LINK.sub(link, part) for number, part in enumerate(parts)
    )


def plain(text: object) -> str:
    r"""Return text in one line that Markdown shows as it is.

    >>> plain("a_b costs $2")
    'a\\_b costs \\$2'
    """
    return SPECIAL.sub(r"\\\1", _line(text))


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def render(template: str, **values: Any) -> str:
    """Return a page: a template of the folder of pages, filled in with the values."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(TEMPLATES), auto_reload=False
    )
    environment.filters["plain"] = plain
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
    DECIDED["question"]: ("raised as a question", "What is a question"),
    UNJUDGED: ("could not be judged", "What could not be judged"),
}
OPEN = (Verdict.CONTRADICTED, DISAGREES, Verdict.UNDECIDED)  # lists that are not folded


def write_site(
    outcomes: Iterable[Outcome],
    folder: Path,
    profile: str,
    found: Mapping[str, Entry],
    notebooks: Path = NOTEBOOKS,
) -> Path:
    """Build the site of the notebooks that were executed in a folder; return its first page.

    ``found`` are the entries of the survey's index. The documents of a checkout and the pages of
    the API belong to the site of the survey's own notebooks alone. Raises DdlnbError if a page
    cannot be built.
    """
    outcomes = list(outcomes)
    done = [one for one in outcomes if not one.error and _executed(one, folder).exists()]
    source, documents = folder / PAGES, _documents() if notebooks == NOTEBOOKS else {}
    bibliography = notebooks / "references.bib"
    labs = [
        replace(lab, title=lab.title.replace("Lab", "Solution", 1))
        if lab.name.endswith(SOLUTION)
        else lab
        for lab in all_notebooks(notebooks / "labs").values()
    ]
    pages = documents | {lab.path: f"labs/{lab.path.name}" for lab in labs}
    for one in reversed(done):  # a notebook that was executed under several names: the first
        pages[one.notebook.path] = f"notebooks/{one.notebook.name}.ipynb"
    texts: dict[str, str | bytes] = {}
    shown = []
    for one in done:
        content = read_executed(_executed(one, folder))
        pictures = pictures_of(content, one.notebook)
        shown.append(Shown(one.notebook, pictures, finding_of(content)))
        texts |= {f"figures/{each.file}": base64.b64decode(each.data) for each in pictures}
        ready = prepare(content, one.notebook, pictures, pages)
        texts[f"notebooks/{one.notebook.name}.ipynb"] = json.dumps(ready, indent=1)
    for lab in labs:
        ready = prepare(read_executed(lab.path), lab, [], pages)
        texts[pages[lab.path]] = json.dumps(ready, indent=1)
    for path, name in documents.items():
        texts[name] = relinked(path.read_text(encoding="utf-8"), path, pages)
    if documents:
        for path in (ROOT / "docs" / "pictures").glob("*.png"):
            texts[f"docs/pictures/{path.name}"] = path.read_bytes()
        texts["glossary.md"] = render("glossary.md", words=_glossary())
        texts["api.rst"] = (TEMPLATES / "api.rst").read_bytes()
    values = {
        "profile": profile,
        "found": _by_verdict(found.values()),
        "said": SAID,
        "unfolded": OPEN,
        "sections": {
            key: list(own) for key, own in groupby(shown, lambda one: one.notebook.heading)
        },
        "first": first_of(shown),
        "outcomes": outcomes,
        "origins": _origins(outcomes),
        "labs": [pages[lab.path] for lab in labs if not lab.name.endswith(SOLUTION)],
        "solutions": [pages[lab.path] for lab in labs if lab.name.endswith(SOLUTION)],
        "documents": [name for name in documents.values() if re.match(r"docs/[^/]+$", name)],
        "decisions": [name for name in documents.values() if "/decisions/" in name],
        "has_documents": bool(documents),
        "has_bibliography": bibliography.exists(),
    }
    sections = _by(done, lambda one: one.notebook.heading)
    decks = {f"{re.sub(chr(92) + 'W+', '-', key.lower())}.html": key for key in sections}
    for name, key in decks.items():
        own = [(one.notebook, read_executed(_executed(one, folder))) for one in sections[key]]
        texts[f"extra/slides/{name}"] = deck(key, own)
    texts |= {f"extra/slides/{name}": content for name, content in reveal_files().items()}
    texts["slides.md"] = render("slides.md", decks=decks)
    texts["index.md"] = render("index.md", **values)
    texts["verdicts.md"] = verdicts_page(found)
    if bibliography.exists():
        texts["references.bib"] = bibliography.read_bytes()
        texts["bibliography.md"] = "# Bibliography\n\n```{bibliography}\n:all:\n```\n"
    for name in ("conf.py", "site.css"):
        texts[name] = (TEMPLATES / name).read_bytes()
    write_changed(source, texts)
    return build(source, folder / SITE, f"Executable survey: {profile}")


def write_changed(folder: Path, texts: Mapping[str, str | bytes]) -> None:
    """Write files into a folder and remove all others; what is there already keeps its time."""
    for name, text in texts.items():
        path, content = folder / name, text if isinstance(text, bytes) else text.encode()
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in texts:
            path.unlink()


def build(source: Path, out: Path, title: str) -> Path:
    """Let Sphinx make a site of the pages in a folder; return the path of its first page.

    Pages that have not changed are kept. Raises DdlnbError with what Sphinx says if it fails.
    """
    state = out.with_name(f"{out.name}-state")
    words = ["-b", "html", "-j", str(cores()), "-q", "-d", str(state), "-D", f"html_title={title}"]
    words += [str(source), str(out)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sphinx", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DdlnbError(f"the site in {source} cannot be built: {done.stderr.strip()[-600:]}")
    write_atomically(state / "warnings.txt", done.stderr)
    return out / "index.html"


def _executed(outcome: Outcome, folder: Path) -> Path:
    return folder / f"{outcome.notebook.name}.ipynb"


def _documents() -> dict[Path, str]:
    """Return pages of the checkout by file: its documents. An installed package has none."""
    paths = [
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").glob("**/*.md")),
    ]
    return {path: path.relative_to(ROOT).as_posix() for path in paths if path.exists()}


def _glossary() -> list[tuple[str, str]]:
    """Return the words of the glossary and what they mean, from the table in CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Glossary")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    return [(word, meaning) for word, meaning in rows if word != "word"]


def verdicts_page(found: Mapping[str, Entry]) -> str:
    """Return the page that lists every item with its evidence, in MyST."""
    ordered = sorted(found.values(), key=lambda entry: (entry.item.section, entry.item.id))
    sections = _by(ordered, lambda entry: entry.item.section)
    counts = {SAID[word][0]: len(own) for word, own in _by_verdict(found.values()).items()}
    return render("verdicts.md", sections=sections, counts=counts)


def _by(ordered: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    return {name: list(own) for name, own in groupby(ordered, key)}


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
