"""Plays one iteration of a layout: pipeline, exchanges inside layers, gathers, reductions, update.

One rank stands for all of its stage: they do the same at the same time. Exchanges inside a layer
(tp, cp, ep) stop computation; messages between stages, gathers of parameters and reductions of
gradients run beside it, the last two one after the other, and a stage waits for what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ddlnb.errors import require_positive
from ddlnb.networks.flows import NO_STARTUP, Startup
from ddlnb.networks.network import Network
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.machines import LayerWork, LayoutNetwork, Wait, wait_for, works_of
from ddlnb.parallelism.memory import (
    PipelineStage,
    Precision,
    get_precision,
    left_of,
    pipeline_stages,
    require_fits,
    share_of,
)
from ddlnb.parallelism.model import ModelShape
from ddlnb.parallelism.schedules import SCHEDULES, Pass, in_order, schedule
from ddlnb.parallelism.volumes import GroupExchange, boundary_bytes, exchanges
from ddlnb.results.timeline import Span, Timeline


def play_iteration(
    model: ModelShape,
    layout: Layout,
    network: Network,
    flops_per_second: float,
    *,
    memory_bandwidth: float = 1e12,
    precision: str | Precision = "mixed",
    startup: Startup = NO_STARTUP,
    placement: Sequence[int] | None = None,
    all_reduce: str = "ring",
    overlap: bool = True,
) -> Timeline:
    """Return the timeline of one iteration, with a rank for every pipeline stage; simulated.

    ``flops_per_second`` is what a rank reaches in a layer, ``memory_bandwidth`` (bytes per second)
    what the optimizer's update reads and writes all states with. ``placement`` and ``all_reduce``
    are those of `LayoutNetwork`. Without ``overlap`` gradients are reduced after all passes. Waits
    are named by their reason: ``bubble``, or the axis that is waited for. Raises InputError for a
    layout that does not divide the model or does not fit on the network.

    >>> from ddlnb.networks.topologies import Star
    >>> from ddlnb.parallelism.model import llama
    >>> model = llama("small", 8, 512, 8, 8, 1536, 64, 512).shape
    >>> network = Star(4).network(bandwidth=100e9)
    >>> line = play_iteration(model, Layout.parse("pp4 acc8"), network, 1e12)
    >>> shares = parts_of(line)
    >>> round(shares["bubble"] / sum(shares.values()), 2)
    0.27
    """
    require_positive(flops_per_second=flops_per_second, memory_bandwidth=memory_bandwidth)
    require_fits(model, layout)
    precision = get_precision(precision)
    links = LayoutNetwork(layout, network, startup, placement, all_reduce)
    stages = [
        _Stage(held, works_of(held, model, layout, precision, links, flops_per_second))
        for held in pipeline_stages(model, layout.pp, layout.vpp, layout.schedule)
    ]
    player = _Player(layout, precision, links, stages, overlap)
    orders = schedule(layout.schedule, layout.pp, layout.micro_batches, layout.vpp)
    for index, one in in_order(orders, layout.vpp, layout.schedule):
        player.play_pass(stages[index], one)
    for stage in stages:
        after = exchanges(model, layout, precision, stage.held.index)
        player.finish(stage, [one for one in after if one.when == "update"], memory_bandwidth)
    end = max(stage.free for stage in stages)
    for stage in stages:
        stage.wait("bubble", end)
    spans = [span for stage in stages for span in stage.spans]
    return Timeline(str(layout), f"simulated on {network.name}", tuple(spans))


def parts_of(timeline: Timeline) -> dict[str, float]:
    """Return where the seconds go, averaged over stages; they add up to those of the iteration.

    ``computation``, ``update``, ``bubble``, and for every axis what is waited for it.
    """
    ranks = {span.rank for span in timeline.spans}
    parts: dict[str, float] = {}
    for span in timeline.spans:
        if span.lane == "compute":
            name = span.name if span.kind == "wait" else span.kind
            name = "computation" if name in ("forward", "backward") else name
            parts[name] = parts.get(name, 0.0) + span.seconds / len(ranks)
    return parts


@dataclass
class _Stage:
    """A rank of a stage: until when it computes, and its line to the other replicas."""

    held: PipelineStage
    chunks: list[list[LayerWork]]
    free: float = 0.0
    line_free: float = 0.0
    put_off: list[Wait] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def span(self, kind: str, name: str, start: float, stop: float, size: int = 0) -> None:
        """Note what happened, if it took time."""
        if stop > start:
            self.spans.append(Span(self.held.index, kind, name, start, stop, bytes=size))

    def wait(self, reason: str, until: float) -> None:
        """Stand idle until then."""
        self.span("wait", reason, self.free, until)
        self.free = max(self.free, until)

    def compute(self, kind: str, name: str, seconds: float) -> None:
        """Compute for so long."""
        self.span(kind, name, self.free, self.free + seconds)
        self.free += seconds

    def exchange(self, waits: Iterable[Wait]) -> None:
        """Exchange, and compute nothing meanwhile."""
        for one in waits:
            self.span("message", one.name, self.free, self.free + one.seconds, one.bytes)
            self.wait(one.axis, self.free + one.seconds)

    def beside(self, one: Wait, ready: float) -> float:
        """Exchange beside computation, behind what is on the line; return when it is done."""
        start = max(ready, self.line_free)
        self.line_free = start + one.seconds
        self.span("message", one.name, start, self.line_free, one.bytes)
        return self.line_free


@dataclass
class _Player:
    layout: Layout
    precision: Precision
    links: LayoutNetwork
    stages: list[_Stage]
    overlap: bool
    arrived: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def finish(
        self, stage: _Stage, after: Sequence[GroupExchange], memory_bandwidth: float
    ) -> None:
        """Wait for gradients, update, and gather what other replicas have updated."""
        stage.exchange(wait_for(one, self.links) for one in after if one.axis in ("tp", "ends"))
        for wait in stage.put_off:
            stage.beside(wait, stage.free)
        stage.wait("data", stage.line_free)
        widths = self.precision
        trained = share_of(stage.held, self.layout, adapters=bool(self.layout.lora))
        moved = 2 * widths.optimizer + 2 * widths.parameter + widths.gradient  # of an element
        updated = left_of(trained, self.layout, zero=1)
        stage.compute("update", "update", updated * moved / memory_bandwidth)
        gathered = (one for one in after if one.primitive == "all-gather")
        stage.exchange(wait_for(one, self.links) for one in gathered)

    def play_pass(self, stage: _Stage, one: Pass) -> None:
        """Play a pass through the layers of a chunk, and send what comes of it."""
        kind_of = SCHEDULES[self.layout.schedule]
        part, is_split = kind_of.part(stage.held.index, one.chunk, self.layout.pp), kind_of.splits
        stage.wait("bubble", self.arrived.get((one.kind, one.micro_batch, part), 0.0))
        step = 1 if one.kind == "F" else -1
        kind = "forward" if one.kind == "F" else "backward"
        works = stage.chunks[one.chunk][::step]
        gathered = 0.0 if one.kind == "W" else self._gathered(stage, works[:1])
        for number, work in enumerate(works):
            stage.wait("data", gathered)
            if one.kind != "W":
                gathered = self._gathered(stage, works[number + 1 : number + 2])
            stage.compute(kind, work.pass_name(one), work.seconds(one.kind, is_split))
            stage.exchange(work.waits.get(one.kind, ()))
            if one.kind == ("W" if is_split else "B"):
                self._reduce(stage, work, one)
        if one.kind != "W" and 0 <= part + step < self.layout.pp * self.layout.vpp:
            self._send(stage, one, part, part + step)

    def _gathered(self, stage: _Stage, works: list[LayerWork]) -> float:
        """Begin to gather the parameters of a layer; return when they are there."""
        gathers = [work.gather for work in works if work.gather is not None]
        return max((stage.beside(one, stage.free) for one in gathers), default=0.0)

    def _reduce(self, stage: _Stage, work: LayerWork, one: Pass) -> None:
        """Send gradients to the other replicas, once they are complete or sharded anyway."""
        if self.layout.zero >= 2 or one.micro_batch == self.layout.micro_batches - 1:
            for wait in work.reduce:
                if self.overlap:
                    stage.beside(wait, stage.free)
                else:
                    stage.put_off.append(wait)

    def _send(self, stage: _Stage, one: Pass, part: int, towards: int) -> None:
        kind = SCHEDULES[self.layout.schedule]
        number, index = kind.home(min(part, towards), self.layout.pp)  # the boundary is behind that
        layer = self.stages[index].held.chunks[number][-1][0]
        size = boundary_bytes(layer, self.layout, self.precision)
        source, target = stage.held.index, kind.home(towards, self.layout.pp)[1]
        seconds = self.links.boundary_seconds(size, source, target) if target != source else 0.0
        stop = stage.free + seconds
        stage.span("message", f"to stage {target}", stage.free, stop, round(size))
        self.arrived[one.kind, one.micro_batch, towards] = stop
