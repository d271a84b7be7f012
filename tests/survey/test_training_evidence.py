"""What is said of kept curves: each task on its own, beside published cells, and drawn."""

import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from ddlnb.calibration.statistics import Verdict, holm
from ddlnb.errors import InputError
from ddlnb.survey.training_evidence import (
    SHOWN,
    agreement,
    evidence_findings,
    kept_curves,
    kept_orderings,
    kept_table,
    letters_drawn,
    ordering_differences,
    orderings_by_task,
    published_orderings,
)
from ddlnb.training.method import training_method
from ddlnb.training.tasks.made import LETTERS, LETTERS_OF

GOOD, BAD = "bsp + ef-sign + feedback", "bsp + ef-sign"


def curves(losses: dict[str, float], task: str = "digits", workers: int = 8) -> pd.DataFrame:
    """The last rows of runs of two seeds that end at these losses, one at a little more."""
    columns = ["task", "method", "workers", "seed", "step", "test_loss", "diverged", "local_batch"]
    rows = [
        (task, str(training_method(method)), workers, seed, 10, loss + 0.01 * seed, False, 4)
        for method, loss in losses.items()
        for seed in range(2)
    ]
    return pd.DataFrame(rows, columns=columns)


def test_published_orderings_are_counted_by_cell(tmp_path):
    path = tmp_path / "quality.csv"
    runs = [("a", GOOD, 90), ("a", BAD, 80), ("b", GOOD, 70), ("b", BAD, 75), ("b", BAD, 71)]
    lines = [f"source,{cell},{method},{accuracy}" for cell, method, accuracy in runs]
    path.write_text("\n".join(["source,cell,method,accuracy", *lines]) + "\n")
    [row] = published_orderings(path).to_dict("records")
    assert row["better"] == str(training_method(GOOD))
    assert (row["cells"], row["supporting"], row["published"]) == (2, 1, Verdict.UNDECIDED)
    found = published_orderings().set_index(["better", "worse"])
    pair = tuple(str(training_method(name)) for name in (GOOD, BAD))
    assert found.loc[pair].tolist() == [6, 6, Verdict.HOLDS]  # every cell of EF-signSGD's table


def test_kept_curves_of_all_folders_are_judged_task_by_task(tmp_path):
    with pytest.raises(InputError, match="run from a checkout"):
        kept_curves(tmp_path)
    studies = {"digits": {GOOD: 0.1, BAD: 0.5}, "letters": {GOOD: 0.5, BAD: 0.1}}
    for task, losses in studies.items():
        folder = tmp_path / f"2026-01-01_{task}_orderings"
        folder.mkdir()
        curves(losses, task).to_csv(folder / "curves.csv", index=False)
    kept = kept_curves(tmp_path)
    assert kept_table(kept)["runs"].tolist() == [4, 4]
    found = kept_orderings(kept)
    assert dict(zip(found["of"], found["verdict"], strict=True)) == {
        "digits, 8 workers": Verdict.HOLDS,
        "letters, 8 workers": Verdict.CONTRADICTED,
    }
    published = published_orderings()
    [row] = orderings_by_task(found, published).to_numpy().tolist()
    assert row == ["holds", "contradicted", "6 of 6"]
    assert agreement(found, published)["agrees"].tolist() == [True, False]
    said = evidence_findings(found, published)
    assert "in 2 of these verdicts; the verdict is the same in 1." in said
    assert found["p_holm"].tolist() == pytest.approx(holm(found["p_value"].to_numpy()).tolist())


def test_differences_and_letters_are_drawn_as_they_are():
    gone = curves({GOOD: 0.1, BAD: 0.5}, "code")
    gone.loc[gone["method"] == str(training_method(BAD)), "test_loss"] = math.inf
    found = kept_orderings(pd.concat([curves({GOOD: 0.1, BAD: 0.5}), gone]))
    [ax] = ordering_differences(found).axes
    marks = {line.get_marker(): list(line.get_xdata()) for line in ax.lines}
    assert marks["o"] == pytest.approx([0.4])
    assert marks[">"] == [0.99]
    plt.close("all")
    rows, columns = SHOWN
    named = [ax.get_title() for ax in letters_drawn().axes]
    assert named == [LETTERS_OF[label] for label in LETTERS.samples().labels[: rows * columns]]
    plt.close("all")
