"""Compare ASP on our parameter servers and on BytePS's: seconds of an iteration, and the loss.

python -m benchmarks.asynchronous_servers [--steps 200] [--repetitions 7] [--late 0 --late 0.02]

Worker 1 sleeps ``--late`` seconds before each of its gradients. Executors alternate, and so does
which comes first; the medians over the repetitions are printed, with the lowest and the highest in
parentheses. Each worker measures its own seconds, so the others show whether they wait for worker
1.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace

from ddlnb.files import machine
from ddlnb.launch.ranks import Ranks
from ddlnb.training.executors.distributed import SERVERS, train_on_ranks
from ddlnb.training.settings import training_settings

LATE = 1  # the rank that sleeps


@dataclass(frozen=True)
class Late:
    """One rank sleeps for ``seconds`` before every gradient."""

    seconds: float

    def __call__(self, rank: int, step: int) -> float:
        return self.seconds if rank == LATE else 0.0


def shown(values: list[float], unit: float = 1.0) -> str:
    """Return the median, the lowest and the highest value as text."""
    low, middle, high = (f(values) / unit for f in (min, statistics.median, max))
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def main() -> None:
    """Print a line per method, delay and executor, and the ratios of the pairs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--task", default="digits")
    parser.add_argument("--method", action="append")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--late", type=float, action="append", help="seconds; repeatable")
    given = parser.parse_args()
    print(f"{given.task}, {given.workers} workers, {given.steps} steps, on {machine()}")
    print("ms per iteration of the workers in time and of the late one; loss of the last tenth")
    with Ranks(given.workers + 1) as ranks:
        for method in given.method or ["asp"]:
            for late in given.late or [0.0, 0.02]:
                measure(ranks, method, late, given)


def measure(ranks: Ranks, method: str, late: float, given: argparse.Namespace) -> None:
    """Print the seconds of one method with one delay, executor by executor."""
    settings = training_settings(given.task, method, workers=given.workers, steps=given.steps)
    job = replace(settings.job(), delay=Late(late))
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for repetition in range(given.repetitions + 1):
        order = list(SERVERS) if repetition % 2 else list(SERVERS)[::-1]
        for executor in order:
            workers = train_on_ranks(ranks, job, 600, executor).workers
            if repetition == 0:
                continue  # warms up
            in_time = [w.seconds / given.steps for w in workers if w.rank != LATE]
            last = [loss for w in workers for loss in w.losses[-given.steps // 10 :]]
            found[executor]["in time"].append(statistics.mean(in_time))
            found[executor]["late"].append(workers[LATE].seconds / given.steps)
            found[executor]["loss"].append(statistics.mean(last))
    print(f"{method}, worker {LATE} sleeps {late * 1e3:g} ms")
    for executor, values in found.items():
        print(
            f"  {executor:12} in time {shown(values['in time'], 1e-3)}, "
            f"late {shown(values['late'], 1e-3)}, loss {shown(values['loss'])}"
        )
    for who in ("in time", "late"):
        pairs = zip(found["byteps"][who], found["distributed"][who], strict=True)
        print(f"  byteps over ours, {who}: {shown([theirs / ours for theirs, ours in pairs])}")


if __name__ == "__main__":
    main()
