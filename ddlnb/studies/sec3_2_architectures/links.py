"""Emulated links: the ranks that sit on them, and the cost of a message that they promise."""

from __future__ import annotations

from ddlnb.launch.emulation.links import Link, get_link
from ddlnb.launch.emulation.network import lacking
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.verify_links import PAYLOAD_SHARE
from ddlnb.plans.alpha_beta import AlphaBeta


def emulated_ranks(count: int, network: str | Link, module: str) -> Ranks | None:
    """Return ranks on nodes of an emulated network, None where `lacking` says why not.

    They have imported the module, whose functions they will run.
    """
    if lacking():
        return None
    return Ranks(count, launcher="emulated", network=network, imports=(module,))


def asked_link(network: str | Link) -> AlphaBeta:
    """Return the latency and the payload rate of one message that the network promises."""
    link = get_link(network)
    return AlphaBeta(link.latency, 1 / (PAYLOAD_SHARE * link.bandwidth))
