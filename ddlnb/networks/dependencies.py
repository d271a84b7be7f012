"""Which messages wait for which, as gates: all that feed a gate arrive, then it opens to others.

With gates the number of relations grows with the number of transfers; listed one by one, each of n
messages of a step would wait for each of n messages of the step before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ddlnb.networks.channels import Indices
from ddlnb.networks.traffic import Traffic


@dataclass(frozen=True, eq=False)
class Gates:
    """Message m feeds the gates ``fed[feeds[m]:feeds[m + 1]]``; gate g waits for ``needs[g]``
    messages and then opens to ``opened[opens[g]:opens[g + 1]]``; message m waits for ``waits[m]``
    gates."""

    feeds: Indices
    fed: Indices
    needs: Indices
    opens: Indices
    opened: Indices
    waits: Indices


def gates(traffic: Traffic) -> Gates:
    """Return the gates of a traffic.

    A gate stands between the sends of a rank in one step and in its next one, and between what a
    rank receives of a part and its next sends of that part. What it sends after those has waited
    for them already.
    """
    feeding, feeders, opening, openers = _in_order(traffic)
    by_data = _by_data(traffic)
    count = int(feeders.max(initial=-1)) + 1
    feeding = np.concatenate([feeding, by_data[0]])
    feeders = np.concatenate([feeders, by_data[1] + count])
    opening = np.concatenate([opening, by_data[2]])
    openers = np.concatenate([openers, by_data[3] + count])
    number = max(int(feeders.max(initial=-1)), int(openers.max(initial=-1))) + 1
    opens_any = np.bincount(openers, minlength=number) > 0
    useful = opens_any[feeders]
    feeding, feeders = feeding[useful], feeders[useful]
    messages = len(traffic.sizes)
    return Gates(
        *_rows(feeding, feeders, messages),
        np.bincount(feeders, minlength=number),
        *_rows(openers, opening, number),
        np.bincount(opening, minlength=messages),
    )


def _rows(key: Indices, value: Indices, count: int) -> tuple[Indices, Indices]:
    """Return where the row of every key starts, and the joined rows of values."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=count))])
    return starts.astype(np.int64), value[np.argsort(key, kind="stable")]


Relations = tuple[Indices, Indices, Indices, Indices]


def _in_order(traffic: Traffic) -> Relations:
    """Return messages and the gates they feed, messages and the gates they wait for."""
    steps = int(traffic.step.max(initial=0)) + 1
    groups, group = np.unique(traffic.source * steps + traffic.step, return_inverse=True)
    follows = np.zeros(len(groups) + 1, np.bool_)
    follows[1:-1] = groups[1:] // steps == groups[:-1] // steps
    messages = np.arange(len(group))
    before, after = follows[1:][group], follows[:-1][group]
    return messages[before], group[before], messages[after], group[after] - 1


def _by_data(traffic: Traffic) -> Relations:
    """Return the same for what is received and sent on."""
    bounds = np.unique(np.concatenate([traffic.first, traffic.stop]))
    low, high = np.searchsorted(bounds, traffic.first), np.searchsorted(bounds, traffic.stop)
    message = np.repeat(np.arange(len(traffic.sizes)), np.diff(traffic.pieces))
    lengths = high - low
    ends = np.cumsum(lengths)
    part = np.arange(int(lengths.sum())) - np.repeat(ends - lengths - low, lengths)
    message = np.repeat(message, lengths)
    steps, parts = int(traffic.step.max(initial=0)) + 1, len(bounds)
    step = traffic.step[message]
    sent = ((traffic.source[message] * parts + part) * steps + step) * 2
    received = ((traffic.target[message] * parts + part) * steps + step) * 2 + 1
    key = np.concatenate([sent, received])
    order = np.argsort(key, kind="stable")
    return _gates_of_parts(key[order], np.concatenate([message, message])[order], steps)


@njit(cache=True, nogil=True)
def _gates_of_parts(key: Indices, message: Indices, steps: int) -> Relations:
    """Walk through what each rank sends and receives of each part, step by step."""
    count = len(key)
    feeding, feeders = np.empty(count, np.int64), np.empty(count, np.int64)
    opening, openers = np.empty(count, np.int64), np.empty(count, np.int64)
    fed = opened = 0
    gate, here, used = -1, -1, -1  # the step of the sends that the gate has opened to
    has_gate = False
    for i in range(count):
        if key[i] // (2 * steps) != here:
            here, has_gate = key[i] // (2 * steps), False
        step, is_received = key[i] // 2 % steps, key[i] % 2 == 1
        if is_received:
            if not has_gate or used >= 0:
                gate, used, has_gate = gate + 1, -1, True
            feeding[fed], feeders[fed] = message[i], gate
            fed += 1
        elif has_gate and (used < 0 or used == step):
            used = step
            opening[opened], openers[opened] = message[i], gate
            opened += 1
    return feeding[:fed], feeders[:fed], opening[:opened], openers[:opened]
