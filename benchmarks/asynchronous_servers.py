"""Compare ASP on our parameter servers and on BytePS's: seconds of an iteration, and the loss.

python -m benchmarks.asynchronous_servers [--steps 200] [--repetitions 7] [--late 0 --late 0.02]

Worker 1 sleeps ``--late`` seconds before each of its gradients. Executors alternate, and so does
which comes first; the medians over the repetitions are printed, with the lowest and the highest in
parentheses. Each worker measures its own seconds, so the others show whether they wait for worker
1.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from benchmarks.command import command
from ddlnb.files import machine
from ddlnb.launch.ranks import Ranks
from ddlnb.training.executors.distributed import all_servers, train_on_ranks
from ddlnb.training.method import TrainingJob
from ddlnb.training.settings import training_settings

LATE = 1  # the rank that sleeps


@dataclass(frozen=True)
class Late:
    """One rank sleeps for ``seconds`` before every gradient."""

    seconds: float

    def __call__(self, rank: int, step: int) -> float:
        return self.seconds if rank == LATE else 0.0


def shown(values: pd.Series, unit: float = 1.0) -> str:
    """Return the median, the lowest and the highest value as text."""
    middle, low, high = values.agg(["median", "min", "max"]) / unit
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def measure(ranks: Ranks, job: TrainingJob, method: str, repetitions: int) -> None:
    """Print the seconds of one method with one delay, executor by executor."""
    rows = []
    for repetition in range(repetitions + 1):
        executors = list(all_servers())
        order = executors if repetition % 2 else executors[::-1]
        for executor in order:
            workers = train_on_ranks(ranks, job, 600, executor).workers
            row = {
                "executor": executor,
                "repetition": repetition,
                "in time": statistics.mean(
                    w.seconds / job.steps for w in workers if w.rank != LATE
                ),
                "late": workers[LATE].seconds / job.steps,
                "loss": statistics.mean(
                    loss for w in workers for loss in w.losses[-job.steps // 10 :]
                ),
            }
            rows.append(row)
    found = pd.DataFrame(rows).query("repetition > 0").set_index("repetition")  # 0 warms up
    print(f"{method}, worker {LATE} sleeps {job.delay.seconds * 1e3:g} ms")
    by = dict(list(found.groupby("executor", sort=False)))
    for executor, values in by.items():
        print(
            f"  {executor:12} in time {shown(values['in time'], 1e-3)}, "
            f"late {shown(values['late'], 1e-3)}, loss {shown(values['loss'])}"
        )
    for who in ("in time", "late"):
        print(f"  byteps over ours, {who}: {shown(by['byteps'][who] / by['distributed'][who])}")


def main(
    *,
    task: str = "digits",
    method: Sequence[str] = ("asp",),
    workers: int = 4,
    steps: int = 200,
    repetitions: int = 7,
    late: Sequence[float] = (0.0, 0.02),
) -> None:
    """Print a line per method, delay and executor, and the ratios of the pairs."""
    print(f"{task}, {workers} workers, {steps} steps, on {machine()}")
    print("ms per iteration of the workers in time and of the late one; loss of the last tenth")
    with Ranks(workers + 1) as ranks:
        for name in method:
            settings = training_settings(task, name, workers=workers, steps=steps)
            for seconds in late:
                measure(ranks, replace(settings.job(), delay=Late(seconds)), name, repetitions)


if __name__ == "__main__":
    command(main)
