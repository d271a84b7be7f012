"""Tables of advice, for the terminal and the page: texts, in columns worth their width.

Advice as one HTML page that stands on its own: no script, no style, no font from elsewhere.

Advice as the commands `scale` and `advise` print it: layouts, sentences, files.

The command that says what to do: `ddlnb advise`.
"""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import Batch, Workers, grouped, price, print_table
from ddlnb.cli.questions import KeptHardware, ModelName, PrecisionName, Sequence, Throughput
from ddlnb.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlnb.advice.advise import Advice
    from ddlnb.advice.layouts import LayoutAdvice


def shown_options(found: Advice) -> list[dict[str, Any]]:
    """Return the options as texts, in columns that are worth their width."""
    from ddlnb.units import show_bytes, show_rate, show_rates

    rows = found.options
    has_memory = rows["memory_bytes"].notna().any()
    has_cost = rows["cost"].notna().any()
    has_draws = rows["draws"].any()
    shown = []
    for row in rows.to_dict("records"):
        line = {
            "option": row["option"],
            "GPUs": row["gpus"],
            "servers": row["server_machines"],
            "samples/s": show_rate(row["throughput_samples_per_s"]),
            "90 % interval": show_rates(row["low"], row["high"]),
            **({"draws": row["draws"]} if has_draws else {}),
            "over 1st": f"{row['over_best']:.2f}",
            "best in": "-" if math.isnan(row["chance_best"]) else f"{row['chance_best']:.0%}",
        }
        if has_memory:
            line["memory"] = show_bytes(int(row["memory_bytes"])) + _fits(row["fits"])
        cost = row["cost" if has_cost else "gpu_hours"]
        what = "cost/M samples" if has_cost else "GPU h/M samples"
        line[what] = "no price" if math.isnan(cost) else f"{cost:.3g}"
        line["changes"] = row["kind"] if row["learning"] else "-"
        shown.append(line)
    return shown


def shown_reasons(found: Advice) -> list[dict[str, Any]]:
    """Return the counterfactuals as texts."""
    from ddlnb.units import show_seconds

    return [
        {
            "with": row["what"],
            "iteration": show_seconds(row["iteration_seconds"]),
            "times as fast": f"{row['times_as_fast']:.2f}",
        }
        for row in found.reasons.to_dict("records")
    ]


def shown_layouts(found: LayoutAdvice) -> list[dict[str, Any]]:
    """Return the options of a large model as texts."""
    from ddlnb.units import GIB, show_rate, show_rates

    is_priced = found.options["cost"].notna().any()
    column, what = ("cost", "cost/M tokens") if is_priced else ("gpu_hours", "GPU h/M tokens")
    return [
        {
            "option": row["option"],
            "GPUs": row["gpus"],
            "tokens/s/GPU": show_rate(row["tokens_per_s_per_gpu"]),
            "90 % interval": show_rates(row["low"] / row["gpus"], row["high"] / row["gpus"]),
            "over the first": f"{row['over_best']:.2f}",
            "best in": "-" if math.isnan(row["chance_best"]) else f"{row['chance_best']:.0%}",
            "slow": f"{row['chance_of_slow']:.0%}",
            "memory": f"{row['memory_bytes'] / GIB:.0f} GiB",
            what: f"{row[column]:.3g}",
            "changes": row["kind"] if row["learning"] else "-",
        }
        for row in found.options.to_dict("records")
    ]


def shown_layout_reasons(found: LayoutAdvice) -> list[dict[str, Any]]:
    """Return the counterfactuals of a large model as texts, each with the layout that is best."""
    from ddlnb.units import show_rate, show_rates

    gpus = found.question.gpus
    return [
        {
            "with": row["what"],
            "step": f"{row['iteration_seconds']:.3g} s",
            "tokens/s/GPU": show_rate(row["tokens_per_s"] / gpus),
            "90 % interval": show_rates(row["low"] / gpus, row["high"] / gpus),
            "times as fast": f"{row['times_as_fast']:.2f}",
            "layout": row["layout"],
        }
        for row in found.reasons.to_dict("records")
    ]


def _fits(fits: bool | None) -> str:
    return "" if fits is None or fits else " (does not fit)"


TEMPLATE = Path(__file__).with_name("advice.html")


def advice_page(found: Advice | LayoutAdvice) -> str:
    """Return the page: the answer, the options, the reasons, the gap, and what is not known."""
    from jinja2 import Environment

    from ddlnb.figures import advice_options, advice_reasons
    from ddlnb.files import provenance

    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text())
    return template.render(
        **_about(found),
        found=found,
        options_picture=_picture(advice_options(found.options)),
        reasons_picture=_picture(advice_reasons(found.reasons)),
        made=provenance(),
    )


def _about(found: Advice | LayoutAdvice) -> dict[str, Any]:
    """Return what differs between advice on methods and advice on splits."""
    from ddlnb.advice.layouts import LayoutAdvice
    from ddlnb.units import gpus_in_words, show_bytes, show_seconds

    if isinstance(found, LayoutAdvice):
        asked = found.question
        return {
            "title": str(asked),
            "about": f"{asked.tokens:,} tokens in a step of "
            f"{counted(asked.global_batch, 'sequence')}",
            "first": found.options["option"].iloc[0],
            "others": "others change learning, or use fewer GPUs",
            "options": shown_layouts(found),
            "reasons": shown_layout_reasons(found),
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
        "options": shown_options(found),
        "reasons": shown_reasons(found),
    }


def _picture(figure: Figure) -> str:
    """Return a figure as the address of an image in the page itself."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, bbox_inches="tight")
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()


def print_layout_advice(
    found: LayoutAdvice, csv: Path | None = None, page: Path | None = None
) -> None:
    """Print options and reasons, and what `print_sentences` does."""
    ranking = found.question.ranking
    print_table(
        shown_layouts(found),
        False,
        f"Forecast: {found.question}, {found.question.tokens:,} tokens per step, {len(ranking)} of "
        f"{len(ranking.outlook.cases)} layouts fit; options, the first one is to be taken",
    )
    print_table(shown_layout_reasons(found), False, "The best layout, with one thing changed")
    print_sentences(found, csv, page)


def print_sentences(
    found: Advice | LayoutAdvice, csv: Path | None = None, page: Path | None = None
) -> None:
    """Print the sentences of an advice; write its options and its page where they are to go."""
    from ddlnb.files import write_atomically

    for said in found.sentences:
        typer.echo(said)
    for said in found.unknowns:
        typer.echo(f"Not known: {said}")
    if csv is not None:
        write_atomically(csv, found.options.to_csv(index=False))
        typer.echo(f"Options in {csv}")
    if page is not None:
        write_atomically(page, advice_page(found))
        typer.echo(f"Page: {page}")


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
    from ddlnb.advice.layouts import LayoutAdvice
    from ddlnb.advice.question import Prices
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
