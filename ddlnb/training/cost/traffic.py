"""Bytes that a lossy method sends: by closed form, and compared with the dense ring.

A dense iteration sends 2 (n-1) / n M bytes from every worker in a ring of n. A compressor's
all-reduce is such a ring of fewer bytes; its all-gather sends every payload to all others, so that
it grows with n: top-k saves a factor of D / (n k) for k of D entries, and nothing from a density of
1 / n on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ddlnb.compression.base import Compressor, Traffic
from ddlnb.errors import InputError, require_whole
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllGather, AllReduce, Messages
from ddlnb.training.cost.tensors import (
    CompressedPiece,
    Shape,
    compressed_pieces,
    pieces,
    require_shapes,
)
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

MANY = 8  # workers: enough for a compressor to make the requests that it makes among many


def bytes_sent(traffic: Traffic, workers: int) -> float:
    """Return the bytes that one worker sends for a request; for Messages, the busiest worker.

    >>> bytes_sent(Traffic(AllReduce, 1000), 4), bytes_sent(Traffic(AllGather, 1000), 4)
    (1500.0, 3000)
    """
    if traffic.request is AllReduce:
        return ring_bytes_sent(traffic.bytes, workers)
    if traffic.request is AllGather:
        return (workers - 1) * traffic.bytes
    if traffic.request is Messages:
        return traffic.bytes
    raise InputError(
        f"the bytes of {traffic.request.__name__} are not known; a compressor may ask for "
        f"AllReduce, AllGather and Messages"
    )


def link_bytes(traffic: Traffic, workers: int) -> float:
    """Return the bytes that a request moves over the link of one worker, both ways.

    What is reduced or gathered is received as often as it is sent. A message is sent by one worker
    and received by another, so that the busiest link carries it once.

    >>> link_bytes(Traffic(AllReduce, 1000), 4), link_bytes(Traffic(Messages, 1000), 4)
    (3000.0, 1000)
    """
    both = 1 if traffic.request is Messages else 2
    return both * bytes_sent(traffic, workers)


def requests(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> list[Traffic]:
    """Return all requests that averaging tensors of these shapes makes, in order."""
    return [
        request
        for one, shape in compressed_pieces(compressor, shapes)
        for request in one.traffic(shape, workers)
    ]


def fused(lists: Sequence[Sequence[Traffic]]) -> list[Traffic]:
    """Return the requests of tensors that travel together, equal ones joined as tensor fusion does.

    >>> [one.bytes for one in fused([[Traffic(AllGather, 8)], [Traffic(AllGather, 4)]])]
    [12]
    """
    found: dict[tuple[int, str], Traffic] = {}
    for requests in lists:
        for number, (request, size) in enumerate(requests):
            key = number, request.__name__
            before = found[key].bytes if key in found else 0
            found[key] = Traffic(request, before + size)
    return [found[key] for key in sorted(found)]


def gathers(group: Sequence[CompressedPiece]) -> bool:
    """Return whether payloads of these pieces go to all workers, by an all-gather."""
    return any(
        request.request is AllGather
        for compressor, shape in group
        for request in compressor.traffic(shape, MANY)
    )


def compressed_bytes(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> float:
    """Return the bytes that one worker sends to average tensors of these shapes once.

    Messages count by the busiest worker of each request, one after the other, as they take time:
    along a tree that is not always the same worker, and no single one sends them all.
    """
    require_whole(workers=workers)
    return sum(bytes_sent(one, workers) for one in requests(compressor, shapes, workers))


def compression_ratio(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> float:
    """Return the bytes of the dense ring, in float32, over those of the compressor.

    >>> from ddlnb.compression.top_k import TopK
    >>> compression_ratio(TopK(0.001), [(1_000_000,)], workers=32)
    31.25
    """
    shapes = list(shapes)
    dense = ring_bytes_sent(4 * sum(math.prod(shape) for shape in shapes), workers)
    sent = compressed_bytes(compressor, shapes, workers)
    return dense / sent if sent else math.inf


def traffic_table(
    workload: Workload,
    compressors: Mapping[str, Compressor],
    workers: Iterable[int],
) -> pd.DataFrame:
    """Return one row per compressor and number of workers: bytes per worker and iteration.

    Columns: model, compressor, workers, bytes, ratio, source. ``ratio`` is the bytes of the dense
    ring, which is there as "none", over those of the row.
    """
    import pandas as pd

    for compressor in compressors.values():
        require_shapes(workload, compressor)
    shapes = pieces(workload, whole_model=False)
    rows = []
    for count in workers:
        dense = ring_bytes_sent(4 * workload.parameters, count)
        rows.append(("none", count, dense, 1.0))
        for name, compressor in compressors.items():
            sent = compressed_bytes(compressor, shapes, count)
            rows.append((name, count, sent, dense / sent if sent else math.inf))
    frame = pd.DataFrame(rows, columns=["compressor", "workers", "bytes", "ratio"])
    return frame.assign(model=workload.model, source="closed form")
