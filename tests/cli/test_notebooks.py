"""The notebooks are thin, say what they show, run with small parameters, and check themselves."""

import ast
import base64
import itertools
import json
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml

import ddlnb
from ddlnb.calibration.calibrated_model import (
    PROBES,
    PROBING,
    ROWS,
    MicroBenchmark,
    here_observations,
    micro_benchmark,
)
from ddlnb.errors import DdlnbError, InputError, UnknownName
from ddlnb.files import NOTEBOOKS
from ddlnb.launch.options import emulated
from ddlnb.plans.methods import METHODS
from ddlnb.survey.evidence import NOT_JUDGED, entries
from ddlnb.survey.execution import ENDING_SECONDS, run_notebook
from ddlnb.survey.kernels import is_possible
from ddlnb.survey.notebooks import (
    MOST_BYTES,
    PNG,
    STORED,
    SVG,
    Outcome,
    all_notebooks,
    catalogue,
    check_parameters,
    code_digest,
    get_notebook,
    parameters_of,
)
from ddlnb.survey.site import write_site
from ddlnb.survey.testbed import BATCHES, CLUSTERS
from tests.cli.browser import CHROMIUM, faults_of
from tests.cli.test_site import broken_links

NAMES = list(all_notebooks())
# Of those that run with small parameters, by `make test`: one or two of each kind.
SAMPLE = (
    *("fig4_throughput", "explorer", "scale_strategies"),  # measured, simulated, forecast
    *("sec3_1_3_compression", "sec3_3_1_protocols"),  # trained, on emulated links
)
DETERMINISTIC = ("sec2_intensity", "sec4_methods")
MOST_CODE_CELLS = 14
ALGORITHM_LINES = range(5, 26)
# What cells may import beside the package: what an algorithm is written with, and a sentence shown.
PLAIN = {"collections", "heapq", "itertools", "math", "random", "numpy", "torch", "IPython.display"}
MOST_PARAMETERS = 8
CHECKED = "# NBVAL_CHECK_OUTPUT"


def profile_of(name: str) -> dict[str, dict]:
    return yaml.safe_load((NOTEBOOKS / "parameters" / f"{name}.yaml").read_text())


SMOKE = profile_of("smoke")


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def code_cells(name: str) -> list:
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def kept_texts(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What the cells that keep their output say, as text and as HTML, cell by cell."""
    return [
        [text for output in cell.outputs for text in texts_of(output)]
        for cell in notebook.cells
        if cell.source.startswith(CHECKED)
    ]


def texts_of(output: nbformat.NotebookNode) -> list[str]:
    if output.output_type == "stream":
        return [output.text]
    return [data for kind, data in sorted(output.data.items()) if kind.startswith("text/")]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_says_what_it_shows_and_checks_it(name):
    notebook = read(name)
    first, *_, last = notebook.cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert re.search(r"\bseconds\b|\bminutes?\b", first.source), "expected run time"
    assert last.source.startswith("**Question.**")
    assert any("assert " in cell.source for cell in code_cells(name)), "a notebook checks itself"
    about = notebook.metadata
    assert set(about.ddlnb) - {"items", "pictures"} == {
        "section",
        "figure",
        "claim",
        "function",
        "timed",
    }
    assert about.ddlnb.claim
    assert about.kernelspec.name == "python3"
    assert "papermill" not in about
    for sections in re.findall(r"\(sections? ([\d.]+(?:(?:-| and )[\d.]+)?)", first.source):
        assert about.ddlnb.section in (sections, *sections.split(" and "))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_thin_and_imports_only_the_public_face(name):
    """The package, the rooms that took its former names, figures, and the notebook's module."""
    cells = code_cells(name)
    assert len(cells) <= MOST_CODE_CELLS
    known = {"ddlnb", *(f"ddlnb.{room}" for room in ddlnb._MOVED)}
    known |= {"ddlnb.figures", f"ddlnb.survey.{name}"} | PLAIN
    for number, cell in enumerate(cells):
        nodes = list(ast.walk(ast.parse(cell.source)))
        loops = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While)
        is_thin = not any(isinstance(node, loops) for node in nodes)
        assert is_thin or "algorithm" in tags(cell), f"{name}: {cell.source}"
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        modules |= {
            one.name for node in nodes if isinstance(node, ast.Import) for one in node.names
        }
        assert modules <= known
        assert number == 0 or not modules, f"{name} imports late: {cell.source}"
        assert "plt." not in cell.source
        assert not re.search(r"['\"](/|~|[A-Z]:\\\\)", cell.source), "an absolute path"
    [parameters] = [cell for cell in cells if "parameters" in tags(cell)]
    assigned = ast.parse(parameters.source).body
    assert all(isinstance(node, ast.Assign) for node in assigned)
    assert len(assigned) <= MOST_PARAMETERS


