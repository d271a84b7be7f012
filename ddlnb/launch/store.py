"""The store of a run: keys and values by which ranks find each other, if they have its secret.

torch's own store serves whoever can connect. This one lies in its owner; where all ranks are on
this machine it listens on a Unix socket in a folder that only this user may enter. It answers
nothing, and unpickles nothing, before the other side has proved that it has the secret
(`multiprocessing.connection`). Ranks are told the secret in messages that are encrypted with a
key that lies in the same folder.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any

Address = str | tuple[str, int]  # of a Unix socket, or host and port
BACKLOG = 512


class StoreServer:
    """Serves a store from threads of this process until it is closed."""

    def __init__(self, address: Address):
        self.secret = secrets.token_bytes(32)
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._listener = Listener(address, backlog=BACKLOG)
        self.address: Address = self._listener.address
        threading.Thread(target=self._accept, name="store", daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more, and let nobody wait; safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with suppress(OSError):  # it is closed already
            Client(self.address).close()  # wakes what accepts
            self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is closed
            while not self._closed:
                with suppress(RuntimeError):  # no memory for a thread: who asks is turned away
                    threading.Thread(
                        target=self._serve,
                        args=[self._listener.accept()],
                        name="store",
                        daemon=True,
                    ).start()

    def _serve(self, one: Connection) -> None:
        with one, suppress(Exception):  # a stranger, of any words, or a rank that has ended
            deliver_challenge(one, self.secret)
            answer_challenge(one, self.secret)
            while True:
                name, *words = one.recv()
                one.send(getattr(self, f"_{name}")(*words))

    def _wait(self, keys: Sequence[str], seconds: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._check(keys), seconds)
            return self._check(keys)

    def _get(self, key: str, seconds: float) -> bytes | None:
        return self._values[key] if self._wait([key], seconds) else None

    def _check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def _set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def _add(self, key: str, amount: int) -> int:
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self._set(key, b"%d" % total)
        return total


@cache
def connected(address: Address, secret: bytes) -> Any:
    """Return the store at that address as one of torch's; a process has one, and keeps it.

    Threads have a connection each: one that waits for a key holds up no other.
    """
    from torch.distributed import DistNetworkError, DistStoreError, Store

    own = threading.local()

    class Connected(Store):
        def _ask(self, *words: object) -> Any:
            try:
                if not hasattr(own, "connection"):
                    own.connection = Client(address, authkey=secret)
                own.connection.send(words)
                return own.connection.recv()
            except (OSError, EOFError, AuthenticationError) as error:
                raise DistNetworkError(f"the store of the run has gone: {error!r}") from error

        def _asked(self, name: str, what: Any, timeout: Any = None) -> Any:
            seconds = (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
            if (found := self._ask(name, what, seconds)) in (None, False):
                raise DistStoreError(f"nobody has set {what!r} in {seconds:g} s")
            return found

        def get(self, key: str) -> bytes:
            return self._asked("get", key)

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            self._asked("wait", keys, timeout)

        def set(self, key: str, value: str | bytes) -> None:
            self._ask("set", key, value.encode() if isinstance(value, str) else bytes(value))

        def add(self, key: str, amount: int) -> int:
            return self._ask("add", key, amount)

        def check(self, keys: list[str]) -> bool:
            return self._ask("check", keys)

    return Connected()
