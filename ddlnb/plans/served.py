"""Servers that are asked for, where no method goes through any."""

from __future__ import annotations

from collections.abc import Iterable

from ddlnb.errors import require, require_whole
from ddlnb.plans.methods import METHODS, Method


def require_served(methods: Iterable[Method], servers: int | None) -> None:
    """Raise InputError for servers where no method goes through any: they would change nothing.

    >>> require_served([METHODS["MG-WFBP"]], 2)
    Traceback (most recent call last):
    ddlnb.errors.InputError: servers 2 change nothing: MG-WFBP goes without; leave them out, or \
take one of BSP-PS, WFBP-PS, ByteScheduler-PS
    """
    if servers is None:
        return
    require_whole(servers=servers)
    chosen = list(methods)
    has = [name for name, one in METHODS.items() if one.architecture == "PS"]
    require(
        any(one.architecture == "PS" for one in chosen),
        f"servers {servers} change nothing: {', '.join(one.name for one in chosen)} "
        f"{'goes' if len(chosen) == 1 else 'go'} without; leave them out, or take one of "
        f"{', '.join(has)}",
    )
