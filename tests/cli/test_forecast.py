"""The commands about simulated clusters, as a person types them."""

from __future__ import annotations

import json
import sys
from functools import partial

import pandas as pd
import pytest

from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError
from ddlnb.files import CLUSTERS, ROOT
from ddlnb.plans.methods import METHODS, SURVEYED
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.recommendation import recommended
from ddlnb.survey import testbed
from ddlnb.survey.published import FIG4_CELLS, fig4_cells
from ddlnb.survey.testbed import calibrate_survey
from tests.command_line import ddlnb

BERT = ["--model", "bert-large", "--cluster", "survey-10GbE"]
CONV = ["--model", "small-conv", "--cluster", "survey-10GbE"]


@pytest.mark.parametrize("command", ["clusters", "forecast", "timeline", "calibrate", "check"])
def test_every_command_explains_itself(command):
    done = ddlnb(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_clusters_are_listed_and_their_effects_shown():
    assert "survey-100GbIB" in ddlnb("clusters", check=True).stdout
    shown = ddlnb("clusters", "survey-10GbE", check=True).stdout
    assert "between_latency" in shown
    assert "between_latency: latency of one hop between two nodes" in shown
    assert "PCIe 3.0 x16" in shown


def test_a_forecast_gives_a_table_an_advice_and_a_file(tmp_path):
    out = tmp_path / "rows.csv"
    done = ddlnb("forecast", *BERT, "--gpus", "8", "--draws", "20", "--csv", str(out), check=True)
    assert "take " in done.stdout
    rows = pd.read_csv(out)
    assert len(rows) == len(METHODS)
    assert (rows["low"] <= rows["high"]).all()


def rows_of(**rates):
    """Return rows of 8 GPUs; methods with parameter servers have two."""
    return pd.DataFrame(
        {
            "method": list(rates),
            "gpus": 8,
            "servers": [2 if name.endswith("PS") else 0 for name in rates],
            "throughput_samples_per_s": list(rates.values()),
            "speedup": [rate / 100 for rate in rates.values()],
            "chance_best": [float(rate == max(rates.values())) for rate in rates.values()],
        }
    )


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            {"MG_WFBP": 400.0, "WFBP_A2A": 200.0, "WFBP_PS": 600.0, "BSP_PS": 300.0},
            "On 8 GPUs of survey-10GbE without further machines take MG_WFBP: speed-up "
            "4.00 (50% of "
            "linear); WFBP_A2A is 50% behind. With 2 more machines as servers, WFBP_PS is 50% "
            "faster: speed-up 6.00.",
        ),
        (
            {"MG_WFBP": 600.0, "WFBP_A2A": 597.0, "WFBP_PS": 300.0},
            "On 8 GPUs of survey-10GbE without further machines take MG_WFBP: speed-up "
            "6.00 (75% of "
            "linear); WFBP_A2A ties with it. With 2 more machines as servers, WFBP_PS is 50% "
            "slower: they gain nothing.",
        ),
        (
            {"MG_WFBP": 600.0, "WFBP_PS": 603.0},
            "On 8 GPUs of survey-10GbE without further machines take MG_WFBP: speed-up "
            "6.00 (75% of "
            "linear). With 2 more machines as servers, WFBP_PS ties with it: they gain nothing.",
        ),
        (
            {"WFBP_PS": 600.0, "BSP_PS": 300.0},
            "On 8 GPUs of survey-10GbE with 2 more machines as servers take WFBP_PS: speed-up 6.00 "
            "(75% of linear); BSP_PS is 50% behind.",
        ),
        (
            {"MG_WFBP": 600.0},
            "On 8 GPUs of survey-10GbE take MG_WFBP: speed-up 6.00 (75% of linear).",
        ),
    ],
)
def test_advice_says_what_further_machines_gain(rates, said):
    assert recommended(rows_of(**rates), get_cluster("survey-10GbE")) == said


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
    count = len(METHODS)
    assert len(shown) == count + 2  # methods, the advice, and a remark
    for line in shown[:count]:
        assert " ".join(line.split()) in printed
    assert " ".join(shown[count:]) in " ".join(printed)


def test_numbers_may_be_listed_or_repeated():
    words = ["forecast", *BERT, "--method", "BSP-A2A", "--draws", "0"]
    listed = ddlnb(*words, "--gpus", "8, 16", check=True).stdout
    assert listed == ddlnb(*words, "--gpus", "8", "--gpus", "16", check=True).stdout
    assert listed.count("BSP-A2A") == 3  # two rows and the advice


