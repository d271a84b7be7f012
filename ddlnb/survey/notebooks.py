"""The notebooks of the checkout: how each one describes itself, and how long it takes.

A notebook says in its metadata, under ``ddlnb``, which section and figure of the survey it belongs
to, its claim, the library function that does its work, whether it takes times, and which items of
the survey it reproduces, each with how: computed, simulated, emulated or measured.

The tables are in data/times: seconds of every notebook of a profile within `ddlnb survey
reproduce`, and of the commands that the documents show, each with its machine and commit.

Notebooks carry pictures of one run, so that they are seen where no kernel runs. They are small, and
the notebook's metadata say of which code and version they are. Above the first stands with which
parameters they were drawn, where the run had others than the notebook. Cells that have one carry
the tags ``keep_output``, for nbstripout, and ``stored-picture``; nbval compares none.
"""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import DdlnbError, InputError, look_up, require, require_known
from ddlnb.files import DATA, NOTEBOOKS, write_atomically
from ddlnb.reading import read_json, read_text, reading
from ddlnb.registry import several

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Notebook:
    """One notebook, as its first cell and its metadata describe it."""

    name: str
    path: Path
    title: str
    section: str
    figure: str
    claim: str
    function: str
    timed: bool
    items: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Section and figure of the survey, in words.

        >>> Notebook("a", Path(), "", "4.2", "Fig. 4", "", "", False).place
        'section 4.2, Fig. 4'
        """
        section = f"section {self.section}" if self.section[:1].isdigit() else self.section
        return ", ".join(part for part in (section, self.figure) if part)

    @property
    def heading(self) -> str:
        """The chapter of the survey that the notebook belongs to, or what else it is about.

        >>> places = ("3.1.2", "1-2", "", "Layers (arXiv 2403.07585)")
        >>> [Notebook("a", Path(), "", one, "", "", "", False).heading for one in places]
        ['Section 3', 'Section 2', 'Overview', 'Layers (arXiv 2403.07585)']
        """
        if not self.section[:1].isdigit():
            return self.section or "Overview"
        chapter = self.section.partition(".")[0]
        return f"Section {chapter.rpartition('-')[2]}"

    def under(self, name: str, title: str = "") -> Notebook:
        """Return the same notebook under another name, which its files carry, and its title.

        Without a title of its own the notebook's title says the name as well.
        """
        if name == self.name:
            return replace(self, title=title or self.title)
        require(
            re.fullmatch(r"\w+", str(name)) is not None,
            f"name {name!r} of notebook {self.name!r} becomes a file name; "
            f"write it with letters, digits and '_'",
        )
        return replace(self, name=str(name), title=title or f"{self.title} ({name})")

    def titled_by(self, values: Mapping[str, object]) -> Notebook:
        """Return the notebook under its own title with these values, if it has another's name.

        The title of an entry speaks of the entry's values, and is wrong with others.
        """
        if self.name == self.path.stem:
            return self
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        return replace(self, title=f"{_described(self.path).title} ({given})")


def all_notebooks(folder: Path = NOTEBOOKS) -> dict[str, Notebook]:
    """Return the notebooks of a folder by name: the index first, then in the survey's order."""
    found = [_described(path) for path in sorted(folder.glob("*.ipynb"))]
    found.sort(key=lambda notebook: (notebook.name != "index", notebook.section, notebook.name))
    return {notebook.name: notebook for notebook in found}


def _described(path: Path) -> Notebook:
    content = read_json(path)
    with reading(f"notebook {path.name}"):
        about = content["metadata"].get("ddlnb", {})
        cells = content["cells"]
    first = "".join(cells[0]["source"]) if cells else ""
    title = first.splitlines()[0].lstrip("# ").strip() if first else path.stem
    text = {key: str(about.get(key, "")) for key in ("section", "figure", "claim", "function")}
    items = about.get("items", {})
    require(isinstance(items, dict), f"{path.name}: items must map numbers such as A07 to words")
    timed = bool(about.get("timed", False))
    return Notebook(path.stem, path, title, timed=timed, items=items, **text)


def catalogue(folder: Path = NOTEBOOKS) -> pd.DataFrame:
    """Return the table of contents: one row per notebook, indexed by its name.

    The columns are texts: the ``section`` and ``figure`` of the survey, the ``claim`` that is
    checked, and the library ``function`` that does the work. Rows stand in the survey's order.
    Raises InputError for a file in the folder that is no notebook.

    >>> import ddlnb
    >>> contents = ddlnb.survey.catalogue()
    >>> contents.loc["sec2_intensity", ["section", "figure"]].to_list()
    ['1-2', 'text of section 2']
    """
    import pandas as pd

    columns = ("section", "figure", "name", "claim", "function")
    notebooks = [one for one in all_notebooks(folder).values() if one.name != "index"]
    rows = [[getattr(notebook, column) for column in columns] for notebook in notebooks]
    table = pd.DataFrame(rows, columns=list(columns)).rename(columns={"name": "notebook"})
    return table.set_index("notebook")


