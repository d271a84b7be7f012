"""Plain socket transfers between ranks, all at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping

from ddlnb.launch.rank import RankContext


def all_at_once(context: RankContext, transfers: Mapping[int, tuple[int, int]]) -> float:
    """Send what ``transfers`` says of this rank, (target, bytes), and return the seconds it took.

    The transfers begin together; a rank receives at most one. The seconds end when the receiver has
    all bytes; they are 0 for a rank that sends nothing.
    """
    store, seconds = context.store(), 0.0
    receiving = [source for source, (target, _) in transfers.items() if target == context.rank]
    thread = None
    if receiving:
        listener = socket.create_server((context.host, 0))
        store.set(f"at {context.rank}", f"{context.host} {listener.getsockname()[1]}")
        size = transfers[receiving[0]][1]
        thread = threading.Thread(target=_receive, args=(listener, size), name="receiving")
        thread.start()
    if context.rank in transfers:
        target, size = transfers[context.rank]
        host, port = store.get(f"at {target}").decode().split()
        with socket.create_connection((host, int(port))) as line:
            if store.add("ready", 1) == len(transfers):
                store.set("begin", str(time.monotonic() + 0.02))
            begin = float(store.get("begin"))
            time.sleep(max(0.0, begin - time.monotonic()))
            line.sendall(bytes(size))
            seconds = float(line.recv(64)) - begin
    if thread is not None:
        thread.join()
    return seconds


def _receive(listener: socket.socket, size: int) -> None:
    line, _ = listener.accept()
    with listener, line:
        while size > 0:
            size -= len(line.recv(1 << 16))
        line.sendall(str(time.monotonic()).encode())
