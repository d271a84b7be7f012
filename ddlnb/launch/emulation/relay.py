"""Forward connections from one network to a port of another one.

A socket belongs to the namespace it was made in, so a process outside can listen inside.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

BLOCK = 1 << 16


class Relay:
    """Passes bytes between the clients of a listening socket and a port of 127.0.0.1."""

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._port = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._other: dict[socket.socket, socket.socket] = {}
        self._thread: threading.Thread | None = None

    def forward(self, port: int) -> int:
        """Start forwarding to this port, and return the port of the listener."""
        self._port = port
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()
        return self._listener.getsockname()[1]

    def close(self) -> None:
        """End the thread and all connections; safe to call twice."""
        self._wake.close()
        if self._thread is not None:
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                ready = key.fileobj
                if ready is self._woken:
                    for end in list(self._other):
                        end.close()
                    self._selector.close()
                    self._woken.close()
                    return
                assert isinstance(ready, socket.socket)
                if ready is self._listener:
                    self._accept()
                elif ready in self._other:
                    self._pass(ready)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            for end, other in ((near, far), (far, near)):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._other[end] = other
                self._selector.register(end, selectors.EVENT_READ)

    def _pass(self, ready: socket.socket) -> None:
        other = self._other[ready]
        try:
            data = ready.recv(BLOCK)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (ready, other):
            self._selector.unregister(end)
            del self._other[end]
            end.close()
