"""Labs: each has a solution that runs and differs in nothing but what a student writes."""

import re
from collections.abc import Iterator

import nbformat
import pytest

from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.files import NOTEBOOKS, ROOT
from ddlnb.networks.collectives.catalogue import COLLECTIVES
from ddlnb.plans.methods import METHODS
from ddlnb.survey.notebooks import get_notebook
from ddlnb.survey.site import SOLUTION
from ddlnb.training.method import SYNCHRONISATIONS

LABS = NOTEBOOKS / "labs"
NAMES = sorted(path.stem for path in LABS.glob("*.ipynb") if not path.stem.endswith(SOLUTION))
WRITTEN = ("register_collective", "register_method", "register_compressor")
WRITTEN += ("register_synchronisation",)


def cells(name: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(LABS / f"{name}.ipynb", as_version=4).cells


def is_yours(cell: nbformat.NotebookNode) -> bool:
    return "yours" in cell.metadata.get("tags", [])


def test_the_course_has_twelve_weeks_papers_that_are_known_and_six_labs_with_solutions():
    assert len(NAMES) == 6
    assert len(list(LABS.glob(f"*{SOLUTION}.ipynb"))) == 6
    text = (ROOT / "docs" / "course.md").read_text()
    weeks = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| \d", line)]
    assert [int(week[0]) for week in weeks] == list(range(1, 13))
    assert sorted(re.findall(r"labs/(\w+)\.ipynb", text)) == NAMES
    cited = set(re.findall(r"^@\w+\{(\w+),", (NOTEBOOKS / "references.bib").read_text(), re.M))
    for _, notebook, _, papers in weeks:
        assert ".ipynb" in notebook
        assert set(papers.strip().split(", ")) <= cited


@pytest.mark.parametrize("name", NAMES)
def test_a_lab_checks_itself_and_its_solution_differs_in_what_the_student_writes(name):
    lab, solution = cells(name), cells(name + SOLUTION)
    assert len(lab) == len(solution)
    for one, other in zip(lab, solution, strict=True):
        assert (one.source != other.source) == is_yours(one) == is_yours(other)
        assert not one.get("outputs")
        assert not other.get("outputs")
    lab = cells(name)
    code = "\n".join(cell.source for cell in lab if cell.cell_type == "code")
    last = max(number for number, cell in enumerate(lab) if is_yours(cell))
    after = "\n".join(cell.source for cell in lab[last + 1 :] if cell.cell_type == "code")
    assert after.count("assert ") >= 3
    assert any(f"{word}(" in code for word in WRITTEN)
    # A method is another one once the student has corrected it; classes replace one another.
    assert ("register_method(" in code) == ("METHODS.pop(" in code)
    assert "measure(" in after or 'executor="distributed"' in after
    assert lab[-1].source.startswith("**Question.**")


@pytest.mark.thorough(but=1)
@pytest.mark.notebook
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes_its_checks_on_real_ranks(name, worker, tmp_path):
    notebook = get_notebook(name + SOLUTION, LABS)
    worker.execute(notebook, tmp_path / f"{name}.ipynb", {}, 600)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("beat_the_merging_rule", "not MG-WFBP: (0.0001, 1e-09)"),
        ("beat_the_searched_plan", "the opponent takes"),
        ("break_a_compressor", "the largest entries by size, whatever their sign"),
        ("fit_alpha_and_beta", "not the line that the times are on"),
        ("ssp_on_a_clock", "BSP is a bound of zero"),
        ("write_a_ring", "2 ranks do not all end with the sum"),
    ],
)
def test_a_lab_that_is_not_solved_fails_at_its_first_check(name, told, as_they_were):
    own: dict[str, object] = {}
    sources = [cell.source for cell in cells(name) if cell.cell_type == "code"]
    with pytest.raises(AssertionError, match=re.escape(told)):
        exec("\n".join(sources), own)


@pytest.fixture
def as_they_were() -> Iterator[None]:
    """Leave the registries as they were: some labs register what the student writes."""
    kept = [(names, dict(names)) for names in (METHODS, COMPRESSORS, COLLECTIVES, SYNCHRONISATIONS)]
    yield
    for names, before in kept:
        names.clear()
        names.update(before)
