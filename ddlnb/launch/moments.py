"""Moments of a run at which its owner does something: a rank says when, and waits until it is done.

The owner holds what ranks cannot reach, such as the switch of the emulated network they are on.
Both talk through the store of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ddlnb.errors import DdlnbError

Actions = Mapping[str, Callable[[], object]]
REACHED, OVER, DONE = "reached", "over", "done"


def reach(store: Any, moment: str) -> None:
    """Have the owner act, from a rank; return when it is done. Raises DdlnbError if it failed."""
    store.set(_asked(moment), REACHED)
    said = store.get(_answered(moment)).decode()
    if said != DONE:
        raise DdlnbError(f"moment {moment!r} of the run: {said}")


@contextmanager
def acting(connect: Callable[[], Any], actions: Actions) -> Iterator[None]:
    """Act at moments of a run while the body waits for its end.

    ``connect`` returns a connection of its own to the store: who waits for a key in one keeps it.
    Moments are reached in the order of the actions, each once or never.
    """
    if not actions:
        yield
        return
    thread = threading.Thread(target=_act, args=(connect(), actions), name="moments")
    thread.start()
    try:
        yield
    finally:
        ending = connect()
        for moment in actions:
            ending.set(_asked(moment), OVER)
        thread.join()


def _act(store: Any, actions: Actions) -> None:
    for moment, action in actions.items():
        if store.get(_asked(moment)).decode() == OVER:
            return
        try:
            action()
        except Exception as error:  # the rank that waits raises it, and the run ends
            store.set(_answered(moment), f"{type(error).__name__}: {error}")
            return
        store.set(_answered(moment), DONE)


def _asked(moment: str) -> str:
    return f"moment {moment} asked"


def _answered(moment: str) -> str:
    return f"moment {moment} answered"
