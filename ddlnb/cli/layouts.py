"""Large models: which layout is fastest, where an iteration goes, how unlike GPUs share work."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.advice.question import AdviceQuestion, Prices, Question
from ddlnb.cli.options import (
    App,
    Csv,
    Family,
    grouped,
    price,
    print_answer,
    print_table,
    refuse_others,
    refuse_unused,
    require_writable_files,
    say,
    write_picture,
)
from ddlnb.cli.questions import MachineName
from ddlnb.errors import InputError, require
from ddlnb.files import require_writable_file
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.units import GIB, count_from, counted, digits, show_rate

if TYPE_CHECKING:
    from ddlnb.advice.balance import Sharing
    from ddlnb.advice.sharded import Sharded
    from ddlnb.questions import Answer

app = App(cls=Family, help="Split a large model over GPUs: rank, play, or share layouts.")
COUNTED = re.compile(r"\s*(\d+)\s*x\s*(\S.*)")


@app.command()
@grouped
def scale(
    *,
    context: typer.Context,
    asked: Annotated[dict[str, Any], LayoutQuestion],
    machine: MachineName = "",
    top: Annotated[int, typer.Option(help="How many splits are shown.")] = 10,
    advise: Annotated[
        bool, typer.Option("--advise", help="Say how sure the ranking is, and what would pay.")
    ] = False,
    gpu_price: Annotated[
        float | None, price("With --advise: price of a GPU per hour, any currency.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(help="With --advise: days, cost and energy of training on so many, as 2T."),
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="With --tokens: the cheapest run that ends in these days.")
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
    the best layout is the best, cost per million tokens, and what is not known. With --tokens, too,
    the days, cost and energy of a whole run, here and on fewer and more nodes.

    With --table, rows of a CSV with the columns of data/published/nanotron_h100_upto64.csv get
    tokens_per_s_per_gpu, its interval, memory_gb (GiB, as runs report it) and fits. Columns that
    may be there, too: framework, framework_version, source_date (2024-06), activation_checkpointing
    (none, selective or full; empty is a mixture by what fits), nvlink_domain (GPUs that one switch
    of NVLink joins), schedule, vpp, sp, sharding (hybrid_shard), experts, top_k, ep, cp. A model is
    told by its name, its sizes, or the file of a config.json. What is not understood, or taken
    instead, is said on standard error. --csv prints splits as such rows.

    Examples: `ddlnb layouts scale --model llama3-70b --gpu H100 --nodes 64` and
    `ddlnb layouts scale --model llama3-8b --machine p4d --nodes 4 --advise`.
    """

    if table is not None or out is not None:
        if table is None or out is None or "model" in asked:
            raise InputError("give both --table IN.csv and --out OUT.csv, without --model")
        why = "rows of --table say what runs on what, each in its own columns (gpu, network, ...)"
        refuse_others(context, why, "table", "out", "keep_going")
        return _table(table, out, keep_going)
    refuse_unused("there is no --table whose rows could be left empty", keep_going=keep_going)
    if "model" not in asked:
        raise InputError("give --model, such as llama3-8b, or --table IN.csv and --out OUT.csv")
    if advise and csv:
        raise InputError("--csv prints one table, and --advise several; leave out one of them")
    if not advise:
        given = {"gpu_price": gpu_price, "tokens": tokens, "page": page}
        refuse_unused("prices, tokens and pages need --advise", **given)
    if tokens is None:
        refuse_unused("days are those of --tokens", within=within)
    require_writable_files(advice_html=page)
    from ddlnb.advice.layouts import Splits, advise_on_layouts
    from ddlnb.advice.run import Run
    from ddlnb.advice.splits import PricedQuestion
    from ddlnb.cli.advise import write_page
    from ddlnb.parallelism.config import find_shape
    from ddlnb.workloads.resolve import is_task

    if not advise and find_shape(asked["model"], strict=True) is None and is_task(asked["model"]):
        return _tell(_sharded(machine, **asked), csv)
    network = asked.get("network", "")
    if machine:
        from ddlnb.hardware.catalogue import get_machine, parts_of

        parts = parts_of(
            get_machine(machine), asked.get("gpu", ""), asked.get("gpus_per_node"), network
        )
        asked |= zip(("gpu", "gpus_per_node", "network"), parts, strict=True)
    prices = Prices() if gpu_price is None else Prices(gpu_price)
    question = PricedQuestion(**asked, prices=prices)
    if network and question.nodes == 1:
        typer.echo(f"note: network {network} is not used, as there is one node", err=True)
    if advise:
        run = None if tokens is None else Run(question, prices, count_from(tokens), within)
        answer = advise_on_layouts(question, run, top=top)
        print_answer(answer)
        return write_page(answer, page)
    found = Splits((question,), top)
    if csv:
        from ddlnb.parallelism.forecast.table import as_runs

        return print_table(as_runs(question, question.ranking, top, asked["model"]), True, "")
    print_answer(found)
    typer.echo("--advise says what else can be done, what would pay, and what is not known.")


