"""The command that reads logs of benchmarks of collectives into a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlnb.units import counted


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("import")(command)


def command(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="Output of nccl-tests, of collectives of the OSU micro-benchmarks, or the "
            "all_reduces.json of `ddlnb calibrate here`."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The CSV file to write; printed without it.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes, where the log names none.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="Ranks on each node.")] = None,
    collective: Annotated[
        str | None, typer.Option(help="Such as all_reduce, where the log names none.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Such as H100-SXM.")] = None,
    network: Annotated[
        str | None, typer.Option(help="Such as 'InfiniBand NDR 8x400 Gb/s': kind and rate of it.")
    ] = None,
    library: Annotated[str | None, typer.Option(help="Such as 'NCCL 2.27.7'.")] = None,
    settings: Annotated[str | None, typer.Option(help="Such as NCCL_ALGO=Ring.")] = None,
    block: Annotated[str | None, typer.Option(help="A name for these rows; default: file.")] = None,
    source: Annotated[str | None, typer.Option(help="Where they are from; default: file.")] = None,
    source_url: Annotated[str | None, typer.Option(help="Its address.")] = None,
) -> None:
    """Read logs of collectives into a tidy table, with the columns of the published one."""
    from ddlnb.files import require_writable_file, write_atomically
    from ddlnb.results.collective_logs import Facts, read_collective_logs

    if out is not None:
        require_writable_file(out, "rows.csv")
    facts = Facts(
        *(collective, gpu, nodes, gpus_per_node, network, library, settings),
        *(block, source, source_url),
    )
    table = read_collective_logs(logs, facts)
    if out is None:
        typer.echo(table.to_csv(index=False), nl=False)
        return
    write_atomically(out, table.to_csv(index=False))
    typer.echo(
        f"{counted(len(table), 'row')} of {', '.join(table['collective'].unique())} in {out}."
    )
