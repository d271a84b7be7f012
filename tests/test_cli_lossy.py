"""`ddlnb lossy`, as a person types it."""

from __future__ import annotations

from io import StringIO

import pandas as pd

from tests.test_cli import ddlnb

WORDS = ["--model", "resnet50", "--cluster", "survey-10GbE"]


def test_methods_stand_beside_the_best_lossless_one():
    words = [*WORDS, "--gpus", "8", "--gpus", "16", "--method", "bsp + top-k(0.01) + feedback"]
    rows = pd.read_csv(StringIO(ddlnb("lossy", *words, "--csv", check=True).stdout))
    assert list(rows["gpus"]) == [8, 8, 16, 16]
    lossless = rows[rows["over_best_lossless"] == 1.0]
    assert set(lossless["method"]) < {"BSP-PS", "WFBP-PS", "ByteScheduler-PS", "MG-WFBP"}
    top_k = rows[rows["method"].str.startswith("bsp + top-k")]
    assert (top_k["iteration_seconds"] < lossless["iteration_seconds"].to_numpy()).all()
    assert (top_k["compression_seconds"] == 0).all()  # free, unless a profile is named
    shown = ddlnb("lossy", *words, check=True).stdout
    assert "free of cost (a bound)" in shown
    assert "give --curves" in shown


def test_curves_make_verdicts(tmp_path):
    curves = tmp_path / "curves.csv"
    made_up = [
        ("digits", method, 8, seed, step, 1.0 - step / steps)
        for method, steps in (("bsp on A2A", 100), ("local(8) on A2A", 400))
        for seed in (0, 1)
        for step in range(0, steps + 1, 20)
    ]
    columns = ["task", "method", "workers", "seed", "step", "test_loss"]
    pd.DataFrame(made_up, columns=columns).to_csv(curves, index=False)
    words = [*WORDS, "--curves", str(curves), "--target", "0.5"]
    said = ddlnb("lossy", *words, check=True).stdout
    assert "iterations measured on digits" in said
    assert "do not relax synchronisation here" in said
    assert "the dense best; it leaves no less communication exposed" in said


def test_what_is_missing_is_said(tmp_path):
    assert "give at least one --method" in ddlnb("lossy", *WORDS).stderr
    refused = ddlnb("lossy", *WORDS, "--curves", str(tmp_path / "none.csv"), "--target", "1")
    assert refused.returncode == 2
    assert "cannot be read" in refused.stderr
    assert "together" in ddlnb("lossy", *WORDS, "--target", "1").stderr
    unknown = ddlnb("lossy", *WORDS, "--method", "bsp", "--compression", "gpu")
    assert "cpu-1thread" in unknown.stderr
