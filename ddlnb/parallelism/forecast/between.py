"""What nodes send each other per second: a fitted share of the line, or what sockets leave of it.

Shares and seconds of transfers were fitted to networks with RDMA. Over TCP the software of the
sockets is the limit, whatever the framework: what data/hardware/protocols.yaml says of it, as in
every forecast of a cluster by name.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import Cases, Column

ACTIVATION = 2  # bytes of an element that is exchanged


def over_sockets(cases: Cases) -> NDArray[np.bool_]:
    """Return which cases have several nodes that speak TCP."""
    return np.asarray(np.isfinite(cases.sockets) & (cases.nodes > 1))


def reached(cases: Cases, share: float) -> Column:
    """Return bytes/s of a node to others: this share of the line, or what sockets leave of it."""
    return np.where(over_sockets(cases), cases.sockets, share * cases.across)


def socket_seconds(cases: Cases) -> Column:
    """Return what sockets take for the activations that a stage sends to the next; 0 with RDMA.

    All ranks of a stage send at once through the port of their node: with split sequences each its
    part. With RDMA the bytes are in the fitted seconds of a transfer.
    """
    split = np.where(cases.sequence_parallel > 0, cases.tp, 1)
    senders = np.minimum(cases.tp * cases.replicas, cases.gpus_per_node)
    sent = senders * ACTIVATION * cases.tokens * cases.hidden / split
    return np.where(over_sockets(cases), sent / cases.sockets, 0)
