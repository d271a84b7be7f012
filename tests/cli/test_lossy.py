"""`ddlnb lossy`, as a person types it."""

from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan_file import read_plan
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.workloads.workload import read_profile
from tests.command_line import ddlnb

WORDS = ["--model", "bert-base", "--cluster", "survey-10GbE"]


def rows_of(*words):
    return pd.read_csv(StringIO(ddlnb("forecast", "lossy", *words, "--csv", check=True).stdout))


def test_methods_stand_beside_the_best_lossless_ones():
    words = [*WORDS, "--gpus", "8", "--gpus", "16", "--method", "bsp + top-k(0.01) + feedback"]
    words += ["--method", "asp"]
    rows = rows_of(*words)
    assert list(rows["gpus"]) == [8] * 4 + [16] * 4
    for gpus, part in rows.groupby("gpus"):
        alone, served, top_k, asp = part.to_dict("records")
        assert METHODS[alone["method"]].architecture == "A2A"
        assert METHODS[served["method"]].architecture == "PS"
        assert (top_k["server_machines"], asp["server_machines"]) == (0, gpus // 4)
        for row, best in ((top_k, alone), (asp, served)):
            ratio = best["iteration_seconds"] / row["iteration_seconds"]
            assert row["over_best_lossless"] == pytest.approx(ratio)
        assert top_k["over_best_lossless"] > 1
        assert 0 < top_k["compression_seconds"] < 1  # by the sheet, unless a profile is named
    shown = " ".join(ddlnb("forecast", "lossy", *words, check=True).stdout.split())
    assert "compression by the GPU's data sheet" in shown
    assert "give --curves" in shown
    assert "Parameter servers run on machines of their own: ByteScheduler-PS; asp on PS." in shown


@pytest.mark.thorough
def test_shorter_sequences_take_less_computation():
    words = ["--model", "gpt2", "--machine", "p4d", "--nodes", "2", "--method", "local(8)"]
    whole, half = rows_of(*words), rows_of(*words, "--sequence", "512")
    assert (half["compute_seconds"] < 0.7 * whole["compute_seconds"]).all()
    assert list(half["bytes_sent"]) == list(whole["bytes_sent"])


def test_what_does_not_overlap_is_named_and_stragglers_are_taken():
    words = [*WORDS, "--gpus", "8", "--method", "local(8)", "--method", "bsp + fp16"]
    slow = ["--straggler", "one-slow(3)"]
    shown = " ".join(ddlnb("forecast", "lossy", *words, *slow, check=True).stdout.split())
    assert "overlaps none: local(8) on A2A." in shown
    assert "workers slowed down by one-slow(3)" in shown
    even, uneven = rows_of(*words), rows_of(*words, *slow)
    assert list(even["source"].str.count("compression")) == [0, 0, 0, 1]
    longer = uneven["iteration_seconds"] - even["iteration_seconds"]
    assert (longer > even["compute_seconds"]).all()  # the lossless ones wait, too
    assert (uneven["waiting_seconds"] > longer / 2).all()


@pytest.mark.parametrize(
    "command", [["forecast", "lossy", "--method", "local(8)"], ["timeline", "--iterations", "1"]]
)
def test_what_no_gpu_holds_is_said(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--cluster", "survey-10GbE", "--model", "resnet50", "--gpus", "8"]
    fits, too_large = (
        ddlnb(*command, *words, *more, check=True)
        for more in ([], ["--batch", "4096", "--throughput", "250"])
    )
    assert "does not fit" not in fits.stderr
    assert "of 11 GiB. It does not fit: no GPU here reaches these times." in too_large.stderr


def made_up(path: Path) -> Path:
    rows = [
        ("digits", method, 8, seed, step, 1.0 - step / steps, 0.0)
        for method, steps in (("bsp on A2A", 100), ("local(8) on A2A", 400))
        for seed in (0, 1)
        for step in range(0, steps + 1, 10)
    ]
    columns = ["task", "method", "workers", "seed", "step", "test_loss", "averaging_bytes_sent"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path


def test_curves_make_verdicts_on_the_base_of_every_other_way_of_asking(tmp_path):
    """Without curves it was WFBP-A2A, with curves MG-WFBP, and neither was said."""
    curves = made_up(tmp_path / "curves.csv")
    words = [*WORDS, "--curves", str(curves), "--target", "0.5"]
    said = ddlnb("forecast", "lossy", *words, check=True).stdout
    assert "iterations measured on digits" in said
    assert "do not relax synchronisation here" in said
    assert "the dense best; it needs 4.00 times the iterations" in said
    assert "over seeds, widened by the steps between two evaluations" in said
    assert "messages of bsp with compression as of MG-WFBP" in " ".join(said.split())
    method = "bsp + fp16 on A2A"
    curves.write_text(curves.read_text().replace("local(8) on A2A", method))
    for base, more in (("MG-WFBP", []), ("WFBP-A2A", ["--base", "WFBP-A2A"])):
        tables = (
            rows_of(*WORDS, *more, "--gpus", "8", "--method", method),
            rows_of(*WORDS, *more, "--curves", str(curves), "--target", "0.5"),
        )
        expected = iteration_cost(read_profile("bert-base_b64_rtx2080ti"), "survey-10GbE", method,
                                  base=base, workers=8, compression="sheet")  # fmt: skip
        for table in tables:
            seconds = table.loc[table["method"] == method, "iteration_seconds"].item()
            assert seconds == pytest.approx(expected.iteration_seconds)


EIGHT = """
about: Eight machines of one core each, on 1 Gb/s Ethernet
network: 1 Gb/s Ethernet
nodes: 8
gpus_per_node: 1
hardware: cpu-1thread
effects:
  between_bandwidth: 1 Gb/s
  between_latency: 50 us
"""


@pytest.mark.thorough
def test_a_compressed_plan_is_kept_and_priced_beside_fixed_methods(tmp_path):
    cluster, kept = tmp_path / "eight.yaml", tmp_path / "plan.json"
    cluster.write_text(EIGHT)
    on = ["--model", "small-transformer", "--batch", "16", "--cluster", str(cluster)]
    on += ["--compression", "cpu-1thread"]
    sent = ["--sent", "top-k(0.01) + feedback", "--mixed"]
    said = ddlnb("plan", *on, *sent, "--method", "searched", "--out", str(kept), check=True).stdout
    assert "best method bsp + top-k(0.01) + feedback as " in said
    assert "dense, searched: " in said
    plan = read_plan(kept)
    assert 0 < sum(map(bool, plan.compressions)) < len(plan.messages)
    priced = ["--method", "bsp + top-k(0.01) + feedback", "--plan", str(kept)]
    rows = rows_of(*on, *priced).set_index("method")
    searched = rows.loc["searched: top-k(0.01) + feedback"]
    fixed = rows.loc["bsp + top-k(0.01) + feedback on A2A"]
    assert searched["iteration_seconds"] < fixed["iteration_seconds"]
    assert searched["compression_seconds"] < fixed["compression_seconds"]
    assert plan.digest in searched["source"]


@pytest.mark.parametrize(
    ("damage", "more", "told"),
    [
        (("0.5,", "low,"), [], "column 'test_loss' of the curves has"),
        ((",8,", ",eight,"), [], "column 'workers' of the curves has 'eight'"),
        ((",8,", ",,"), [], "column 'workers' of the curves has empty cells"),
        (("0,0.0\n", "0,0.0\n"), ["--gpus", "32"], "leave out --gpus"),
        (("digits", "digits"), ["--target", "10"], "--target 10 is reached before training"),
        (("digits", "digits"), ["--target", "nan"], "--target nan must be a finite loss"),
        (("digits", "digits"), ["--base", "BSP-PS"], "goes through servers"),
        (("digits", "digits"), ["--base", "MGWFBP"], "did you mean 'MG-WFBP'"),
    ],
)
def test_curves_that_say_nothing_are_refused_in_a_line(tmp_path, damage, more, told):
    curves = made_up(tmp_path / "curves.csv")
    text = curves.read_text().replace("local(8) on A2A", "bsp + fp16 on A2A")
    curves.write_text(text.replace(*damage))
    target = [] if "--target" in more else ["--target", "0.5"]
    done = ddlnb("forecast", "lossy", *WORDS, "--curves", str(curves), *target, *more)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert told in " ".join(done.stderr.split())


def test_a_title_speaks_of_compression_only_where_there_is_some():
    words = ["forecast", "lossy", "--model", "resnet50", "--cluster", "survey-10GbE", "--gpus", "8"]
    plain = ddlnb(*words, "--method", "local(4)", check=True).stdout
    assert "compression" not in plain.splitlines()[0]
    lossy = ddlnb(*words, "--method", "bsp + qsgd", "--method", "local(4)", check=True).stdout
    assert "compression by the GPU's data sheet" in " ".join(lossy.split())