def _tell(found: Answer, csv: bool) -> None:
    """Print an answer, or its first table as CSV."""
    if csv:
        return print_table([dict(row) for row in found.tables[0].rows], True, "")
    print_answer(found)


def _sharded(
    machine: str,
    model: str,
    *,
    gpu: str = "",
    nodes: int = LayoutQuestion.nodes,
    gpus_per_node: int | None = None,
    network: str = "",
    sequence: int | None = None,
    global_batch: int | None = None,
    precision: str = "",
    **others: object,
) -> Sharded:
    """Return a traced model by degrees of ZeRO. Raises InputError for options of layouts."""
    from ddlnb.advice.sharded import Sharded
    from ddlnb.advice.splits import posed
    from ddlnb.clusters.named import cluster_of

    refuse_unused(f"{model} is traced, and its layers are sharded alone", **others)
    named = gpu or ("" if machine else str(LayoutQuestion.gpu))
    on = cluster_of(named, nodes, gpus_per_node, network, machine=machine)
    require(
        global_batch is None or global_batch % on.workers == 0,
        f"a batch of {global_batch} is not a multiple of the {on.workers} GPUs; give one that is",
    )
    batch = global_batch and global_batch // on.workers
    asked = AdviceQuestion(model, on, local_batch=batch, sequence=sequence, precision=precision)
    known = posed(asked, on, unused={})
    assert isinstance(known, Question)
    return Sharded(known)


def _table(table: Path, out: Path, keep_going: bool) -> None:
    from ddlnb.parallelism.forecast.table import forecast_table

    require_writable_file(out, "forecast.csv")
    require(
        out.resolve() != table.resolve(),
        f"--out {str(out)!r} is the table itself, whose measurements forecasts would replace; "
        f"name another file",
    )
    found = forecast_table(
        table, keep_going=keep_going, say=lambda line: typer.echo(f"note: {line}", err=True)
    )
    typer.echo(f"{counted(len(found.rows), 'row')}: {found.write(out)}")


