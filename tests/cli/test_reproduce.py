"""Reproducing: what runs, what is kept, what a failure leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import nbformat
import psutil
import pytest

from ddlnb.errors import DdlnbError, InputError, UnknownName
from ddlnb.files import JOBS_VARIABLE
from ddlnb.survey.runner import book, reproduce

pytestmark = pytest.mark.notebook

COUNT = "from pathlib import Path\nwith Path(f'{name}.count').open('a') as f:\n    n = f.write('x')"
DRAW = "import matplotlib.pyplot as plt\nfigure, ax = plt.subplots()\nfigure"


class Workshop:
    """A folder of tiny notebooks and a place to build in."""

    def __init__(self, folder: Path):
        self.notebooks = folder / "notebooks"
        self.build = folder / "build"
        (self.notebooks / "parameters").mkdir(parents=True)

    def add(self, name: str, *sources: str, timed: bool = False) -> None:
        cells = [nbformat.v4.new_markdown_cell(f"# The {name}")]
        cells.append(
            nbformat.v4.new_code_cell(f"name = {name!r}", metadata={"tags": ["parameters"]})
        )
        cells += [nbformat.v4.new_code_cell(source) for source in sources]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        described = {"section": "9", "claim": f"{name} holds", "timed": timed}
        about = {"ddlnb": described, "kernelspec": kernel}
        book = nbformat.v4.new_notebook(cells=cells, metadata=about)
        nbformat.write(book, self.notebooks / f"{name}.ipynb")

    def profile(self, text: str) -> None:
        (self.notebooks / "parameters" / "tiny.yaml").write_text(text)

    def run(self, **options: object) -> Path:
        """Execute the notebooks and write the site's pages, which Sphinx is not asked to build."""
        options = {"progress": False, "folder": self.notebooks, "build": self.build, **options}
        with mock.patch("ddlnb.survey.site.build", lambda source, out, title: source / "index.md"):
            return reproduce("tiny", **options)  # type: ignore[arg-type]

    def runs_of(self, name: str) -> int:
        path = self.build / "tiny" / f"{name}.count"
        return len(path.read_text()) if path.exists() else 0


def rows_of(report: Path) -> dict[str, list[str]]:
    """The cells of every notebook's row on the site's first page, by title."""
    table = report.read_text().partition("## Notebooks")[2].partition("## Executed")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    titles = [re.sub(r"\[(.*)\]\(.*", r"\1", row[0]).replace("\\", "") for row in rows]
    return dict(zip(titles, rows, strict=True))


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path)


