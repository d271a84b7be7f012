"""How busy the machine was is kept beside the rows, and said beside the result."""

import math
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from ddlnb.calibration import calibrated_model as kept_load
from ddlnb.calibration.calibrated_model import (
    LOADS,
    calibrate_here,
    load_sentence,
    read_micro_benchmark,
    saved_loads,
    saving_load,
)
from ddlnb.calibration.clusters import MOST_MODEL_ERROR
from ddlnb.errors import ResultsError
from ddlnb.files import DATA
from ddlnb.launch.capacity import Load
from ddlnb.survey import fig4_emulated, simulated_here

QUIET, BUSY = Load(0.0, 0.01, 0.0), Load(0.25, 0.5, 0.0)


@pytest.fixture
def under(monkeypatch):
    """Return a function that makes the next watches see these loads, one after the other."""
    seen = []

    @contextmanager
    def watched():
        yield SimpleNamespace(load=seen.pop(0))

    monkeypatch.setattr(kept_load, "watched_load", watched)
    return seen.extend


def test_loads_are_kept_where_rows_were_added_and_the_busiest_is_said(tmp_path, under):
    under([QUIET, BUSY, BUSY])
    rows, others = tmp_path / "rows.csv", tmp_path / "compared.csv"
    with saving_load(rows):
        rows.write_text("a\n")
    assert "it was quiet" in load_sentence(tmp_path)
    with saving_load(others):
        others.write_text("b\n")
    with saving_load(rows):
        rows.read_text()  # all was there: nothing ran
    assert saved_loads(tmp_path) == [("rows.csv", QUIET), ("compared.csv", BUSY)]
    assert "took 50% of the cores meanwhile, and 25% before: times are" in load_sentence(tmp_path)


def test_the_load_of_what_was_measured_before_an_interruption_is_kept(tmp_path, under):
    under([BUSY, QUIET])
    with suppress(KeyboardInterrupt), saving_load(tmp_path / "rows.csv"):
        (tmp_path / "all_reduces.json").write_text("[]")
        raise KeyboardInterrupt
    with saving_load(tmp_path / "rows.csv"):
        (tmp_path / "rows.csv").write_text("a\n")
    assert "took 50% of the cores meanwhile" in load_sentence(tmp_path)


def test_a_folder_of_an_earlier_edition_does_not_know_its_load(tmp_path):
    assert saved_loads(tmp_path) == []
    assert "is not known" in load_sentence(tmp_path)
    (tmp_path / LOADS).write_text("rows,before\nrows.csv,0.1\n")
    with pytest.raises(ResultsError, match=r"load\.csv is no table of loads"):
        saved_loads(tmp_path)


def compared(source: str) -> pd.DataFrame:
    both = {"model": "m", "gpus": 2, "method": "WFBP-A2A", "engine": "torch", "std": 1.0}
    forecast = {"source": "simulated", "iteration_seconds": 1.1, "low": 80.0, "high": 120.0}
    done = {"source": source, "iteration_seconds": 1.0, "throughput_samples_per_s": 100.0}
    return pd.DataFrame([{**both, **forecast}, {**both, **done}])


def test_findings_say_the_load_beside_the_errors(tmp_path, under):
    under([BUSY])
    with saving_load(tmp_path / "compared.csv"):
        (tmp_path / "compared.csv").write_text("a\n")
    for said in (
        simulated_here.twin_findings(compared("measured"), tmp_path),
        fig4_emulated.view_findings(compared("emulated"), tmp_path),
    ):
        assert "the median error of the seconds is 10.0%" in str(said)
        assert "times are those of a machine under load" in str(said)


@pytest.mark.thorough
def test_load_while_it_was_measured_widens_the_model_error(monkeypatch):
    busy = read_micro_benchmark(DATA / "measured" / "2026-11-22_two-cores_busy")
    assert busy.load.is_busy
    alone, _ = calibrate_here(replace(busy, load=None))
    monkeypatch.setattr(kept_load, "calibrate_parameters", lambda *_, **__: alone)  # as before
    under, clusters = calibrate_here(busy)
    both = math.hypot(alone.model_error, busy.load.spread)
    assert under.model_error == pytest.approx(min(both, MOST_MODEL_ERROR))
    assert under.model_error > alone.model_error
    assert {one.model_error for one in clusters} == {under.model_error}
    assert under.model_error > 0.3
