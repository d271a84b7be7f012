"""How to share a batch, or the layers, among GPUs of two or more kinds: the answer in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from ddlnb.errors import InputError, require_whole
from ddlnb.parallelism.forecast.question import BATCH_TOKENS
from ddlnb.parallelism.forecast.shapes import get_shape
from ddlnb.parallelism.transformer import Transformer
from ddlnb.parallelism.unlike.forecast import Way, unlike_table, unlike_ways
from ddlnb.parallelism.unlike.kinds import REACHED, Kinds, gpu_kinds
from ddlnb.units import GIB, counted, digits, show_rate

if TYPE_CHECKING:
    import pandas as pd

PIPELINE = "pipeline"
EQUAL, BY_SPEED = "equal shares", "shares by speed"


@dataclass(frozen=True)
class Sharing:
    """Every way to use unlike GPUs together, the best first; ``str`` is the answer in sentences.

    ``rows`` are those of `ddlnb.parallelism.unlike.forecast.unlike_table`: first the ways whose
    states all GPUs hold, the quickest first, then the others.
    """

    rows: pd.DataFrame
    sentences: tuple[str, ...]
    unknowns: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def unlike(
    model: str | Transformer,
    gpus: Mapping[str, int],
    *,
    samples: int | None = None,
    sequence: int | None = None,
    micro_batch: int = 1,
    precision: str = "bf16",
    reached: float = REACHED,
) -> Sharing:
    """Return how to share the batch, or the layers, of a model among GPUs of several kinds.

    ``gpus`` says how many there are of each kind. ``samples`` are the sequences of an iteration, by
    default as many as divide equally and have four million tokens or fewer. Compared are equal
    shares, shares by speed, one kind alone, and one pipeline of all GPUs with equal layers and with
    layers by speed (none where there are more GPUs than blocks). All kinds reach the same share
    ``reached`` of their peak at this precision; seconds are simulated from data sheets. A V100 has
    no bf16: give fp16.

    Raises UnknownName for unknown names, and InputError with what would do for a batch that does
    not divide.

    >>> import ddlnb
    >>> found = ddlnb.unlike("llama3-1b", {"A100": 4, "V100": 4}, samples=256, sequence=2048,
    ...                      precision="fp16")
    >>> found.rows["way"].iloc[0], found.rows["shares"].iloc[0]
    ('shares by speed', '4 x 46, 4 x 18')
    """
    shape = get_shape(model)
    long = shape.sequence if sequence is None else sequence
    require_whole(sequence=long, micro_batch=micro_batch)
    kinds = gpu_kinds(gpus, precision, reached)
    count = sum(kind.count for kind in kinds)
    if samples is None:
        whole = count * micro_batch
        samples = max(BATCH_TOKENS // long // whole, 1) * whole
    layers = replace(shape, sequence=long).shape
    pipelines = count <= len(layers.block_layers)
    ways = unlike_ways(layers, kinds, samples, micro_batch, pipelines=pipelines)
    rows = unlike_table(ways, samples, layers)
    order = rows.sort_values(["fits", "seconds"], ascending=[False, True]).index
    ranked = [ways[index] for index in order]
    return Sharing(
        rows.loc[order].reset_index(drop=True),
        tuple(_sentences(ranked, samples, kinds)),
        tuple(_unknowns(ranked, reached, pipelines)),
    )


def _sentences(ways: list[Way], samples: int, kinds: Kinds) -> list[str]:
    if not ways[0].fits:
        least = min(ways, key=lambda way: way.states)
        raise InputError(
            f"no way holds the states of the model: the least, {least.name}, puts "
            f"{least.states / GIB:.0f} GiB on one GPU; take more GPUs with more memory, or split "
            f"tensors as well (ddlnb scale)"
        )
    best, by_name = ways[0], {way.name: way for way in ways}
    said = [
        f"Take {best.name}: {_in_words(best)}. An iteration of {counted(samples, 'sample')} takes "
        f"{digits(best.seconds, 3)} s, {show_rate(samples / best.seconds)} samples/s."
    ]
    equal = by_name[EQUAL]
    if best is not equal and equal.fits:
        said.append(f"Equal shares take {equal.seconds / best.seconds:.2f} times as long.")
    alone = [way for way in ways if len(way.kinds) < len(kinds) and way.fits]
    if alone:
        most = min(alone, key=lambda way: way.seconds)
        if most is not best:
            said.append(
                f"The other GPUs make it {most.seconds / best.seconds:.2f} times as fast as "
                f"{most.name.removeprefix('only ')} alone."
            )
    lacking = [way for way in ways if not way.fits]
    if lacking:
        named = ", ".join(f"{way.name} ({way.states / GIB:.0f} GiB)" for way in lacking)
        said.append(f"Not held by all GPUs that they use: the states of {named}.")
    return said


def _in_words(way: Way) -> str:
    """Return who does how much: samples of GPUs, or layers of stages, in their order."""
    names = [kind.name for kind in way.kinds for _ in range(kind.count)]
    what = "layer" if way.name.startswith(PIPELINE) else "sample"
    parts = []
    for (name, share), run in groupby(zip(names, way.shares, strict=True)):
        count, several = len(list(run)), "" if share == 1 else "s"
        whom = f"one {name}" if count == 1 else f"each of {count} {name}"
        parts.append(f"{share} {what}{several} on {whom}")
    return ", ".join(parts)


def _unknowns(ways: list[Way], reached: float, pipelines: bool) -> list[str]:
    said = [
        f"All kinds are taken to reach {reached:.0%} of their peaks: time a few steps on one GPU "
        f"of each kind.",
        "Activations, which come on top of the states; exchanges that overlap with the backward "
        "pass; a GPU's speed that changes.",
    ]
    if not pipelines:
        said.append(
            f"Pipelines: {len(ways[0].shares)} GPUs are more stages than the model has blocks."
        )
    return said
