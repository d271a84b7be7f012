"""The command that plays iterations of large models: what it prints, writes and refuses."""

from __future__ import annotations

import io
import json

import pandas as pd
import pytest

from tests.cli.test_app import ddlnb


def test_layouts_are_played_traced_and_drawn(tmp_path):
    trace, picture = tmp_path / "trace.json", tmp_path / "stages.png"
    along, across = "dp2 tp8 acc2", "dp2 tp8 acc2 order=dp-cp-pp-tp"
    words = ("--nodes", "2", "--csv")
    told = ddlnb(
        "layouts", "iteration", "--layout", along, "--layout", across, *words, check=True
    ).stdout
    rows = pd.read_csv(io.StringIO(told)).set_index("layout")
    assert rows.loc[across, "tp"] > 1.5 * rows.loc[along, "tp"]
    parts = rows[["computation", "update", "tp", "data"]].sum(axis=1)
    assert parts.tolist() == pytest.approx(rows["seconds"].tolist(), abs=1e-3)
    files = ("--trace", str(trace), "--picture", str(picture))
    ddlnb("layouts", "iteration", "--layout", "pp2 acc4", "--nodes", "1", *files, check=True)
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1}
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layout", "dp64"], "needs 64 ranks, and network 'star(4)' has 32"),
        (["--layout", "tp3"], "tp 3 does not divide heads 32 of model 'llama3-8b'"),
        (["--layout", "dp2", "--layout", "tp2", "--trace", "x"], "a trace is of one layout, and 2"),
        (["--layout", "dp2", "--trace", "a.txt"], "'a.txt' must have a name in .json"),
        (["--layout", "dp2", "--topology", "star(2)"], "has 2 hosts, fewer than the 4 nodes"),
        (["--layout", "dp2", "--sequence", "0"], "sequence 0 must be a whole number"),
        ([], "missing option '--layout'"),
    ],
)
def test_a_bad_word_is_one_line(words, said):
    done = ddlnb("layouts", "iteration", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
