"""Plays messages as `plain_play` does, compiled: the same events, and rates only where they change.

Every channel carries one message at a time and has one event ahead: its message may begin, its
first byte flows, or its last byte has arrived. Compiled code is cached on disk.
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

TO_BEGIN, ON_THE_WAY, FLOWING = range(3)


def play_fast(traffic: Traffic) -> Course:
    """Return when messages begin and arrive; no moments."""
    between = gates(traffic)
    start, stop = _play(
        sharing(traffic.channels, traffic.network.bandwidths),
        heap_of(len(traffic.channels.cap)),
        traffic.channel,
        traffic.sizes,
        traffic.delay,
        traffic.release,
        between.feeds,
        between.fed,
        between.needs,
        between.opens,
        between.opened,
        between.waits,
    )
    return Course(start, stop)


@njit(cache=True, nogil=True)
def _play(
    on: Sharing,
    ahead: Heap,
    channel_of: Indices,
    sizes: Numbers,
    delay: Numbers,
    release: Numbers,
    feeds: Indices,
    fed: Indices,
    needs: Indices,
    opens: Indices,
    opened: Indices,
    waits: Indices,
) -> tuple[Numbers, Numbers]:
    messages, channels = len(sizes), len(on.channels)
    start, stop = np.full(messages, np.nan), np.full(messages, np.nan)
    playing = np.full(channels, -1, np.int64)
    phase = np.zeros(channels, np.int8)
    left, since = np.zeros(channels), np.zeros(channels)
    for message in range(messages):
        if waits[message] == 0:
            channel = channel_of[message]
            playing[channel], phase[channel] = message, TO_BEGIN
            put(ahead, channel, release[message])
    while ahead.size[0] > 0:
        now = ahead.key[ahead.order[0]]
        same = now * (1 + SAME_TIME)
        while ahead.size[0] > 0 and ahead.key[ahead.order[0]] <= same:
            channel = pop(ahead)
            message = playing[channel]
            if phase[channel] == TO_BEGIN:
                start[message] = now
                phase[channel] = ON_THE_WAY
                put(ahead, channel, now + delay[message])
            elif phase[channel] == ON_THE_WAY:
                phase[channel] = FLOWING
                left[channel], since[channel] = sizes[message], now
                join(on, channel)
            else:
                stop[message] = now
                leave(on, channel)
                for i in range(feeds[message], feeds[message + 1]):
                    gate = fed[i]
                    needs[gate] -= 1
                    if needs[gate] > 0:
                        continue
                    for j in range(opens[gate], opens[gate + 1]):
                        following = opened[j]
                        waits[following] -= 1
                        if waits[following] == 0:
                            other = channel_of[following]
                            playing[other] = following
                            if release[following] > same:
                                phase[other] = TO_BEGIN
                                put(ahead, other, release[following])
                            else:
                                start[following] = now
                                phase[other] = ON_THE_WAY
                                put(ahead, other, now + delay[following])
        for i in range(refill(on)):
            channel = on.chosen[i]
            before, rate = on.channels[channel].before, on.channels[channel].rate
            if before == rate:
                continue
            if since[channel] < now:
                left[channel] = max(0.0, left[channel] - before * (now - since[channel]))
                since[channel] = now
            put(ahead, channel, now + (left[channel] / rate if rate < math.inf else 0.0))
    return start, stop
