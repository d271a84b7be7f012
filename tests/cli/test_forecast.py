"""The commands about simulated clusters, as a person types them."""

import json
import sys
from functools import partial

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.files import CLUSTERS, ROOT
from ddlnb.plans.methods import METHODS, SURVEYED
from ddlnb.simulator.forecast import forecast
from ddlnb.survey import testbed
from ddlnb.survey.published import FIG4_CELLS, fig4_cells
from ddlnb.survey.testbed import calibrate_survey
from tests.command_line import ddlnb

BERT = ["--model", "bert-large", "--cluster", "survey-10GbE"]


def test_a_forecast_gives_a_table_an_advice_and_a_file_for_listed_numbers_too(tmp_path):
    out = tmp_path / "rows.csv"
    done = ddlnb("forecast", *BERT, "--gpus", "8", "--draws", "20", "--csv", str(out), check=True)
    assert "take " in done.stdout
    rows = pd.read_csv(out)
    assert len(rows) == 1 + len(METHODS)
    assert rows["method"].iloc[0] == "DDP"  # the baseline
    assert (rows["low"] <= rows["high"]).all()
    words = ["forecast", *BERT, "--method", "BSP-A2A", "--draws", "0"]
    listed = ddlnb(*words, "--gpus", "8, 16", check=True).stdout
    assert listed == ddlnb(*words, "--gpus", "8", "--gpus", "16", check=True).stdout
    assert listed.count("BSP-A2A") == 3  # two rows and the advice


def test_advice_for_bert_large_on_eight_gpus_is_what_the_survey_measured():
    """The fastest published cell that is not suspicious; method and machines as in its cluster."""
    cells = fig4_cells()
    cells = cells[(cells["model"] == "bert-large") & (cells["network"] == "100GbE")]
    cells = cells[(cells["gpus"] == 8) & ~cells["method"].isin(["BSP-PS", "WFBP-PS"])]
    best = cells.set_index("method")["throughput_samples_per_s"].idxmax()
    rows = forecast("bert-large", "survey-100GbE", [*SURVEYED], gpus=8, draws=0)
    assert f"take {best}" in rows.sentences[0]


def test_the_readme_shows_what_the_command_prints():
    lines = (ROOT / "README.md").read_text().splitlines()
    (start,) = (
        number for number, line in enumerate(lines) if line.startswith("$ .venv/bin/ddlnb f")
    )
    command = lines[start].split()[2:]
    shown = lines[start + 2 : lines.index("```", start)]  # below the head of the table
    said = ddlnb(*command, check=True).stdout.replace("│", " ")
    printed = [" ".join(line.split()) for line in said.splitlines()]
    count = 1 + len(METHODS)
    assert len(shown) == count + 2  # methods, the advice, and the first remark
    for line in shown[:count]:
        assert " ".join(line.split()) in printed
    assert " ".join(shown[count:]) in " ".join(printed)


def test_a_throughput_that_cannot_be_is_refused_before_anything_is_traced(monkeypatch):
    """Tracing BERT-Large takes seconds; torch need not even be there."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"throughput -5.0 must be a finite number above 0"):
        forecast("bert-large", "survey-10GbE", throughput=-5.0)


def test_a_timeline_is_a_trace_and_a_picture_of_one_worker_of_every_kind(tmp_path):
    out = tmp_path / "trace.json"
    slow = ["--slow", "1:2", "--gpus", "8", "--out", str(out)]
    done = ddlnb("timeline", *BERT, *slow, check=True)
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 4}
    assert "MG-WFBP: worker 0 waits" in done.stdout
    assert "latency" in done.stdout
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_check_fails_on_a_suspicious_table_and_passes_a_clean_one(tmp_path):
    table = tmp_path / "table.csv"
    lines = ["model,local_batch,network,method,gpus,throughput_samples_per_s"]
    lines += [f"m,8,{network},BSP-A2A,4,400" for network in ("10GbE", "100GbE")]
    table.write_text("\n".join(lines) + "\n")
    assert ddlnb("survey", "check", str(table)).returncode == 0
    table.write_text("\n".join(lines) + "\nm,8,100GbIB,BSP-A2A,4,300\n")
    done = ddlnb("survey", "check", str(table))
    assert done.returncode == 1
    assert "replicates differ" in done.stdout.replace("…", "replicates differ")


def test_calibrating_the_survey_prints_what_the_data_tells_and_writes_nothing(
    tmp_path, monkeypatch
):
    """With four cells only: all of them take minutes."""
    head, *lines = FIG4_CELLS.read_text().splitlines(keepends=True)
    few = tmp_path / "cells.csv"
    one = "resnet50,64,10GbE,BSP-A2A"
    few.write_text(head + "".join(line for line in lines if line.startswith(one)))
    monkeypatch.setattr(testbed, "calibrate_survey", partial(calibrate_survey, cells=few))
    before = {path: path.read_bytes() for path in CLUSTERS.iterdir()}
    said = ddlnb("cluster", "fit", "survey", check=True).stdout
    assert "the prior" in said
    assert "the data" in said
    assert {path: path.read_bytes() for path in CLUSTERS.iterdir()} == before
