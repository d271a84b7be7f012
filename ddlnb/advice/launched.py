"""A run that exists: what its launch files say, what its log measured, and what explains the gap.

A suspect is the same forecast with one circumstance otherwise. Some are there or not, such as
exchanges that do not overlap; others have an extent, and the one that would explain all is found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddlnb.advice.layouts import LayoutAdvice
from ddlnb.advice.score import over_first
from ddlnb.advice.settings import about
from ddlnb.advice.sharded import shown_layout
from ddlnb.advice.splits import (
    PricedQuestion,
    link_times,
    network_times,
    of_data_parallelism,
    split_on,
    with_parameters,
)
from ddlnb.errors import InputError, require
from ddlnb.parallelism.config import find_shape
from ddlnb.parallelism.forecast.fit import drawn_seconds
from ddlnb.parallelism.forecast.layouts import Ranking, ranking_of
from ddlnb.parallelism.launch_files import Launch, changes, read_launch
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import Transformer
from ddlnb.questions import Answer, Table, Verdict
from ddlnb.simulator.questions import DRAWS
from ddlnb.traces.training_logs import TrainingLog, read_training_log
from ddlnb.units import GIB, show_rate, show_rates

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ddlnb.advice.advise import Advice
    from ddlnb.advice.question import Prices
    from ddlnb.clusters.cluster import Cluster

NAMED = 4  # suspects
MOST = 64.0  # times as bad, that a suspect is tried
NOTICED = 1.05  # what changes the seconds by less is no suspect
MOST_LAUNCH = 1e-3  # seconds that a host may take to hand over an operation
MORE_MEMORY = 1.2  # measured over forecast: as much is worth a word
LATE = 1.25  # of one step in twenty, over the median: as much is worth a word
ADAPTERS = re.compile(r"lora|peft|adapter")
ROUNDED = 0.005  # of a batch in a log, as nanotron's: 1.02K
WORTH_IT = 1.01  # as fast as launched: layouts that gain less are no advice

Changed = Callable[[PricedQuestion, Layout, float], tuple[PricedQuestion, Layout] | None]


@dataclass(frozen=True)
class Circumstance:
    """What may be otherwise than the forecast has it: the change, so many times, and its test."""

    name: str
    change: Changed
    test: str
    has_extent: bool = True


def _gpus(asked: PricedQuestion, layout: Layout, times: float) -> Any:
    flops = {name: rate / times for name, rate in asked.gpu.flops.items()}
    return replace(asked, gpu=replace(asked.gpu, flops=flops)), layout


def _nodes(asked: PricedQuestion, layout: Layout, times: float) -> Any:
    return (network_times(asked, 1 / times), layout) if asked.nodes > 1 else None


def _inside(asked: PricedQuestion, layout: Layout, times: float) -> Any:
    if asked.gpus_per_node == 1:
        return None
    return replace(asked, gpu=replace(asked.gpu, nvlink=link_times(asked.gpu, 1 / times))), layout


def _hosts(asked: PricedQuestion, layout: Layout, times: float) -> Any:
    own = min(asked.fitted.of(asked.framework).launch * times, MOST_LAUNCH)
    return replace(asked, fitted=with_parameters(asked.fitted, launch=own)), layout


def _apart(asked: PricedQuestion, layout: Layout, _: float) -> Any:
    return (replace(asked, overlap=False), layout) if asked.overlaps else None


def _again(asked: PricedQuestion, layout: Layout, _: float) -> Any:
    if layout.recomputation == "full":
        return None
    return asked, replace(layout, recomputation="full")


CIRCUMSTANCES = (
    Circumstance(
        "GPUs below their clock",
        _gpus,
        "nvidia-smi -q -d CLOCK,PERFORMANCE on every node while it trains: no power or heat caps",
    ),
    Circumstance(
        "the network between nodes",
        _nodes,
        "all_reduce_perf over all nodes, then `ddlnb expect`; NCCL_DEBUG=INFO must say NET/IB",
    ),
    Circumstance(
        "the links inside nodes",
        _inside,
        "all_reduce_perf on one node, then `ddlnb expect`; nvidia-smi topo -m must say NV",
    ),
    Circumstance(
        "hosts that start kernels late",
        _hosts,
        "`ddlnb trace` of a step says whether the GPU waits; look at data loader, CPUs, logging",
    ),
    Circumstance(
        "exchanges of replicas that do not overlap",
        _apart,
        "`ddlnb trace` says what is exposed; look at overlap-grad-reduce, at prefetching, and for "
        "what waits amid a step (.item(), .cpu(), synchronize)",
        has_extent=False,
    ),
    Circumstance(
        "activations that are computed again",
        _again,
        "the launch file asks for less; look for checkpoint() in the model's own code",
        has_extent=False,
    ),
)


@dataclass(frozen=True)
class Explained:
    """A circumstance that would explain seconds: how many times as bad, or how near it comes."""

    circumstance: Circumstance
    times: float
    apart: float

    def __str__(self) -> str:
        one = self.circumstance
        how = f"{self.times:.2f} times slower would explain it" if one.has_extent else (
            f"its forecast is {abs(math.expm1(self.apart)):.0%} off"
        )  # fmt: skip
        return f"{one.name} ({how}). Test: {one.test}."


def explained(asked: PricedQuestion, layout: Layout, seconds: float) -> list[Explained]:
    """Return what would explain the seconds of a step, the likeliest first.

    What has an extent needs to be as much worse as is said; what has none stands by how far its
    forecast is from what was measured, and counts only where it comes nearer. The smaller of the
    two, in logarithms, comes first.
    """
    from scipy.optimize import brentq

    now = _seconds(asked, layout)
    found = []
    for one in CIRCUMSTANCES:

        def off(times: float, one: Circumstance = one) -> float:
            changed = one.change(asked, layout, times)
            return math.log((_seconds(*changed) if changed else now) / seconds)

        before, worst = math.log(now / seconds), off(MOST)
        if not one.has_extent and abs(worst) < abs(before) - math.log(NOTICED):
            found.append(Explained(one, math.nan, worst))
        elif one.has_extent and before < 0 < worst:
            times = float(brentq(off, 1.0, MOST, xtol=1e-3))
            found.append(Explained(one, times, math.log(times)))
    return sorted(found, key=lambda one: abs(one.apart))


def _seconds(asked: PricedQuestion, layout: Layout) -> float:
    return float(_forecast(asked, layout).outlook.seconds[0])


def _forecast(asked: PricedQuestion, *layouts: Layout) -> Ranking:
    found = ranking_of(asked, *layouts)
    require(
        found is not None,
        f"layout {str(layouts[0])!r} has no forecast: adapters, other orders of ranks, "
        f"all-to-all context, V schedules and shards that cross the end of a node are played by "
        f"`ddlnb layouts iteration`",
    )
    assert found is not None
    return found


@dataclass(frozen=True, eq=False, repr=False)
class LaunchedAdvice(Answer):
    """A run as it is launched, beside the best of its layouts, and beside what its log measured.

    ``rows``: what (as launched, best, measured), layout, tokens_per_s_per_gpu with its 90 %
    interval (low, high; NaN of what was measured), seconds of a step, mfu and memory_gib.
    """

    question: PricedQuestion
    launch: Launch
    log: TrainingLog | None = None
    draws: int = DRAWS
    seed: int = 0

    @cached_property
    def layout(self) -> Layout:
        """The layout of the launch files."""
        return self.launch.layout

    @cached_property
    def best(self) -> Layout:
        """The fastest layout of the same batch that fits: as launched, unless another gains 1 %.

        Not every layout that is launched is searched, such as ZeRO-2 within nodes.
        """
        found = self.question.ranking.layout(int(self.question.ranking.order[0]))
        outlook = _forecast(self.question, self.layout, found).outlook
        is_best = outlook.fits[0] and outlook.seconds[0] <= WORTH_IT * outlook.seconds[1]
        return self.layout if is_best else found

    @cached_property
    def both(self) -> Ranking:
        """The forecast of both."""
        return _forecast(self.question, self.layout, self.best)

    @cached_property
    def measured_seconds(self) -> float:
        """Seconds of a step by the log, NaN without one."""
        asked = self.question
        if self.log is None:
            return math.nan
        batch = self.log.medians.get("batch", asked.global_batch)
        require(
            math.isclose(batch, asked.global_batch, rel_tol=ROUNDED),
            f"{self.log.name} has steps of {batch:,.0f} samples (global batch size), and the "
            f"launch files say {asked.global_batch:,}; give the launch files of that run",
        )
        return self.log.seconds(asked.global_batch, asked.tokens, asked.gpus)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """What is launched, what would be best, and what was measured."""
        asked, both = self.question, self.both.described(self.both.order)
        rows: list[dict[str, Any]] = [
            {"what": what, **row, "layout": str(layout)}
            for what, layout, row in zip(
                ("as launched", "best"), (self.layout, self.best), both, strict=True
            )
        ]
        if self.log is not None:
            rate = asked.tokens / asked.gpus / self.measured_seconds
            share = rate / rows[0]["tokens_per_s_per_gpu"]
            rows.append(
                {
                    **rows[0],
                    "what": "measured",
                    "tokens_per_s_per_gpu": rate,
                    "low": math.nan,
                    "high": math.nan,
                    "seconds": self.measured_seconds,
                    "mfu": share * rows[0]["mfu"],
                    "memory_gib": self.log.medians.get("memory_gib", math.nan),
                }
            )
        return pd.DataFrame(rows)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The rows as texts."""
        shown = [
            {
                "run": row["what"],
                "tokens/s/GPU": show_rate(row["tokens_per_s_per_gpu"]),
                "90 % interval": "-"
                if math.isnan(row["low"])
                else show_rates(row["low"], row["high"]),
                "MFU": f"{row['mfu']:.1%}",
                **shown_layout(row["layout"], row["seconds"], row["memory_gib"] * GIB),
            }
            for row in self.rows.to_dict("records")
        ]
        return (Table(f"{self.question}, {self.question.tokens:,} tokens per step", shown),)

    @property
    def verdict(self) -> Verdict:
        """Memory of a GPU, and whether the run fits."""
        asked, fits = self.question, bool(self.both.outlook.fits[0])
        rate = asked.gpus * self.rows["tokens_per_s_per_gpu"].iloc[0] / asked.sequence
        said = f"As launched it {'fits' if fits else 'does not fit'}: {self.layout}."
        if not fits and self._offloads:
            said = f"Without what is offloaded it does not fit: {self.layout}."
        needed, held = asked.unsplit.bytes_at(1), self.rows["memory_gib"].iloc[0] * GIB
        return Verdict(needed, fits, str(self.layout), float(rate), float(held), (said,))

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """What was measured, what would explain it, and what another layout would bring."""
        return tuple(self._said())

    def _said(self) -> Iterator[str]:
        if self.log is not None:
            yield self.log.said
            yield from self._gap(self.log)
        times = float(self.both.outlook.seconds[0] / self.both.outlook.seconds[1])
        if self.best == self.layout:
            yield (
                f"No layout of this batch that fits is forecast to be more than "
                f"{WORTH_IT - 1:.0%} faster."
            )
        elif times <= 1:
            yield f"{self.best} fits, and is forecast to take {1 / times:.2f} times as long."
        else:
            sure, gain = "", self._gain
            if gain is not None:
                low, high = gain["over_first_low"], gain["over_first_high"]
                sure = f" ({low:.2f} to {high:.2f}), and faster in {gain['wins']:.0%} of the draws"
            yield f"{self.best} is forecast to be {times:.2f} times as fast{sure}."
            yield from self._memory()

    def _memory(self) -> Iterator[str]:
        """Warn where the best layout may not fit, by the memory that was measured."""
        gib = self.rows.set_index("what")["memory_gib"]
        room = self.question.gpu.memory / GIB
        measured = gib.get("measured", math.nan)
        if measured > MORE_MEMORY * gib["as launched"] and measured <= room:
            more = measured - gib["as launched"]
            needs = gib["best"] + more
            yield (
                f"Measured are {measured:.1f} GiB, {more:.1f} more than forecast; with as much "
                f"more, {self.best} takes {needs:.1f} of {room:.0f} GiB"
                f"{', which does not fit' if needs > room else ''}."
            )

    def _gap(self, log: TrainingLog) -> Iterator[str]:
        forecast, _, measured = self.rows.to_dict("records")
        rate, low, high = measured["tokens_per_s_per_gpu"], forecast["low"], forecast["high"]
        said = (
            f"Measured are {show_rate(rate)} tokens/s per GPU, forecast "
            f"{show_rate(forecast['tokens_per_s_per_gpu'])} ({show_rates(low, high)})"
        )
        if measured["mfu"] > 1:
            yield (
                f"{said}: more than the peak of the GPU, so that the log is of another GPU, batch "
                f"or model than the launch file."
            )
        elif rate > high:
            yield f"{said}: faster than forecast."
        elif rate >= low:
            off = round(rate / forecast["tokens_per_s_per_gpu"] - 1, 2)
            how = f"{abs(off):.0%} {'below' if off < 0 else 'above'} it and within its interval"
            yield f"{said}: {how if off else 'as forecast'}, so that nothing is known to be wrong."
        else:
            yield f"{said}: slower than it should be."
            found = explained(self.question, self.layout, self.measured_seconds)[:NAMED]
            for number, one in enumerate(found, start=1):
                yield f"Suspect {number}: {one}"
            if not found:
                yield "No single circumstance makes it that slow."
        if log.late > LATE:
            yield (
                f"One step in twenty takes {log.late:.2f} times the median or longer: checkpoints, "
                f"evaluation, garbage collection or data."
            )

    @cached_property
    def _gain(self) -> dict[str, float] | None:
        """The interval of what the best layout gains, and the share of draws in which it does."""
        if not self.draws:
            return None
        drawn = drawn_seconds(
            self.both.outlook, [0, 1], self.draws, self.seed, self.question.fitted
        )
        return over_first(drawn, 1, 1.0) | {"wins": float((drawn[:, 1] < drawn[:, 0]).mean())}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Options of the launch files that are not known."""
        unknown = self.launch.unknown
        if not unknown:
            return ()
        said = [f"Options that are not known: {', '.join(unknown)}."]
        if self._offloads:
            said.append(
                "What is offloaded to hosts is not forecast: memory and seconds are those of a run "
                "without it."
            )
        if any(ADAPTERS.search(name) for name in unknown):
            said.append(
                "Adapters are not forecast: memory and seconds are those of training everything."
            )
        return tuple(said)

    @property
    def _offloads(self) -> bool:
        """Whether the launch files keep something on hosts."""
        return any(
            "offload" in name
            and self.launch.options.get(name.split()[0]) not in (False, None, "none")
            for name in self.launch.unknown
        )

    @property
    def settings(self) -> tuple[str, ...]:
        """What to change in the launch file for the best layout."""
        if self.best == self.layout:
            return ()
        form = self.launch.formats[0]
        try:
            lines = changes(self.launch, self.best, **about(self.question))
        except InputError as error:
            return (f"{error}.",)
        what = "Change", ""
        if self._gain and self._gain["over_first_low"] < 1:
            what = "To try", ", as it may also be slower"
        return ("\n".join([f"{what[0]} in {form.name}'s options{what[1]}:", *lines]),)


def advise_launched(
    config: Path | Sequence[Path],
    cluster: Cluster,
    run: Path | None = None,
    *,
    model: str | Transformer = "",
    prices: Prices | None = None,
    framework: str = "",
    sequence: int | None = None,
    precision: str = "",
    draws: int = DRAWS,
    seed: int = 0,
) -> LaunchedAdvice | Advice:
    """Return advice on a run on the GPUs in use of a cluster, by its launch files and its log.

    What is given overrules what the files say; a ``run`` is the log of training. A model that is
    no large one is one for data parallelism, of which DDP's throughput is measured. Raises
    InputError for files that say too little, or what the machines are not.
    """
    nodes = cluster.nodes_in_use
    launch = read_launch(config, nodes=nodes, gpus_per_node=cluster.workers // nodes)
    log = None if run is None else read_training_log(run)
    trained, layout = model or launch.model, launch.layout
    require(bool(trained), "the launch files do not say which model it is; give --model")
    require(
        layout.ranks == cluster.workers,
        f"layout {str(layout)!r} has {layout.ranks} GPUs, and the machines {cluster.workers}; give "
        f"--nodes and --gpus-per-node of the run",
    )
    tokens = sequence or launch.said.get("sequence")
    numbers = str(precision or launch.said.get("precision", ""))
    shape = trained if isinstance(trained, Transformer) else find_shape(trained)
    if shape is None:
        return _replicated(str(trained), cluster, layout, log, tokens, numbers, draws, seed)
    unlike = [name for name, value in of_data_parallelism(cluster).items() if value is not None]
    require(
        not unlike,
        f"launch files are judged on workers that are alike and a network of no graph; take "
        f"{' and '.join(unlike)} out of cluster {cluster.name}",
    )
    asked = split_on(
        shape,
        cluster,
        sequence=tokens,
        precision=numbers,
        prices=prices,
        framework=framework or launch.framework,
    )
    overlap = launch.said.get("overlap")
    posed = replace(asked, global_batch=layout.samples, cp=layout.cp, overlap=overlap)
    return LaunchedAdvice(posed, launch, log, draws, seed)


def _replicated(
    model: str,
    cluster: Cluster,
    layout: Layout,
    log: TrainingLog | None,
    sequence: int | None,
    precision: str,
    draws: int,
    seed: int,
) -> Advice:
    """Return advice on replicas, with the throughput of DDP by the log."""
    from ddlnb.advice.advise import advise

    plain_ddp = Layout(dp=layout.dp, micro_batch=layout.micro_batch)
    require(
        replace(layout, zero=0) == plain_ddp,
        f"layout {str(layout)!r} is more than replicas of {model}, whose layers are not known; "
        f"give a config.json (--model), or a launch file without accumulation and splits",
    )
    measured = None
    if log is not None:
        tokens = layout.samples * (sequence or 1)
        measured = layout.samples / log.seconds(layout.samples, tokens, layout.ranks)
    found = advise(
        model,
        cluster,
        local_batch=layout.micro_batch,
        sequence=sequence,
        precision=precision,
        measured=measured,
        measured_method=None if measured is None else "DDP",
        draws=draws,
        seed=seed,
    )
    assert not isinstance(found, LayoutAdvice)
    return found
