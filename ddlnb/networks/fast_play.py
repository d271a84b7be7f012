"""Plays messages as `plain_play` does, compiled: the same events, and rates only where they change.

A channel lets one message flow at a time and has one event ahead for it: that it may begin, or has
left. Those that have left arrive in the same order, after the same delay, so that a channel has one
more event ahead: the next arrival. Compiled code is cached on disk.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ddlnb.networks.channels import Indices
from ddlnb.networks.dependencies import gates
from ddlnb.networks.fast_flows import Sharing, join, leave, refill, sharing
from ddlnb.networks.indexed_heap import Heap, heap_of, pop, put
from ddlnb.networks.network import Numbers
from ddlnb.networks.plain_play import SAME_TIME, Course
from ddlnb.networks.traffic import Traffic


def play_fast(traffic: Traffic) -> Course:
    """Return when messages begin, leave and arrive; no moments."""
    return Replay(traffic).course(traffic.sizes, traffic.delay, traffic.network.bandwidths)


class Replay:
    """A traffic to be played again and again: who waits for whom is found once."""

    def __init__(self, traffic: Traffic):
        self._traffic, self._gates = traffic, gates(traffic)

    def course(self, sizes: Numbers, delay: Numbers, bandwidths: Numbers) -> Course:
        """Return when messages of these bytes and delays begin, leave and arrive.

        ``bandwidths`` are those of the traffic's links, in the order of its network.
        """
        traffic, between = self._traffic, self._gates
        start, left, stop = _play(
            sharing(traffic.channels, bandwidths),
            heap_of(2 * len(traffic.channels.cap)),
            traffic.channel,
            sizes,
            delay,
            traffic.release,
            between.order_start,
            between.order,
            between.data_start,
            between.data,
            between.needs.copy(),  # counted down while it plays
            between.opened_start,
            between.opened,
            between.waits.copy(),
        )
        return Course(start, left, stop)


@njit(cache=True, nogil=True)
def _play(
    on: Sharing,
    ahead: Heap,
    channel_of: Indices,
    sizes: Numbers,
    delay: Numbers,
    release: Numbers,
    order_start: Indices,
    order: Indices,
    data_start: Indices,
    data: Indices,
    needs: Indices,
    opened_start: Indices,
    opened: Indices,
    waits: Indices,
) -> tuple[Numbers, Numbers, Numbers]:
    messages, channels = len(sizes), len(on.channels)
    start, left, stop = np.full(messages, np.nan), np.full(messages, np.nan), np.zeros(messages)
    sending = np.full(channels, -1, np.int64)  # the message that flows, or will be released
    to_send, since = np.zeros(channels), np.zeros(channels)
    arriving, last = np.full(channels, -1, np.int64), np.full(channels, -1, np.int64)
    behind = np.full(messages, -1, np.int64)  # the next one to arrive on the same channel
    free, count = np.empty(messages, np.int64), 0  # those that wait for no gate any more
    for message in range(messages):
        if waits[message] == 0:
            free[count] = message
            count += 1
    now, same = 0.0, 0.0
    while True:
        while True:
            while count > 0:
                count -= 1
                message = free[count]
                channel = channel_of[message]
                sending[channel] = message
                if release[message] > same:
                    put(ahead, channel, release[message])
                    continue
                start[message] = now
                to_send[channel], since[channel] = sizes[message], now
                join(on, channel)
            if ahead.size[0] == 0 or ahead.key[ahead.order[0]] > same:
                break
            item = pop(ahead)
            channel = item % channels
            if item >= channels:  # a message arrives
                message = arriving[channel]
                arriving[channel] = behind[message]
                if arriving[channel] >= 0:
                    put(ahead, item, stop[arriving[channel]])
                stop[message] = now
                count = _feed(
                    message, data_start, data, needs, opened_start, opened, waits, free, count
                )
                continue
            message = sending[channel]
            if np.isnan(start[message]):  # it is released
                free[count] = message
                count += 1
                continue
            left[message] = now
            stop[message] = now + delay[message]
            leave(on, channel)
            if arriving[channel] < 0:
                arriving[channel] = message
                put(ahead, channels + channel, stop[message])
            else:
                behind[last[channel]] = message
            last[channel] = message
            count = _feed(
                message, order_start, order, needs, opened_start, opened, waits, free, count
            )
        for i in range(refill(on)):
            channel = on.chosen[i]
            before, rate = on.channels[channel].before, on.channels[channel].rate
            if before == rate:
                continue
            if since[channel] < now:
                to_send[channel] = max(0.0, to_send[channel] - before * (now - since[channel]))
                since[channel] = now
            put(ahead, channel, now + (to_send[channel] / rate if rate < math.inf else 0.0))
        if ahead.size[0] == 0:
            return start, left, stop
        now = ahead.key[ahead.order[0]]
        same = now * (1 + SAME_TIME)


@njit(cache=True, nogil=True)
def _feed(
    message: int,
    fed_start: Indices,
    fed: Indices,
    needs: Indices,
    opened_start: Indices,
    opened: Indices,
    waits: Indices,
    free: Indices,
    count: int,
) -> int:
    """Feed the gates of a message; return how many messages are free after that."""
    for i in range(fed_start[message], fed_start[message + 1]):
        gate = fed[i]
        needs[gate] -= 1
        if needs[gate] == 0:
            for j in range(opened_start[gate], opened_start[gate + 1]):
                waits[opened[j]] -= 1
                if waits[opened[j]] == 0:
                    free[count] = opened[j]
                    count += 1
    return count
