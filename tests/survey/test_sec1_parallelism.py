"""Three ways of sharing end with the parameters of one worker, and send what formulas say."""

from pathlib import Path

import pandas as pd
import pytest

from ddlnb.engines.settings import TRAINING
from ddlnb.engines.worker import run_job
from ddlnb.launch.ranks import Ranks
from ddlnb.survey.sec1_parallelism import (
    break_even_batch,
    compare_parallelism,
    data_parallel_job,
    mlp_task,
    parallelism_findings,
    traffic,
    train_neurons,
    train_stage,
)

BATCH = 64
HEADERS = 0.05  # of the traffic: gloo adds about 144 bytes to a message
COUNTER = Path("/proc/self/io")


@pytest.mark.thorough(but=1)
@pytest.mark.item("A04", how="measured")
@pytest.mark.ranks
@pytest.mark.parametrize("workers", [2, 3])
def test_every_way_of_sharing_trains_what_one_worker_trains(workers):
    rows = compare_parallelism(workers=workers, batch=66, steps=4)
    split, stages, data = (rows.loc[name] for name in rows.index[1:])
    whole = rows.loc["one worker"]
    assert (rows["difference"] <= 1e-6).all()
    assert (rows["last_loss"] < rows["first_loss"]).all()
    assert rows["samples"].tolist() == [66, 66, 66, 66 // workers]
    assert rows["bytes_sent"].tolist() == rows["formula_bytes"].tolist()
    # Parameters, their gradients and momentum are 12 bytes per parameter.
    assert rows["state_bytes"].tolist() == (12 * rows["parameters"]).tolist()
    assert split["state_bytes"] < stages["state_bytes"] < data["state_bytes"]
    # The loss keeps one number that is not of a sample.
    assert data["activation_bytes"] - 4 == (whole["activation_bytes"] - 4) / workers
    assert split["activation_bytes"] > whole["activation_bytes"]  # whole inputs, and own outputs
    assert split["exchanges"] == 7  # outputs of four layers up, gradients of three down
    # 96, 64, 48 and 10 neurons divide by 2; of 64 and 10 the busiest of 3 has 22 and 4.
    assert (split["imbalance"] == 1) == (workers == 2)
    assert split["speedup_bound"] <= data["speedup_bound"] == pytest.approx(workers)
    assert stages["speedup_bound"] == 1


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.skipif(not COUNTER.exists(), reason="this system does not count what is written")
def test_the_kernel_counts_the_bytes_of_the_formulas():
    expected = traffic(3, BATCH)
    with Ranks(3, imports=(__name__, *TRAINING)) as ranks:
        found = {
            "model parallelism": _written(ranks, train_neurons, _words),
            "pipeline of layers": _written(ranks, train_stage, _words),
            "data parallelism": _written(
                ranks, run_job, lambda steps: (data_parallel_job(3, BATCH, steps),)
            ),
        }
    for name, written in found.items():
        assert expected[name] <= written <= (1 + HEADERS) * expected[name], name


def _words(steps: int) -> tuple:
    return mlp_task(), BATCH, steps


def _written(ranks: Ranks, train, words) -> float:
    """The bytes per step that all ranks write, by runs of two lengths: setting up cancels."""
    lengths = (4, 4, 16)  # the first also writes what only a first run does
    _, short, long = (sum(ranks.run(_counted, train, words(steps))) for steps in lengths)
    return (long - short) / (16 - 4)


def _counted(context, train, words) -> int:
    before = _bytes_written()
    train(context, *words)
    return _bytes_written() - before


def _bytes_written() -> int:
    counts = dict(line.split(": ") for line in COUNTER.read_text().splitlines())
    return int(counts["wchar"])


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_above_the_break_even_batch_split_neurons_send_more_than_data_parallelism(workers):
    at = int(break_even_batch())
    below, above = traffic(workers, at), traffic(workers, at + 1)
    assert below["model parallelism"] < below["data parallelism"]
    assert above["model parallelism"] > above["data parallelism"]


def test_findings_are_computed_from_the_rows():
    columns = {
        "workers": [1, 2, 2, 2],
        "samples": [64, 64, 64, 32],
        "state_bytes": [1000, 510, 830, 1000],
        "activation_bytes": [1000, 1130, 790, 500],
        "bytes_sent": [0, 5000, 7000, 9000],
        "exchanges": [0, 7, 1, 3],
        "imbalance": [1, 1.25, 1.75, 1],
        "speedup_bound": [1, 1.6, 1, 2],
        "difference": [0, 1e-8, 0, 3e-8],
    }
    names = ["one worker", "model parallelism", "pipeline of layers", "data parallelism"]
    said = parallelism_findings(pd.DataFrame(columns, index=names))
    words = (
        "more than 3.0e-08",
        "keeps 51 % of one worker's parameters",
        "113 %, 79 % and 50 %",
        "5 KB, 7 KB and 9 KB, with 7 times, 1 time and 3 times",
        f"at {break_even_batch():.0f} samples",
        "1.25, 1.75 and 1.00 times the mean",
        "1.60, 1.00 and 2.00 times as fast",
    )
    assert [each for each in words if each not in said] == []
