"""Who waits for whom, how far ahead, how stale: synchronisations on a virtual clock.

Workers have no values here; they run the loops and the server's rules of the methods themselves. A
gradient takes what a straggler's law says, a push and its answer, or a collective, a constant.
Source: survey of Shi et al. 2020, section 3.1.2 and Fig. 3 (1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ddlnb.errors import require, require_whole
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import Rule
from ddlnb.training.executors.activity import Activity, activity_table
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.dry_run import dry_workers
from ddlnb.training.executors.links import Link
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.executors.stragglers import Straggler, get_straggler
from ddlnb.training.method import TrainingMethod, training_method

if TYPE_CHECKING:
    import pandas as pd

SERVED = ("ssp(3) on PS", "dssp(1, 8) on PS", "r2sp on PS", "asp on PS")  # push by push
METHODS = ("bsp on PS", *SERVED, "local(4) on PS")
BOUNDS = (0, 1, 2, 3, 4, 6, 8, 12)
RANDOM = ("log-normal(0.5)", "exponential(0.5)")
MESSAGE_SECONDS = 0.1
SOURCE = "simulated"


def virtual_clock(
    straggler: str | Straggler, message_seconds: float = MESSAGE_SECONDS, seed: int = 0
) -> Clock:
    """Gradients by this law, drawn from the seed if it is random; messages take a constant.

    ``message_seconds`` are those of a push and its answer together, of one collective, or of one
    of several messages that a worker sends one after the other.
    """
    require(message_seconds >= 0, f"message_seconds {message_seconds!r} must not be negative")
    law = get_straggler(straggler).drawn_from(seed)
    return Clock(law, partial(_message, message_seconds), partial(_link, message_seconds))


def _message(seconds: float, kind: type, bytes_: int, workers: int) -> float:
    return seconds / 2 if kind is PushPull else seconds  # asked for on the way up and down


def _link(seconds: float, sender: int, receiver: int) -> Link:
    return Link(sender, latency=seconds)


@dataclass(frozen=True)
class Timed:
    """What workers without values did: activities, the staleness of pushes, when steps were done.

    ``done`` are (seconds, rank, iterations it has done), in order of time; ``staleness`` is empty
    where no server applies pushes one by one.
    """

    method: str
    workers: int
    steps: int
    activities: tuple[Activity, ...]
    staleness: tuple[int, ...]
    done: tuple[tuple[float, int, int], ...]

    @property
    def waiting_seconds(self) -> float:
        """Seconds per gradient in which a worker did not compute, its messages' included."""
        waits = sum(one.end - one.start for one in self.activities if not one.computes)
        return waits / (self.workers * self.steps)

    @property
    def lead(self) -> int:
        """By how many iterations the fastest worker was ahead of the slowest, at most."""
        counts, most = dict.fromkeys(range(self.workers), 0), 0
        for number, (now, rank, done) in enumerate(self.done):
            counts[rank] = done
            last = number + 1 == len(self.done)
            if last or self.done[number + 1][0] > now:  # all that happens at an instant together
                most = max(most, max(counts.values()) - min(counts.values()))
        return most

    @property
    def mean_staleness(self) -> float:
        """The mean over all pushes; NaN of none."""
        return sum(self.staleness) / len(self.staleness) if self.staleness else math.nan

    @property
    def iteration_seconds(self) -> float:
        """Seconds in which the workers together do one step each, while all of them have work."""
        until = min(now for now, _, done in self.done if done == self.steps)
        return until * self.workers / sum(now <= until for now, _, _ in self.done)


def timed(method: str | TrainingMethod, clock: Clock, workers: int = 4, steps: int = 24) -> Timed:
    """So many steps of every worker of this method on this clock."""
    method = training_method(method)
    require_whole(workers=workers, steps=steps)
    team = dry_workers(method, [(16,)], workers)
    rule: Rule | None = method.rule(workers, team[0].pieces())
    done: list[tuple[float, int, int]] = []

    def on_step(rank: int, count: int, now: float) -> None:
        done.append((now, rank, count))

    run = Lockstep(
        team,
        method.synchronisation.loop,
        steps,
        rule=rule,
        clock=clock,
        on_step=on_step,
        recording=True,
    )
    with torch.device("meta"):
        run.run()
    staleness = tuple(getattr(rule, "staleness", ()))
    return Timed(str(method), workers, steps, tuple(run.activities), staleness, tuple(done))