def get_notebook(name: str, folder: Path = NOTEBOOKS) -> Notebook:
    """Return the notebook of that name. Raises UnknownName."""
    known = all_notebooks(folder)
    return look_up("notebook", name, known)


def check_parameters(notebook: Notebook, parameters: Mapping[str, object]) -> None:
    """Raise UnknownName for a parameter that the notebook lacks; papermill only warns of it.

    Raises InputError for one that is not of its default's kind, such as a word for a number; None,
    and anything where the default is a text or None, is for the notebook to judge.
    """
    known = parameters_of(notebook)
    for name, value in parameters.items():
        require_known(f"parameter of notebook {notebook.name!r}", name, known)
        require(
            value is None or _is_like(value, known[name]),
            f"parameter {name!r} of notebook {notebook.name!r} cannot be {value!r}; "
            f"give something like {known[name]!r}",
        )


def _is_like(value: object, default: object) -> bool:
    """Return whether a value may stand for a default; one thing may stand for a list of some."""
    if isinstance(default, list):
        kinds = default or [None]
        return all(any(_is_like(one, of) for of in kinds) for one in several(value))
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool | None)
    for kind, takes in ((int, Integral), (float, Real), (dict, Mapping)):
        if isinstance(default, kind):
            return isinstance(value, takes)
    return True


def parameters_of(notebook: Notebook) -> dict[str, object]:
    """Return the notebook's parameters with their defaults; None where a default spans lines.

    Raises InputError if the notebook has no kernel.
    """
    import papermill

    try:
        found = papermill.inspect_notebook(str(notebook.path))
    except ValueError as error:  # such as no kernel in the notebook's metadata
        raise InputError(f"notebook {notebook.name!r} cannot be inspected: {error}") from error
    return {name: _literal(one["default"]) for name, one in found.items()}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None


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


TIMES = DATA / "times"


def kept_notebooks(folder: Path = TIMES) -> list[dict[str, str]]:
    """Return the rows of notebooks: profile, name, seconds, machine, commit, time."""
    return _rows(folder / "notebooks.csv")


def kept_commands(folder: Path = TIMES) -> list[dict[str, str]]:
    """Return the rows of commands: command, seconds, cpu_seconds, load, machine, commit, time."""
    return _rows(folder / "commands.csv")


def notebook_seconds(profile: str, folder: Path = TIMES) -> dict[str, float]:
    """Return the seconds of each notebook of a profile; empty for one that was never timed."""
    rows = kept_notebooks(folder)
    return {row["name"]: float(row["seconds"]) for row in rows if row["profile"] == profile}


def command_help(name: str, folder: Path = TIMES) -> str | None:
    """Return what the help of a command says of the time that it takes; None if none was kept."""
    rows = [row for row in kept_commands(folder) if row["command"].split()[1] == name]
    if not rows:
        return None
    return f"Time on {rows[0]['machine']}: {'; '.join(map(_told, rows))}."


def _told(row: Mapping[str, str]) -> str:
    """Return the time of a command; beside other work its seconds are not its own."""
    seconds, computed = (in_words(float(row[key])) for key in ("seconds", "cpu_seconds"))
    if float(row["load"]) <= _cores(row["machine"]):
        return f"`{row['command']}` took {seconds}"
    return (
        f"`{row['command']}` computed for {computed} (and took {seconds} beside other work, at a "
        f"load of {row['load']})"
    )


def _cores(machine: str) -> int:
    return int(machine.split()[-2])


def reproduce_help(profile: str = "quick", folder: Path = TIMES) -> str | None:
    """Return what the help of `ddlnb survey reproduce` says of its time; None if none was kept."""
    rows = [row for row in kept_notebooks(folder) if row["profile"] == profile]
    if not rows:
        return None
    seconds = sum(float(row["seconds"]) for row in rows)
    return (
        f"Time: the {len(rows)} notebooks of profile {profile} took {in_words(seconds)} one after "
        f"the other ({rows[0]['machine']})."
    )


def in_words(seconds: float) -> str:
    """Return a time as people say it.

    >>> [in_words(seconds) for seconds in (3.2, 14.7, 47.6, 105.6, 210, 3000)]
    ['5 seconds', '15 seconds', '50 seconds', '110 seconds', '4 minutes', '50 minutes']
    """
    if seconds >= 150:
        return f"{seconds / 60:.0f} minutes"
    step = 10 if seconds >= 60 else 5
    return f"{max(step, step * round(seconds / step))} seconds"


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    return list(csv.DictReader(StringIO(read_text(path), newline="")))


KEPT, STORED, INJECTED = "keep_output", "stored-picture", "injected-parameters"
PLACE = re.compile(r"(\w+_)?(folder|file)")  # a parameter that changes nothing in a picture
PNG, SVG = "image/png", "image/svg+xml"
WIDTHS, COLOURS, MOST_BYTES = (1000, 800, 600, 400), 64, 60_000  # of a picture; pixels, shades
Content = dict[str, Any]


