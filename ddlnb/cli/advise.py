"""The command that says what to do, and its answer as one HTML page that stands on its own."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.advice.question import AdviceQuestion, Prices
from ddlnb.cli.options import App, grouped, price, print_answer, require_writable_files, write_rows
from ddlnb.cli.questions import KeptHardware
from ddlnb.errors import require
from ddlnb.files import provenance, write_atomically
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
) -> None:
    """Say what to do with a model on machines: ranked options, reasons, and what would pay.

    A model that no GPU can hold alone, such as llama3-70b, has to be split: then the answer is
    that of `ddlnb layouts scale --advise`.

    Examples: `ddlnb advise --model bert-large --cluster survey-10GbE --gpus 16` and
    `ddlnb advise --model my.py:task --gpu A100 --nodes 4 --network 200GbIB`.
    """
    require("model" in asked, "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    require_writable_files(options_csv=csv, advice_html=page)
    from ddlnb.advice.advise import advise as answer

    given = {"gpu_hour": gpu_price, "server_hour": server_price}
    prices = Prices(**{name: value for name, value in given.items() if value is not None})
    found = answer(cluster=hardware.chosen(), prices=prices, **asked)
    print_answer(found)
    write_rows(found.options, csv, "Options")
    write_page(found, page)


def write_page(found: Advice | LayoutAdvice, page: Path | None) -> None:
    """Write the page of an advice where it is to go, and say so."""

    if page is not None:
        write_atomically(page, advice_page(found))
        typer.echo(f"Page: {page}")


TEMPLATE = Path(__file__).with_name("advice.html")


def advice_page(found: Advice | LayoutAdvice) -> str:
    """Return the page: the answer, the options, the reasons, the gap, and what is not known."""
    from jinja2 import Environment

    from ddlnb.figures import advice_options, advice_reasons

    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text())
    return template.render(
        **_about(found),
        found=found,
        options=found.tables[0].rows,
        reasons=found.tables[1].rows,
        options_picture=_picture(advice_options(found.options)),
        reasons_picture=_picture(advice_reasons(found.reasons)),
        made=provenance(),
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
            "others": "others change learning, or use fewer GPUs",
        }
    on, workload = found.question.cluster, found.question.workload
    return {
        "title": f"{workload.model} on {on.label}",
        "about": f"{counted(workload.local_batch, 'sample')} per GPU, which computes "
        f"{show_seconds(workload.compute_seconds)} and sends {show_bytes(workload.gradient_bytes)} "
        f"in an iteration; {gpus_in_words(on.workers)}, {on.network}",
        "first": found.best.name,
        "others": "others change learning, take further machines, or use fewer GPUs",
        "gap": found.gap,
    }


def _picture(figure: Figure) -> str:
    """Return a figure as the address of an image in the page itself."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, bbox_inches="tight")
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()
