"""A question about layouts with prices, and its forecasts as rows.

Its splits, larger batches and fewer nodes become rows; the same question with one thing changed is
forecast again over all layouts, as another one may be the best then. What data parallelism cannot
hold is handed over to here: what was given that only data parallelism has is refused, rather than
left out of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddlnb.advice.explain import (
    AS_IT_IS,
    FASTER,
    Counterfactual,
    faster_in_words,
    reason_table,
)
from ddlnb.advice.machines import gpu_of, network_of, rdma_of, times_as_fast, without_latency
from ddlnb.advice.options import LARGER_BATCHES, UNCHANGED, Kind
from ddlnb.advice.question import Prices, Question, question_about
from ddlnb.advice.score import chances_best, costs, over_first
from ddlnb.advice.sharded import of_replicas
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.hardware.catalogue import gpu_in
from ddlnb.hardware.gpu import Gpu, Nvlink
from ddlnb.parallelism.config import find_shape
from ddlnb.parallelism.forecast.fit import drawn_seconds
from ddlnb.parallelism.forecast.frameworks import Fitted, Parameters
from ddlnb.parallelism.forecast.layouts import Ranking, ranked, unsplit
from ddlnb.parallelism.forecast.question import TRAINED_IN, LayoutQuestion
from ddlnb.questions import Verdict, question
from ddlnb.simulator.questions import Held
from ddlnb.units import GIB, gpus_in_words, show_rate
from ddlnb.workloads.memory import Footprint, require_optimizer
from ddlnb.workloads.resolve import is_task

if TYPE_CHECKING:
    from ddlnb.parallelism.model import Transformer


COUNTED = "adam"  # the optimizer whose states layouts are forecast with


@question
class PricedQuestion(LayoutQuestion):
    """A question about layouts that advice answers: what GPUs cost counts, too."""

    _: KW_ONLY
    prices: Prices = field(default_factory=Prices)
    optimizer: str = COUNTED

    @cached_property
    def unsplit(self) -> Footprint:
        """What a GPU holds of the model that is not split."""
        return unsplit(self, self.optimizer)

    @cached_property
    def ranking(self) -> Ranking:
        """Every layout that fits, the fastest first. Raises what `ddlnb.scale` raises."""
        return ranked(self)


def posed(
    asked: Held,
    cluster: Cluster,
    *,
    unused: Mapping[str, object],
    prices: Prices | None = None,
) -> Question | PricedQuestion:
    """Return the question that decides: how to split a large model, or how replicas exchange.

    Every answer about training on a cluster asks here. A decoder of known layers
    (`ddlnb.parallelism.get_shape`) is a question of layouts, among which plain data parallelism is
    one. What was ``unused`` by layouts but given, by the names that users know, asks for data
    parallelism. Raises InputError for that where a GPU cannot hold the model unsplit.
    """
    require_optimizer(asked.optimizer)
    prices = prices or Prices()
    shape = find_shape(asked.model) if gpu_in(cluster.hardware) else None
    given = [
        name
        for name, value in {**unused, **of_data_parallelism(cluster)}.items()
        if value is not None
    ]
    is_alone = bool(given) and asked.precision not in ("", *TRAINED_IN)  # layouts have no say
    if shape is None or (is_alone and not asked.framework):
        require(
            not asked.framework,
            f"framework {asked.framework!r} is of models whose layers are known, by name or "
            f"config.json, on GPUs by name; leave it out (--framework)",
        )
        return question_about(asked, cluster, prices)
    split = split_on(
        shape,
        cluster,
        local_batch=asked.local_batch,
        sequence=asked.sequence,
        precision=asked.precision,
        prices=prices,
        optimizer=asked.optimizer,
        framework=asked.framework,
    )
    if not given:
        return split
    require(
        not asked.framework,
        f"framework {asked.framework!r} is of layouts, which have no use for "
        f"{' and '.join(given)}; leave out one of them (--framework)",
    )
    memory = float(split.gpu.memory)
    require(
        split.unsplit.most_samples(memory) > 0,
        f"{split.unsplit.said(1, memory)} It has to be split, and then {' and '.join(given)} "
        f"cannot be given; leave that out, or ask `ddlnb layouts scale`",
    )
    try:
        return question_about(asked, cluster, prices)
    except UnknownName as error:
        if not isinstance(asked.model, str) or is_task(asked.model):
            raise  # another name is not known
        raise InputError(
            f"model {asked.model!r} is known by its layers alone, and data parallelism is forecast "
            f"of gradients one by one; leave out {' and '.join(given)}, or give its config.json"
        ) from error


def of_data_parallelism(cluster: Cluster) -> dict[str, object]:
    """Return what of a cluster only data parallelism has, by the names that users know."""
    return {
        "its topology (--topology)": cluster.topology or None,
        "its changes (--change)": cluster.changes or None,
        "workers that differ (--slow)": str(cluster.heterogeneity) or None,
    }


def verdict_of(asked: Question | PricedQuestion) -> Verdict:
    """Return what every answer says first: memory of a GPU, and what comes of training.

    Methods stand for data parallelism as PyTorch does it (DDP). Raises InputError, with what would
    do, where no layout fits.
    """
    return _of_layouts(asked) if isinstance(asked, PricedQuestion) else of_replicas(asked)


def _of_layouts(asked: PricedQuestion) -> Verdict:
    """Return the verdict on a model whose layouts are known."""
    row, held, room = asked.ranking.rows(1)[0], asked.unsplit, float(asked.gpu.memory)
    rate, fits = asked.gpus * row["tokens_per_s_per_gpu"], held.bytes_at(1) <= room
    way = "it has to be split" if asked.gpus > 1 else "it fits by what a framework or layout saves"
    said = (
        f"Verdict: {'it fits unsplit' if fits else way}; fastest of the layouts "
        f"searched is {row['layout']}, with {show_rate(rate)} tokens/s on "
        f"{gpus_in_words(asked.gpus)} and {row['memory_gib']:.0f} GiB on each."
    )
    per_second = rate / asked.sequence
    needed, taken = held.bytes_at(1), row["memory_gib"] * GIB
    return Verdict(needed, fits, row["layout"], per_second, taken, (held.said(1, room), said))


def split_on(
    model: str | Transformer,
    cluster: Cluster,
    *,
    local_batch: int | None = None,
    sequence: int | None = None,
    precision: str = "",
    prices: Prices | None = None,
    optimizer: str = COUNTED,
    framework: str = "",
) -> PricedQuestion:
    """Return the question how to split a model over the GPUs in use of a cluster.

    A batch per GPU becomes that of a step, times the GPUs. Raises InputError for a cluster whose
    GPUs are not known.
    """
    gpu = gpu_in(cluster.hardware)
    if gpu is None:
        raise InputError(
            f"the GPUs of {cluster.name}, {cluster.hardware!r}, are not known; name them (--gpu)"
        )
    return PricedQuestion(
        model,  # type: ignore[arg-type]
        gpu_of(cluster, gpu),
        cluster.nodes_in_use,
        gpus_per_node=cluster.workers // cluster.nodes_in_use,
        network=network_of(cluster) if cluster.nodes_in_use > 1 else None,
        sequence=sequence,  # type: ignore[arg-type]
        global_batch=local_batch and local_batch * cluster.workers,  # type: ignore[arg-type]
        precision=precision,
        prices=prices or Prices(),
        optimizer=optimizer,
        framework=framework,
    )


TOKENS = "throughput_tokens_per_s"
SHOWN = 10  # splits, which are also those compared by draws
FEWER_NODES = (2, 4)


def layout_options(
    asked: PricedQuestion, *, top: int = SHOWN, draws: int = 0, seed: int = 0
) -> pd.DataFrame:
    """Return a row per option: the best layout of every split, of larger batches, of fewer nodes.

    Columns: option, layout, kind, gpus, throughput_tokens_per_s (all GPUs together) with its 90 %
    interval (low, high), tokens_per_s_per_gpu, over_best (throughput over that of the first),
    per_gpu_over_best, seconds (of a step), mfu, chance_best (the share of draws in which this split
    is the fastest of those shown), over_first (times as fast as the first of them, with the 90 %
    interval in the same draws: over_first_low, over_first_high), chance_of_slow, loses_by (to the
    row above), memory_bytes and fits, gpu_hours and cost (of a million tokens), server_machines
    (none), learning. Raises what `ddlnb.scale` raises.
    """
    return _compared([*_splits(asked, top, draws, seed), *_others(asked)])


def split_options(
    asked: PricedQuestion, *, top: int = SHOWN, draws: int = 0, seed: int = 0
) -> pd.DataFrame:
    """Return those rows of `layout_options` that are splits: same GPUs, same batch."""
    return _compared(_splits(asked, top, draws, seed))


def _splits(asked: PricedQuestion, top: int, draws: int, seed: int) -> list[dict[str, Any]]:
    ranking = asked.ranking
    best = ranking.best_of_splits()[:top]
    drawn = drawn_seconds(ranking.outlook, best, draws, seed, asked.fitted)
    chance = chances_best(drawn, range(len(best)), len(best))
    seconds = ranking.outlook.seconds[best]
    return [
        {
            **_row(asked, row, Kind.LAYOUT),
            "chance_best": chance[place],
            **over_first(drawn, place, float(seconds[0] / seconds[place])),
        }
        for place, row in enumerate(ranking.rows(top))
    ]


def _compared(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows, with their throughput over that of the first."""
    frame = pd.DataFrame(rows)
    frame["over_best"] = frame[TOKENS] / frame[TOKENS].iloc[0]
    per_gpu = frame["tokens_per_s_per_gpu"]
    frame["per_gpu_over_best"] = per_gpu / per_gpu.iloc[0]
    return frame