def tagged(name: str, tag: str) -> list[str]:
    return [cell.source for cell in code_cells(name) if tag in tags(cell)]


# They measure, draw or look up what others compute, so that there is no algorithm of their own.
WITHOUT_AN_ALGORITHM = {
    *("index", "explorer", "advice", "fig2_taxonomy", "simulated_here"),
    *("fig4_throughput", "fig4_emulated", "fig4_forecast", "sec4_engines"),
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_AN_ALGORITHM])
def test_an_algorithm_is_in_sight_with_its_formula_and_equals_the_library(name):
    """In every notebook but the named ones: few lines, and what they give is asserted."""
    [source] = tagged(name, "algorithm")
    functions = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)]
    assert sum(one.end_lineno - one.lineno + 1 for one in functions) in ALGORITHM_LINES
    assert all(ast.get_docstring(one) for one in functions)
    assert "assert " in source
    texts = [cell.source for cell in read(name).cells if cell.cell_type == "markdown"]
    assert any("$$" in text and "references.bib#" in text for text in texts), "formula and source"
    [finding] = [ast.parse(one).body[-1] for one in tagged(name, "finding")]
    assert any(isinstance(node, ast.FormattedValue) for node in ast.walk(finding)), "computed"
    assert texts[-2].startswith("**Turn this**")
    assert re.search(r"\*\*Before:\*\*|\*\*Next:\*\*", texts[0])
    assert "(../CONTRIBUTING.md#glossary)" in texts[0]


# The first lists the others, the second is turned by sliders, the third draws a scheme.
WITHOUT_TURNS = {"index", "explorer", "fig2_taxonomy"}


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_TURNS))
def test_what_a_notebook_says_to_turn_is_there(name):
    """Parameters by name, and the code of the algorithm as it stands."""
    *_, turns, question = [one.source for one in read(name).cells if one.cell_type == "markdown"]
    assert turns.startswith("**Turn this**")
    assert question.startswith("**Question.**")
    [parameters] = tagged(name, "parameters")
    for row in turns.splitlines()[4:]:
        what = re.match(r"\| `([^`]+)`", row)
        assert what, row
        named = re.split(r"\W", what[1])[0]
        assert (
            re.search(rf"^{named} = ", parameters, re.M)
            or "in the algorithm" in row
            or "`, in `" in row
        ), row


TURNED = re.compile(r"^\| `([^`]+)`[^|]*in the algorithm \| `([^`]+)`[^|]* \| ([^|]+) \|", re.M)
TURNED_BY = {name: TURNED.findall(read(name).cells[-2].source) for name in NAMES}


@pytest.mark.thorough(but=6)
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if TURNED_BY[name]])
def test_an_algorithm_does_what_is_said_of_it_when_it_is_turned(name, monkeypatch):
    monkeypatch.chdir(NOTEBOOKS)
    known = {"display": lambda *_: None, "__name__": name}
    before = itertools.takewhile(lambda cell: "algorithm" not in tags(cell), code_cells(name))
    for cell in before:
        exec(cell.source, known)  # as a kernel does
        if "parameters" in tags(cell):
            known |= SMOKE[name].get("parameters", {})
    [source] = tagged(name, "algorithm")
    for old, new, said in TURNED_BY[name]:
        value = rf"(?<=\b{old} = )[^\n,)]+" if old.isidentifier() else re.escape(old)
        turned, times = re.subn(value, lambda _, new=new: new, source)
        assert times, f"no {old} in the algorithm"
        fails = re.search(r"\bassertion\b.* fails", said)
        with pytest.raises(AssertionError) if fails else nullcontext():
            exec(turned, dict(known))


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_links_of_a_notebook_or_lab_lead_somewhere(path):
    cited = set(re.findall(r"^@\w+\{(\w+),", (NOTEBOOKS / "references.bib").read_text(), re.M))
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for place in re.findall(r"\]\((?!https?:)([^)]+)\)", cell.source):
                name, _, key = place.partition("#")
                assert (path.parent / name).exists(), place
                assert not name.endswith("references.bib") or key in cited, place


