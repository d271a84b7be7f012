"""What a matrix of traffic puts on every link of a network, whatever the time it is sent at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlnb.errors import require
from ddlnb.networks.channels import NO_CAP, NO_STARTUP, channels_between
from ddlnb.networks.network import Network, Numbers


def link_bytes(
    network: Network, matrix: Numbers, placement: Sequence[int] | None = None
) -> Numbers:
    """Return the bytes on every link when rank i sends ``matrix[i, j]`` bytes to rank j.

    Rank r runs on endpoint ``placement[r]``, by default on endpoint r. Raises InputError for a
    matrix that is not square, or larger than the network, and NoRoute for ranks that are apart.

    >>> from ddlnb.networks.topologies import Star
    >>> link_bytes(Star(2).network(1e9), np.array([[0.0, 5.0], [1.0, 0.0]])).tolist()
    [5.0, 1.0, 1.0, 5.0]
    """
    matrix = np.asarray(matrix, float)
    require(
        matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] <= network.ranks,
        f"a matrix of shape {matrix.shape} must be square, with at most the {network.ranks} ranks "
        f"of network {network.name!r}",
    )
    places = np.arange(len(matrix)) if placement is None else np.asarray(placement)
    require(
        sorted({*places.tolist()} & {*range(network.ranks)}) == sorted(places.tolist())
        and len(places) == len(matrix),
        f"placement {places.tolist()} must give each of {len(matrix)} ranks an endpoint of its "
        f"own, of the {network.ranks} of network {network.name!r}",
    )
    source, target = np.nonzero(matrix)
    ends = np.array(network.endpoints, dtype=np.int64)
    channels, channel, _ = channels_between(
        "traffic",
        network,
        ends[places[source]],
        ends[places[target]],
        np.arange(len(source)),
        NO_STARTUP,
        NO_CAP,
    )
    return channels.carried(channel, matrix[source, target], len(network.links))


def busiest_seconds(
    network: Network, matrix: Numbers, placement: Sequence[int] | None = None
) -> float:
    """Return the seconds that the busiest link needs for its bytes: no order of sending is faster.

    Arguments and errors are those of `link_bytes`.
    """
    return float((link_bytes(network, matrix, placement) / network.bandwidths).max(initial=0.0))