def _others(asked: PricedQuestion) -> Iterator[dict[str, Any]]:
    """Yield the best layout of larger batches, and of fewer nodes where one fits."""
    for factor in LARGER_BATCHES:
        larger = replace(asked, global_batch=factor * asked.global_batch)
        said = (
            f"a step averages {larger.tokens:,} tokens: learning rates change, and more of them "
            f"may be needed"
        )
        yield _row(larger, larger.ranking.rows(1)[0], Kind.BATCH, f"batch {factor}x", said)
    for divisor in FEWER_NODES:
        if asked.nodes % divisor:
            continue
        fewer = replace(asked, nodes=asked.nodes // divisor)
        try:
            row = fewer.ranking.rows(1)[0]
        except InputError:  # nothing fits on so few
            continue
        yield _row(fewer, row, Kind.FEWER, f"{fewer.gpus} GPUs")


def _row(
    asked: PricedQuestion,
    found: dict[str, Any],
    kind: Kind,
    name: str = "",
    learning: str = UNCHANGED,
) -> dict[str, Any]:
    rate = asked.gpus * found["tokens_per_s_per_gpu"]
    return {
        "option": f"{name}, {found['layout']}" if name else found["layout"],
        "layout": found["layout"],
        "kind": str(kind),
        "gpus": asked.gpus,
        TOKENS: rate,
        "low": asked.gpus * found["low"],
        "high": asked.gpus * found["high"],
        "tokens_per_s_per_gpu": found["tokens_per_s_per_gpu"],
        "seconds": found["seconds"],
        "mfu": found["mfu"],
        "chance_best": math.nan,
        "chance_of_slow": found["chance_of_slow"],
        "loses_by": found["loses_by"],
        "memory_bytes": found["memory_gib"] * GIB,
        "fits": True,
        **costs(asked.prices, asked.gpus, 0, rate),
        "server_machines": 0,
        "learning": learning,
        "frameworks": found["frameworks"],
    }


ZERO_BUBBLE = "zero-bubble"
STARTS = ("launch",)
LATENCIES = ("hop", "pipelined_hop", "pipelined_node", "transfer")
SLOW_MODE = ("slow_link", "slow_whole")
LEAST = {one.name: float(one.metadata["low"]) for one in fields(Parameters)}


SOCKETS = 0.8  # of a line: where sockets move less, the same line by RDMA is worth a row


def layout_counterfactuals(asked: PricedQuestion) -> Iterator[Counterfactual[PricedQuestion]]:
    """Yield what could be otherwise about the machines and the software, at the same batch."""
    if asked.nodes > 1:
        own = asked.network
        for factor, words in FASTER.items():
            faster = network_times(asked, factor)
            said = f"{words} the bandwidth between nodes"
            yield Counterfactual(faster_in_words(factor, own) if own else said, faster, True)
        if own is not None and own.socket_bandwidth < SOCKETS * own.line_rate:
            by_rdma = replace(asked, network=rdma_of(own))
            yield Counterfactual("RDMA between nodes", by_rdma, True)
    if asked.gpus_per_node > 1:
        gpu = replace(asked.gpu, nvlink=link_times(asked.gpu, 2))
        yield Counterfactual("twice the bandwidth inside nodes", replace(asked, gpu=gpu), True)
    if asked.nodes % 2 == 0 and asked.gpu.nvlink is not None:
        size = 2 * asked.gpus_per_node
        joined = asked.network and replace(asked.network, ports=2 * asked.network.ports)
        wider = replace(asked, nodes=asked.nodes // 2, gpus_per_node=size, network=joined)
        yield Counterfactual(f"{asked.gpu.nvlink.name} over {size} GPUs", wider, True)
    flops = {name: 2 * rate for name, rate in asked.gpu.flops.items()}
    gpu = replace(asked.gpu, flops=flops, memory_bandwidth=2 * asked.gpu.memory_bandwidth)
    yield Counterfactual("GPUs twice as fast", replace(asked, gpu=gpu), True)
    roomy = replace(asked.gpu, memory=2 * asked.gpu.memory)
    yield Counterfactual("twice the memory of a GPU", replace(asked, gpu=roomy), True)
    if not asked.ranking.outlook.each.cases.overlap.all():
        hidden = replace(asked, overlap=True)
        yield Counterfactual("exchanges of replicas beside the computation", hidden)
    if asked.schedule != ZERO_BUBBLE and (asked.ranking.outlook.cases.pp > 1).any():
        filled = replace(asked, schedule=ZERO_BUBBLE, vpp=None)
        yield Counterfactual("zero-bubble pipelines", filled)
    quick = replace(asked, fitted=without(asked.fitted, STARTS))
    yield Counterfactual("no floor of starting kernels", quick)
    if asked.gpus > 1:
        own = replace(asked.joined, port_rate=asked.across / asked.joined.ports)
        fitted, network = without(asked.fitted, LATENCIES), without_latency(own)
        prompt = replace(asked, fitted=fitted, network=network)
        yield Counterfactual("no latency of exchanges", prompt)
    if asked.ranking.outlook.chance.any():
        steady = replace(asked, fitted=without(asked.fitted, SLOW_MODE))
        yield Counterfactual("no slow runs", steady)


def layout_reasons(asked: PricedQuestion) -> pd.DataFrame:
    """Return the table of `reason_table` for the best layout of every counterfactual.

    Further columns: layout, and tokens per second of all GPUs with the 90 % interval
    (``tokens_per_s``, ``low``, ``high``).
    """
    listed = [Counterfactual(AS_IT_IS, asked), *layout_counterfactuals(asked)]
    best = pd.DataFrame([one.cell.ranking.rows(1)[0] for one in listed])
    rates = best[["tokens_per_s_per_gpu", "low", "high"]] * asked.gpus
    rates.columns = ["tokens_per_s", "low", "high"]
    table = reason_table(listed, best["seconds"].tolist())
    return table.assign(layout=best["layout"], **rates)


def without(fitted: Fitted, names: Sequence[str]) -> Fitted:
    """Return a fit in which these parameters are the least that they may be, in all frameworks."""
    return with_parameters(fitted, **{name: LEAST[name] for name in names})


def with_parameters(fitted: Fitted, **values: float) -> Fitted:
    """Return a fit with these values of parameters in all frameworks."""
    own = {
        framework: {name: value for name, value in known.items() if name not in values}
        for framework, known in fitted.frameworks.items()
    }
    return replace(fitted, parameters=replace(fitted.parameters, **values), frameworks=own)


def network_times(asked: PricedQuestion, factor: float) -> PricedQuestion:
    """Return the question with so many times the bandwidth between nodes; see `times_as_fast`."""
    own = asked.network
    if own is None:
        return replace(asked, gpu=replace(asked.gpu, port=factor * asked.gpu.port))
    return replace(asked, network=times_as_fast(own, factor))


def link_times(gpu: Gpu, factor: float) -> Nvlink:
    """Return links inside a node that are so many times as fast as those that there are."""
    if gpu.nvlink is not None:
        return replace(gpu.nvlink, bandwidth=factor * gpu.nvlink.bandwidth)
    return Nvlink(f"PCIe times {factor}", factor * gpu.pcie_bandwidth, False, False)