@pytest.mark.parametrize("name", NAMES)
def test_only_cells_that_are_compared_carry_output(name):
    # nbval passes silently on a cell without an execution count or without output.
    for cell in code_cells(name):
        assert cell.execution_count is not None, cell.source
        compared, stored = cell.source.startswith(CHECKED), STORED in tags(cell)
        kept = "keep_output" in tags(cell)
        assert (compared or stored) == kept == bool(cell.outputs), cell.source
        assert not (compared and stored), cell.source
        if not compared and "parameters" not in tags(cell) and "from ddlnb" not in cell.source:
            assert "nbval-ignore-output" in tags(cell), cell.source


WITHOUT_PICTURES = {"launchers", "sec4_methods"}  # they draw nothing
PICTURED = set(NAMES) - WITHOUT_PICTURES


@pytest.mark.parametrize("name", sorted(PICTURED))
def test_stored_pictures_are_small_and_of_this_code(name):
    content = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    made = content["metadata"]["ddlnb"]["pictures"]
    assert made == {"code": code_digest(content), "version": version("ddlnb")}, (
        "run `ddlnb survey reproduce` and `ddlnb survey pictures` again"
    )
    cells = [one for one in content["cells"] if STORED in one["metadata"].get("tags", [])]
    outputs = [one["data"] for cell in cells for one in cell["outputs"] if "data" in one]
    for data in outputs:
        picture = base64.b64decode(data.get(PNG, "")) or "".join(data[SVG]).encode()
        assert picture.startswith((b"\x89PNG", b"<svg"))
        assert len(picture) <= MOST_BYTES
    assert outputs


def test_no_other_notebook_has_pictures():
    assert {name for name in NAMES if "pictures" in read(name).metadata.ddlnb} == PICTURED


def test_notebooks_are_a_small_part_of_the_repository():
    assert sum(path.stat().st_size for path in NOTEBOOKS.rglob("*") if path.is_file()) <= 4_000_000


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_notebooks_have_something_to_compare(name):
    assert any(cell.source.startswith(CHECKED) for cell in code_cells(name))


@pytest.mark.parametrize("profile", ["quick", "full", "smoke", "paper"])
def test_profiles_name_notebooks_and_only_parameters_they_have(profile):
    entries = profile_of(profile)
    named = [entry.get("notebook", name) for name, entry in entries.items()]
    for name, entry in zip(named, entries.values(), strict=True):
        check_parameters(get_notebook(name), entry.get("parameters", {}))
        assert profile != "paper" or get_notebook(name).section.startswith("4")
    assert profile == "paper" or set(named) == set(NAMES)
    assert profile != "smoke" or set(entries) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_a_notebook_is_seen_by_what_sets_it(name):
    cells = [one.source for one in code_cells(name) if "parameters" in one.metadata.get("tags", [])]
    assigned = [node for cell in cells for node in ast.parse(cell).body]
    names = [target.id for node in assigned for target in node.targets]
    assert list(parameters_of(get_notebook(name))) == names


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_the_nine_panels_of_fig4_are_rows_of_models_and_columns_of_networks(profile):
    panels = {
        name: (entry["parameters"]["model"], entry["parameters"]["network"])
        for name, entry in profile_of(profile).items()
        if entry.get("notebook") == "fig4_forecast"
    }
    assert list(panels) == [f"fig4{letter}_forecast" for letter in "abcdefghi"]
    assert list(panels.values()) == [(m, n) for m in BATCHES for n in CLUSTERS]
    # Section 4.2.4 cites (d), (e) and (h) for 100GbE, where the layout means (b), (e) and (h).
    assert {panels[f"fig4{letter}_forecast"][1] for letter in "beh"} == {"100GbE"}


def test_the_stored_index_shows_the_catalogue_as_it_is():
    assert set(catalogue().index) == set(NAMES) - {"index"}
    [cell] = [cell for cell in code_cells("index") if cell.source.endswith("catalogue()")]
    with pd.option_context("display.max_colwidth", None):  # as in a notebook
        assert cell.outputs[0]["data"]["text/html"] == catalogue()._repr_html_()


