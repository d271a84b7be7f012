"""`ddlnb layouts`: splits that are ranked, iterations that are played, work that is shared."""

import io
import json
import re

import pandas as pd
import pytest

from tests.advice.test_one_answer import LLAMA_7B
from tests.command_line import ddlnb
from tests.parallelism.forecast.tables import write_table

SMALL = ["layouts", "scale", "--model", "llama-8b", "--nodes", "2"]
UNLIKE = ["layouts", "balance", "--gpu", "4xA100", "--gpu", "4 x V100", "--precision", "fp16"]
UNLIKE += ["--samples", "64", "--sequence", "2048"]


def rows_of(*words):
    return pd.read_csv(
        io.StringIO(ddlnb(*words, "--csv", check=True).stdout), keep_default_na=False
    )


def test_the_best_layouts_are_printed_with_what_makes_the_next_slower_and_how_sure_that_is():
    rows = rows_of(*SMALL)
    assert len(rows) == 10
    assert rows["loses_by"][0] == ""
    assert (rows["low"] < rows["tokens_per_s_per_gpu"]).all()
    assert rows["loses_by"][1:].str.contains("+", regex=False).all()
    said = " ".join(ddlnb(*SMALL, "--top", "3", check=True).stdout.split())
    assert "Of the 3 best splits it is the fastest in" in said
    assert "--advise says what else can be done" in said


def test_a_table_gets_its_forecasts_and_what_was_taken_is_said(tmp_path):
    table, out = write_table(tmp_path / "in.csv", {}), tmp_path / "out.csv"
    done = ddlnb("layouts", "scale", "--table", str(table), "--out", str(out), check=True)
    assert "note: framework is missing in 1 row: taken as nanotron" in done.stderr
    assert "tokens_per_s_per_gpu" in out.read_text().splitlines()[0]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("framework", "model", "gpu"),
    [("megatron", "llama3-8b", "H100"), ("fsdp", "mixtral-8x7b", "A100"), ("nemo", "own", "H100")],
)
def test_splits_are_a_table_of_runs_of_which_the_same_is_forecast(tmp_path, framework, model, gpu):
    if model == "own":
        model = tmp_path / "own.json"
        model.write_text(json.dumps(LLAMA_7B | {"head_dim": 192}))  # which no column says
    table, out = tmp_path / "splits.csv", tmp_path / "again.csv"
    words = ["--model", str(model), "--gpu", gpu, "--framework", framework, "--csv"]
    table.write_text(ddlnb("layouts", "scale", *words, check=True).stdout)
    ddlnb("layouts", "scale", "--table", str(table), "--out", str(out), check=True)
    told, again = pd.read_csv(table), pd.read_csv(out)
    assert again["fits"].all()
    for name in ("tokens_per_s_per_gpu", "low", "high", "memory_gb", "mfu"):
        assert list(again[name]) == pytest.approx(list(told[name]), rel=1e-3)


@pytest.mark.thorough
def test_advice_has_counterfactuals_costs_and_a_page(tmp_path):
    page = tmp_path / "advice.html"
    words = ["--sequence", "4096", "--top", "3", "--advise", "--gpu-price", "2", "--tokens", "1e9"]
    said = " ".join(ddlnb(*SMALL, *words, "--page", str(page), check=True).stdout.split())
    for part in ("cost/M tokens", "no floor of starting kernels", "What would pay:",
                 "8 GPUs keep", "Not known:"):  # fmt: skip
        assert part in said, part
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 2
    assert "What to do with llama3-8b on 16 x H100-SXM" in text
    assert "The first option is to be taken" in text
    assert "shard it" not in text
    run, why = text.split("<h2>The whole run</h2>")[1].split("<h2>Why</h2>")
    assert "days" in run.split("</tr>")[0]
    assert "days" not in why.split("</tr>")[0]


