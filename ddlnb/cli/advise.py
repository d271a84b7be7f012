"""The command that says what to do, and its answer as one HTML page that stands on its own."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.advice.question import AdviceQuestion, Prices
from ddlnb.cli.options import (
    App,
    grouped,
    price,
    print_answer,
    refuse_unused,
    rendered,
    require_writable_files,
    write_rows,
)
from ddlnb.cli.questions import KeptHardware
from ddlnb.errors import require
from ddlnb.files import write_atomically
from ddlnb.questions import options
from ddlnb.units import counted, gpus_in_words, show_bytes, show_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlnb.advice.advise import Advice
    from ddlnb.advice.layouts import LayoutAdvice

app = App()


@app.command()
@grouped
def advise(
    *,
    hardware: KeptHardware,
    asked: Annotated[dict[str, Any], AdviceQuestion],
    gpu_price: Annotated[float | None, price("Price of a GPU per hour, in any currency.")] = None,
    server_price: Annotated[
        float | None, price("Price per hour of a machine for a parameter server.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the options to this file.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write the advice as one HTML page.")
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run's launch file: a script with arguments of Megatron-LM, TOML of torchtitan, "
            "JSON of DeepSpeed, YAML of nanotron, accelerate; repeatable."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="With --config: the run's log; says what is wrong.")
    ] = None,
) -> None:
    """Say what to do with a model on machines: ranked options, reasons, settings, what would pay.

    A model that no GPU can hold alone, such as llama3-70b, has to be split: then the answer is
    that of `ddlnb layouts scale --advise`. With --config the run of a launch file is forecast, and
    with --run compared with what its log says.

    Examples: `ddlnb advise --model bert-large --cluster survey-10GbE --gpus 16` and
    `ddlnb advise --model my.py:task --gpu A100 --nodes 4 --network 200GbIB`.
    """
    if not config:
        refuse_unused("a log is of the run of a launch file (--config)", run=run)
        known = "see `ddlnb models`, or docs/own_model.md for yours"
        require("model" in asked, f"give --model; {known}, or --config of a run")
    require_writable_files(options_csv=csv, advice_html=page)
    if config:
        return _launched(config, run, hardware, gpu_price, csv, page, asked, server_price)
    from ddlnb.advice.advise import advise as answer

    given = {"gpu_hour": gpu_price, "server_hour": server_price}
    prices = Prices(**{name: value for name, value in given.items() if value is not None})
    found = answer(cluster=hardware.chosen(), prices=prices, **asked)
    write_rows(found.options, csv, "Options")
    write_page(found, page)
    print_answer(found)


OF_RUNS = ("model", "framework", "sequence", "precision", "draws", "seed")


def _launched(
    config: list[Path],
    run: Path | None,
    hardware: KeptHardware,
    gpu_price: float | None,
    csv: Path | None,
    page: Path | None,
    asked: dict[str, Any],
    server_price: float | None,
) -> None:
    """Print what is said of a run; nodes that nobody gave are those of its launch file."""
    known = options(AdviceQuestion)
    others = {
        known[name].flag[2:] or name: asked[name] for name in sorted(asked) if name not in OF_RUNS
    }
    why = "the launch files and the log say what runs"
    refuse_unused(why, **others, gpu_price=gpu_price, server_price=server_price, page=page)
    from ddlnb.advice.launched import advise_launched
    from ddlnb.parallelism.launch_files import counts_in

    counts = counts_in(config)
    each = None if hardware.cluster else counts.get("gpus_per_node")
    there = replace(
        hardware,
        nodes=hardware.nodes or counts.get("nodes"),
        gpus_per_node=hardware.gpus_per_node or each,
    )
    found = advise_launched(config, there.chosen(), run, **asked)
    write_rows(found.rows, csv, "Rows")
    print_answer(found)


def write_page(found: Advice | LayoutAdvice, page: Path | None) -> None:
    """Write the page of an advice where it is to go, and say so."""

    if page is not None:
        write_atomically(page, advice_page(found))
        typer.echo(f"Page: {page}")


def advice_page(found: Advice | LayoutAdvice) -> str:
    """Return the page: the answer, the options, the reasons, the gap, and what is not known."""
    from ddlnb.figures import advice_options, advice_reasons

    return rendered(
        "advice.html",
        **_about(found),
        found=found,
        options=found.tables[0].rows,
        options_picture=_picture(advice_options(found.options)),
        reasons_picture=_picture(advice_reasons(found.reasons)),
    )


def _about(found: Advice | LayoutAdvice) -> dict[str, Any]:
    """Return what differs between advice on methods and advice on splits."""
    from ddlnb.advice.layouts import LayoutAdvice

    if isinstance(found, LayoutAdvice):
        asked = found.question
        return {
            "title": str(asked),
            "about": f"{asked.tokens:,} tokens in a step of "
            f"{counted(asked.global_batch, 'sequence')}",
            "first": found.options["option"].iloc[0],
            "run": found.run.table.rows if found.run else (),
            "reasons": found.tables[-1].rows,
            "others": "others change learning, or use fewer GPUs",
        }
    on, workload = found.question.cluster, found.question.workload
    return {
        "title": f"{workload.model} on {on.label}",
        "about": f"{counted(workload.local_batch, 'sample')} per GPU, which computes "
        f"{show_seconds(workload.compute_seconds)} and sends {show_bytes(workload.gradient_bytes)} "
        f"in an iteration; {gpus_in_words(on.workers)}, {on.network}",
        "first": found.best.name,
        "reasons": found.tables[1].rows,
        "shards": [row for one in found.tables[2:] for row in one.rows],
        "others": "others change learning, take further machines, or use fewer GPUs",
        "gap": found.gap,
    }


def _picture(figure: Figure) -> str:
    """Return a figure as the address of an image in the page itself."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, bbox_inches="tight")
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()
