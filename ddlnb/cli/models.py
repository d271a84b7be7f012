"""The commands about models: what there is, and how long a model computes on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from ddlnb.cli.options import Batch, Csv, Model, print_table


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(models)
    app.command()(profile)


def models(csv: Csv = False) -> None:
    """List the models with their sizes, FLOPs and model intensity."""
    from ddlnb.workloads.catalogue import TASKS
    from ddlnb.workloads.intensity import intensity
    from ddlnb.workloads.tracing import trace

    rows = []
    for task in TASKS.values():
        workload = trace(task)
        rows.append(
            {
                "model": task.name,
                "parameters": workload.parameters,
                "tensors": len(workload.gradients),
                "MB": round(workload.gradient_bytes / 1e6, 2),
                "GFLOP": round(workload.flops / 1e9, 3),
                "intensity": round(intensity(workload)),
                "local batch": task.local_batch,
                "about": task.about,
            }
        )
    print_table(
        rows,
        csv,
        "Models: GFLOP of one sample forward and backward (FMA = 2), intensity C / D (FMA = 1)",
    )


def profile(
    model: Model,
    batch: Batch = None,
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
    """Measure the seconds of every layer and gradient of a model on this machine."""
    from ddlnb.workloads.profiling import (
        hardware_of,
        require_profile_place,
        torch_threads,
        write_profile,
    )
    from ddlnb.workloads.profiling import profile as measure_profile

    if name is not None:
        with torch_threads(threads):
            require_profile_place(name, hardware_of(device))
    workload = measure_profile(model, batch, iterations=iterations, threads=threads, device=device)
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
    if name is not None:
        typer.echo(f"written to {write_profile(workload, name)}")