def test_layouts_are_played_traced_and_drawn(tmp_path):
    trace, picture = tmp_path / "trace.json", tmp_path / "stages.png"
    along, across = "dp2 tp8 acc2", "dp2 tp8 acc2 order=dp-cp-pp-tp"
    play = ["layouts", "iteration", "--layout"]
    rows = rows_of(*play, along, "--layout", across, "--nodes", "2").set_index("layout")
    assert rows.loc[across, "tp"] > 1.5 * rows.loc[along, "tp"]
    parts = rows[["computation", "update", "tp", "data"]].sum(axis=1)
    assert parts.tolist() == pytest.approx(rows["seconds"].tolist(), abs=1e-3)
    files = ("--trace", str(trace), "--picture", str(picture))
    ddlnb(*play, "pp2 acc4", "--nodes", "1", *files, check=True)
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_played_iteration_stands_beside_the_forecast_of_its_layout():
    on = ["--model", "llama3-1b", "--gpu", "A100", "--nodes", "2"]
    ranked = rows_of("layouts", "scale", *on).iloc[0]
    asked = ["layouts", "iteration", "--layout", ranked["layout"], *on]
    played = rows_of(*asked).iloc[0]
    shown = ranked["tokens_per_s_per_gpu"]
    assert played["forecast tokens/s/GPU"] == pytest.approx(shown, rel=1e-3)
    both = ddlnb(*asked, "--layout", "dp16 mb7", check=True).stdout
    assert "Sequences of an iteration: " in both
    assert "112 as dp16 mb7; compare tokens/s" in " ".join(both.split())
    said, all_said = (ddlnb(*one, check=True).stdout for one in (asked, ["layouts", "scale", *on]))
    assert f"{played['GiB']:.0f} GiB on each" in " ".join(all_said.split())
    ratio = played["tokens/s/GPU"] / played["forecast tokens/s/GPU"]
    found = re.search(r"takes ([0-9.]+) times the", said)
    assert float(found[1]) == pytest.approx(ratio, abs=0.01)
    for first in ("Memory of a GPU:", "Verdict:"):
        line = next(one for one in said.splitlines() if one.startswith(first))
        assert line in all_said.splitlines()


def test_the_fastest_layout_beside_a_played_one_has_its_batch():
    on = ["--model", "llama3-1b", "--gpu", "A100", "--nodes", "2"]
    said = ddlnb("layouts", "iteration", "--layout", "dp16 zero3 mb1", *on, check=True).stdout
    [line] = [one for one in said.splitlines() if one.startswith("Verdict:")]
    first = rows_of("layouts", "scale", *on, "--global-batch", "16").iloc[0]["layout"]
    assert f"searched is {first}, " in line
    assert "The verdict is of" not in said
    # A search shards over all GPUs, and no step of them has sixteen sequences.
    odd = ["--layout", "dp8 tp2 zero1", *on, "--framework", "fsdp"]
    said = " ".join(ddlnb("layouts", "iteration", *odd, check=True).stdout.split())
    assert "searched is" in said
    assert "The verdict is of steps of" in said


def test_of_unlike_gpus_the_first_way_is_the_one_to_take(tmp_path):
    picture = tmp_path / "ways.png"
    said = ddlnb(*UNLIKE, "--picture", str(picture), check=True).stdout
    assert f"Take {rows_of(*UNLIKE)['way'][0]}:" in said
    assert "Not known:" in said
    assert "the embedding and the head count as a layer each" in said
    assert "Sequences of an iteration" not in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_hybrid_sharding_gains_in_a_forecast_what_it_gains_when_messages_are_played():
    """Message by message, ring by ring, on slow links between sixteen nodes."""
    asked = [
        "layouts",
        "iteration",
        "--model",
        "llama3-8b",
        "--gpu",
        "H100",
        "--nodes",
        "16",
        "--network",
        "100GbE",
    ]
    both = ["--layout", "dp128 zero3 acc4", "--layout", "dp128 zero3 shard8 acc4"]
    rows = rows_of(*asked, *both)
    played, forecast = (
        rows[name][1] / rows[name][0] for name in ("tokens/s/GPU", "forecast tokens/s/GPU")
    )
    assert played > 1.4
    assert forecast == pytest.approx(played, rel=0.05)
