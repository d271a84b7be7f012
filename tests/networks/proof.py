"""A proof that a collective is right, whatever numbers it sums: who has contributed to what.

For every rank and part there is a set of the workers whose numbers are in it. Sums join disjoint
sets, copies replace them, and at the end they must be those of the primitive.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import DdlnbError
from ddlnb.plans.transfers import Collective, Transfers

BITS = 64
Sets = NDArray[np.uint64]  # by rank, part and word of 64 workers


class WrongCollective(DdlnbError, ValueError):
    """A list of transfers that does not do what its primitive says; names rank, part and step."""


def prove(collective: Collective) -> None:
    """Check that every rank ends with every part summed exactly once: nothing twice, nothing lost.

    What that means says the primitive (`Collective`). The transfers of a step are simultaneous:
    what is received in it is not sent in it. Raises WrongCollective for a part that is sent before
    its sender has it, summed twice, written by two at once, or not as it should be at the end.
    """
    held = beginning(collective)
    written = np.full(held.shape[:2], -1)
    steps = np.split(
        collective.transfers,
        np.flatnonzero(np.diff(collective.transfers["step"])) + 1,
    )
    for rows in steps if len(collective.transfers) else []:
        _play(collective, rows, held, written)
    _compare(collective, held, written)


def beginning(collective: Collective) -> Sets:
    """Return the sets at the beginning: what every worker has of its own."""
    workers, parts = collective.workers, collective.parts
    held = np.zeros((collective.ranks, parts, -(-workers // BITS)), np.uint64)
    every = np.arange(workers)
    part = np.arange(parts)
    if collective.primitive in ("all-reduce", "reduce-scatter"):
        held[every, :, every // BITS] = _bit(every)[:, None]
    elif collective.primitive == "all-gather":
        owner = part * workers // parts
        held[owner, part, owner // BITS] = _bit(owner)
    elif collective.primitive == "broadcast":
        held[0, :, 0] = _bit(0)
    else:
        source = part // workers
        held[source, part, source // BITS] = _bit(source)
    return held


def ending(collective: Collective) -> tuple[Sets, NDArray[np.bool_]]:
    """Return the sets at the end, and where they matter: by rank and part."""
    workers, parts = collective.workers, collective.parts
    begun = beginning(collective)
    everyone = np.bitwise_or.reduce(begun, axis=0)
    due = np.broadcast_to(everyone, begun.shape)
    rank, part = np.arange(collective.ranks)[:, None], np.arange(parts)[None, :]
    if collective.primitive == "reduce-scatter":
        return due, rank == part * workers // parts
    if collective.primitive == "all-to-all":
        return due, rank == part % workers
    return due, np.broadcast_to(rank < workers, begun.shape[:2])


def _play(collective: Collective, rows: Transfers, held: Sets, written: NDArray[np.int64]) -> None:
    """Carry out one step."""
    lengths = rows["stop"] - rows["first"]
    row = np.repeat(np.arange(len(rows)), lengths)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    part = rows["first"][row] + offset
    source, target, reduces = rows["source"][row], rows["target"][row], rows["reduces"][row]
    step = int(rows["step"][0])
    sent = held[source, part]
    nothing = ~sent.any(axis=1)
    _refuse(collective, nothing, step, part, "sends", source, "before it has any of it")

    order = np.lexsort((part, target))
    row, part, target = row[order], part[order], target[order]
    sent, reduces = sent[order], reduces[order]
    place = target.astype(np.int64) * collective.parts + part
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    count = np.diff(np.append(begins, len(place)))
    nth = np.arange(len(place)) - np.repeat(begins, count)
    several = np.repeat(count, count) > 1
    _refuse(
        collective, several & ~reduces, step, part, "gives", target, "to be replaced by two at once"
    )
    copied = ~reduces
    held[target[copied], part[copied]] = sent[copied]
    for turn in range(int(count.max())):
        now = reduces & (nth == turn)
        before = held[target[now], part[now]]
        twice = np.zeros(len(now), np.bool_)
        twice[now] = (before & sent[now]).any(axis=1)
        _refuse(collective, twice, step, part, "sums", target, "with what is in it already")
        held[target[now], part[now]] = before | sent[now]
    written[target, part] = step


def _refuse(
    collective: Collective,
    wrong: NDArray[np.bool_],
    step: int,
    part: NDArray[np.int64],
    does: str,
    rank: NDArray[np.int64],
    what: str,
) -> None:
    if wrong.any():
        i = int(np.argmax(wrong))
        raise WrongCollective(
            f"{_named(collective)}: step {step} {does} part {part[i]} of rank {rank[i]} {what}"
        )


def _compare(collective: Collective, held: Sets, written: NDArray[np.int64]) -> None:
    due, matters = ending(collective)
    wrong = (held != due).any(axis=2) & matters
    if not wrong.any():
        return
    rank, part = (int(found) for found in np.argwhere(wrong)[0])
    lacking = _members(due[rank, part] & ~held[rank, part])
    foreign = _members(held[rank, part] & ~due[rank, part])
    said = " and ".join(
        f"{word} what came from {workers}"
        for word, workers in (("lacks", lacking), ("has", foreign))
        if workers
    )
    step = int(written[rank, part])
    last = f"was last written in step {step}" if step >= 0 else "was never written"
    raise WrongCollective(
        f"{_named(collective)}: at the end part {part} of rank {rank} {said}; it {last}"
    )


def _bit(worker: NDArray[np.int64] | int) -> NDArray[np.uint64]:
    return np.left_shift(np.uint64(1), np.asarray(worker % BITS, np.uint64))


def _members(words: NDArray[np.uint64]) -> list[int]:
    """Return the workers of a set."""
    return [
        BITS * i + bit
        for i, word in enumerate(words)
        for bit in range(BITS)
        if int(word) >> bit & 1
    ]


def _named(collective: Collective) -> str:
    return f"{collective.name} ({collective.primitive} of {collective.workers} workers)"