@app.command()
def iteration(
    layout: Annotated[
        list[str], typer.Option(help="Such as 'dp4 tp4 pp2 sp zero1 acc16'; repeatable.")
    ],
    model: Annotated[str, typer.Option(help="A large model, or a task of yours.")] = "llama3-8b",
    gpu: Annotated[str, typer.Option(help="A GPU by name.")] = "H100",
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of a node.")] = 8,
    network: Annotated[
        str | None, typer.Option(help="What joins nodes; default: what the GPU is sold with.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="How nodes are joined, such as 'two-tier(2, 2, 4.0)'.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens of a sequence; default: the model's own.")
    ] = None,
    framework: Annotated[
        str, typer.Option(help="Whose steps are forecast; default: a mixture of those in use.")
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(help="What numbers are kept and sent in, such as fp8; it computes in bf16."),
    ] = "mixed",
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline of a single layout, for Perfetto.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw what the stages of every layout do, such as a.png.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Play one iteration of a large model under layouts, and say where its time goes; simulated.

    Seconds are averaged over pipeline stages: computation, update, bubble, and what is waited for
    on each axis (tp, cp, ep, data). Computation runs at what large matrices sustain, so that what
    is small or waits for kernels is too fast here: beside it stands the forecast of the same
    layout that is fitted to runs, that of `ddlnb layouts scale`, with its memory.

    Examples: `ddlnb layouts iteration --layout 'dp4 tp4 pp2 acc16'` and
    `ddlnb layouts iteration --layout 'dp8 tp4' --layout 'dp32 zero3' --picture stages.png`.
    """

    from ddlnb.advice.splits import PricedQuestion, verdict_of
    from ddlnb.parallelism.config import find_shape
    from ddlnb.parallelism.forecast.layouts import ranking_of
    from ddlnb.parallelism.iteration import parts_of, play_iteration
    from ddlnb.parallelism.layout import Layout
    from ddlnb.parallelism.machines import machines_of
    from ddlnb.parallelism.memory import memory
    from ddlnb.workloads.resolve import is_task

    require_writable_files(iteration_json=trace, stages_png=picture)
    require(
        trace is None or len(layout) == 1,
        f"a trace is of one layout, and {len(layout)} are given; leave out --trace or the others",
    )
    require(
        trace is None or trace.suffix == ".json",
        f"trace file {str(trace)!r} must have a name in .json, which viewers open",
    )
    if find_shape(model, strict=True) is None and is_task(model):
        given = {"topology": topology, "trace": trace, "picture": picture, "framework": framework}
        refuse_unused("it is traced", **given)
        on: dict[str, Any] = {"gpu": gpu, "nodes": nodes, "gpus_per_node": gpus_per_node}
        shards = _sharded("", model, **on, network=network or "", sequence=sequence)
        return _tell(shards.of([Layout.parse(text) for text in layout]), csv)
    asked = PricedQuestion(
        model,  # type: ignore[arg-type]
        gpu,  # type: ignore[arg-type]
        nodes,
        gpus_per_node=gpus_per_node,
        network=network,  # type: ignore[arg-type]
        sequence=sequence,  # type: ignore[arg-type]
        framework=framework,
    )
    shape = replace(asked.model, sequence=asked.sequence).shape
    machines = machines_of(
        asked.gpu,
        nodes,
        gpus_per_node=gpus_per_node,
        network=network,
        topology=topology,
        precision=asked.precision,
        framework=framework,
    )
    lines, rows, said = {}, [], []
    for text in layout:
        one = Layout.parse(text)
        line = play_iteration(
            shape,
            one,
            machines.network,
            machines.flops,
            memory_bandwidth=machines.gpu.memory_bandwidth,
            precision=recipe,
        )
        lines[text] = line
        parts = {"computation": 0.0, "update": 0.0} | parts_of(line)
        seconds = sum(parts.values())
        row: dict[str, Any] = {"layout": str(one), "seconds": round(seconds, 4)}
        row |= {name: round(value, 4) for name, value in parts.items()}
        row["tokens/s/GPU"] = round(one.samples * asked.sequence / seconds / one.ranks)
        found = ranking_of(asked, one) if recipe == "mixed" and topology is None else None
        if found is None:
            size = max(memory(shape, one, recipe, stage).total for stage in range(one.pp)) / GIB
            row |= {"forecast tokens/s/GPU": "", "GiB": round(size, 1)}
            said.append(f"{one}: no forecast is fitted to it; its GiB are counted by layers.")
        else:
            [forecast] = found.described(found.order)
            row["forecast tokens/s/GPU"] = round(forecast["tokens_per_s_per_gpu"])
            row["GiB"] = round(forecast["memory_gib"], 1)
            said.append(
                f"{one}: the forecast fitted to runs ({forecast['frameworks']} tokens/s/GPU) takes "
                f"{forecast['seconds'] / seconds:.2f} times the {seconds:.3g} s played here, where "
                f"no kernel is small, none is waited for, and libraries take nothing."
            )
        if row["GiB"] > asked.gpu.memory / GIB:
            said.append(
                f"{one} takes {row['GiB']:,.1f} of {asked.gpu.memory / GIB:.0f} GiB: it does not "
                f"fit, and is played as if it did."
            )
        rows.append(row)
    batches = {one: Layout.parse(one).samples for one in layout}
    if len({*batches.values()}) > 1:
        each = ", ".join(f"{count:,} as {one}" for one, count in batches.items())
        said.append(f"Sequences of an iteration: {each}; compare tokens/s, and not seconds.")
    if trace is not None:
        lines[layout[0]].write_chrome_trace(trace)
    write_picture(picture, "pipeline_schedules", lines, err=csv)
    print_table(_aligned(rows), csv, f"One iteration of {model} on {machines.network.name}")
    if csv:
        return
    played = {*batches.values()}
    # Layouts of one batch stand beside the fastest of that batch, if a search can divide it.
    for batch in dict.fromkeys([*(played if len(played) == 1 else ()), asked.global_batch]):
        try:
            said += verdict_of(replace(asked, global_batch=batch)).said
        except InputError as error:
            unfit = f"Verdict: {error}."
        else:
            also = f"The verdict is of steps of {batch:,} sequences."
            said += [also] * (played != {batch})
            break
    else:  # nothing fits: what was asked is played all the same
        said.append(unfit)
    say(said)


def _aligned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with all reasons that any of them has, in one order."""
    last = ("tokens/s/GPU", "forecast tokens/s/GPU", "GiB")
    names = [name for name in dict.fromkeys(k for row in rows for k in row) if name not in last]
    return [{name: row.get(name, 0.0) for name in (*names, *last)} for row in rows]


@app.command()
def balance(
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="How many GPUs of a kind, such as 4xA100; once for every kind."),
    ] = None,
    model: Annotated[str, typer.Option(help="A large model, or a task of yours.")] = "llama3-1b",
    samples: Annotated[
        int | None,
        typer.Option(help="Samples of an iteration; default: 4 Mi tokens, or a task's own."),
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

    Compares equal shares, shares by speed, each kind alone, and pipelines of all GPUs, simulated:
    an iteration takes as long as its slowest worker. A kind alone is what `ddlnb forecast` says of
    it. A task of yours is not cut into pipelines.

    Examples: `ddlnb layouts balance --model my.py:task --gpu 4xA100 --gpu 4xV100` and
    `ddlnb layouts balance --model llama3-8b --gpu 8xH100 --gpu 8xA100`.
    """
    from ddlnb.advice.balance import balance as shared

    require_writable_files(ways_png=picture)
    found = shared(
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
    print_table(_shown_ways(found), False, f"Simulated: {model} on {' + '.join(gpu or [])}")
    say([*found.sentences, *(f"Not known: {one}" for one in found.unknowns)])
    write_picture(picture, "unlike_ways", found.rows)


def counts(words: list[str]) -> dict[str, int]:
    """Return how many GPUs there are of every kind. Raises InputError for words that do not say.

    >>> counts(["4xA100", "8 x V100"])
    {'A100': 4, 'V100': 8}
    """

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


def _shown_ways(found: Sharing) -> list[dict[str, Any]]:
    return [
        {
            "way": row["way"],
            "shares": row["shares"],
            "iteration": f"{digits(row['seconds'], 3)} s",
            "waits": f"{row['communication_seconds']:.2g} s",
            "samples/s": show_rate(row["samples_per_second"]),
            "of all speeds": f"{row['of_all']:.0%}",
            "on a GPU": f"{digits(row['held_gib'], 3)} GiB"
            + ("" if row["fits"] else " (too many)"),
        }
        for row in found.rows.to_dict("records")
    ]