def store_pictures(outcomes: Iterable[Outcome], folder: Path, version: str) -> dict[str, str]:
    """Put the pictures of executed notebooks into the repository's; return what became of each.

    ``folder`` is that of the run. A notebook whose code has changed since it was executed loses
    pictures of other code, and of one that was executed under several names the first is taken.
    """
    said: dict[str, str] = {}
    for outcome in outcomes:
        path, name = outcome.notebook.path, outcome.notebook.path.stem
        executed = folder / f"{outcome.notebook.name}.ipynb"
        if name in said or outcome.error or not executed.exists():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        run = json.loads(executed.read_text(encoding="utf-8"))
        code = code_digest(content)
        drawn = _drawn(run) if code_digest(run) == code else {}
        if not drawn and content["metadata"]["ddlnb"].get("pictures", {}).get("code") == code:
            said[name] = "kept: its pictures are of this code, the run is of another"
            continue
        stored = _stored(content, drawn, {"code": code, "version": version} if drawn else {})
        write_atomically(path, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
        count = sum("data" in one for outputs in drawn.values() for one in outputs)
        said[name] = f"{count} stored" if drawn else "none of this code"
    return said


def code_digest(content: Content) -> str:
    """Return the fingerprint of a notebook's code."""
    text = json.dumps(["".join(cell["source"]) for cell in _code(content)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _code(content: Content, *, injected: bool = False) -> list[Content]:
    cells = (cell for cell in content["cells"] if cell["cell_type"] == "code")
    return [one for one in cells if injected == (INJECTED in one["metadata"].get("tags", []))]


def _drawn(executed: Content) -> dict[int, list[Content]]:
    """Return the pictures of a run by the number of their cell, the parameters above the first."""
    by_cell = enumerate(cell.get("outputs", []) for cell in _code(executed))
    pictures = {
        number: [_small(one) for one in outputs if one.get("data", {}).keys() & {PNG, SVG}]
        for number, outputs in by_cell
    }
    found = {number: outputs for number, outputs in pictures.items() if outputs}
    told = _otherwise(executed)
    if found and told:
        text = f"Drawn by a run with {', '.join(told)}.\n"
        found[min(found)].insert(0, {"output_type": "stream", "name": "stdout", "text": [text]})
    return found


def _otherwise(executed: Content) -> list[str]:
    """Return the parameters that a run had otherwise than its notebook, as they are written."""
    own = [one for one in _code(executed) if "parameters" in one["metadata"].get("tags", [])]
    before, given = (
        {name: value for cell in cells for name, value in _assigned(cell).items()}
        for cells in (own, _code(executed, injected=True))
    )
    return [
        f"{name} = {value}"
        for name, value in given.items()
        if value != before.get(name) and not PLACE.fullmatch(name)
    ]


def _assigned(cell: Content) -> dict[str, str]:
    tree = ast.parse("".join(cell["source"]))
    return {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }


def _stored(
    content: Content, drawn: Mapping[int, list[Content]], made: Mapping[str, str]
) -> Content:
    for number, cell in enumerate(_code(content)):
        tags = [tag for tag in cell["metadata"].get("tags", []) if tag != STORED]
        if STORED in cell["metadata"].get("tags", []):
            tags.remove(KEPT)
            cell["outputs"] = []
        if number in drawn and KEPT not in tags:
            cell["outputs"] = drawn[number]
            tags += [KEPT, STORED]
        if tags or "tags" in cell["metadata"]:
            cell["metadata"]["tags"] = tags
    content["metadata"]["ddlnb"].pop("pictures", None)
    if made:
        content["metadata"]["ddlnb"]["pictures"] = dict(made)
    return content


def _small(output: Content) -> Content:
    data, about = output["data"], output.get("metadata", {}).get(PNG, {})
    if SVG in data:  # moves
        kept = {kind: data[kind] for kind in (SVG, "text/plain")}
        return {"output_type": "display_data", "data": kept, "metadata": {}}
    said = about.get("alt", "")
    picture = base64.b64encode(smaller(base64.b64decode("".join(data[PNG]))))
    data = {PNG: picture.decode() + "\n", "text/plain": [said]}
    return {"output_type": "display_data", "data": data, "metadata": {PNG: {"alt": said}}}


def smaller(picture: bytes) -> bytes:
    """Return a PNG of at most MOST_BYTES. Raises DdlnbError for one that cannot be that small."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as drawn:
        opaque = Image.new("RGB", drawn.size, "white")
        opaque.paste(drawn, mask=drawn.convert("RGBA").getchannel("A"))
    for width in WIDTHS:
        across = min(width, opaque.width)
        size = (across, round(opaque.height * across / opaque.width))
        written = io.BytesIO()
        resized = opaque.resize(size, Image.Resampling.LANCZOS)
        # The median cut gives shades of grey most of the palette, and two lines the same colour.
        few = resized.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE)
        few.save(written, "png", optimize=True)
        if written.tell() <= MOST_BYTES:
            return written.getvalue()
    raise DdlnbError(
        f"a picture of {len(picture):,} bytes has more than {MOST_BYTES:,} at {WIDTHS[-1]} pixels; "
        f"draw less in it"
    )
