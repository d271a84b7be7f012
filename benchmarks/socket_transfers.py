"""Plain transfers between ranks, all at once and over sockets that stay open."""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Any

from ddlnb.launch.rank import RankContext

Flow = tuple[int, int, int]  # source, target, bytes
BLOCK = 1 << 16
HEAD_START_SECONDS = 0.02


def transfer_seconds(
    context: RankContext, flows: Sequence[Flow], repetitions: int = 1
) -> dict[int, list[float]]:
    """Carry out flows that begin together, and return the seconds of those that end at this rank.

    By the number of the flow, one value per repetition: from the common beginning until the last
    byte has arrived. All ranks are on one machine, so its clock is everyone's.
    """
    store, begins = context.store(), Begins(context)
    leaving = {number: flow for number, flow in enumerate(flows) if flow[0] == context.rank}
    arriving = {number: flow for number, flow in enumerate(flows) if flow[1] == context.rank}
    seconds: dict[int, list[float]] = {number: [] for number in arriving}
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((context.host, 0), backlog=64))
        listener.settimeout(context.timeout_seconds)
        store.set(f"at {context.rank}", f"{context.host} {listener.getsockname()[1]}")
        lines: dict[int, socket.socket] = {}
        for number, (_, target, _) in leaving.items():
            host, port = store.get(f"at {target}").decode().split()
            lines[number] = socket.create_connection((host, int(port)), context.timeout_seconds)
            lines[number].sendall(number.to_bytes(4, "big"))
            stack.enter_context(lines[number])
        ends: dict[int, socket.socket] = {}
        for _ in arriving:
            line, _ = listener.accept()
            line.settimeout(context.timeout_seconds)
            ends[int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big")] = line
            stack.enter_context(line)
        for repetition in range(repetitions):
            begin = begins.next(repetition)
            work = [Thread(target=_send, args=(lines[n], leaving[n][2])) for n in leaving]
            for n, (_, _, size) in arriving.items():
                work.append(Thread(target=_receive, args=(ends[n], size, begin, seconds[n])))
            time.sleep(max(0.0, begin - time.monotonic()))
            for thread in work:
                thread.start()
            for thread in work:
                thread.join()
        begins.next(repetitions)  # nobody closes a line while others measure
    return seconds


class Begins:
    """The times at which repetitions begin, told by the last rank that is ready."""

    def __init__(self, context: RankContext):
        self._store: Any = context.store()
        self._ranks = context.count

    def next(self, repetition: int) -> float:
        """Wait until all ranks of the run are here; return the time at which to begin."""
        if self._store.add(f"ready {repetition}", 1) == self._ranks:
            begin = time.monotonic() + HEAD_START_SECONDS
            self._store.set(f"begin {repetition}", str(begin))
        return float(self._store.get(f"begin {repetition}"))

    def seconds_of(self, work: Callable[[], object], repetitions: int) -> list[float]:
        """Return how long work that all ranks begin together takes at this one, each time."""
        found = []
        for repetition in range(repetitions):
            begin = self.next(repetition)
            time.sleep(max(0.0, begin - time.monotonic()))
            work()
            found.append(time.monotonic() - begin)
        return found


def _send(line: socket.socket, size: int) -> None:
    line.sendall(bytes(size))


def _receive(line: socket.socket, size: int, begin: float, seconds: list[float]) -> None:
    while size > 0:
        data = line.recv(min(size, BLOCK))
        if not data:
            raise ConnectionError("the sender went away")
        size -= len(data)
    seconds.append(time.monotonic() - begin)
