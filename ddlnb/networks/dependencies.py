"""Which messages wait for which, as gates: when all that feed a gate have come, it opens to others.

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
    """Gates, and the messages before and after them.

    A message that has left feeds the gates ``order[order_start[m]:order_start[m + 1]]``, one that
    has arrived those in ``data``, likewise. Gate g waits for ``needs[g]`` messages and then opens
    to ``opened[opened_start[g]:opened_start[g + 1]]``; message m waits for ``waits[m]`` gates.
    """

    order_start: Indices
    order: Indices
    data_start: Indices
    data: Indices
    needs: Indices
    opened_start: Indices
    opened: Indices
    waits: Indices


def gates(traffic: Traffic) -> Gates:
    """Return the gates of a traffic.

    A gate stands between the sends of a rank in one step and in its next one, and between what a
    rank receives of a part and its next sends of that part. What it sends after those has waited
    for them already, as they have begun.
    """
    messages = len(traffic.sizes)
    senders, sent, later, behind = _in_order(traffic)
    receivers, received, after, through = _by_data(traffic)
    first = int(behind.max(initial=-1)) + 1
    received, through = received + first, through + first
    opening, openers = np.concatenate([later, after]), np.concatenate([behind, through])
    number = int(openers.max(initial=-1)) + 1
    opens_any = np.zeros(max(number, int(received.max(initial=-1)) + 1), np.bool_)
    opens_any[openers] = True
    receivers, received = receivers[opens_any[received]], received[opens_any[received]]
    return Gates(
        *_rows(senders, sent, messages),
        *_rows(receivers, received, messages),
        np.bincount(np.concatenate([sent, received]), minlength=number),
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