def test_a_throughput_that_cannot_be_is_refused_before_anything_is_traced(monkeypatch):
    """Tracing BERT-Large takes seconds; torch need not even be there."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"throughput -5.0 must be a finite number above 0"):
        forecast("bert-large", "survey-10GbE", throughput=-5.0)


def test_a_forecast_without_a_profile_takes_a_throughput():
    words = ["--model", "small-conv", "--cluster", "v100-nvlink", "--method", "BSP-A2A"]
    told = ddlnb("forecast", *words, "--draws", "0", check=True)
    assert "data sheet of" in " ".join(told.stdout.split())  # and not the profile of a CPU
    done = ddlnb("forecast", *words, "--batch", "7", "--throughput", "1e4", "--draws", "0")
    assert done.returncode == 0, done.stderr
    assert "10000 samples/s" in done.stdout.replace("1e+04", "10000")


def test_a_timeline_is_a_trace_and_a_picture(tmp_path):
    out = tmp_path / "trace.json"
    done = ddlnb("timeline", *BERT, "--gpus", "8", "--out", str(out), check=True)
    assert json.loads(out.read_text())["traceEvents"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "latency" in done.stdout


def test_a_timeline_shows_one_worker_of_every_kind(tmp_path):
    out = tmp_path / "trace.json"
    slow = ["--slow", "1:2", "--gpus", "8", "--out", str(out)]
    done = ddlnb("timeline", *BERT, *slow, check=True)
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 4}
    assert "MG-WFBP: worker 0 waits" in done.stdout
    assert out.with_suffix(".png").exists()


def test_a_forecast_says_who_is_slow():
    done = ddlnb("forecast", *BERT, "--gpus", "8", "--draws", "0", "--slow", "3:2.5", check=True)
    assert "Unlike workers: worker 3 computes 2.5 times as long." in done.stdout


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
    """With the cells of one model on one network only: all of them take minutes."""
    head, *lines = FIG4_CELLS.read_text().splitlines(keepends=True)
    few = tmp_path / "cells.csv"
    few.write_text(head + "".join(line for line in lines if line.startswith("resnet50,64,10GbE")))
    monkeypatch.setattr(testbed, "calibrate_survey", partial(calibrate_survey, cells=few))
    folder = CLUSTERS
    before = {path: path.read_bytes() for path in folder.iterdir()}
    said = ddlnb("cluster", "fit", "survey", check=True).stdout
    assert "the prior" in said
    assert "the data" in said
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["forecast", "--model", "bert-large"], "give --cluster"),
        (["forecast", "--gpu", "V100"], "give --model"),
        (["forecast", *BERT, "--gpus", "64"], "64 workers exceed the 32 GPUs"),
        (["forecast", *BERT, "--gpus", "6"], "6 workers do not fill nodes of 4"),
        (["forecast", *BERT, "--method", "MGWFBP"], "did you mean 'MG-WFBP'"),
        (
            ["forecast", "--model", "bert-large", "--cluster", "two-cores-2-workers"],
            "ddlnb profile --model bert-large",
        ),
        (
            ["forecast", *BERT, "--gpus", "8", "--partition", "1B"],
            "336,226,108 messages or servers",
        ),
        (["forecast", *BERT, "--servers", "200000"], "more than 100,000 takes minutes"),
        (["forecast", *BERT, "--draws", "99999999"], "ask for fewer draws"),
        (["forecast", *BERT, "--draws", "-1"], "draws -1 must be a whole number, at least 0"),
        (["forecast", *BERT, "--csv", "."], "'.' is a folder; name a file in it"),
        (["forecast", *BERT, "--csv", "/proc/rows.csv"], "no file can be written in '/proc'"),
        (["forecast", *CONV, "--throughput", "1e300"], "FLOP/s, and RTX2080Ti computes"),
        (["forecast", *CONV, "--throughput", "1e-300"], "FLOP/s, and RTX2080Ti computes"),
        (["forecast", *BERT, "--throughput", "1", "--gpus", "6"], "6 workers do not fill nodes"),
        (
            ["forecast", *CONV, "--throughput", "1", "--batch", "99999999999"],
            "choose a batch of at",
        ),
        (["timeline", *BERT, "--iterations", "100000"], "spans, and viewers and pictures take"),
        (["timeline", *BERT, "--out", "/proc/trace.json"], "no file can be written in '/proc'"),
        (
            ["forecast", "scaling", *BERT, "--figure", "a.xyz"],
            "'a.xyz' must have a name in .png, .svg, .pdf",
        ),
        (
            ["layouts", "iteration", "--layout", "dp32", "--picture", "a.xyz"],
            "must have a name in .png",
        ),
        (
            ["layouts", "iteration", "--layout", "dp32", "--trace", "/tmp"],
            "name a file in it, such as",
        ),
        (
            ["layouts", "scale", "--model", "llama3-8b", "--gpu-price", "2"],
            "need --advise; leave out --gpu",
        ),
        (["timeline", *BERT, "--slow", "0-2"], "--slow '0-2' must be a rank and a factor"),
        (["forecast", *BERT, "--slow", "32:2"], "worker 32 is slowed down"),
        (["forecast", *BERT, "--slow", "0:0"], "compute factor 0.0 of worker 0 must be"),
        (["timeline", *BERT, "--servers", "0"], "servers 0 must be a whole number"),
        (["measure", "profile", "--model", "small-conv", "--batch", "10000000"], "GB of memory"),
        (
            ["measure", "profile", "--model", "small-conv", "--device", "tpu"],
            "no device 'tpu'; give cpu, or",
        ),
        (
            ["measure", "profile", "--model", "small-conv", "--device", "xpu"],
            "'xpu' needs a GPU, and torch",
        ),
        (["plan", "--model", "small-conv", "--method", "searched"], "cluster; give --cluster, or"),
        (["timeline", *BERT, "--out", "trace.txt"], "must have a name in .json"),
        (["survey", "check", "nowhere.csv"], "there is no table nowhere.csv"),
        (["cluster", "fit", "survey-10GbE"], "needs rows that were measured on it"),
        (["cluster", "fit", "nowhere"], "unknown cluster 'nowhere'"),
        (["cluster", "show", "survey-10Gb"], "did you mean 'survey-10GbE'"),
    ],
)
def test_wrong_words_get_one_line_and_status_2(words, said):
    done = ddlnb(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
