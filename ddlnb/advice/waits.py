"""What a worker waits for at the end of an iteration: the message that arrives last."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.results.timeline import Timeline
from ddlnb.simulator.simulate import Cell, simulate
from ddlnb.units import show_bytes, show_seconds

SOON = 1e-6  # seconds: less is rounding
STEADY = 1  # the second iteration: the first one waits for nothing that came before


@dataclass(frozen=True)
class LastMessage:
    """The message of an iteration that arrives last, in seconds after the last gradient is ready.

    ``begun`` is when the network took it, ``arrived`` when its average was back; either may be
    negative where it was done before the backward pass.
    """

    name: str
    bytes: int
    begun: float
    arrived: float

    def __str__(self) -> str:
        if self.arrived <= SOON:
            return "all messages have arrived when the last gradient is ready: nothing waits"
        if abs(self.begun) < SOON:
            started = "having started at once"
        elif self.begun > 0:
            started = f"having waited {show_seconds(self.begun)} for others"
        else:
            started = f"having started {show_seconds(-self.begun)} before that"
        return (
            f"the last message ({show_bytes(self.bytes)}) arrives {show_seconds(self.arrived)} "
            f"after the last gradient is ready, {started}"
        )


def last_message(cell: Cell) -> LastMessage | None:
    """Return the message that a worker waits for longest, None where there are no messages."""
    line = simulate(
        cell.workload, cell.cluster, cell.method, servers=cell.servers, iterations=STEADY + 2
    )
    return last_of(line)


def last_of(line: Timeline) -> LastMessage | None:
    """Return the last message of the steady iteration of a timeline, on its lowest rank."""
    rank = min(span.rank for span in line.spans)
    spans = [one for one in line.spans if one.iteration == STEADY and one.rank == rank]
    ready = max(span.stop_seconds for span in spans if span.kind == "backward")
    messages = [span for span in spans if span.kind == "message"]
    if not messages:
        return None
    last = max(messages, key=lambda span: span.stop_seconds)
    return LastMessage(last.name, last.bytes, last.start_seconds - ready, last.stop_seconds - ready)
