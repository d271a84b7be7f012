"""The command that says what to do: `ddlnb advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlnb.cli.advice_tables import shown_options, shown_reasons
from ddlnb.cli.groups import grouped
from ddlnb.cli.hardware_options import KeptHardware, PrecisionName
from ddlnb.cli.options import Batch, Workers, price, print_table
from ddlnb.cli.workloads import ModelName, Sequence, Throughput


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(advise)


@grouped
def advise(
    *,
    model: ModelName = "",
    hardware: KeptHardware,
    gpus: Workers = None,
    batch: Batch = None,
    throughput: Throughput = None,
    precision: PrecisionName = "",
    sequence: Sequence = None,
    optimizer: Annotated[
        str, typer.Option(help="sgd, momentum or adam: what it keeps takes memory.")
    ] = "adam",
    gpu_price: Annotated[float | None, price("Price of a GPU per hour, in any currency.")] = None,
    server_price: Annotated[
        float | None, price("Price per hour of a machine for a parameter server.")
    ] = None,
    measured: Annotated[
        float | None,
        typer.Option(help="Samples/s that you measured on all GPUs: says what is wrong."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="The method that --measured was measured with.")
    ] = None,
    plans: Annotated[
        int | None,
        typer.Option(
            help="Plans that the search for the best schedule plays, by default 250; 0: no search."
        ),
    ] = None,
    draws: Annotated[
        int,
        typer.Option(
            help="Draws behind the 90 % intervals of what may be the best, of the rest a fifth; "
            "0: none."
        ),
    ] = 200,
    csv: Annotated[Path | None, typer.Option(help="Also write the options to this file.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write the advice as one HTML page.")
    ] = None,
) -> None:
    """Say what to do with a model on machines: ranked options, reasons, and what would pay.

    A model that no GPU can hold alone, such as llama3-70b, has to be split: then the answer is
    that of `ddlnb scale --advise`.
    """
    from ddlnb.advice.advise import advise as answer
    from ddlnb.advice.layouts.advise import LayoutAdvice
    from ddlnb.advice.prices import Prices
    from ddlnb.cli.layout_advice import print_layout_advice, print_sentences
    from ddlnb.errors import require
    from ddlnb.files import require_writable_file

    require(bool(model), "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    for path, example in ((csv, "options.csv"), (page, "advice.html")):
        if path is not None:
            require_writable_file(path, example)
    given = {"gpu_hour": gpu_price, "server_hour": server_price}
    prices = Prices(**{name: value for name, value in given.items() if value is not None})
    found = answer(
        model,
        hardware.chosen(),
        gpus=gpus,
        local_batch=batch,
        sequence=sequence,
        throughput=throughput,
        precision=precision,
        prices=prices,
        optimizer=optimizer,
        measured=measured,
        measured_method=method,
        most_plans=plans,
        draws=draws,
    )
    if isinstance(found, LayoutAdvice):
        return print_layout_advice(found, csv, page)
    workload, on = found.question.workload, found.question.cluster
    title = f"Simulated: {workload!r} on {on.label} ({on.network})"
    print_table(shown_options(found), False, f"{title}; options, the first one is to be taken")
    print_table(shown_reasons(found), False, f"{found.best.name}, with one thing changed")
    print_sentences(found, csv, page)
