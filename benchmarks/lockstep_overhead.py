"""Measure what lockstep costs: the seconds of a run over those of its gradients alone.

python -m benchmarks.lockstep_overhead [--workers 32] [--steps 20] [--repetitions 5]

Runs and bare gradients alternate; bare gradients are those of the same batches and workers, and
nothing else. Making workers and evaluating are reported apart. The median ratio counts. Seconds are
CPU seconds, which a busy machine disturbs less.
"""

import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Literal

import pandas as pd
import torch

from benchmarks.command import command
from benchmarks.repeated import seconds_of
from ddlnb.files import machine
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.runs.train import train
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.catalogue import LEARNING_TASKS

METHODS = ("bsp", "bsp + top-k(0.01) + feedback", "local(8)", "asp")


def job_and_workers(task: str, method: str, workers: int, steps: int):
    """Return a job of `train` and its workers, with batches dealt only once."""
    job = training_settings(task, method, workers=workers, steps=steps).job()
    batches = job.batches()
    object.__setattr__(job, "batches", lambda: batches)
    return job, [job.worker(rank) for rank in range(workers)]


def once(task: str, method: str, workers: int, steps: int) -> tuple[float, float]:
    """Return the seconds of the gradients alone, and of the run in lockstep."""
    _, bare = job_and_workers(task, method, workers, steps)
    job, ours = job_and_workers(task, method, workers, steps)
    run = Lockstep(ours, job.method.synchronisation.loop, steps, rule=job.rule())

    def gradients() -> None:
        for _ in range(steps):
            for worker in bare:
                worker.gradient()

    clock = time.process_time
    return seconds_of(gradients, clock), seconds_of(run.run, clock)


def main(
    *,
    workers: int = 32,
    steps: int = 20,
    repetitions: int = 5,
    task: Sequence[Literal[*LEARNING_TASKS]] = ("digits", "text"),
    method: Sequence[str] = METHODS,
) -> None:
    """Print seconds and ratios, task by task and method by method."""
    torch.set_num_threads(1)
    print(f"{workers} workers, {steps} steps, one thread, on {machine()}")
    for what, how in product(task, method):
        pairs = [once(what, how, workers, steps) for _ in range(repetitions)]
        seconds = pd.DataFrame(pairs, columns=["gradients", "run"])
        ratio = seconds["run"] / seconds["gradients"]
        training = partial(train, what, how, workers=workers, steps=steps)
        print(
            f"{what:8} {how:30} gradients {seconds['gradients'].median():.3f} s, "
            f"lockstep {seconds['run'].median():.3f} s, "
            f"ratio {ratio.median():.2f} ({ratio.min():.2f} to {ratio.max():.2f}), "
            f"train() with evaluations {seconds_of(training, time.process_time):.3f} s"
        )


if __name__ == "__main__":
    command(main)
