"""The command that trains with lossless methods on real workers and prints the throughput."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ddlnb.cli.options import Batch, Credit, Csv, Model, Partition, print_table


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(measure)


def measure(
    model: Model,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, or 'all'; may be given several times.")
    ] = None,
    batch: Batch = None,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    servers: Annotated[
        int | None, typer.Option(help="Parameter servers of the PS methods; default: one a host.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An engine of `ddlnb methods`; repeatable. Default: torch, our own."),
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="Also run one worker alone, and DistributedDataParallel.")
    ] = True,
    iterations: Annotated[int, typer.Option(help="Timed iterations of a run.")] = 20,
    warmup: Annotated[int, typer.Option(help="Iterations before the clock starts.")] = 5,
    repeat: Annotated[int, typer.Option(help="Runs of every method, alternating.")] = 3,
    optimizer: Annotated[str, typer.Option(help="sgd, adam or adamw.")] = "sgd",
    partition: Partition = None,
    credit: Credit = None,
    out: Annotated[
        Path | None, typer.Option(help="Results file (.csv); a second call completes it.")
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="local, emulated, mpi, slurm, ssh, or an ipyparallel profile.")
    ] = "local",
    host: Annotated[
        str, typer.Option(help="This machine's address for ranks on other machines.")
    ] = "127.0.0.1",
    on: Annotated[
        list[str] | None,
        typer.Option(
            help="A machine to start ranks on, with ssh; repeatable. Names of ~/.ssh/config, or of "
            "the file that DDLNB_SSH_CONFIG names."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="What the table calls the network, such as 10GbE; with launcher emulated the "
            "network to emulate, also '1Gb/s 50us', and once for every node if they differ."
        ),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Slows an emulated network and replayed computation: 0.01.")
    ] = 1.0,
    ranks_per_node: Annotated[
        int, typer.Option(help="Ranks that share the link of an emulated node.")
    ] = 1,
    replay: Annotated[
        str | None,
        typer.Option(help="A profile of data/profiles to replay instead of computing."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    backend: Annotated[str, typer.Option(help="gloo on CPUs, nccl on GPUs.")] = "gloo",
    topology: Annotated[
        str, typer.Option(help="Of our engine's all-reduces: ring, or mesh for long delays.")
    ] = "ring",
    timeout: Annotated[float, typer.Option(help="Seconds that one run may take.")] = 300.0,
    csv: Csv = False,
) -> None:
    """Train a model with the methods on real workers, and print what was measured."""
    from ddlnb.engines.measure import measure as measure_methods
    from ddlnb.engines.measure import speedups
    from ddlnb.workloads.replay import replayed

    asked: Any = list(network or ()) or None
    rows = measure_methods(
        model if replay is None else replayed(replay, of=model),
        list(method or ["all"]),
        workers=workers,
        servers=servers,
        engine=list(engine or ["torch"]),
        baselines=baselines,
        local_batch=batch,
        iterations=iterations,
        warmup=warmup,
        repetitions=repeat,
        optimizer=optimizer,
        partition=partition,
        credit=credit,
        out=out,
        launcher=launcher,
        host=host,
        hosts=tuple(on or ()),
        network=asked[0] if asked and len(asked) == 1 else asked,
        scale=scale,
        ranks_per_node=ranks_per_node,
        device=device,
        backend=backend,
        topology=topology,
        timeout_seconds=timeout,
        progress=sys.stderr.isatty(),
    )
    if csv:
        typer.echo(rows.to_csv(index=False), nl=False)
        return
    if baselines:
        rows = speedups(rows)
    first = rows.iloc[0]
    print_table(
        [_shown(row) for row in rows.to_dict("records")],
        False,
        f"{first['model']}, batch {first['local_batch']} per worker, {first['network']}, "
        f"{first['source']} on {first['machine']}; median and standard deviation of {repeat} runs",
    )
    if out is not None:
        typer.echo(f"Rows in {out}, single runs in {out.with_suffix('.runs.csv')}")


def _shown(row: dict[str, Any]) -> dict[str, object]:
    from ddlnb.units import show_bytes, show_seconds

    shown = {
        "method": row["method"],
        "workers": row["gpus"],
        "samples/s": f"{row['throughput_samples_per_s']:.0f}",
        "std": f"{row['std']:.0f}" if row["repetitions"] > 1 else "-",
        "iteration": show_seconds(row["iteration_seconds"]),
        "exposed": show_seconds(row["exposed_communication_seconds"]),
        "sent": show_bytes(row["bytes_sent"]),
        "messages": row["messages"] or "-",
        "runs": row["repetitions"],
    }
    return shown | ({"speed-up": f"{row['speedup']:.2f}"} if "speedup" in row else {})
