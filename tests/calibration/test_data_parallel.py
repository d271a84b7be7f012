"""Published data-parallel runs, asked as questions by hardware name."""

import pytest

from ddlnb.calibration.data_parallel import LEFT_OUT, ONE, SEVERAL, TABLES, forecasts, runs


@pytest.fixture(scope="module")
def asked():
    return runs()


def test_every_table_gives_runs_of_known_hardware_without_what_is_left_out(asked):
    assert {run.source for run in asked} == set(TABLES)
    for run in asked:
        assert run.on.workers == run.gpus
        assert not any(name.lower() in run.model for name in LEFT_OUT)


def test_rules_and_not_hands_name_what_input_pipelines_limit(asked):
    for run in asked:
        eight = run.source == "lambda" and run.gpus == 8 and "GeForce" in run.group
        without = run.source == "lambda" and run.gpus > 1 and "XLA" not in run.group
        eight = eight or (without and run.model.startswith("resnet"))
        many = run.source == "dlperf" and run.gpus >= 16 and "BERT" not in run.group
        assert bool(run.limited) == ((eight or many) and run.precision == "amp/fp16")


def test_one_gpu_is_asked_by_its_sheet_and_several_by_the_rate_of_one(asked):
    of_one = [run for run in asked if run.source == "pytorch ddp" and run.gpus in (1, 8)]
    rows = forecasts([run for run in of_one if run.model == "resnet50"], draws=20)
    assert set(rows["kind"]) == {ONE, SEVERAL}
    several = rows[rows["kind"] == SEVERAL]
    assert (several["forecast"] <= several["trivial"]).all()  # no better than linear scaling
    assert (rows["low"] <= rows["forecast"]).all()
    assert (rows["forecast"] <= rows["high"]).all()


def test_a_second_node_costs_strategies_of_tensorflow_the_same_at_every_batch_and_precision(asked):
    """This is why they are forecast with gradients in fp32, at the end and over TCP."""
    seconds = {
        (run.group, run.gpus): run.batch * run.gpus / run.measured
        for run in asked
        if run.group.startswith("TensorFlow/bert")
    }
    second = [seconds[group, 16] - seconds[group, 8] for group, gpus in seconds if gpus == 16]
    assert len(second) == 11
    assert max(second) < 1.25 * min(second)
    assert {run.network for run in asked if run.group.startswith("TensorFlow/bert")} == {"100GbE"}


def test_forecasts_hold_at_thousands_of_gpus(asked):
    """Published ResNet-50 on 512 to 3,584 GPUs: what software costs may not grow by each rank."""
    many = [run for run in asked if run.gpus >= 512 and run.model == "resnet50"]
    assert max(run.gpus for run in many) == 3584
    rows = forecasts(many, draws=20)
    assert (rows["forecast"] / rows["measured"] - 1).abs().max() < 0.2
    assert rows["measured"].between(rows["low"], rows["high"]).all()
