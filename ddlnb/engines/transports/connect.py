"""Which transport carries a plan's messages: collectives, or parameter servers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from ddlnb.engines.base import Transport
from ddlnb.engines.transports.all_reduce import AllReduceTransport
from ddlnb.engines.transports.mesh import MeshTransport
from ddlnb.engines.transports.push_pull import PushPullTransport
from ddlnb.launch.rank import RankContext
from ddlnb.plans.plan import Plan


def transport_for(
    context: RankContext, store: Any, plan: Plan, topology: str = "ring"
) -> Transport:
    """Return what answers a plan's requests on this worker: collectives, or parameter servers."""
    if not plan.servers:
        return (
            AllReduceTransport() if topology == "ring" else MeshTransport(context.timeout_seconds)
        )
    return connect_to_servers(context, store, plan.servers, plan.placement)


def connect_to_servers(
    context: RankContext, store: Any, servers: int, placement: Sequence[int]
) -> PushPullTransport:
    """Return this worker's connection to the servers; message i goes to placement[i]."""
    if context.rank == 0:
        store.set("token", secrets.token_hex(8))
    token = store.get("token").decode()
    addresses = [store.get(f"server {server}").decode() for server in range(servers)]
    return PushPullTransport(addresses, placement, context.rank, token, context.timeout_seconds)
