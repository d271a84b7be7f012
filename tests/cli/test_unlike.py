"""`ddlnb unlike`: the ways, the sentences, the picture, and what is wrong."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from typer.testing import CliRunner

from ddlnb.cli.app import app

GPUS = ["--gpu", "4xA100", "--gpu", "4 x V100"]
SETTINGS = ["--precision", "fp16", "--samples", "64", "--sequence", "2048"]
ASKED = ["layouts", "balance", *GPUS, *SETTINGS]


def run(*words: str):
    return CliRunner().invoke(app, [*ASKED, *words])


def test_the_first_way_is_the_one_to_take(tmp_path):
    picture = tmp_path / "ways.png"
    done = run("--picture", str(picture))
    assert done.exit_code == 0, done.output
    rows = pd.read_csv(io.StringIO(run("--csv").output))
    assert f"Take {rows['way'].iloc[0]}:" in done.output
    assert "Not known:" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["layouts", "balance", "--gpu", "4xA100"], "give two kinds of GPUs or more"),
        (["layouts", "balance", "--gpu", "A100", "--gpu", "4xV100"], "'A100' must say how many"),
        (["layouts", "balance", "--gpu", "4xA100", "--gpu", "2xA100"], "A100 is given twice"),
        (["layouts", "balance", "--gpu", "4xA100", "--gpu", "4xV100"], "unknown precision of V100"),
        (
            ["layouts", "balance", "--gpu", "4xA100", "--gpu", "4xV100"],
            "say which by precision (--precision)",
        ),
        (["layouts", "balance", "--gpu", "4xA100", "--gpu", "0xT4"], "'0xT4' must say how many"),
        ([*ASKED, "--model", "gpt-9"], "unknown large model 'gpt-9'"),
        ([*ASKED, "--samples", "63"], "8 workers do not divide a batch of 63"),
        ([*ASKED, "--picture", "."], "ways.png"),
    ],
)
def test_what_is_wrong_is_one_sentence(words, said):
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert said in " ".join(f"{done.output} {done.exception}".split())
