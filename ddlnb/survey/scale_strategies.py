"""Ways to split a model: carried out and counted, drawn as schedules, and played on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ddlnb.errors import require_known
from ddlnb.networks.flows import Startup
from ddlnb.networks.topologies import Star, with_islands
from ddlnb.parallelism.executed.table import CASES, strategy_rows, strategy_table
from ddlnb.parallelism.iteration import parts_of, play_iteration
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import memory
from ddlnb.parallelism.model import Transformer, llama
from ddlnb.parallelism.schedules import in_flight
from ddlnb.results.timeline import Timeline
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.units import GIB, bandwidth_from, seconds_from

# Eight equal blocks: the embedding and the head are next to nothing.
EQUAL_BLOCKS = Transformer("eight blocks", 8, 1024, 16, 16, 512)
# Llama 3 8B (its model card and config), with sequences of 4096 tokens.
LLAMA = llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 4096)
FLOPS = 400e12  # assumed of one GPU in a layer; the data sheet of an H100 says 989e12
FREE = 1e30  # bytes per second of links that cost nothing
EMPTY = 1e-9  # a bubble that is only rounding


def executed_strategies(names: Sequence[str] = (), *, seed: int = 1) -> pd.DataFrame:
    """Return the `strategy_rows` of the strategies of these names, by default of all.

    Raises UnknownName.
    """
    known = {case.strategy: case for case in CASES}
    for name in names:
        require_known("strategy", name, known)
    return strategy_rows([known[name] for name in names or known], seed=seed)


def execution_findings(rows: pd.DataFrame) -> Findings:
    """Return what the executed strategies showed, in sentences computed from the rows."""
    table = strategy_table(rows)
    parts = rows[rows["quantity"].str.startswith("memory")]
    off = (parts["predicted"] / parts["counted"] - 1).abs()
    worst = parts.loc[off.idxmax()]
    return findings(
        f"{int(table['equal'].sum())} of {len(table)} strategies do on every rank what was said "
        f"of them: {int(table['calls counted'].sum()):,} calls, "
        f"{int(table['bytes counted'].sum()):,} bytes.",
        f"No loss or parameter is further than {table['off one worker'].max():.0e} from that of "
        f"one worker.",
        f"Memory is off by at most {off.max():.1%} ({worst['quantity'].removeprefix('memory ')}, "
        f"{worst['strategy']}).",
    )


def played_schedules(layouts: Sequence[str]) -> dict[str, Timeline]:
    """Return one iteration of eight equal blocks under each layout, with links that cost nothing.

    By the text of the layout. Raises InputError for one that does not divide them.
    """

    def played(layout: Layout) -> Timeline:
        network = Star(max(2, layout.ranks)).network(FREE)
        return play_iteration(EQUAL_BLOCKS.shape, layout, network, FLOPS, memory_bandwidth=FREE)

    return {text: played(Layout.parse(text)) for text in layouts}


@tabled(index=["layout"])
def schedule_table(lines: Mapping[str, Timeline]) -> Rows:
    """Return what each schedule costs: its bubble, played and by formula, and what it keeps.

    The formulas are those of equal stages whose backward pass takes twice the forward pass, F:
    (p - 1)/(v m + p - 1) of the iteration. Zero-bubble stages stand idle for (p - 1)(F + B - W)
    where m is at least p (arXiv 2401.10241, Table 2), a third if all passes take as long. The core
    of attention, C of F, has no weights: B is F + C, and W is F - C.
    ``kept`` is the most micro batches, in whole stages, that any stage keeps activations of.
    """
    block = EQUAL_BLOCKS.shape.block_layers[0]
    core = block.core_flops / block.forward_flops
    for text, line in lines.items():
        layout = Layout.parse(text)
        parts = parts_of(line)
        left = (1 + 2 * core) / 3 if layout.schedule == "zero-bubble" else 1.0  # of F and B
        idle = (layout.pp - 1) * left
        kept = max(
            in_flight(layout.schedule, layout.pp, layout.micro_batches, layout.vpp, stage)
            for stage in range(layout.pp)
        )
        yield {
            "layout": text,
            "schedule": layout.schedule,
            "bubble": parts.get("bubble", 0.0) / sum(parts.values()),
            "formula": idle / (layout.vpp * layout.micro_batches + idle),
            "kept": kept / layout.vpp,
        }


def played_layouts(
    layouts: Sequence[str],
    *,
    nodes: int = 4,
    between: str = "50 GB/s",
    inside: str = "450 GB/s",
    latency: str = "10 us",
) -> dict[str, Timeline]:
    """Return one iteration of Llama 3 8B under each layout on nodes of 8 GPUs; simulated.

    ``between`` is the bandwidth of a GPU's share of its node's links, ``inside`` that of its link
    to the others of its node, ``latency`` what a message between nodes costs before its first byte
    (a fifth of it inside). Raises InputError for a layout that needs more GPUs.
    """
    star = Star(nodes).network(8 * bandwidth_from(between))
    network = with_islands(star, 8, bandwidth_from(inside))
    start = seconds_from(latency)
    return {
        text: play_iteration(
            LLAMA.shape,
            Layout.parse(text),
            network,
            FLOPS,
            memory_bandwidth=2e12,
            startup=Startup(inside=start / 5, between=start),
        )
        for text in layouts
    }


def split_table(lines: Mapping[str, Timeline]) -> pd.DataFrame:
    """Return where the time of each layout goes: a row per layout, seconds by reason.

    With ``tokens_per_second`` of one GPU, and ``memory_gib`` of the fullest rank (model states in
    mixed precision, and activations). Reasons that no layout has are left out.
    """
    rows = {}
    for text, line in lines.items():
        layout, parts = Layout.parse(text), parts_of(line)
        fullest = max(memory(LLAMA.shape, layout, stage=s).total for s in range(layout.pp))
        seconds = sum(parts.values())
        rows[text] = {
            **{name: value for name, value in parts.items() if value > EMPTY},
            "seconds": seconds,
            "tokens_per_second": layout.samples * LLAMA.sequence / seconds / layout.ranks,
            "memory_gib": fullest / GIB,
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("layout").fillna(0.0)
    last = ["seconds", "tokens_per_second", "memory_gib"]
    return table[[*table.columns.drop(last), *last]]


def split_findings(table: pd.DataFrame) -> Findings:
    """Return what the played layouts say, in sentences computed from the table."""
    rates = table["tokens_per_second"]
    best, worst = rates.idxmax(), rates.idxmin()
    waits = table.drop(
        columns=["computation", "update", "seconds", "tokens_per_second", "memory_gib"]
    )
    reason = waits.loc[worst].idxmax()
    waited = waits.loc[worst, reason] / table.loc[worst, "seconds"]
    memory_of = table["memory_gib"]
    return findings(
        f"Of these, `{best}` is quickest: {rates[best]:,.0f} tokens/s per GPU, with "
        f"{memory_of[best]:.0f} GiB on the fullest rank.",
        f"`{worst}` reaches {rates[worst] / rates[best]:.0%} of that; it waits longest for "
        f"{reason} ({waited:.0%} of its iteration).",
        f"`{memory_of.idxmin()}` needs least memory, {memory_of.min():.0f} GiB; "
        f"`{memory_of.idxmax()}` most, {memory_of.max():.0f} GiB.",
    )