@pytest.mark.parametrize(
    ("profile", "options", "error", "said"),
    [
        ("one: {parameters: {nam: x}}", {}, UnknownName, "did you mean 'name'"),
        ("one:", {"parameters": {"nam": "x"}}, UnknownName, "did you mean 'name'"),
        ("one:", {"only": "two"}, UnknownName, "unknown notebook 'two'"),
        ("one:", {"only": ["one", "two"]}, UnknownName, "unknown notebook 'two'"),
        ("", {}, InputError, "must map names"),
        ("- one", {}, InputError, "must map names"),
        ("one: 3", {}, InputError, "must map names"),
        ("mine: {notebook: oen}", {}, UnknownName, "did you mean 'one'"),
        ("mine:", {}, UnknownName, "unknown notebook 'mine'"),
        ("../mine: {notebook: one}", {}, InputError, "becomes a file name"),
        ("mine: {notbook: one, notebook: one}", {}, UnknownName, "did you mean 'notebook'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(workshop, profile, options, error, said):
    workshop.add("one", COUNT)
    workshop.profile(profile)
    with pytest.raises(error, match=said):
        workshop.run(**options)
    assert workshop.runs_of("one") == 0


def test_given_parameters_reach_the_notebooks_that_have_them(workshop):
    workshop.add("one", COUNT)
    workshop.profile("one: {parameters: {name: of_profile}}")
    workshop.run(parameters={"name": "given"})
    assert (workshop.runs_of("given"), workshop.runs_of("of_profile")) == (1, 0)
    workshop.run(parameters={"name": "given"})  # which is done
    assert workshop.runs_of("given") == 1
    workshop.run()
    assert workshop.runs_of("of_profile") == 1


@pytest.mark.thorough
def test_a_failure_does_not_stop_the_others_and_a_second_run_repeats_only_it(workshop):
    workshop.add("good", COUNT, DRAW)
    workshop.add("bad", COUNT, "raise ValueError('the reason')", timed=True)
    workshop.profile("good:\nbad:")
    with pytest.raises(DdlnbError, match=r"1 of 2 notebooks failed(?s:.)*the reason"):
        workshop.run()
    target = workshop.build / "tiny"
    page = (target / "pages" / "index.md").read_text()
    assert "good holds" in page
    assert "the reason" in page
    picture = target / "pages" / "figures" / "good-1.png"
    assert picture.read_bytes().startswith(b"\x89PNG")

    workshop.add("bad", COUNT, timed=True)  # fixed
    report = workshop.run()
    assert "failed" not in report.read_text()
    assert (workshop.runs_of("good"), workshop.runs_of("bad")) == (1, 2)
    assert not (target / "bad.failed.ipynb").exists()

    statuses = {name: cells[4] for name, cells in rows_of(report).items()}
    assert statuses == {"The good": "kept", "The bad": "done"}

    workshop.run(fresh=True, only="good")
    assert (workshop.runs_of("good"), workshop.runs_of("bad")) == (2, 2)


@pytest.mark.thorough
def test_one_notebook_is_executed_under_several_names_with_their_parameters(workshop):
    workshop.add("panel", COUNT, DRAW)
    workshop.add("other", COUNT)
    workshop.profile(
        "panel_b: {notebook: panel, parameters: {name: b}}\n"
        "panel_a: {notebook: panel, parameters: {name: a}}\n"
        "other:\n"
    )
    report = workshop.run()
    target = workshop.build / "tiny"
    assert list(rows_of(report)) == ["The other", "The panel (panel_b)", "The panel (panel_a)"]
    assert (workshop.runs_of("a"), workshop.runs_of("b")) == (1, 1)
    for name in ("panel_a", "panel_b"):
        assert (target / f"{name}.ipynb").exists()
        assert (report.parent / "notebooks" / f"{name}.ipynb").exists()
        assert f"/figures/{name}-1.png" in report.read_text()
    assert not (target / "panel.ipynb").exists()

    workshop.run(fresh=True, only="panel_a")  # one of them by its name
    assert (workshop.runs_of("a"), workshop.runs_of("b")) == (2, 1)
    workshop.run(fresh=True, only="panel")  # all of them by the name of their notebook
    assert (workshop.runs_of("a"), workshop.runs_of("b")) == (3, 2)

    report = workshop.run(only="panel_b", parameters={"name": "c"})  # not what its title says
    assert "The panel (name=c)" in rows_of(report)
    report = workshop.run(only="panel_b", parameters={"name": "b"}, fresh=True)  # as it says
    assert "The panel (panel_b)" in rows_of(report)

    workshop.add("panel", "assert name == 'a', name")
    with pytest.raises(DdlnbError, match=r"1 of 2 notebooks failed(?s:.)*notebook 'panel_b'"):
        workshop.run(only="panel")
    assert (target / "panel_b.failed.ipynb").exists()


@pytest.mark.thorough
def test_a_kept_notebook_says_when_and_where_it_was_executed(workshop, monkeypatch):
    workshop.add("one", COUNT)
    workshop.add("two", COUNT)
    workshop.profile("one:\ntwo:")
    for only, commit, machine in [("one", "aaa", "old box"), ("two", "bbb", "new box")]:
        made = {"machine": machine, "versions": "v", "commit": commit, "time": "noon"}
        monkeypatch.setattr("ddlnb.survey.runner.provenance", lambda made=made: made)
        report = workshop.run(only=only)
    page = report.read_text()
    assert "| date | noon |" in page  # both at one time, which is said once
    assert "aaa (one)" in page
    assert "bbb (two)" in page
    assert "old box (one)" in page
    assert "new box (two)" in page
    assert "| versions | v |" in page


@pytest.mark.thorough
def test_pages_show_figures_with_what_is_seen_and_load_nothing_from_other_hosts(workshop):
    schematic = "from ddlnb.figures import parallelism_schematic\nparallelism_schematic()"
    workshop.add("one", schematic, "import pandas as pd\npd.DataFrame({'a': [1]})")
    workshop.profile("again:\n  notebook: one\n  title: The one, again")
    workshop.run()
    first = book("tiny", folder=workshop.notebooks, build=workshop.build)
    assert first == workshop.build / "tiny" / "site" / "index.html"
    for page in (first, first.parent / "notebooks" / "again.html"):
        text = page.read_text()
        assert "The one, again" in text
        assert "The two ways of Fig. 1, and a pipeline" in text
        assert text.count('alt="The two ways of Fig. 1, and a pipeline of layers') == 1
        assert not re.search(r"(src=|<link [^>]*href=)[\"']?(https?:)?//", text)


def test_an_interrupt_keeps_what_is_finished_and_leaves_no_kernel(workshop):
    workshop.add("a_quick", COUNT)
    workshop.add(
        "b_slow",
        "import os, pathlib, time\nn = pathlib.Path('pid').write_text(str(os.getpid()))",
        "time.sleep(600)",
    )
    workshop.profile("a_quick:\nb_slow:")
    script = (
        "import signal\nfrom pathlib import Path\nfrom ddlnb.survey.runner import reproduce\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # none in the background
        f"reproduce('tiny', jobs=1, progress=False, folder=Path({str(workshop.notebooks)!r}), "
        f"build=Path({str(workshop.build)!r}))\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    pid_file = workshop.build / "tiny" / "pid"
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    kernel = int(pid_file.read_text())
    os.kill(owner.pid, signal.SIGINT)
    assert owner.wait(30) != 0
    while psutil.pid_exists(kernel) and time.monotonic() < deadline + 30:
        time.sleep(0.1)
    assert not psutil.pid_exists(kernel)
    states = {
        path.stem: json.loads(path.read_text())["status"]
        for path in (workshop.build / "tiny" / "state").glob("*.json")
    }
    assert states == {"a_quick": "done", "b_slow": "started"}
    assert (workshop.build / "tiny" / "a_quick.ipynb").exists()


@pytest.mark.thorough
def test_what_this_machine_cannot_run_is_told_and_is_no_failure(workshop):
    lacking = "from ddlnb.errors import MissingPart\nraise MissingPart('this needs a tuba')"
    workshop.add("lacking", lacking)
    workshop.add("fine", COUNT)
    workshop.profile("lacking:\nfine:\n")
    rows = rows_of(workshop.run())
    assert "not here: " in rows["The lacking"][4]
    assert "this needs a tuba" in rows["The lacking"][4]
    assert rows["The fine"][4] == "done"


def test_a_kernel_s_end_writes_what_cells_left_open_and_runs_what_they_registered(workshop):
    code = (
        "import atexit, pathlib\nleft = open('left', 'w')\nwritten = left.write('kept')\n"
        "atexit.register(pathlib.Path('ended').touch)"
    )
    workshop.add("careless", code)
    workshop.profile("careless:")
    target = workshop.run().parents[1]
    assert (target / "left").read_text() == "kept"
    assert (target / "ended").exists()


def test_notebooks_side_by_side_share_the_cores(workshop, monkeypatch):
    monkeypatch.setattr("ddlnb.survey.runner.cores", lambda: 4)
    monkeypatch.delenv(JOBS_VARIABLE, raising=False)  # the tests' own notebooks may share as well
    told = "import os, pathlib\npathlib.Path(name).write_text(os.environ.get('DDLNB_JOBS', 'all'))"
    workshop.add("beside", told)
    workshop.add("alone", told, timed=True)
    workshop.profile("beside:\nalone:")
    target = workshop.run(jobs=2).parents[1]
    assert [(target / name).read_text() for name in ("beside", "alone")] == ["2", "all"]


def test_what_takes_long_is_begun_first_so_that_all_end_together(workshop, monkeypatch):
    begun = []

    class Idler:
        is_alive = False

        def execute(self, notebook, *rest):
            begun.append(notebook.name)
            raise DdlnbError(f"notebook {notebook.name!r} was not executed")

        def close(self):
            pass

    monkeypatch.setattr("ddlnb.survey.runner.Worker", Idler)
    seconds = {"first": 1, "second": 50, "third": 10, "fourth": 60}
    for name in seconds:
        workshop.add(name, timed=name == "fourth")
    workshop.profile("".join(f"{n}: {{expected_seconds: {s}}}\n" for n, s in seconds.items()))
    with pytest.raises(DdlnbError, match="4 of 4 notebooks failed"):
        workshop.run(jobs=1)
    assert begun == ["second", "third", "first", "fourth"]
