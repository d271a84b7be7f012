"""The command about clusters of unlike GPUs: how to share the batch and the layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import Csv, print_table
from ddlnb.units import digits, show_rate

if TYPE_CHECKING:
    from ddlnb.parallelism.heterogeneous import Sharing

COUNTED = re.compile(r"\s*(\d+)\s*x\s*(\S.*)")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(unlike)


def unlike(
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="How many GPUs of a kind, such as 4xA100; once for every kind."),
    ] = None,
    model: Annotated[str, typer.Option(help="A large model, such as llama3-1b.")] = "llama3-1b",
    samples: Annotated[
        int | None, typer.Option(help="Sequences of an iteration; default: four million tokens.")
    ] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    micro_batch: Annotated[int, typer.Option(help="Sequences of a pipeline's micro batch.")] = 1,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or tf32: of all kinds.")] = "bf16",
    reached: Annotated[
        float | None,
        typer.Option(
            help="Share of the peak that training reaches on all kinds; default: what layers of "
            "large models get on each."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the ways into this file, such as ways.png.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Say how to share the batch, or the layers, among GPUs of two or more kinds.

    Compares equal shares, shares by speed, each kind alone, and pipelines of all GPUs, simulated
    from data sheets: an iteration takes as long as its slowest worker.
    """
    from ddlnb.files import require_writable_file
    from ddlnb.parallelism.heterogeneous import balance

    if picture is not None:
        require_writable_file(picture, "ways.png")
    found = balance(
        model,
        counts(gpu or []),
        samples=samples,
        sequence=sequence,
        micro_batch=micro_batch,
        precision=precision,
        reached=reached,
    )
    if csv:
        return typer.echo(found.rows.to_csv(index=False), nl=False)
    print_table(_shown(found), False, f"Simulated: {model} on {' + '.join(gpu or [])}")
    for said in found.sentences:
        typer.echo(said)
    for said in found.unknowns:
        typer.echo(f"Not known: {said}")
    if picture is not None:
        from ddlnb.figures import unlike_ways

        unlike_ways(found.rows).savefig(picture, dpi=110, bbox_inches="tight")
        typer.echo(f"Picture: {picture}")


def counts(words: list[str]) -> dict[str, int]:
    """Return how many GPUs there are of every kind. Raises InputError for words that do not say.

    >>> counts(["4xA100", "8 x V100"])
    {'A100': 4, 'V100': 8}
    """
    from ddlnb.errors import InputError, require

    found: dict[str, int] = {}
    for text in words:
        match = COUNTED.fullmatch(text)
        if match is None or int(match[1]) == 0:
            raise InputError(f"--gpu {text!r} must say how many of which, such as 4xA100")
        require(
            match[2] not in found, f"--gpu {match[2]} is given twice; add up how many there are"
        )
        found[match[2]] = int(match[1])
    require(len(found) > 1, "give two kinds of GPUs or more, such as --gpu 4xA100 --gpu 4xV100")
    return found


def _shown(found: Sharing) -> list[dict[str, Any]]:
    return [
        {
            "way": row["way"],
            "shares": row["shares"],
            "iteration": f"{digits(row['seconds'], 3)} s",
            "waits": f"{row['communication_seconds']:.2g} s",
            "samples/s": show_rate(row["samples_per_second"]),
            "of all speeds": f"{row['of_all']:.0%}",
            "states": f"{row['states_gib']:.0f} GiB" + ("" if row["fits"] else " (too many)"),
        }
        for row in found.rows.to_dict("records")
    ]
