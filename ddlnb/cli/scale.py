"""The command about large models: which layout is fastest, or forecasts of a table of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import Csv, price, print_table, refuse_others, refuse_unused
from ddlnb.cli.questions import MachineName
from ddlnb.units import counted, digits

if TYPE_CHECKING:
    from ddlnb.hardware.gpu import Gpu
    from ddlnb.hardware.interconnect import Interconnect
    from ddlnb.parallelism.forecast.layouts import Ranking


GPU, GPUS_PER_NODE = "H100", 8  # of the nodes, where nothing is said


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(scale)


def scale(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="A large model, such as llama3-8b or gpt3-175b.")
    ] = None,
    gpu: Annotated[str, typer.Option(help=f"A GPU by name; default: {GPU}.")] = "",
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 8,
    gpus_per_node: Annotated[
        int | None, typer.Option(help=f"GPUs of a node; default: {GPUS_PER_NODE}.")
    ] = None,
    network: Annotated[
        str,
        typer.Option(help="What joins nodes, such as 8x400GbIB; default: usual for the GPU."),
    ] = "",
    machine: MachineName = "",
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Sequences of a step; default: four million tokens.")
    ] = None,
    framework: Annotated[
        str, typer.Option(help="nanotron, fsdp, megatron or nemo: whose steps are forecast.")
    ] = "nanotron",
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp8.")] = "bf16",
    schedule: Annotated[
        str, typer.Option(help="Of pipelines: 1f1b, zero-bubble or gpipe.")
    ] = "1f1b",
    vpp: Annotated[
        int | None,
        typer.Option(
            help="Chunks of layers per pipeline stage, 1 for none; default: all that the framework "
            "can run and that divide."
        ),
    ] = None,
    overlap: Annotated[
        bool | None,
        typer.Option(
            help="Reduce gradients and gather parameters while GPUs compute; default: as the "
            "framework does."
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="How many splits are shown.")] = 10,
    advise: Annotated[
        bool, typer.Option("--advise", help="Say how sure the ranking is, and what would pay.")
    ] = False,
    gpu_price: Annotated[
        float | None, price("With --advise: price of a GPU per hour, any currency.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="With --advise: also write the advice as one HTML page.")
    ] = None,
    csv: Csv = False,
    table: Annotated[
        Path | None,
        typer.Option(help="Instead: a CSV with one run per row, which gets its forecasts."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the table goes, with its forecasts added.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Leave rows that cannot be read empty.")
    ] = False,
) -> None:
    """Forecast training of a large model on many GPUs, for every way to split it.

    Prints the fastest layouts that fit: tokens per second and GPU with their 90 % interval, MFU
    (FLOPs of the model by those of the GPU's peak: 6 per parameter and token in matrices, and
    6 s h per layer for causal attention), memory, and what makes each slower than the one above.
    With --advise: larger batches and fewer nodes, forecasts with one thing changed, the chance that
    the best layout is the best, cost per million tokens, and what is not known.

    With --table, rows of a CSV with the columns of data/published/nanotron_h100_upto64.csv get
    tokens_per_s_per_gpu, its interval, memory_gb (GiB, as runs report it) and fits.
    """
    from ddlnb.errors import InputError

    if table is not None or out is not None:
        if table is None or out is None or model is not None:
            raise InputError("give both --table IN.csv and --out OUT.csv, without --model")
        why = "rows of --table say what runs on what, each in its own columns (gpu, network, ...)"
        refuse_others(context, why, "table", "out", "keep_going")
        return _table(table, out, keep_going)
    refuse_unused("there is no --table whose rows could be left empty", keep_going=keep_going)
    if model is None:
        raise InputError("give --model, such as llama3-8b, or --table IN.csv and --out OUT.csv")
    from ddlnb.advice.layouts import (
        DRAWS,
        PricedQuestion,
        advise_on_layouts,
        layout_sentences,
        split_options,
    )
    from ddlnb.advice.question import Prices
    from ddlnb.cli.advise import print_layout_advice
    from ddlnb.files import require_writable_file

    if advise and csv:
        raise InputError("--csv prints one table, and --advise several; leave out one of them")
    if not advise:
        refuse_unused("prices and pages need --advise", gpu_price=gpu_price, page=page)
    if page is not None:
        require_writable_file(page, "advice.html")
    kind, per_node, joined = _node(gpu, gpus_per_node, network, machine)
    if network and nodes == 1:
        typer.echo(f"note: network {network} is not used, as there is one node", err=True)
    asked = PricedQuestion.of(
        model,
        kind,
        nodes,
        gpus_per_node=per_node,
        network=joined,
        sequence=sequence,
        global_batch=global_batch,
        framework=framework,
        precision=precision,
        schedule=schedule,
        vpp=vpp,
        overlap=overlap,
        prices=Prices() if gpu_price is None else Prices(gpu_price),
    )
    if advise:
        return print_layout_advice(advise_on_layouts(asked, top=top), page=page)
    found = asked.ranking
    named = kind if isinstance(kind, str) else kind.name
    print_table(_rows(found, top), csv, _title(found, named, asked.gpus, framework))
    if not csv:
        for said in layout_sentences(asked, split_options(asked, top=top, draws=DRAWS)):
            typer.echo(said)
        typer.echo("--advise says what else can be done, what would pay, and what is not known.")


def _node(
    gpu: str, gpus_per_node: int | None, network: str, machine: str
) -> tuple[str | Gpu, int, str | Interconnect | None]:
    """Return the GPU of a node, how many it has, and what joins nodes."""
    if machine:
        from ddlnb.hardware.catalogue import get_machine, parts_of

        return parts_of(get_machine(machine), gpu, gpus_per_node, network)
    return gpu or GPU, GPUS_PER_NODE if gpus_per_node is None else gpus_per_node, network or None


def _title(found: Ranking, gpu: str, gpus: int, framework: str) -> str:
    whole = len(found.outlook.cases)
    batch = int(found.outlook.cases.step_tokens[0])
    return (
        f"{found.model.name} on {gpus} x {gpu} ({framework}), {batch:,} tokens per step: "
        f"{len(found)} of {whole} layouts fit"
    )


def _rows(found: Ranking, top: int) -> list[dict[str, Any]]:
    return [
        {
            "layout": row["layout"],
            "tokens/s/GPU": digits(row["tokens_per_s_per_gpu"], 4),
            "90 % interval": f"{digits(row['low'], 3)} to {digits(row['high'], 3)}",
            "MFU": f"{row['mfu']:.1%}",
            "memory": f"{row['memory_gib']:.0f} GiB",
            "chance of slow": f"{row['chance_of_slow']:.0%}",
            "slower by": row["loses_by"],
        }
        for row in found.rows(top)
    ]


def _table(table: Path, out: Path, keep_going: bool) -> None:
    from ddlnb.files import require_writable_file
    from ddlnb.parallelism.forecast.table import forecast_table

    require_writable_file(out, "forecast.csv")
    found = forecast_table(
        table, keep_going=keep_going, say=lambda line: typer.echo(f"note: {line}", err=True)
    )
    typer.echo(f"{counted(len(found.rows), 'row')}: {found.write(out)}")
