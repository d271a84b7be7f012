"""Bars: in notebooks by themselves, elsewhere on demand, and none where TQDM_DISABLE says so."""

import ast

import nbformat
import pytest

from ddlnb.files import ROOT
from ddlnb.progress import bar, in_notebook
from ddlnb.training.runs.runner import in_parallel

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize(
    ("progress", "notebook", "is_shown"),
    [(None, False, False), (None, True, True), (False, True, False), (True, False, True)],
)
def test_a_bar_is_shown_in_notebooks_and_on_demand(
    progress, notebook, is_shown, monkeypatch, capsys
):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr("ddlnb.progress.in_notebook", lambda: notebook)
    assert in_parallel(abs, [(-1,), (-2,)], jobs=1, progress=progress, what="twice") == [1, 2]
    assert ("twice" in capsys.readouterr().err) == is_shown


def test_this_process_is_no_notebook():
    assert not in_notebook()


def test_every_bar_is_one_that_notebooks_show_as_a_widget():
    home = ROOT / "ddlnb" / "progress.py"
    for path in sorted((ROOT / "ddlnb").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tqdm"):
                assert path == home, f"{path} makes a bar of its own; take ddlnb.progress.bar"


@pytest.mark.thorough(but=1)
@pytest.mark.notebook
@pytest.mark.parametrize("disabled", ["0", "1"])
def test_a_notebook_shows_bars_as_widgets_unless_they_are_disabled(disabled, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("TQDM_DISABLE", disabled)
    cell = nbformat.v4.new_code_cell(
        "from ddlnb.training.runs.runner import in_parallel\n"
        "in_parallel(abs, [(-1,), (-2,)], jobs=1)"
    )
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    shown = [output for output in cell.outputs if WIDGET in output.get("data", {})]
    assert len(shown) == (disabled == "0")


def test_a_bar_counts_in_silence(capsys):
    with bar(total=2, progress=False) as counting:
        counting.update()
    assert capsys.readouterr() == ("", "")