def activities(
    methods: Sequence[str] = METHODS,
    straggler: str = "one-slow(2)",
    *,
    workers: int = 4,
    steps: int = 12,
    message_seconds: float = MESSAGE_SECONDS,
) -> pd.DataFrame:
    """Return the `activity_table` of every method, one after the other."""
    import pandas as pd

    clock = virtual_clock(straggler, message_seconds)
    runs = [timed(method, clock, workers, steps) for method in methods]
    require(bool(runs), "there are no methods to run")
    return pd.concat(
        [activity_table(run.activities, run.method) for run in runs], ignore_index=True
    )


def comparison(
    methods: Sequence[str] = METHODS,
    stragglers: Sequence[str] = ("constant", "one-slow(2)", *RANDOM),
    *,
    workers: int = 8,
    steps: int = 60,
    message_seconds: float = MESSAGE_SECONDS,
) -> pd.DataFrame:
    """One row per straggler's law and method: waiting, lead, staleness, seconds per iteration.

    ``waiting_seconds`` are per gradient and include messages; ``staleness`` is a mean, NaN where
    no server applies pushes one by one.
    """
    import pandas as pd

    rows = []
    for straggler in stragglers:
        clock = virtual_clock(straggler, message_seconds)
        for method in methods:
            run = timed(method, clock, workers, steps)
            rows.append(
                {
                    "straggler": straggler,
                    "method": run.method,
                    "iteration_seconds": run.iteration_seconds,
                    "waiting_seconds": run.waiting_seconds,
                    "lead": run.lead,
                    "staleness": run.mean_staleness,
                }
            )
    frame = pd.DataFrame(rows).assign(source=SOURCE)
    return frame.set_index(["straggler", "method"])


def waits(
    bounds: Sequence[int] = BOUNDS,
    stragglers: Sequence[str] = RANDOM,
    *,
    workers: int = 8,
    steps: int = 40,
    seeds: int = 2,
    message_seconds: float = MESSAGE_SECONDS,
) -> pd.DataFrame:
    """Rows of straggler, bound, seed, waiting_seconds (per gradient), lead: of SSP.

    Seconds of a gradient depend on seed, rank and step alone, so that bounds are compared on the
    same delays. Workers do as many steps each; a wait after the last gradient counts, too.
    """
    import pandas as pd

    require_whole(seeds=seeds)
    require(list(bounds) == sorted(set(bounds)), f"bounds {list(bounds)} must rise")
    rows = []
    for straggler in stragglers:
        for seed in range(seeds):
            clock = virtual_clock(straggler, message_seconds, seed)
            for bound in bounds:
                run = timed(f"ssp({bound})", clock, workers, steps)
                rows.append((straggler, bound, seed, run.waiting_seconds, run.lead))
    columns = ["straggler", "bound", "seed", "waiting_seconds", "lead"]
    return pd.DataFrame(rows, columns=columns).assign(source=SOURCE)


def staleness(
    methods: Sequence[str] = SERVED,
    straggler: str = "log-normal(0.3)",
    *,
    workers: int = 8,
    steps: int = 100,
    message_seconds: float = 0.0,
) -> pd.DataFrame:
    """Rows of method, staleness, pushes: what `staleness_histogram` draws.

    A push's staleness is how many updates of other workers were applied since its worker was last
    answered. Raises InputError for methods whose server does not apply pushes one by one.
    """
    import pandas as pd

    clock = virtual_clock(straggler, message_seconds)
    rows = []
    for method in methods:
        run = timed(method, clock, workers, steps)
        require(
            bool(run.staleness),
            f"{run.method} has no staleness: no server applies its pushes one by one; "
            f"choose among {', '.join(SERVED)}",
        )
        counts = sorted(Counter(run.staleness).items())
        rows += [(run.method, value, count) for value, count in counts]
    return pd.DataFrame(rows, columns=["method", "staleness", "pushes"]).assign(source=SOURCE)


def mean_staleness(table: pd.DataFrame) -> pd.Series:
    """The mean over pushes, by method, of what `staleness` returns."""
    weighted = (table["staleness"] * table["pushes"]).groupby(table["method"], sort=False).sum()
    return weighted / table.groupby("method", sort=False)["pushes"].sum()
