"""The index of the survey: no item without a verdict or a reason, no place that does not exist."""

import json
from functools import partial
from io import StringIO

import nbformat
import pandas as pd
import pytest

from ddlnb.calibration.statistics import Verdict
from ddlnb.cli.survey import strategies, survey
from ddlnb.errors import InputError
from ddlnb.files import NOTEBOOKS, ROOT
from ddlnb.parallelism.executed.table import strategy_rows
from ddlnb.survey.board import KINDS, read_board
from ddlnb.survey.evidence import (
    AGREES,
    BY_A_TEST,
    DISAGREES,
    NOT_REPRODUCED,
    NOT_RUN,
    Evidence,
    entries,
    evidence,
    evidence_of_tests,
    keep_test_runs,
    weighed,
)
from ddlnb.survey.items import HOW, ItemVerdict, findings, item_verdict, survey_items
from ddlnb.survey.notebooks import Outcome, all_notebooks
from ddlnb.survey.runner import index
from ddlnb.survey.site import verdicts_page
from tests.command_line import ddlnb


def test_every_item_has_a_place_that_exists_or_says_what_is_missing(tmp_path):
    without_a_run = entries([], tmp_path)
    assert list(without_a_run) == list(survey_items())
    for key, entry in without_a_run.items():
        assert entry.evidence or entry.item.missing, f"{key} is not reproduced: say what is missing"
        assert entry.verdict
        assert (entry.verdict == NOT_REPRODUCED) == (not entry.evidence)
    for entry in without_a_run.values():
        for one in entry.evidence:
            file, _, name = one.where.partition("::")
            if name:
                assert f"def {name}(" in (ROOT / file).read_text()
            else:
                assert (NOTEBOOKS / f"{file}.ipynb").exists()
            assert one.how
            assert set(one.how.split(", ")) <= set(HOW), one


@pytest.mark.thorough
def test_a_notebook_tags_only_its_own_items_and_only_checks():
    for notebook in all_notebooks().values():
        for cell in json.loads(notebook.path.read_text())["cells"]:
            tagged = set(cell["metadata"].get("tags", [])) & set(survey_items())
            assert tagged <= set(notebook.items), f"{notebook.name} must list {tagged} as items"
            assert not tagged or "assert " in "".join(cell["source"]), notebook.name


# What executed notebooks say.


def executed(folder, *, tags=(), items=()):
    """Return the outcome of a notebook about A21 with a check and findings, and write it."""
    found = findings("One.", items=items)
    output = nbformat.v4.new_output("display_data", data=found._repr_mimebundle_())
    cells = [
        nbformat.v4.new_code_cell("assert True", metadata={"tags": list(tags)}),
        nbformat.v4.new_code_cell("shown", outputs=[output]),
    ]
    about = {"section": "9", "claim": "c", "items": {"A21": "simulated"}}
    book = nbformat.v4.new_notebook(cells=cells, metadata={"ddlnb": about})
    nbformat.write(book, folder / "one.ipynb")
    return Outcome(all_notebooks(folder)["one"], "done")


def words(folder, outcomes):
    found = evidence(outcomes, folder, folder)
    return [(one.item, one.how, one.verdict) for one in found]


def test_a_check_that_was_passed_holds_and_findings_carry_their_verdicts(tmp_path):
    outcome = executed(tmp_path, tags=["A21"])
    assert words(tmp_path, [outcome]) == [("A21", "simulated", "holds")]
    [found] = evidence([outcome], tmp_path, tmp_path)
    assert found.link.startswith("#one-cell-")
    items = [
        ItemVerdict("A21", Verdict.UNDECIDED, "measured", "by a little"),
        ItemVerdict("A22", None, "simulated"),
    ]
    said = words(tmp_path, [executed(tmp_path, items=items)])
    assert said == [("A21", "measured", "undecided"), ("A22", "simulated", "not judged")]


def test_without_a_verdict_it_is_said_what_became_of_the_notebook(tmp_path):
    outcome = executed(tmp_path)
    assert words(tmp_path, [outcome]) == [("A21", "simulated", "not judged")]
    assert words(tmp_path, []) == [("A21", "simulated", NOT_RUN)]
    failed = Outcome(outcome.notebook, "failed", error="the reason")
    [found] = evidence([failed], tmp_path, tmp_path)
    assert (found.verdict, found.said) == ("failed", "the reason")


def test_an_item_that_does_not_exist_is_named_with_its_place(tmp_path):
    outcome = executed(tmp_path, items=[ItemVerdict("A99", Verdict.HOLDS, "measured")])
    with pytest.raises(InputError, match=r"one names item 'A99', which is not in"):
        entries([outcome], tmp_path, tmp_path)


def test_sources_that_differ_are_both_shown_the_worst_first_and_parts_hold_together(tmp_path):
    items = [ItemVerdict("A21", word, "measured") for word in (Verdict.HOLDS, None)]
    items += [ItemVerdict("A21", Verdict.CONTRADICTED, "simulated", "at once")]
    found = entries([executed(tmp_path, items=items)], tmp_path, tmp_path)
    assert found["A21"].verdict == f"{DISAGREES}, holds"  # a simulation refutes nothing
    assert found["A21"].reason == "at once"
    assert found["A02"].reason == found["A02"].item.missing
    assert found["A21"].how == "simulated, measured"
    assert found["A22"].verdict == NOT_REPRODUCED
    holds, open_, against = Verdict.HOLDS, Verdict.UNDECIDED, Verdict.CONTRADICTED
    for parts, verdict in (
        ([holds, holds], holds),
        ([holds, open_], open_),
        ([open_, against, holds], against),
        ([], None),
    ):
        assert item_verdict("A21", parts, "measured").verdict == verdict


