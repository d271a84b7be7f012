"""Where items of the survey are reproduced, and what came out there: the survey's index.

A notebook names its items in its metadata. Its executed copy gives their verdicts: findings carry
them in their output, and a check, a cell of assertions tagged with the item, holds because it has
run. A test names its items with ``@pytest.mark.item("A07", how="computed", verdict="holds")``,
where both words are optional; the verdict says what of the item the test asserts, and counts once
the test has passed here. Every verdict is that of a run that was kept, and has its date.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddlnb.calibration.statistics import Verdict
from ddlnb.errors import require
from ddlnb.files import BUILD, NOTEBOOKS, ROOT, write_atomically
from ddlnb.reading import read_json, read_text
from ddlnb.survey.items import HOW, ITEMS_TYPE, Item, survey_items
from ddlnb.survey.notebooks import Notebook, Outcome, all_notebooks

NOT_JUDGED = "not judged"
NOT_RUN = "not run"
CHECKED = "its check passed"
BY_A_TEST = "by a test, not run here"
NOT_REPRODUCED = "not reproduced"
# A simulation refutes no statement, and what is decided by construction is not found to hold.
AGREES, DISAGREES = "the simulator agrees", "the simulator disagrees"
DECIDED = {"arithmetic": "arithmetic", "definition": "by definition", "question": "a question"}
# The verdict of an item is the first of these that any of its evidence gives.
SEVERITY = (
    *(Verdict.CONTRADICTED, DISAGREES, Verdict.UNDECIDED, Verdict.HOLDS, AGREES),
    *DECIDED.values(),
)
TEST_RUNS = BUILD / "item_tests.json"  # of tests that name items: whether they passed, and when


@dataclass(frozen=True)
class Evidence:
    """What one notebook or test says of one item: a verdict, or why there is none.

    ``link`` is the place in the report, empty where the evidence is no part of it; ``date`` that of
    the run, empty without one.
    """

    item: str
    where: str
    how: str
    verdict: str
    said: str = ""
    link: str = ""
    date: str = ""


def evidence(outcomes: Sequence[Outcome], folder: Path, notebooks: Path) -> Iterator[Evidence]:
    """Return all evidence: of the notebooks in the survey's order, then of the tests.

    ``outcomes`` are those of the last run, whose executed notebooks are in ``folder``. A notebook
    that has not been run is "not run".
    """
    for name, notebook in all_notebooks(notebooks).items():
        runs = [outcome for outcome in outcomes if outcome.notebook.path.stem == name]
        for outcome in runs:
            date = outcome.made.get("time", "").partition("T")[0]
            executed = folder / f"{outcome.notebook.name}.ipynb"
            yield from (replace(one, date=date) for one in _of_run(outcome, executed))
        if not runs:
            yield from (Evidence(i, name, how, NOT_RUN) for i, how in notebook.items.items())
    if notebooks == NOTEBOOKS:
        yield from evidence_of_tests()


def _of_run(outcome: Outcome, executed: Path) -> Iterator[Evidence]:
    notebook = outcome.notebook
    if outcome.error or not executed.exists():
        for item, how in notebook.items.items():
            yield Evidence(item, notebook.name, how, outcome.status, outcome.error)
        return
    found = list(_of_cells(notebook, read_json(executed)["cells"]))
    yield from found
    for item in set(notebook.items) - {one.item for one in found}:
        page = f"/notebooks/{notebook.name}.ipynb"
        yield Evidence(item, notebook.name, notebook.items[item], NOT_JUDGED, "", page)


def _of_cells(notebook: Notebook, cells: Iterable[dict[str, Any]]) -> Iterator[Evidence]:
    for cell in cells:
        link = f"#{place_of(notebook, cell)}"
        for tag in cell["metadata"].get("tags", []):
            if tag in notebook.items:
                how = notebook.items[tag]
                yield Evidence(tag, notebook.name, how, Verdict.HOLDS, CHECKED, link)
        for output in cell.get("outputs", []):
            for one in output.get("data", {}).get(ITEMS_TYPE, []):
                verdict = one["verdict"] or NOT_JUDGED
                yield Evidence(one["item"], notebook.name, one["how"], verdict, one["said"], link)


def weighed(one: Evidence, item: Item) -> Evidence:
    """Return the evidence with the word that it bears, where it says that an item holds or fails.

    >>> simulated = Evidence("A35", "", "simulated", Verdict.CONTRADICTED)
    >>> weighed(simulated, Item("A35", "3.3.2", "BCube suits servers better.")).verdict
    'the simulator disagrees'
    """
    word = one.verdict
    if "simulated" in one.how:  # also times something measured
        word = AGREES if word == Verdict.HOLDS else word
        word = DISAGREES if word == Verdict.CONTRADICTED else word
    if item.decided and word in (Verdict.HOLDS, AGREES):
        word = DECIDED[item.decided]
    return replace(one, verdict=word)


def place_of(notebook: Notebook, cell: Mapping[str, Any]) -> str:
    """Return the name of a cell's place on the site."""
    return f"{notebook.name}-cell-{cell.get('id', '')}"


