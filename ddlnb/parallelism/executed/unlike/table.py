"""Forecast beside executed: ways to share a batch and layers on ranks slowed on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlnb.errors import InputError, require
from ddlnb.parallelism.play_schedule import play
from ddlnb.parallelism.schedules import schedule
from ddlnb.parallelism.unlike.batch import equal_shares, share_batch, slowest_seconds
from ddlnb.parallelism.unlike.forecast import in_words
from ddlnb.parallelism.unlike.layers import cut_layers, equal_cut, stage_seconds

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.launch.ranks import Ranks
    from ddlnb.parallelism.executed.unlike.slowed import SlowedModel

SPEEDS = (2.5, 2.5, 1.0, 1.0)
SAMPLES, MICRO_BATCHES = 28, 14
FORWARD = 1 / 3


def unlike_rows(
    ranks: Ranks,
    speeds: Sequence[float] = SPEEDS,
    samples: int = SAMPLES,
    micro_batches: int = MICRO_BATCHES,
    model: SlowedModel | None = None,
    iterations: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a row per way: forecast and executed seconds of an iteration, and gradients.

    ``ranks`` are slowed to ``speeds``, the fastest first. Exchanges and messages are measured
    first; from them, the speeds and the shares every way is forecast (``forecast_seconds``), then
    all are executed (``seconds``: the mean iteration of the slowest rank). ``trivial_seconds`` adds
    up the speeds of the ranks that take part. ``gradient_error`` is the largest difference to one
    worker on the joined batch, over its largest gradient. Raises InputError for speeds that are
    not as many as ranks or not in order, and for what does not divide.
    """
    import pandas as pd

    from ddlnb.parallelism.executed.unlike.ranks import probe, share_of_batch, stage_of_pipeline
    from ddlnb.parallelism.executed.unlike.slowed import SlowedModel

    model = model or SlowedModel()
    speeds = tuple(speeds)
    _check(ranks, speeds, samples, micro_batches)
    size = samples // micro_batches
    probes = ranks.run(probe, model.parameters, size * model.width)
    exchange, send = (max(values) for values in zip(*probes, strict=True))

    def batch_way(name: str, shares: tuple[int, ...]) -> dict[str, object]:
        count = len(shares)
        rates = [speed / model.sample_seconds for speed in speeds[:count]]
        forecast = slowest_seconds(shares, rates) + (exchange if count > 1 else 0.0)
        return {"way": name, "shares": shares, "forecast_seconds": forecast}

    def pipeline_way(name: str, cut: tuple[int, ...]) -> dict[str, object]:
        costs = [model.sample_seconds / model.layers * size] * model.layers
        seconds = [
            {"F": one * FORWARD, "B": one * (1 - FORWARD)}
            for one in stage_seconds(costs, speeds, cut)
        ]
        played = play(schedule("1f1b", len(cut), micro_batches), seconds, send)
        return {"way": name, "shares": cut, "forecast_seconds": played.seconds}

    fast = speeds.count(speeds[0])
    rows = [
        batch_way("equal shares", equal_shares(samples, len(speeds))),
        batch_way("shares by speed", share_batch(samples, speeds)),
        batch_way("only the fast kind", equal_shares(samples, fast)),
        pipeline_way("pipeline, equal layers", equal_cut(model.layers, len(speeds))),
        pipeline_way("pipeline by speed", cut_layers([1.0] * model.layers, speeds, micro_batches)),
    ]
    for row in rows:  # all forecasts are made before the first way is executed
        shares = row.pop("shares")
        assert isinstance(shares, tuple)
        rest = (iterations, seed)
        if str(row["way"]).startswith("pipeline"):
            given = (model, shares, speeds, samples, micro_batches, *rest)
            found = ranks.run(stage_of_pipeline, *given, count=len(shares))
        else:
            found = ranks.run(
                share_of_batch, model, shares, speeds, *rest, count=len(shares)
            )  # fmt: skip
        row |= {
            "shares": in_words(shares),
            "trivial_seconds": samples * model.sample_seconds / sum(speeds[: len(shares)]),
            "seconds": max(one.seconds for one in found),
            "gradient_error": max(one.gradient_error for one in found),
        }
    table = pd.DataFrame(rows)
    table["off"] = table["forecast_seconds"] / table["seconds"] - 1
    return table


def _check(ranks: Ranks, speeds: tuple[float, ...], samples: int, micro_batches: int) -> None:
    require(
        len(speeds) == ranks.count,
        f"{len(speeds)} speeds are given for {ranks.count} ranks; give one for each",
    )
    require(
        list(speeds) == sorted(speeds, reverse=True),
        f"speeds {speeds} must begin with the fastest; give {tuple(sorted(speeds, reverse=True))}",
    )
    if samples % micro_batches:
        fitting = [str(n) for n in range(1, samples + 1) if samples % n == 0]
        raise InputError(
            f"{micro_batches} micro batches do not divide {samples} samples; use one of "
            f"{', '.join(fitting)}"
        )
