"""Which transport carries a plan's messages: collectives, or parameter servers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddlnb.engines.base import Transport
from ddlnb.engines.transports.all_reduce import AllReduceTransport, GatheringTransport
from ddlnb.engines.transports.collective import (
    CollectiveTransport,
    HalvesTransport,
    MeshTransport,
    PerMessageTransport,
)
from ddlnb.engines.transports.push_pull import PushPullTransport
from ddlnb.errors import require
from ddlnb.launch.rank import RankContext
from ddlnb.plans.plan import Plan
from ddlnb.plans.transfers import Collective


def transport_for(
    context: RankContext,
    store: Any,
    plan: Plan,
    topology: str = "ring",
    collective: Collective | None = None,
    per_node: int = 1,
) -> Transport:
    """Return what answers a plan's requests on this worker: collectives, or parameter servers."""
    if plan.compressed_by:
        require(
            topology == "ring" and collective is None,
            f"plan {plan.method!r} compresses messages, whose payloads the backend gathers; leave "
            f"topology and collective out",
        )
        dense = replace(plan, compressions=())
        return GatheringTransport(transport_for(context, store, dense, per_node=per_node))
    if plan.servers:
        return connect_to_servers(context, store, plan.servers, plan.placement)
    reached = context.host, context.timeout_seconds
    if plan.is_split:
        return HalvesTransport(*reached)
    if plan.collectives:
        return PerMessageTransport(plan.collectives, per_node, *reached)
    if collective is not None:
        return CollectiveTransport(collective, *reached)
    if topology == "mesh":
        return MeshTransport(*reached)
    return AllReduceTransport()


def connect_to_servers(
    context: RankContext, store: Any, servers: int, placement: Sequence[int]
) -> PushPullTransport:
    """Return this worker's connection to the servers; message i goes to placement[i]."""
    if context.rank == 0:
        store.set("token", secrets.token_hex(8))
    token = store.get("token").decode()
    addresses = [store.get(f"server {server}").decode() for server in range(servers)]
    return PushPullTransport(addresses, placement, context.rank, token, context.timeout_seconds)
