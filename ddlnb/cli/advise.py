"""The command that says what to do: `ddlnb advise`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ddlnb.cli.advice_tables import shown_options, shown_reasons
from ddlnb.cli.hardware import (
    ClusterName,
    GpuName,
    GpusPerNode,
    MachineName,
    NetworkName,
    Nodes,
    PrecisionName,
    SaveCluster,
    chosen_cluster,
)
from ddlnb.cli.options import Batch, price, print_table
from ddlnb.cli.workloads import ModelName, Sequence, Throughput


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(advise)


def advise(
    model: ModelName = "",
    cluster: ClusterName = "",
    gpu: GpuName = "",
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    network: NetworkName = "",
    machine: MachineName = "",
    save_cluster: SaveCluster = None,
    gpus: Annotated[int | None, typer.Option(help="Workers; default: all of the cluster.")] = None,
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
    draws: Annotated[int, typer.Option(help="Draws behind the 90 % intervals; 0: none.")] = 200,
    csv: Annotated[Path | None, typer.Option(help="Also write the options to this file.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write the advice as one HTML page.")
    ] = None,
) -> None:
    """Say what to do with a model on machines: ranked options, reasons, and what would pay.

    A model that no GPU can hold alone, such as llama3-70b, has to be split: then the answer is
    that of `ddlnb scale --advise`.
    """
    from ddlnb.advice.advise import SEARCHED_PLANS, advise_on
    from ddlnb.advice.layouts.hand_over import hand_over
    from ddlnb.advice.layouts.question import sample_that_does_not_fit, states_that_do_not_fit
    from ddlnb.advice.prices import Prices
    from ddlnb.advice.question import question_about
    from ddlnb.cli.layout_advice import print_layout_advice
    from ddlnb.clusters.file import get_cluster
    from ddlnb.errors import require
    from ddlnb.files import require_writable_file, write_atomically

    require(bool(model), "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    for path, example in ((csv, "options.csv"), (page, "advice.html")):
        if path is not None:
            require_writable_file(path, example)
    given = {"gpu_hour": gpu_price, "server_hour": server_price}
    prices = Prices(**{name: value for name, value in given.items() if value is not None})
    named = chosen_cluster(cluster, gpu, nodes, gpus_per_node, network, machine, save_cluster)
    on = get_cluster(named, gpus)
    split = partial(
        hand_over,
        model=model,
        cluster=on,
        unused={
            "--throughput": throughput,
            "--measured": measured,
            "--method": method,
            "--plans": plans,
            "--server-price": server_price,
        },
        local_batch=batch,
        sequence=sequence,
        precision=precision,
        prices=prices,
        optimizer=optimizer,
        draws=draws,
    )
    if because := states_that_do_not_fit(model, on, optimizer):
        return print_layout_advice(split(because), csv, page)
    question = question_about(
        model,
        on,
        batch,
        prices,
        optimizer,
        sequence=sequence,
        throughput=throughput,
        precision=precision,
    )
    if because := sample_that_does_not_fit(model, question):
        return print_layout_advice(split(because), csv, page)
    workload = question.workload
    found = advise_on(
        question,
        measured=measured,
        measured_method=method,
        most_plans=SEARCHED_PLANS if plans is None else plans,
        draws=draws,
    )
    title = f"Simulated: {workload!r} on {on.label} ({on.network})"
    print_table(shown_options(found), False, f"{title}; options, the first one is to be taken")
    print_table(shown_reasons(found), False, f"{found.best.name}, with one thing changed")
    for said in found.sentences:
        typer.echo(said)
    for said in found.unknowns:
        typer.echo(f"Not known: {said}")
    if csv is not None:
        write_atomically(csv, found.options.to_csv(index=False))
        typer.echo(f"Options in {csv}")
    if page is not None:
        from ddlnb.cli.advice_page import advice_page

        write_atomically(page, advice_page(found))
        typer.echo(f"Page: {page}")
