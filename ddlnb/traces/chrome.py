"""Events in Chrome's format, as most profilers write them, read in pieces.

A file is a list of events, or an object whose ``traceEvents`` they are. A piece ends where an event
ends and the next one begins; what its reader does not keep of an event is gone with the next one.
What no piece can be made of, as where a file was cut, is read event by event, as far as it goes.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ddlnb.errors import InputError, require
from ddlnb.reading import MOST_BYTES, json_of
from ddlnb.units import counted

PIECE = 8 << 20  # bytes
TRIES = 8  # places at which a piece may end
CUT = "events until the file was cut"
KNOWN = "torch.profiler's export, a timeline of Horovod or BytePS, or a job's table (.csv)"
WAY_OUT = f"give {KNOWN}"
LIST, OPENS = re.compile(rb"\s*\["), re.compile(rb'"traceEvents"\s*:\s*\[')
CLOSED = re.compile(r"trailing characters \(byte (\d+)\)")


class TraceEvent(msgspec.Struct, gc=False):
    """An event under the names of the file, None where it lacks one; nothing is checked yet.

    ``args`` is a part of the file's bytes: whoever keeps an event keeps a copy of what it needs.
    """

    name: Any = None
    cat: Any = None
    ph: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: msgspec.Raw = msgspec.Raw(b"{}")  # which `said` reads


_EVENTS = msgspec.json.Decoder(list[TraceEvent])
_SAID = msgspec.json.Decoder()


def said(args: msgspec.Raw) -> dict[str, Any]:
    """Return what an event says of itself. Raises InputError for what is no JSON.

    A trace is decoded where it is looked at, and no sooner.
    """
    try:
        found = _SAID.decode(args)
    except (UnicodeDecodeError, msgspec.MsgspecError) as problem:
        raise InputError(f"an event of the trace is no JSON: {problem}; record it again") from None
    return found if isinstance(found, dict) else {}


def event_of(found: Any, name: str) -> TraceEvent:
    """Return the event of a JSON object. Raises InputError for what is no object."""
    require(
        isinstance(found, dict),
        f"{name!r} is not a trace: an event is no JSON object; give {KNOWN}",
    )
    known = {key: found.get(key) for key in TraceEvent.__struct_fields__}
    return TraceEvent(**{**known, "args": msgspec.Raw(msgspec.json.encode(known["args"]))})


class Events(Iterator[TraceEvent]):
    """The events of a trace in the order of its file, each gone before the next one is read.

    ``head`` is what else the file says: what stands before the events, and once they are read also
    what follows. They may end anywhere, as those of a process that was killed do; ``head`` then has
    their number as CUT. Raises InputError for bytes that are no trace.
    """

    def __init__(self, pieces: Iterable[bytes], name: str):
        """Read as far as the first event."""
        self.name, self._place, self._pieces = name, f"trace {name!r}", iter(pieces)
        start = b""
        while not (opened := _opening(start)) and len(start) < MOST_BYTES:
            piece = next(self._pieces, b"")
            start += piece if start else piece.removeprefix(codecs.BOM_UTF8)
            if not piece:
                break
        if not opened:
            json_of(start.decode(), self._place, WAY_OUT)
            raise InputError(
                f"{name!r} is not a trace: its JSON has no list 'traceEvents'; give {KNOWN}"
            )
        self._is_list = opened.re is LIST
        before = start[: opened.start()].decode().rstrip().rstrip(",")
        self.head = {} if self._is_list else json_of(before + "}", self._place, WAY_OUT)
        self._events = self._read(start, opened.end())

    def __next__(self) -> TraceEvent:
        return next(self._events)

    def _read(self, start: bytes, at: int) -> Iterator[TraceEvent]:
        total, rest, enough = 0, start[at:], PIECE
        closed = at_end = False
        while not (closed or at_end):
            rest = _filled(rest, self._pieces, enough)
            at_end = len(rest) < enough
            batch, used, closed = _batch(rest, self.name)
            if at_end and not closed:
                more, last, closed = _one_by_one(rest[used:], self.name)
                batch, used = [*batch, *more], used + last
            enough = PIECE if used else 2 * len(rest)
            rest = rest[used:]
            total += len(batch)
            batch.reverse()
            while batch:
                yield batch.pop()
        if self._is_list:
            return
        if not (closed or total):
            json_of(start.decode(errors="replace"), self._place, WAY_OUT)
        try:
            require(closed, "cut")
            tail = b"".join([rest, *self._pieces]).decode().strip().removeprefix(",")
            self.head |= json_of("{" + tail, self._place)
        except InputError:
            self.head[CUT] = total


def _opening(start: bytes) -> re.Match[bytes] | None:
    return LIST.match(start) or OPENS.search(start)


def _filled(rest: bytes, pieces: Iterator[bytes], enough: int) -> bytes:
    """Return the rest with the next pieces, so many bytes unless the file ends."""
    parts, size = [rest], len(rest)
    while size < enough and (piece := next(pieces, b"")):
        parts.append(piece)
        size += len(piece)
    return b"".join(parts)


def _batch(rest: bytes, name: str) -> tuple[list[TraceEvent], int, bool]:
    """Return the events up to one that is followed by another, the bytes read, and if that is all.

    None are found where the last few places that look like it are none, or something is no JSON.
    """
    end = len(rest)
    for _ in range(TRIES):
        end = rest.rfind(b"},", 0, end)
        if end < 0:
            break
        text = b"[" + rest[: end + 1] + b"]"
        try:
            return _EVENTS.decode(text), end + 2, False
        except msgspec.ValidationError:
            event_of(None, name)
        except msgspec.DecodeError as error:
            if found := CLOSED.search(str(error)):
                text = text[: text.rindex(b"]", 0, int(found[1])) + 1]
                return _EVENTS.decode(text), len(text) - 1, True
    return [], 0, False


def _one_by_one(rest: bytes, name: str) -> tuple[list[TraceEvent], int, bool]:
    """Return the events as far as they go, the bytes read, and whether the list ends there."""
    text = codecs.getincrementaldecoder("utf-8")().decode(rest)
    decoder, at, events = json.JSONDecoder(), 0, list[TraceEvent]()
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:  # the closing bracket, or where the file was cut
            closed = text[at : at + 1] == "]"
            return events, len(text[: at + closed].encode()), closed
        events.append(event_of(event, name))


def described(events: list[TraceEvent]) -> str:
    """Return what a reader may recognise of events that no tool of ours wrote."""
    categories = sorted({str(event.cat) for event in events if event.cat})
    names = list(dict.fromkeys(str(event.name) for event in events))
    shown = f"categories {', '.join(categories[:5])}" if categories else "no categories"
    return f"{counted(len(events), 'event')} with {shown}, such as {', '.join(names[:3])}"
