"""The lists of models and methods, and how long a model computes on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from ddlnb.cli.options import App, Batch, Csv, Model, print_table, refuse_unused, say
from ddlnb.engines.catalogue import ENGINES, support
from ddlnb.errors import require
from ddlnb.plans.methods import METHODS
from ddlnb.units import MB, listed, show_bytes
from ddlnb.workloads.workload import Workload, intensity

GIGA = 1e9


app, methods_app = App(), App()
Sequence = Annotated[
    int | None,
    typer.Option(
        "--sequence",
        help="Tokens of a sample; default: the model's own, of a configuration up to 512.",
    ),
]


@app.command()
def models(
    name: Annotated[
        list[str] | None,
        typer.Argument(help="Trace these, whatever --model takes: FLOPs, and model intensity."),
    ] = None,
    large: Annotated[
        bool, typer.Option("--large", help="Those that are split by names of their own, instead.")
    ] = False,
    batch: Batch = None,
    sequence: Sequence = None,
    csv: Csv = False,
) -> None:
    """List the models with their parameters, or show how much work those that are named are.

    With --large, models whose layers are known without code, for `ddlnb layouts` and `advise`:
    their parameters, those that one token meets, and the tokens of their sequences.

    Examples: `ddlnb models --large` and `ddlnb models gpt2 bert-large --batch 8`.
    """
    if large:
        require(not name, f"--large lists all shapes; leave out {listed(name or [])}")
        refuse_unused("--large lists shapes, which have no batch", batch=batch)
        return print_table(_large(), csv, "Large models; `ddlnb layouts scale --model NAME`")
    if name:
        return _traced(name, batch, sequence, csv)
    from ddlnb.workloads.models import TASKS
    from ddlnb.workloads.task import build_on_meta

    refuse_unused("only models that are named are traced", batch=batch, sequence=sequence)
    rows = []
    for task in TASKS.values():
        parameters = [one for one in build_on_meta(task).parameters() if one.requires_grad]
        rows.append(
            {
                "model": task.name,
                "parameters": sum(one.numel() for one in parameters),
                "tensors": len(parameters),
                "local batch": task.local_batch,
                "sequence": task.sequence or "-",
                "about": task.about,
            }
        )
    print_table(rows, csv, "Models; `ddlnb models NAME` traces one")


def _large() -> list[dict[str, Any]]:
    from ddlnb.parallelism.config import get_shape, names
    from ddlnb.parallelism.model import SHAPES

    shapes = [get_shape(name) for name in (*SHAPES, *names())]
    return [
        {
            "model": one.name,
            "parameters": one.shape.parameters,
            "active": one.shape.active_parameters,
            "layers": one.layers,
            "experts": f"{one.top_k} of {one.experts}" if one.experts else "-",
            "sequence": one.sequence,
        }
        for one in shapes
    ]


def _traced(names: list[str], batch: int | None, sequence: int | None, csv: bool) -> None:
    from ddlnb.workloads.resolve import resolve
    from ddlnb.workloads.tracing import trace

    rows = []
    for name in names:
        found = resolve(name, sequence=sequence)
        if isinstance(found, Workload):
            refuse_unused(f"{name!r} is a profile with a batch of its own", batch=batch)
            workload = found
        else:
            workload = trace(found, 1 if batch is None else batch)
        samples = workload.local_batch
        rows.append(
            {
                "model": workload.model,
                "parameters": workload.parameters,
                "tensors": len(workload.gradients),
                "MB": round(workload.gradient_bytes / MB, 2),
                "GFLOP": round(workload.flops / samples / GIGA, 3),
                "intensity": round(intensity(workload)),
                "batch": samples,
                "sequence": getattr(found, "sequence", None) or "-",
                "source": workload.source,
            }
        )
    print_table(
        rows,
        csv,
        "Models: GFLOP of one sample forward and backward (FMA = 2), intensity C / D (FMA = 1)",
    )


@methods_app.command()
def methods(csv: Csv = False) -> None:
    """List the methods, their six aspects, and the engines that run each.

    Examples: `ddlnb methods` and `ddlnb methods --csv`.
    """

    rows = [
        {
            "method": method.name,
            "sync": method.synchronisation,
            "compression": method.compression or "-",
            "scheduling": method.scheduling or "-",
            "arch.": method.architecture,
            "messages": method.bucketing.name,
            "partition": show_bytes(method.partition_bytes) if method.partition_bytes else "-",
            "credit": show_bytes(method.credit_bytes) if method.credit_bytes else "-",
            "tuned": "on clusters" if method.tunes else "-",
            "forward needs": method.gate.value,
            "engines": " ".join(e for m, e, reason in support() if m == method.name and not reason),
        }
        for method in METHODS.values()
    ]
    print_table(rows, csv, "Methods")
    if not csv:
        say(f"{method.name}: {method.sentence()}." for method in METHODS.values())
        for engine in ENGINES.values():
            lack = engine.missing()
            typer.echo(f"engine {engine.name}: {engine.about}{lack and f' (not here: {lack})'}.")


def profile(
    model: Model,
    batch: Batch = None,
    sequence: Sequence = None,
    iterations: Annotated[int, typer.Option(help="Measured iterations.")] = 10,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: torch's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda for a GPU.")] = "cpu",
    name: Annotated[
        str | None,
        typer.Option(
            help="Keep it in data/profiles under this name. Forecasts find MODEL_bBATCH_HARDWARE, "
            "with the cluster's word for its hardware."
        ),
    ] = None,
    csv: Csv = False,
) -> None:
    """Measure the seconds of every layer and gradient of a model on this machine.

    What other processes take meanwhile is said; of a CPU it widens the intervals of forecasts.

    Examples: `ddlnb measure profile --model small-conv` and
    `ddlnb measure profile --model my.py:task --device cuda --name mine`.
    """
    from ddlnb.launch.capacity import watched_load
    from ddlnb.workloads.profiling import (
        hardware_of,
        profile as measure_profile,
        require_device,
        require_profile_place,
        torch_threads,
        write_profile,
    )
    from ddlnb.workloads.resolve import get_task

    require_device(device)
    if name is not None:
        with torch_threads(threads):
            require_profile_place(name, hardware_of(device))
    task = get_task(model)
    task = task if sequence is None else task.with_sequence(sequence)
    with watched_load() as watch:
        measured = measure_profile(
            task, batch, iterations=iterations, threads=threads, device=device
        )
    workload = replace(measured, spread=watch.load.spread) if device == "cpu" else measured
    backward: dict[str, float] = dict.fromkeys((layer.name for layer in workload.layers), 0.0)
    size = dict.fromkeys(backward, 0)
    for gradient in workload.gradients:
        backward[gradient.layer] += gradient.backward_seconds
        size[gradient.layer] += gradient.bytes
    rows = [
        {
            "layer": layer.name or "(the module itself)",
            "forward ms": round(1e3 * layer.forward_seconds, 3),
            "backward ms": round(1e3 * backward[layer.name], 3),
            "gradient bytes": size[layer.name],
        }
        for layer in workload.layers
    ]
    print_table(rows, csv, f"{workload!r}, {workload.source}")
    typer.echo(watch.load, err=csv)
    if name is not None:
        typer.echo(f"written to {write_profile(workload, name)}", err=csv)