def test_a_misspelt_parameter_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'servers'"):
        run_notebook("sec4_methods", tmp_path / "out.ipynb", server=2)
    assert not (tmp_path / "out.ipynb").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpus": "abc"}, "'gpus' .* cannot be 'abc'; give something like 32"),
        ({"gpus": 2.5}, "cannot be 2.5"),
        ({"gpus": True}, "cannot be True"),
        ({"batches": "many"}, r"cannot be 'many'; give something like \[64, 256"),
        ({"batches": [64, 2.5]}, r"cannot be \[64, 2.5\]"),
    ],
)
def test_a_parameter_of_another_kind_than_its_default_is_refused(given, told):
    name = "sec3_1_1_large_batch" if "batches" in given else "sec3_1_4_scheduling"
    with pytest.raises(InputError, match=told):
        check_parameters(get_notebook(name), given)


def test_one_thing_may_stand_for_a_list_and_a_whole_number_for_another_one():
    one = {"gpus": np.int64(8), "model": None, "clusters": "survey-10GbE"}
    check_parameters(get_notebook("sec3_1_4_scheduling"), one)
    check_parameters(
        get_notebook("time_to_target"), {"target": 1, "workers": 4, "methods": ("bsp",)}
    )


def test_an_unknown_notebook_is_refused_with_a_suggestion():
    with pytest.raises(UnknownName, match="did you mean 'fig4_throughput'"):
        run_notebook("fig4_troughput")


