"""Measure what lockstep costs: the seconds of a run over those of its gradients alone.

python -m benchmarks.lockstep_overhead [--workers 32] [--steps 20] [--repetitions 5]

Runs and bare gradients alternate; bare gradients are those of the same batches and workers, and
nothing else. Making workers and evaluating are reported apart. The median ratio counts. Seconds are
CPU seconds, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

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
    start = time.process_time()
    for _ in range(steps):
        for worker in bare:
            worker.gradient()
    gradients = time.process_time() - start
    job, ours = job_and_workers(task, method, workers, steps)
    run = Lockstep(ours, job.method.synchronisation.loop, steps, rule=job.rule())
    start = time.process_time()
    run.run()
    return gradients, time.process_time() - start


def main() -> None:
    """Print seconds and ratios, task by task and method by method."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--task", action="append", choices=list(LEARNING_TASKS))
    parser.add_argument("--method", action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.workers} workers, {options.steps} steps, one thread, on {machine()}")
    for task in options.task or ("digits", "text"):
        for method in options.method or METHODS:
            pairs = [
                once(task, method, options.workers, options.steps)
                for _ in range(options.repetitions)
            ]
            ratios = sorted(run / gradients for gradients, run in pairs)
            start = time.process_time()
            train(task, method, workers=options.workers, steps=options.steps)
            whole = time.process_time() - start
            print(
                f"{task:8} {method:30} gradients {statistics.median(g for g, _ in pairs):.3f} s, "
                f"lockstep {statistics.median(r for _, r in pairs):.3f} s, "
                f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
                f"train() with evaluations {whole:.3f} s"
            )


if __name__ == "__main__":
    main()
