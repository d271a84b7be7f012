"""Who starts messages in one order: a worker, a node, or the cluster as a whole."""

from __future__ import annotations

import heapq

from ddlnb.simulator.program import Program


class Sender:
    """The messages that some workers have ready, and those that are under way."""

    def __init__(self, program: Program, number: int, lanes: tuple[int, ...]):
        self.number, self.lanes = number, lanes
        self._program = program
        self._ready = [0] * len(program.messages)  # lanes that have the message ready
        self._next = self._flying = 0
        self._flying_bytes = 0.0
        self._waiting: list[tuple[int, int]] = []

    def make_ready(self, message: int) -> None:
        """One more of the workers has this message ready."""
        self._ready[message] += 1
        if self._program.by_priority and self._ready[message] == len(self.lanes):
            heapq.heappush(self._waiting, (int(self._program.priority[message]), message))

    def next_message(self) -> int | None:
        """Return the message that starts now, if one may, and count it as flying."""
        message = self._startable()
        if message is None:
            return None
        self._ready[message] = 0
        if self._program.by_priority:
            heapq.heappop(self._waiting)
        else:
            self._next = (self._next + 1) % len(self._ready)
        self._flying_bytes += self._program.message_bytes[message]
        self._flying += 1
        return message

    def release(self, message: int) -> None:
        """Give back the credit of a message."""
        self._flying_bytes -= self._program.message_bytes[message]
        self._flying -= 1

    def _startable(self) -> int | None:
        program, message = self._program, None
        if not program.by_priority:
            message = self._next if self._ready[self._next] == len(self.lanes) else None
        elif self._waiting:
            message = self._waiting[0][1]
        if message is None or not self._flying:
            return message
        fits = self._flying_bytes + program.message_bytes[message] <= program.credit_bytes
        return message if fits else None
