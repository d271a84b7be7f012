"""A proof that a collective is right: played on random numbers, it must end as its primitive says.

Numbers of 64 bits are added modulo 2^64. A part that is lost, summed twice or sent before it is
there makes another number of them, but for an accident in 10^19.
"""

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.plans.transfers import Collective


def due(collective: Collective) -> tuple[np.ndarray, np.ndarray]:
    """Return whose numbers every part must have at the end, and on which worker; -1 for all."""
    part = np.arange(collective.parts)
    owner, every = np.array([collective.owner(int(one)) for one in part]), np.full_like(part, -1)
    whose = {"all-gather": owner, "broadcast": 0 * part, "all-to-all": part // collective.workers}
    where = {"reduce-scatter": owner, "all-to-all": part % collective.workers}
    kind = collective.primitive
    return whose.get(kind, every), where.get(kind, every)


def prove(collective: Collective) -> None:
    """Check that every rank ends with every part summed exactly once: nothing twice, nothing lost.

    What that means says the primitive (`Collective`). The transfers of a step are simultaneous:
    what is received in it is not sent in it. Raises InputError for a part that is written by
    two at once, or not as it should be at the end.
    """
    workers, parts = collective.workers, collective.parts
    require(
        collective.primitive != "all-to-all" or parts == workers**2,
        f"collective {collective.name!r} is an all-to-all of {parts} parts among {workers} "
        f"workers; make it of {workers**2}, one for every pair",
    )
    shape = (collective.ranks, parts)
    begun = np.random.default_rng(0).integers(0, 2**64, shape, np.uint64)
    begun[workers:] = 0  # servers, which have nothing of their own
    held = begun.copy()
    flat, steps = held.reshape(-1), collective.transfers["step"]  # which are sorted
    for step_rows in np.split(collective.transfers, np.flatnonzero(np.diff(steps)) + 1):
        lengths = step_rows["stop"] - step_rows["first"]
        rows = np.repeat(step_rows, lengths)
        part = (
            rows["first"] + np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        )
        sent, adds, target = held[rows["source"], part], rows["reduces"], rows["target"]
        place = target.astype(np.int64) * parts + part
        _, which, writers = np.unique(place, return_inverse=True, return_counts=True)
        flat[place[~adds]] = sent[~adds]
        np.add.at(flat, place[adds], sent[adds])
        if (twice := ~adds & (writers[which] > 1)).any():
            raise InputError(
                f"collective {collective.name!r} among {workers} workers is wrong: step "
                f"{rows['step'][0]} has part {part[twice][0]} of rank {target[twice][0]} replaced "
                f"by two"
            )
    whose, where = due(collective)
    rank, total = np.indices(shape)[0], begun[:workers].sum(axis=0)
    right = np.where(whose < 0, total, begun[whose, np.arange(parts)])
    wrong = np.argwhere((held != right) & (rank < workers) & ((where < 0) | (where == rank)))
    if len(wrong):
        raise InputError(
            f"collective {collective.name!r} among {workers} workers is no {collective.primitive}: "
            f"part {wrong[0][1]} of rank {wrong[0][0]} is wrong at the end, as something is lost, "
            f"added twice, or sent too early"
        )
