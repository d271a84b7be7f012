"""The command that trains with lossy methods and prints what they cost in convergence."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import (
    App,
    Csv,
    Yes,
    announce,
    first_line,
    grouped,
    numbers,
    print_table,
    require_extra,
)
from ddlnb.errors import require, require_whole
from ddlnb.files import require_writable_file, write_atomically
from ddlnb.registry import usage
from ddlnb.training.settings import LOCKSTEP, TrainingSettings
from ddlnb.units import counted, show_bytes

if TYPE_CHECKING:
    import pandas as pd

app = App()


@app.command()
@grouped
def train(
    *,
    asked: Annotated[dict[str, Any], TrainingSettings],
    workers: Annotated[
        list[int] | None,
        numbers(f"Numbers of workers, such as 4,8. Default: {TrainingSettings.workers}."),
    ] = None,
    lr: Annotated[
        list[float] | None,
        numbers("Learning rates, such as 0.1,0.2. Default: the optimizer's first guess.", float),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Find a rate for every method by the same rule, on held-out training samples: "
            "5 rates and up to 4 more at half the steps, then the best at all steps with two "
            "seeds, halved up to 4 times until it is stable.",
        ),
    ] = False,
    straggler: Annotated[
        str | None,
        typer.Option(
            help="Virtual seconds of gradients, such as one-slow(4) or log-normal(0.5); messages "
            "take none."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = TrainingSettings.seed,
    seeds: Annotated[int, typer.Option(help="Number of seeds, counted up from --seed.")] = 1,
    target: Annotated[
        float | None, typer.Option(help="A test loss; adds the steps and bytes to reach it.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder with your files, for a task that reads them.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep every finished run here; repeating the command goes on."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the curves to this file (.csv).")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List tasks, synchronisations and compressors, and exit.")
    ] = False,
    yes: Yes = False,
    csv: Csv = False,
) -> None:
    """Train with lossy methods, by default in lockstep, and print losses and traffic.

    Examples: `ddlnb train --method bsp --method 'local(8)' --workers 4` and
    `ddlnb train --task digits --method 'bsp + top-k(0.01) + feedback' --tune --out curves.csv`.
    """
    require_extra("models", "training")
    from ddlnb.training.executors.clock import Clock, get_straggler
    from ddlnb.training.runs.compare import compare
    from ddlnb.training.runs.summaries import require_target
    from ddlnb.training.tasks.catalogue import get_learning_task

    if list_:
        _print_choices(csv)
        return
    require("method" in asked, "give at least one --method, such as --method bsp; see --list")
    if out is not None:
        require(out.suffix == ".csv", f"curves file {str(out)!r} must have a name in .csv")
        require_writable_file(out, "curves.csv")
    require_target(target)
    require_whole(seeds=seeds)
    require_whole(0, seed=seed)
    result = compare(
        get_learning_task(asked.pop("task", "digits"), data),
        asked.pop("method"),
        seeds=range(seed, seed + seeds),
        workers=workers or TrainingSettings.workers,
        lr=lr or None,
        tune=tune,
        folder=folder,
        jobs=jobs,
        progress=sys.stderr.isatty(),
        before=partial(announce, yes=yes),
        clock=None if straggler is None else Clock(get_straggler(straggler)),
        **asked,
    )
    if out is not None:
        write_atomically(out, result.curves.to_csv(index=False))
    if csv:
        typer.echo(result.curves.to_csv(index=False), nl=False)
        return
    timed = bool(result.curves.loc[~result.curves["diverged"], "seconds"].notna().all())
    _print_result(result.summary(target), result.tuning, target, timed)
    if alike := _all_equally_fast(result.curves):
        typer.echo(
            f"All workers are equally fast, so that nobody gets ahead: --straggler "
            f"'log-normal(0.5)' shows what it is worth not to wait, with {', '.join(alike)}."
        )
    if idle := _learnt_nothing(result.curves):
        typer.echo(
            f"No lower loss than before training: {', '.join(idle)}. Another learning rate may do "
            f"(--lr; --tune finds one), or more steps."
        )
    if out is not None:
        typer.echo(f"Curves in {out}")


def _learnt_nothing(curves: pd.DataFrame) -> list[str]:
    """Return the methods of which no run ends with a lower test loss than it began with."""
    found: dict[str, bool] = {}
    for (method, *_), run in curves.groupby(["method", "workers", "seed"], sort=False):
        losses = run.sort_values("step")["test_loss"]
        found[method] = found.get(method, False) or bool(losses.iloc[-1] < losses.iloc[0])
    return [method for method, learnt in found.items() if not learnt]


def _all_equally_fast(curves: pd.DataFrame) -> list[str]:
    """Return the methods whose workers need not wait for others, if nobody is ever late."""
    from ddlnb.training.method import training_method

    timeless = curves[curves["seconds"].isna() & (curves["executor"] == LOCKSTEP)]
    methods = dict.fromkeys(timeless.loc[timeless["step"] == 0, "method"])
    return [one for one in methods if training_method(one).synchronisation.model_on_server]


def _print_result(
    rows: pd.DataFrame, tuning: pd.DataFrame, target: float | None, timed: bool
) -> None:
    first = rows.iloc[0]
    means = (
        f"losses: means over {first['seeds']} seeds, 95 % t-intervals; to the target: medians"
        if first["seeds"] > 1
        else "one seed"
    )
    known = _best_loss(first["task"])
    print_table(
        [_shown(row, target, timed) for row in rows.to_dict("records")],
        False,
        f"{first['task']}, batch {first['local_batch']} per worker, {first['split']}, "
        f"{first['optimizer']} with a {first['schedule']} rate; {means}",
    )
    if known is not None:
        typer.echo(f"The best possible loss of {first['task']} is {known:.4f}.")
    if len(tuning):
        typer.echo(
            f"Learning rates were tuned on held-out training samples, with seeds of their own: the "
            f"one with the least loss after {counted(tuning['steps'].min(), 'step')}, halved until "
            f"it was stable over {tuning['steps'].max()}."
        )
    if "rate_stable" in rows and not rows["rate_stable"].all():
        unstable = ", ".join(rows.loc[~rows["rate_stable"], "method"])
        typer.echo(f"No rate that was tried is stable for {unstable}; the smallest was taken.")


def _best_loss(task: str) -> float | None:
    from ddlnb.training.tasks.catalogue import LEARNING_TASKS

    if task not in LEARNING_TASKS:
        return None
    best = LEARNING_TASKS[task].constants().best_loss
    return None if math.isnan(best) else best


def _shown(row: dict[str, Any], target: float | None, timed: bool) -> dict[str, object]:
    several = row["seeds"] > 1
    shown: dict[str, object] = {
        "method": row["method"],
        "workers": row["workers"],
        "rate": f"{row['learning_rate']:.3g}",
        **({"tried": row["rates_tried"]} if "rates_tried" in row else {}),
        "test loss": _with_half(row["test_loss"], row["test_loss_half_width"], several, "{:.4f}"),
        "accuracy": _with_half(
            row["test_accuracy"], row["test_accuracy_half_width"], several, "{:.2%}"
        ),
        "bytes both ways": _bytes(row["bytes"]),
        **({"seconds": f"{row['seconds']:.4g}"} if timed else {}),
        "diverged": f"{row['diverged']} of {row['seeds']}",
    }
    if target is None:
        return shown
    reached = row["reached"] * 2 > row["seeds"]  # or the median run did not get there
    return shown | {
        f"reached {target:g}": f"{row['reached']} of {row['seeds']}",
        "steps to it": f"{row['steps_to_target']:g}" if reached else "-",
        "bytes to it": _bytes(row["bytes_to_target"]) if reached else "-",
        **(
            {"seconds to it": f"{row['seconds_to_target']:.4g}" if reached else "-"}
            if timed
            else {}
        ),
    }


def _bytes(count: float) -> str:

    return "-" if math.isnan(count) else show_bytes(round(count))


def _with_half(mean: float, half: float, several: bool, form: str) -> str:
    if mean != mean:
        return "-"
    middle = form.format(mean)
    return f"{middle} ± {form.format(half)}" if several and half == half else middle


def _print_choices(csv: bool) -> None:
    from ddlnb.compression.catalogue import COMPRESSORS, FOR_ONE_MODEL
    from ddlnb.training.executors.clock import STRAGGLERS
    from ddlnb.training.gossip import GRAPHS
    from ddlnb.training.method import SYNCHRONISATIONS
    from ddlnb.training.optimizers import OPTIMIZERS, SCHEDULES
    from ddlnb.training.tasks.catalogue import FROM_FILES, LEARNING_TASKS
    from ddlnb.training.tasks.task import SPLITS

    rows = [("task", task.name, task.about) for task in LEARNING_TASKS.values()]
    rows += [("task (with --data)", name, first_line(make)) for name, make in FROM_FILES.items()]
    catalogues: dict[str, dict[str, Any]] = {
        "synchronisation": SYNCHRONISATIONS,  # type: ignore[dict-item]
        "compression": COMPRESSORS | FOR_ONE_MODEL,  # type: ignore[dict-item]
        "split": SPLITS,  # type: ignore[dict-item]
        "schedule": SCHEDULES,  # type: ignore[dict-item]
        "optimizer": OPTIMIZERS,  # type: ignore[dict-item]
        "straggler": STRAGGLERS,  # type: ignore[dict-item]
    }
    for what, catalogue in catalogues.items():
        rows += [(what, usage(kind), _about(kind, catalogue)) for kind in catalogue.values()]
    rows += [("graph", name, first_line(make)) for name, make in GRAPHS.items()]
    table = [dict(zip(("choice", "name", "about"), row, strict=True)) for row in rows]
    print_table(table, csv, "Choices: a method is 'SYNCHRONISATION + COMPRESSION + feedback on PS'")


def _about(kind: Any, catalogue: dict[str, Any]) -> str:
    """Return what a choice is: the first line of its module, if it has one of its own."""
    near = (*catalogue.values(), *kind.__bases__)
    alone = sum(one.__module__ == kind.__module__ for one in near) == 1
    return first_line(sys.modules[kind.__module__] if alone else kind)
