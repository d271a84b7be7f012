"""Logs of training: which number is what, without warm-up."""

import pytest

from ddlnb.errors import InputError
from ddlnb.traces.training_logs import read_training_log

MEGATRON = " iteration {step}/ 500 | elapsed time per iteration (ms): {ms} | throughput per GPU \
(TFLOP/s/GPU): 401.2 | global batch size:  128 | lm loss: 2.1E+00 |\n"
NANOTRON = "11/20/2026 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 500 | consumed_tokens: 1.05M | \
elapsed_time_per_iteration_ms: 1.2K | tokens_per_sec: 873K | tokens_per_sec_per_gpu: 54.6K | \
model_tflops_per_gpu: 390 |\n"
TITAN = (
    "\x1b[31mstep: {step}\x1b[39m  loss: 8.1  memory: 47.50GiB(60.2%)  tps: 7,283  tflops: 421.77  \
mfu: 42.65%\n"
)
DEEPSPEED = "[INFO] epoch=0/micro_step=1/global_step={step}, RunningAvgSamplesPerSec=11.0, \
CurrSamplesPerSec=12.8, MemAllocated=1.2GB, MaxMemAllocated=33.5GB\n"
TRAINER = (
    "{{'train_runtime': 99.1, 'train_samples_per_second': 51.2, 'train_steps_per_second': 0.4}}\n"
)
BAR = " 10%|#  | {step}/500 [00:12<10:00,  1.25s/it]\r"


def log_of(tmp_path, text):
    (tmp_path / "train.log").write_text(text)
    return read_training_log(tmp_path / "train.log")


@pytest.mark.parametrize(
    ("line", "seconds", "said"),
    [
        (MEGATRON, 2.5, {"tflops": 401.2, "batch": 128}),
        (NANOTRON, 1.2, {"tokens_per_s": 873e3, "tokens_per_s_per_gpu": 54.6e3, "tflops": 390}),
        (TITAN, 128 * 4096 / 8 / 7283, {"mfu": 0.4265, "memory_gib": 47.5}),
        (DEEPSPEED, 10.0, {"memory_gib": 33.5}),
        (TRAINER, 2.5, {}),
        (BAR, 1.25, {}),
    ],
)
def test_a_step_takes_what_its_log_says(line, seconds, said, tmp_path):
    found = log_of(tmp_path, "".join(line.format(step=step, ms=2500) for step in range(20)))
    assert found.seconds(128, 128 * 4096, 8) == pytest.approx(seconds)
    assert {name: found.medians[name] for name in said} == pytest.approx(said)
    assert found.steps == 20


def test_the_first_steps_are_warm_up_and_late_ones_are_told(tmp_path):
    times = [90_000, 60_000, *[2000] * 16, 3000, 3000]
    lines = [MEGATRON.format(step=at, ms=ms) for at, ms in enumerate(times)]
    found = log_of(tmp_path, "".join(lines))
    assert found.medians["seconds"] == 2.0
    assert found.late == pytest.approx(1.5)


def test_a_progress_bar_is_one_measure_in_both_its_units_and_that_of_loading_is_none(tmp_path):
    loading = "Loading checkpoint shards: 100%|##| 4/4 [00:10<00:00,  2.52s/it]\r"
    slow = BAR.format(step=1)
    quick = "".join(f" 10%|#  | {step}/500 [00:12<10:00,  4.00it/s]\r" for step in range(2, 40))
    found = log_of(tmp_path, loading + slow + quick)
    assert found.seconds(128, 128 * 4096, 8) == 0.25
    assert found.steps == 39
    steps = "".join(MEGATRON.format(step=step, ms=2500) for step in range(20))
    assert log_of(tmp_path, loading + steps).seconds(128, 128 * 4096, 8) == 2.5


def test_a_log_without_steps_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no lines of steps"):
        log_of(tmp_path, "starting\nloss: 3\n")
    with pytest.raises(InputError, match="no seconds, steps, samples or tokens"):
        log_of(tmp_path, "global batch size: 12\n").seconds(1, 1, 1)