@pytest.mark.parametrize(
    ("item", "how", "verdict", "word"),
    [
        ("A35", "simulated", "holds", AGREES),
        ("A35", "emulated", "contradicted", "contradicted"),
        ("A08", "computed", "holds", "arithmetic"),
        ("A08", "computed", "contradicted", "contradicted"),
        ("A26", "measured", "holds", "by definition"),
        ("A64", "simulated", "holds", "a question"),
        ("A64", "simulated", "not run", "not run"),
    ],
)
def test_a_verdict_claims_no_more_than_its_evidence_can_bear(item, how, verdict, word):
    found = weighed(Evidence(item, "", how, verdict), survey_items()[item])
    assert found.verdict == word


def test_the_page_lists_every_item_with_its_evidence_and_what_is_missing(tmp_path):
    outcome = executed(tmp_path, items=[ItemVerdict("A21", Verdict.HOLDS, "measured", "<b>")])
    page = verdicts_page(entries([outcome], tmp_path, tmp_path))
    for key in survey_items():
        assert page.count(f"({key.lower()})=\n") == 1
    assert r"\<b\>" in page
    assert page.count("Missing: ") == sum(bool(item.missing) for item in survey_items().values())


def test_what_each_source_says_of_an_item_is_a_paragraph_of_its_cell(tmp_path):
    found = entries([], tmp_path)
    parts = [len(one.evidence) + bool(one.item.missing) for one in found.values()]
    further = sum(count - 1 for count in parts)
    assert verdicts_page(found).count("\n\n    ") == further > 80


# What tests say.


def test_the_verdict_of_a_test_is_that_of_its_last_run(tmp_path):
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n\n"
        '@pytest.mark.item("A21", "A22", how="simulated", verdict="contradicted")\n'
        '@pytest.mark.parametrize("x", [1])\n'
        "def test_what_it_shows(x):\n    raise SystemExit\n"
    )
    where = f"{tmp_path.name}/test_one.py::test_what_it_shows"
    kept = tmp_path / "item_tests.json"
    for passed, verdict in ((None, BY_A_TEST), (False, "failed"), (True, "contradicted")):
        if passed is not None:
            keep_test_runs({where: passed, "another": True}, kept)
        found = list(evidence_of_tests(tmp_path, kept))
        assert [(one.item, one.how, one.verdict) for one in found] == [
            ("A21", "simulated", verdict),
            ("A22", "simulated", verdict),
        ]
        assert (found[0].where, found[0].said) == (where, "what it shows")
        assert bool(found[0].date) == (passed is not None)


@pytest.mark.parametrize("mark", ['"A21", how="guessed"', '"A21", verdict="fine"', '"A21", why=""'])
def test_a_mark_that_says_something_else_is_refused(tmp_path, mark):
    source = f"import pytest\n\n@pytest.mark.item({mark})\ndef test_law():\n    pass\n"
    (tmp_path / "test_one.py").write_text(source)
    with pytest.raises(InputError, match=r"test_one.py::test_law: a mark of items takes how"):
        list(evidence_of_tests(tmp_path))


def test_the_command_prints_every_statement_of_the_index_with_its_verdict_and_the_reason(capsys):
    survey(None, "smoke", False)
    said = capsys.readouterr().out
    found = index("smoke")
    for key, row in found.iterrows():
        assert f"{key} ({row['section']}): {row['item']}\n    {row['verdict']}" in said
        assert row["reason"] in said
    assert list(found.index) == list(survey_items())
    assert "sec3_1_2_synchronisation" in found.loc["A21", "where"]


# Its other commands.


def test_the_board_is_printed_without_its_level_and_one_kind_as_rows():
    short, long = ddlnb("board", check=True), ddlnb("survey", "board", check=True)
    assert short.stdout == long.stdout
    assert short.stderr == ""
    said = " ".join(short.stdout.split())
    assert all(f"{name}: {kind.trivial}" in said for name, kind in KINDS.items())
    assert "judgements: - " in said
    done = ddlnb("board", "--kind", "testbed", "--csv", check=True)
    kept = read_board()
    digests = kept["digest"][kept["kind"] == "testbed"]
    assert list(pd.read_csv(StringIO(done.stdout))["digest"]) == list(digests)


@pytest.mark.ranks
def test_a_layout_of_ones_own_is_executed(six_ranks, monkeypatch, capsys):
    rows = partial(strategy_rows, ranks=six_ranks)
    monkeypatch.setattr("ddlnb.parallelism.executed.table.strategy_rows", rows)
    strategies(layout=["dp2 zero1"], model="dense", rows=False, seed=1, csv=False)
    shown = capsys.readouterr().out
    assert "yes" in shown
    assert "4 = 4" in shown  # two calls on each of two ranks
