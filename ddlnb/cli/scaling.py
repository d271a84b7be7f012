"""The command that says how far training scales: `ddlnb scaling`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlnb.cli.options import Batch, Draws, RowsFile, grouped, numbers, print_table
from ddlnb.cli.questions import Hardware, Methods, ModelName, PrecisionName, Sequence, Throughput


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(scaling)


@grouped
def scaling(
    *,
    model: ModelName = "",
    hardware: Hardware,
    gpus: Annotated[
        list[int] | None, numbers("Sizes, such as 8,16,32. Default: 1, 2, 4, ... and all.")
    ] = None,
    method: Methods = None,
    batch: Batch = None,
    throughput: Throughput = None,
    precision: PrecisionName = "",
    sequence: Sequence = None,
    share: Annotated[float, typer.Option(help="Of linear scaling: what is good enough.")] = 0.8,
    draws: Draws = 200,
    csv: RowsFile = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the curves into this file, such as curves.png.")
    ] = None,
) -> None:
    """Say how far training scales: the best method at every size, and the bottleneck beyond."""
    from ddlnb.advice.scaling import best_by_size
    from ddlnb.advice.scaling import scaling as scale
    from ddlnb.errors import require
    from ddlnb.files import require_writable_file, write_atomically
    from ddlnb.units import show_rate, show_rates

    require(bool(model), "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    for path, example in ((csv, "scaling.csv"), (figure, "scaling.png")):
        if path is not None:
            require_writable_file(path, example)
    on = hardware.chosen()
    found = scale(
        model,
        on,
        method or "all",
        gpus=gpus,
        local_batch=batch,
        sequence=sequence,
        throughput=throughput,
        precision=precision,
        share=share,
        draws=draws,
    )
    shown = [
        {
            "GPUs": row["gpus"],
            "best method": row["method"] if row["gpus"] > 1 else "one GPU alone",
            "samples/s": show_rate(row["throughput_samples_per_s"]),
            "90 % interval": show_rates(row["low"], row["high"]),
            "speed-up": f"{row['speedup']:.2f}",
            "of linear": f"{row['efficiency']:.0%}",
        }
        for row in best_by_size(found.rows).to_dict("records")
    ]
    print_table(shown, False, f"Simulated: {model} on {on.label} ({on.network})")
    typer.echo(str(found))
    if csv is not None:
        write_atomically(csv, found.rows.to_csv(index=False))
        typer.echo(f"Rows in {csv}")
    if figure is not None:
        import io

        from ddlnb.figures import scaling_curves

        image = io.BytesIO()
        drawn = scaling_curves(found.rows, found.share, f"{model} on {on.label}")
        drawn.savefig(image, format=figure.suffix[1:], dpi=150, bbox_inches="tight")
        typer.echo(f"picture: {write_atomically(figure, image.getvalue())}")
