"""The command `ddlnb scale`: ranks layouts, forecasts tables, and says what is wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddlnb.cli.app import app
from tests.parallelism.forecast.tables import write_table

RUNNER = CliRunner()


def test_the_best_layouts_are_printed_with_what_makes_the_next_slower() -> None:
    done = RUNNER.invoke(app, ["layouts", "scale", "--model", "llama-8b", "--nodes", "2", "--csv"])
    assert done.exit_code == 0
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 10
    assert rows[0]["slower by"] == ""
    assert not any("e+" in row["90 % interval"] for row in rows)
    assert all("+" in row["slower by"] for row in rows[1:])


def test_a_table_gets_its_forecasts_and_what_was_taken_is_said(tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "in.csv", {}), tmp_path / "out.csv"
    done = RUNNER.invoke(app, ["layouts", "scale", "--table", str(table), "--out", str(out)])
    assert done.exit_code == 0
    assert "note: framework is missing in 1 row: taken as nanotron" in done.stderr
    assert "tokens_per_s_per_gpu" in out.read_text().splitlines()[0]


def test_a_machine_says_its_gpus_and_its_network() -> None:
    words = ["--model", "llama-8b", "--nodes", "2", "--top", "2", "--csv"]
    named = RUNNER.invoke(app, ["layouts", "scale", *words, "--machine", "p4d", "--gpu", "A100"])
    parts = ["--gpu", "A100-40GB", "--gpus-per-node", "8", "--network", "EFA-400"]
    assert named.exit_code == 0, named.exception
    assert named.stdout == RUNNER.invoke(app, ["layouts", "scale", *words, *parts]).stdout


def test_the_best_is_named_with_how_sure_that_is() -> None:
    done = RUNNER.invoke(
        app, ["layouts", "scale", "--model", "llama-8b", "--nodes", "2", "--top", "3"]
    )
    said = " ".join(done.stdout.split())
    assert "Of the 3 best splits it is the fastest in" in said
    assert "--advise says what else can be done" in said


def test_advice_has_counterfactuals_costs_and_a_page(tmp_path: Path) -> None:
    page = tmp_path / "advice.html"
    words = ["--model", "llama-8b", "--nodes", "2", "--sequence", "4096", "--top", "3"]
    done = RUNNER.invoke(
        app, ["layouts", "scale", *words, "--advise", "--gpu-price", "2", "--page", str(page)]
    )
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    for part in ("cost/M tokens", "no floor of starting kernels", "What would pay:",
                 "8 GPUs keep", "Not known:"):  # fmt: skip
        assert part in said, part
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 2
    assert "What to do with llama3-8b on 16 x H100-SXM" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give --model"),
        (["--model", "llama-8b", "--page", "a.html"], "need --advise; leave out --page"),
        (["--model", "llama-8b", "--advise", "--csv"], "leave out one of them"),
        (["--model", "llama-8b", "--advise", "--gpu-price", "-1"], "price of a GPU per hour, -1"),
        (["--table", "in.csv"], "give both --table"),
        (["--table", "in.csv", "--out", "o.csv", "--gpu", "H100"], "...); leave out --gpu"),
        (["--table", "in.csv", "--out", "o.csv", "--nodes", "8"], "leave out --nodes"),
        (["--model", "llama-8b", "--keep-going"], "left empty; leave out --keep-going"),
        (["--model", "my.py:task"], "a model of your own is given by its sizes (docs/large_scale"),
        (["--model", "gpt2"], "a GPU can hold alone, such as my.py:task, is for `ddlnb advise`"),
        (["--model", "llama-8b", "--machine", "p4d", "--gpu", "H100"], "GPU H100-SXM is not that"),
        (["--table", "missing.csv", "--out", "out.csv"], "missing.csv cannot be read"),
        (["--model", "llama-8b", "--sequence", "0"], "sequence 0 must be a whole number"),
        (["--model", "llama-8b", "--global-batch", "0"], "global_batch 0 must be a whole number"),
        (["--model", "llama-8b", "--top", "0"], "top 0 must be a whole number"),
        (["--model", "llama-8b", "--precision", "int4"], "unknown precision"),
    ],
)
def test_what_is_wrong_is_said(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = RUNNER.invoke(app, ["layouts", "scale", *options])
    assert done.exit_code != 0
    assert message in str(done.exception)
