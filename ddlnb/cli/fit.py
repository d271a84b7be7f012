"""Measured collectives as rows, what is fitted to them, and clusters fitted to measurements."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import (
    Csv,
    numbers,
    print_table,
    refuse_unused,
    require_writable_files,
    say,
    write_picture,
)
from ddlnb.errors import InputError, ResultsError, require
from ddlnb.files import BUILD, require_writable, write_atomically
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.calibration.collective_logs import Facts


def fit(
    what: Annotated[
        str,
        typer.Argument(
            help="'survey': its testbed, from what is published. 'here': this machine, from a "
            "micro-benchmark of some minutes. A log of nccl-tests with --gpu: a cluster of that "
            "GPU. Or a cluster, with --rows measured on it."
        ),
    ],
    rows: Annotated[
        Path | None, typer.Option(help="Rows of `ddlnb measure` on the cluster.")
    ] = None,
    workers: Annotated[
        list[int] | None, numbers("For 'here': numbers of workers. Default: 2,4.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what is measured and for cluster files; default build/NAME. Not for "
            "'survey', whose files --write replaces."
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="For 'survey': replace the files in data/.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random starts.")] = 0,
    gpu: Annotated[str, typer.Option(help="The GPU that a log was made on, such as A100.")] = "",
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of the log's cluster; default: those of the log.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs in each node, where the log does not say.")
    ] = None,
    network: Annotated[
        str, typer.Option(help="Between nodes, such as 200GbIB; default: the usual one.")
    ] = "",
    collective: Annotated[
        str, typer.Option(help="What the log is of, such as all_reduce, where it does not say.")
    ] = "",
    csv: Csv = False,
) -> None:
    """Fit the effects of a cluster to measurements, and print an interval for each.

    Examples: `ddlnb cluster fit here` and
    `ddlnb cluster fit all_reduce.log --gpu A100 --nodes 4 --network 200GbIB`.
    """
    named = {"gpu": gpu, "nodes": nodes, "gpus_per_node": gpus_per_node, "network": network}
    named |= {"collective": collective or None}
    if Path(what).is_file() and Path(what).suffix not in (".yaml", ".yml"):
        refuse_unused(f"{what} is a log of collectives", rows=rows, workers=workers, write=write)
        require(bool(gpu), f"{what} is a log of collectives; give the --gpu that it was made on")
        return _fit_log(what, named, out, csv)
    refuse_unused(f"{what} is no log, and only of logs hardware and collective are told", **named)
    from ddlnb.calibration.calibrate import calibrate

    result = calibrate(
        what,
        rows=rows,
        workers=workers,
        out=out,
        write=write,
        seed=seed,
        progress=sys.stderr.isatty(),
    )
    found = result.calibration
    values = counted(len(found.observations), "value")
    print_table(result.parameter_rows(), csv, f"Effects fitted to {values}")
    if csv:
        return
    typer.echo(found.in_words)
    if result.load:
        typer.echo(result.load)
    say(f"written: {path}" for path in result.paths)


def _fit_log(log: str, named: dict[str, Any], out: Path | None, csv: bool) -> None:
    from ddlnb.calibration.calibrate import Calibrated
    from ddlnb.calibration.logs import fit_log
    from ddlnb.clusters.file import write_cluster

    folder = out or BUILD / "fitted"
    found = fit_log(log, **named)
    require_writable(folder)
    path = write_cluster(found.cluster, folder / f"{found.cluster.name}.yaml")
    rows = Calibrated(found.calibration, (found.cluster,), (path,)).parameter_rows()
    title = f"Links fitted to {counted(len(found.residuals), 'all-reduce')} of {Path(log).name}"
    print_table(found.residuals if csv else rows, csv, title)
    if csv:
        return
    print_table(found.residuals, csv, "The log, and what the fitted cluster says")
    typer.echo(found.in_words)
    typer.echo(f"Cluster in {path}: ask it with `ddlnb forecast --cluster {quote(str(path))}`.")


def collectives(
    fit: Annotated[
        Path | None,
        typer.Option(
            help="Measured rows, as `ddlnb cluster import` writes them. Default: published ones."
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Rows with the same columns and no times, to be forecast: collective, size_bytes "
            "and nodes or ranks, and words for gpu, network, settings; nvlink_domain, if NVLink "
            "joins nodes, is a number of GPUs. '-' is the standard input."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The table with time_us, low and high; printed without it."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the measured rows and forecasts of more nodes.")
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Leave every block of rows out, forecast it from the others, and print the "
            "errors. With --out, write every row and its forecast.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    csv: Csv = False,
) -> None:
    """Fit measured collectives, and forecast the times of others, such as of more nodes.

    Times are microseconds; low and high are a 90 % interval. Without --table, what was fitted is
    printed: a few parameters for each cluster, and how far its rows are from the model.

    Examples: `ddlnb cluster collectives --validate` and
    `ddlnb cluster collectives --fit rows.csv --table asked.csv --out times.csv`.
    """
    from ddlnb.calibration.collective_scores import collective_scores, scores_by_group
    from ddlnb.calibration.collective_tables import completed, read_questions
    from ddlnb.calibration.collectives import (
        OFF_ROWS,
        described,
        fit_collectives,
        forecast,
        residuals,
        rows_to_fit,
    )

    require(not (validate and table), "--validate forecasts rows of --fit; leave out --table or it")
    require_writable_files(out_csv=out, figure_png=figure)
    rows = rows_to_fit(fit)
    if validate:
        found = collective_scores(rows, seed=seed, progress=sys.stderr.isatty())
        print_table(scores_by_group(found), csv, "Errors of blocks that were left out in turn")
        return None if out is None else _write(found, out)
    fitted = fit_collectives(rows, seed=seed, answers_unnamed=fit is not None)
    if table is not None:
        asked = read_questions(table)
        _write(asked.assign(**forecast(fitted, completed(asked))), out)
        if unlike := sum(int(str(row[OFF_ROWS])) for row in residuals(fitted, rows)):
            which = f"{unlike} of {counted(len(rows), 'fitted row')}"
            typer.echo(
                f"{which} {OFF_ROWS}; leave out --table to see which, and check "
                "their words for GPU and network",
                err=True,
            )
    else:
        require(out is None, "--out needs --table, rows to forecast, or --validate")
        print_table(described(fitted), csv, f"Fitted to {counted(len(rows), 'row')}")
        if not csv:
            print_table(residuals(fitted, rows), csv, "The fitted rows, and what the model says")
    write_picture(figure, "collective_rates", rows, fitted, err=True)


def _write(table: pd.DataFrame, out: Path | None) -> None:

    text = table.to_csv(index=False, float_format="%.6g")
    if out is None:
        return typer.echo(text, nl=False)
    write_atomically(out, text)
    typer.echo(f"{counted(len(table), 'row')} in {out}.", err=True)


def import_logs(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="Output of nccl-tests, of collectives of the OSU micro-benchmarks, or the "
            "all_reduces.json of `ddlnb cluster fit here`."
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
    """Read logs of collectives into a tidy table, with the columns of the published one.

    Examples: `ddlnb cluster import all_reduce.log --nodes 2 --out rows.csv` and
    `ddlnb cluster import build/here/all_reduces.json`.
    """
    from ddlnb.calibration.collective_logs import Facts, read_collective_logs

    require_writable_files(rows_csv=out)
    facts = Facts(
        *(collective, gpu, nodes, gpus_per_node, network, library, settings),
        *(block, source, source_url),
    )
    table = read_collective_logs(logs, facts)
    if nodes is not None or gpus_per_node is not None:
        _say_counted_instead(logs, facts, table)
    if out is None:
        return typer.echo(table.to_csv(index=False), nl=False)
    write_atomically(out, table.to_csv(index=False))
    typer.echo(
        f"{counted(len(table), 'row')} of {', '.join(table['collective'].unique())} in {out}."
    )


def _say_counted_instead(logs: list[Path], facts: Facts, table: pd.DataFrame) -> None:
    """Say where the counts that were given take the place of what the logs say."""
    from ddlnb.calibration.collective_logs import read_collective_logs

    try:
        own = read_collective_logs(logs, replace(facts, nodes=None, gpus_per_node=None))
    except (InputError, ResultsError):  # they do not say
        return
    counts = ["nodes", "gpus_per_node"]
    pairs = zip(own[counts].to_numpy().tolist(), table[counts].to_numpy().tolist(), strict=True)
    for said, counted_now in dict.fromkeys((tuple(a), tuple(b)) for a, b in pairs if a != b):
        typer.echo(
            f"The log says {said[0]:g} x {said[1]:g} GPUs; {counted_now[0]:g} x "
            f"{counted_now[1]:g} count, as --nodes and --gpus-per-node say.",
            err=True,
        )