def write_notebook(folder: Path, name: str, *sources: str) -> None:
    cells = [nbformat.v4.new_markdown_cell(f"# {name}")]
    cells += [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")


@pytest.mark.notebook
def test_a_failing_cell_is_one_clear_error_and_the_notebook_is_kept(tmp_path):
    write_notebook(tmp_path, "broken", "x = 1", "raise ValueError('the reason')")
    with pytest.raises(DdlnbError) as caught:
        run_notebook("broken", tmp_path / "out" / "broken.ipynb", folder=tmp_path)
    said = str(caught.value)
    assert "notebook 'broken'" in said
    assert "cell 2" in said
    assert "ValueError: the reason" in said
    assert "\n" not in said
    assert not (tmp_path / "out" / "broken.ipynb").exists()
    assert (tmp_path / "out" / "broken.failed.ipynb").exists()


class Clock:
    """The time, from which an hour has gone by when a file is there."""

    def __init__(self, path: Path):
        self.path = path

    def monotonic(self) -> float:
        return time.monotonic() + (3600 if self.path.exists() else 0)


@pytest.mark.thorough(but=1)
@pytest.mark.notebook
@pytest.mark.parametrize("ending_seconds", [ENDING_SECONDS, 0], ids=["asked", "killed"])
def test_a_notebook_that_takes_too_long_is_ended_with_its_kernel(
    tmp_path, monkeypatch, ending_seconds
):
    there, temporary = tmp_path / "out" / "pid", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("ddlnb.survey.execution.ENDING_SECONDS", ending_seconds)
    monkeypatch.setattr("ddlnb.survey.execution.time", Clock(there))
    marker = "import os, pathlib, time; pathlib.Path('new').write_text(str(os.getpid()))"
    write_notebook(tmp_path, "endless", marker, "n = os.rename('new', 'pid')", "time.sleep(1000)")
    with pytest.raises(DdlnbError, match="not done after"):
        run_notebook("endless", tmp_path / "out" / "e.ipynb", folder=tmp_path)
    pid = int(there.read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()
    assert not list(temporary.iterdir())  # such as the file of its ports


@pytest.mark.notebook
@pytest.mark.skipif(not is_possible(), reason="kernels are forked on Linux")
def test_kernels_share_what_was_imported_and_no_names(tmp_path, worker):
    first = "import os, sys, xml.dom.minidom as dom; mine = os.getppid()"
    then = "assert 'mine' not in globals() and 'dom' not in globals()"
    then += "; assert 'xml.dom.minidom' in sys.modules"
    write_notebook(tmp_path, "one", first, "n = open('parent', 'w').write(str(mine))")
    write_notebook(
        tmp_path, "two", "import os, sys", then, "assert open('parent').read() == str(os.getppid())"
    )
    for name in ("one", "two"):
        worker.execute(get_notebook(name, tmp_path), tmp_path / "out" / f"{name}.ipynb", {}, 60)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The folder of the notebooks that this file executes, of which it makes a site at the end."""
    return tmp_path_factory.mktemp("smoke")


def short_benchmark(
    name: str, folder: Path, parameters: dict
) -> tuple[Path, MicroBenchmark] | None:
    """A shorter one than the notebook would make, in its folder: it calibrates by it."""
    short = PROBING.changed(iterations=1, warmup=1)
    if name == "fig4_emulated":
        site = emulated(parameters["network"], parameters["scale"])
        short = short.changed(site=site, repetitions=1)
    elif name != "simulated_here":
        return None
    there = folder / parameters["runs_folder"]
    is_emulated = name == "fig4_emulated"
    found = micro_benchmark(there, workers=(2,), settings=short, server_per_worker=is_emulated)
    assert len(found.rows) == len(PROBES) * len(METHODS)
    idle = [one for one in found.all_reduces if not one.while_computing]
    assert len(here_observations(found)) == len(found.rows) + len(idle)
    return there, found


@pytest.mark.thorough(but=SAMPLE)
@pytest.mark.notebook
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_with_small_parameters(name, one_kernel, executed):
    parameters = SMOKE[name].get("parameters", {})
    probed = short_benchmark(name, executed, parameters)
    path = one_kernel.execute(get_notebook(name), executed / f"{name}.ipynb", parameters, 600)
    content = nbformat.read(path, as_version=4)
    assert all(cell.execution_count for cell in content.cells if cell.cell_type == "code")
    assert str(executed) not in str(content.metadata)
    # No small parameter changes what these cells show.
    assert kept_texts(content) == kept_texts(read(name))
    index = entries([Outcome(get_notebook(name), "done")], executed)
    if probed is not None:
        folder, found = probed
        assert ddlnb.read_rows(folder / ROWS).equals(found.rows), "it measured again what was there"
    for item in get_notebook(name).items:
        entry = index[item]
        assert entry.verdict != NOT_JUDGED or entry.item.missing, f"nothing judges {item}"


@pytest.mark.notebook
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; `.ci/run` installs it")
def test_the_site_of_these_runs_is_whole_in_a_browser(one_kernel, executed):
    for name in ("explorer", "sec5_6_collectives"):  # of a run of this test alone
        if not (executed / f"{name}.ipynb").exists():
            one_kernel.execute(get_notebook(name), executed / f"{name}.ipynb", {}, 600)
    there = [name for name in NAMES if (executed / f"{name}.ipynb").exists()]
    outcomes = [Outcome(get_notebook(name), "done", 1.0) for name in there]
    site = write_site(outcomes, executed, "smoke", entries(outcomes, executed)).parent
    assert (executed / "site-state" / "warnings.txt").read_text() == ""
    assert broken_links(site) == []
    assert faults_of(site) == []


@pytest.mark.notebook
@pytest.mark.slow
def test_the_compared_cells_come_out_as_they_are_stored():
    # The others are compared as they are executed with small parameters.
    files = [str(NOTEBOOKS / f"{DETERMINISTIC[-1]}.ipynb")]
    options = ["--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_that_is_a_list_may_be_one_thing(name):
    cells = code_cells(name)
    defaults: dict = {}
    for cell in cells:
        if "parameters" in tags(cell):
            exec(cell.source, defaults)  # plain assignments
    lists = {key: value for key, value in defaults.items() if isinstance(value, list)}
    given = {key: value[0] if value else "node1" for key, value in lists.items()}
    namespace = given | {"several": ddlnb.several}
    for node in (node for cell in cells for node in ast.parse(cell.source).body):
        if isinstance(node, ast.Assign) and "several(" in ast.unparse(node):
            exec(ast.unparse(node), namespace)
    assert {key: namespace[key] for key in lists} == {key: [value] for key, value in given.items()}


@pytest.mark.thorough
@pytest.mark.notebook
def test_papermill_takes_one_thing_of_a_list(tmp_path):
    given = ["-k", "python3", "-p", "hosts", "16", "-p", "sizes", "1024", "--cwd", str(tmp_path)]
    path, out = NOTEBOOKS / "sec5_6_collectives.ipynb", tmp_path / "out.ipynb"
    papermill = [sys.executable, "-m", "papermill", str(path), str(out), *given]
    done = subprocess.run(papermill, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
