"""A heap of numbered items by key, compiled: an item is in it once, and its key can change."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ddlnb.networks.channels import Indices
from ddlnb.networks.network import Numbers


class Heap(NamedTuple):
    """``order`` is the heap of items, ``at`` where each one is in it (-1: not), ``key`` its key."""

    order: Indices
    at: Indices
    key: Numbers
    size: Indices


def heap_of(items: int) -> Heap:
    """Return an empty heap for items 0 to ``items`` - 1."""
    none = np.full(items, -1, np.int64)
    return Heap(np.zeros(items, np.int64), none, np.zeros(items), np.zeros(1, np.int64))


@njit(cache=True, nogil=True)
def put(heap: Heap, item: int, key: float) -> None:
    """Put an item in with this key, or change the key that it has."""
    heap.key[item] = key
    if heap.at[item] < 0:
        heap.at[item] = heap.size[0]
        heap.order[heap.size[0]] = item
        heap.size[0] += 1
    _rise(heap, heap.at[item])
    _sink(heap, heap.at[item])


@njit(cache=True, nogil=True)
def pop(heap: Heap) -> int:
    """Take out the item with the lowest key, of equal keys the lowest item."""
    first = int(heap.order[0])
    heap.size[0] -= 1
    last = heap.order[heap.size[0]]
    heap.at[first] = -1
    if last != first:
        heap.order[0] = last
        heap.at[last] = 0
        _sink(heap, 0)
    return first


@njit(cache=True, nogil=True)
def _is_before(heap: Heap, one: int, other: int) -> bool:
    return heap.key[one] < heap.key[other] or (heap.key[one] == heap.key[other] and one < other)


@njit(cache=True, nogil=True)
def _rise(heap: Heap, at: int) -> None:
    item = heap.order[at]
    while at > 0:
        above = (at - 1) // 2
        other = heap.order[above]
        if not _is_before(heap, item, other):
            break
        heap.order[at] = other
        heap.at[other] = at
        at = above
    heap.order[at] = item
    heap.at[item] = at


@njit(cache=True, nogil=True)
def _sink(heap: Heap, at: int) -> None:
    item = heap.order[at]
    while True:
        below = 2 * at + 1
        if below >= heap.size[0]:
            break
        if below + 1 < heap.size[0] and _is_before(heap, heap.order[below + 1], heap.order[below]):
            below += 1
        other = heap.order[below]
        if not _is_before(heap, other, item):
            break
        heap.order[at] = other
        heap.at[other] = at
        at = below
    heap.order[at] = item
    heap.at[item] = at
