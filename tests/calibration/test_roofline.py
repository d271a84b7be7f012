"""The fit of what programs reach of data sheets: recovery, and what is kept."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.iterations_on_gpu import (
    FITTED,
    GPU,
    MEASURED,
    MEASURED_ON,
    ROWS,
    TOGETHER,
    WORK,
    blind,
    compared,
    summary,
)
from benchmarks.roofline_fit import (
    HOST,
    IMAGES,
    MEMORY,
    fit_roofline,
    leave_out,
    measured,
    on_one_h100,
    total_work,
)
from ddlnb.files import HARDWARE
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.forecast.frameworks import sustained_share
from ddlnb.workloads.roofline import MATRIX_CONVOLUTIONS, efficiency_of
from ddlnb.workloads.tracing import trace

# Generations whose runs are nearly all of one program: its factors take the place of theirs.
CONFOUNDED = ("matrix units, Ada", "matrix units, Blackwell")


@pytest.fixture(scope="module")
def observed():
    return measured()


@pytest.fixture(scope="module")
def true(observed):
    return fit_roofline(observed)


@pytest.mark.thorough
def test_the_fit_recovers_what_made_the_seconds(observed, true):
    again = fit_roofline([replace(one, seconds=true.seconds(one)) for one in observed])
    for name in true.names:
        value, low, high = again.interval(name)
        if name in CONFOUNDED:
            assert max(low, true.interval(name)[1]) < min(high, true.interval(name)[2]), name
            continue
        assert low < true.interval(name)[0] < high, name
        if name.startswith("matrix units, ") and name != MATRIX_CONVOLUTIONS:
            assert value == pytest.approx(true.interval(name)[0], rel=0.1), name


@pytest.mark.thorough
def test_the_kept_numbers_are_those_of_the_fit(true):
    kept = efficiency_of(get_gpu("A100"), "bf16")
    images = efficiency_of(get_gpu("H100"), "bf16", convolves=True)
    for name, known in (
        ("matrix units, Ampere", kept.matrix), (MEMORY, kept.memory), (HOST, kept.host),
        (IMAGES, images.memory), (MATRIX_CONVOLUTIONS, images.matrix),
    ):  # fmt: skip
        expected = pytest.approx((known.value, known.low, known.high), rel=0.01)
        assert true.interval(name) == expected


@pytest.mark.thorough
def test_the_kept_rows_are_those_that_were_left_out(observed):
    observations = [one for one in observed if one.source != "foundry"]
    rows = pd.read_csv(HARDWARE / "roofline_left_out.csv")
    assert len(rows) == 3 * len(observed)
    fresh = pd.DataFrame(leave_out(observations))
    assert set(fresh["run"]) <= set(rows["run"])
    assert fresh["estimated_seconds"].gt(0).all()


def test_iterations_of_an_h100_do_not_tell_what_hopper_sustains():
    """Without nanotron's runs its interval holds Ampere's, and what is taken for Hopper."""
    fit = fit_roofline(on_one_h100())
    hopper, ampere = (fit.interval(f"matrix units, {name}") for name in ("Hopper", "Ampere"))
    assert hopper == pytest.approx((0.70, 0.51, 0.95), abs=0.01)
    assert ampere == pytest.approx((0.72, 0.64, 0.82), abs=0.01)
    taken = [sustained_share(get_gpu(name), "bf16") for name in ("H100", "A100")]
    for ratio in (1, taken[0] / taken[1]):
        assert hopper[1] < ratio * ampere[0] < hopper[2]


@pytest.mark.thorough
def test_models_with_convolutions_are_closer_where_some_take_fewer_multiplications(observed):
    runs = [one for one in observed if one.convolves]
    plain = [
        replace(one, work=tuple(replace(part, winograd_flops=0.0) for part in one.work))
        for one in runs
    ]
    errors = []
    for observations in (runs, plain):
        rows = pd.DataFrame(leave_out(observations)).query("left_out == 'model'")
        rows = rows[rows["gpu"].eq("H100-SXM") & rows["precision"].eq("fp32")]
        errors.append((rows["estimated_seconds"] / rows["measured_seconds"] - 1).abs())
    fewer, all_of_them = errors
    assert fewer.median() < 0.7 * all_of_them.median()
    assert fewer.max() < 0.7 * all_of_them.max()


def test_measured_iterations_are_in_the_intervals_of_today_and_the_blind_ones_are_kept():
    measured_rows = pd.read_csv(MEASURED / ROWS)
    fitted = compared(pd.read_csv(FITTED), measured_rows)
    unseen = compared(pd.read_csv(blind(GPU)), measured_rows)
    ours = fitted[fitted["precision"] != "amp"]
    assert len(ours) == 48
    assert ours["inside"].mean() >= 0.9
    assert summary(fitted)["median_error"].max() < 0.15
    assert summary(unseen)["median_error"].round(2).to_list() == [0.08, 0.13, 0.34, 0.37, 0.17]


def test_blind_forecasts_of_a_gpu_known_by_its_data_sheet_hold_and_beat_the_trivial_one():
    rows = compared(pd.read_csv(blind("H200")), pd.read_csv(MEASURED_ON["H200"] / ROWS))
    assert len(rows) == 93
    found = summary(rows)
    assert found["median_error"].round(3).to_list() == [0.08, 0.137, 0.149, 0.245, 0.118]
    together = found.loc[TOGETHER]
    assert together["inside"] == pytest.approx(0.886)
    assert together["median_error"] < 0.3 * together["constant_utilisation"]
    key = ["model", "batch", "precision"]
    known = rows.merge(pd.read_csv(MEASURED / ROWS).dropna(subset="seconds")[key], on=key)
    ours = rows[rows["precision"] != "amp"]
    seen = ours.set_index(key).index.isin(known.set_index(key).index)
    assert seen.sum() == 48
    assert ours[seen]["error"].abs().median() == pytest.approx(0.1, abs=0.005)
    assert ours[~seen]["error"].abs().median() == pytest.approx(0.27, abs=0.005)
    assert ours[~seen]["inside"].sum() == 15


def test_memory_of_measured_iterations_is_that_of_the_passes_and_of_gradients_held_throughout():
    rows = compared(pd.read_csv(FITTED), pd.read_csv(MEASURED / ROWS)).dropna(subset="memory_error")
    assert set(rows["precision"]) == {"fp32", "tf32", "bf16"}
    assert rows["memory_error"].abs().median() < 0.04
    logits = rows.query("model == 'gpt2' or model == 'bert-base'")
    assert logits["memory_error"].abs().max() < 0.1
    short = rows["model"].eq("bert-large") & rows["batch"].eq(8)  # gradients, not yet there at peak
    fast = rows["precision"].eq("fp32")  # cuDNN takes a work space that nobody else has
    assert rows[~short & ~fast]["memory_error"].between(-0.06, 0.12).all()


def test_traced_work_is_that_of_the_fit():
    kept = pd.read_csv(MEASURED / WORK).set_index(["model", "batch", "precision"])
    workload = trace("bert-base", 64)
    for precision in ("fp32", "bf16"):
        for name, value in total_work(workload, precision).items():
            assert kept.loc[("bert-base", 64, precision), name] == pytest.approx(value, rel=1e-4)