def keep_test_runs(passed: Mapping[str, bool], path: Path = TEST_RUNS) -> None:
    """Write whether tests passed, by file and name, beside what is known of others."""
    known = _test_runs(path)
    date = datetime.now(UTC).date().isoformat()
    known |= {where: {"passed": one, "date": date} for where, one in passed.items()}
    write_atomically(path, json.dumps(known, indent=1) + "\n")


def _test_runs(path: Path) -> dict[str, dict[str, Any]]:
    return read_json(path) if path.exists() else {}


def evidence_of_tests(folder: Path = ROOT / "tests", runs: Path = TEST_RUNS) -> Iterator[Evidence]:
    """Return what tests say of items, by file and name; empty for a folder without tests.

    A verdict is that of a test that passed, as ``runs`` say; one that failed has "failed".
    """
    kept = _test_runs(runs)
    for path in sorted(folder.rglob("test_*.py")):
        source = read_text(path)
        if ".mark.item(" in source:
            for node in ast.parse(source).body:
                if isinstance(node, ast.FunctionDef):
                    where = f"{path.relative_to(folder.parent)}::{node.name}"
                    yield from (_as_run(one, kept.get(where)) for one in _of_test(node, where))


def _as_run(one: Evidence, run: Mapping[str, Any] | None) -> Evidence:
    """Return what a test says after its last run, if it was run."""
    if run is None:
        return replace(one, verdict=BY_A_TEST)
    return replace(one, verdict=one.verdict if run["passed"] else "failed", date=run["date"])


def _of_test(test: ast.FunctionDef, where: str) -> Iterator[Evidence]:
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.item":
            words = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
            how, verdict = words.pop("how", "computed"), words.pop("verdict", Verdict.HOLDS)
            require(
                not words and how in HOW and verdict in list(Verdict),
                f"{where}: a mark of items takes how ({', '.join(HOW)}) and verdict "
                f"({', '.join(Verdict)}); it is {ast.unparse(mark)}",
            )
            said = test.name.removeprefix("test_").replace("_", " ")
            for item in map(ast.literal_eval, mark.args):
                yield Evidence(item, where, how, verdict, said)


@dataclass(frozen=True)
class Entry:
    """An item with all evidence on it."""

    item: Item
    evidence: tuple[Evidence, ...]

    @property
    def verdict(self) -> str:
        """What the evidence says together; several words where the sources differ.

        Words of judgement come first. Without any it is what became of the notebooks, and without
        evidence the item is not reproduced.
        """
        given = [one.verdict for one in self.evidence]
        judged = [str(word) for word in SEVERITY if word in given]
        return ", ".join(judged or dict.fromkeys(given)) or NOT_REPRODUCED

    @property
    def reason(self) -> str:
        """What the evidence that decides says; without any, what this edition lacks."""
        first = self.verdict.split(", ")[0]
        said = [one.said for one in self.evidence if one.verdict == first and one.said]
        return next((one for one in said if one != CHECKED), said[0] if said else self.item.missing)

    @property
    def how(self) -> str:
        """How it was reproduced, in the order of HOW; how it would be, where nothing was run."""
        run = [one for one in self.evidence if one.verdict not in (NOT_RUN, BY_A_TEST)]
        words = {word for one in run or self.evidence for word in one.how.split(", ")}
        return ", ".join(word for word in HOW if word in words)


def entries(
    outcomes: Sequence[Outcome], folder: Path, notebooks: Path = NOTEBOOKS
) -> dict[str, Entry]:
    """Return every item of the survey with its evidence, by number, in order.

    The arguments are those of `evidence`. Raises InputError for evidence on an item that is none.
    """
    items = survey_items()
    found = list(evidence(outcomes, folder, notebooks))
    for one in found:
        require(
            one.item in items,
            f"{one.where} names item {one.item!r}, which is not in "
            f"data/published/survey_items.csv; add it there or correct the number",
        )
    return {
        key: Entry(item, tuple(weighed(one, item) for one in found if one.item == key))
        for key, item in items.items()
    }
