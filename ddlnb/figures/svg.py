"""A timeline as SVG text, which a browser draws faster than a picture is made."""

from __future__ import annotations

from html import escape

from ddlnb.figures.gantt import KIND_COLOURS
from ddlnb.results.timeline import Span, Timeline
from ddlnb.units import MS, show_bytes, show_seconds

WIDTH, LANE, GAP, AXIS = 900, 26, 4, 18  # pixels
MESSAGE = "#9467a8"
LEAST = 0.4  # pixels: what is narrower is drawn that wide


def timeline_svg(line: Timeline, title: str = "") -> str:
    """Return a timeline of one rank as an SVG element: computation above, messages below.

    Messages that overlap are stacked. A span shows its name, seconds and bytes under the pointer.

    >>> from ddlnb.results.timeline import Span
    >>> text = timeline_svg(Timeline("BSP-A2A", "simulated", (Span(0, "forward", "l", 0, 1),)))
    >>> text.startswith("<svg") and "forward l" in text
    True
    """
    end = max(span.stop_seconds for span in line.spans)
    scale = WIDTH / end if end else 1.0
    rows = _stacked(line)
    messages_at = LANE + GAP
    height = messages_at + LANE + AXIS
    parts = [
        f'<svg role="img" aria-label="{escape(title or line.method)}" '
        f'viewBox="0 0 {WIDTH} {height}" width="100%" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="sans-serif" font-size="11">'
    ]
    deepest = 1 + max((row for row, _ in rows), default=0)
    for span in line.spans:
        if span.kind != "message":
            parts.append(
                _box(span.start_seconds, span.seconds, 0, LANE, KIND_COLOURS.get(span.kind, "#888"),
                     f"{span.kind} {span.name}: {show_seconds(span.seconds)}", scale)
            )  # fmt: skip
    for row, span in rows:
        said = f"message, {show_bytes(span.bytes)}: {show_seconds(span.seconds)}"
        top = messages_at + row * LANE / deepest
        parts.append(
            _box(span.start_seconds, span.seconds, top, LANE / deepest, MESSAGE, said, scale)
        )
    base = height - 4
    parts.append(f'<text x="0" y="{base}">0</text>')
    parts.append(f'<text x="{WIDTH}" y="{base}" text-anchor="end">{end / MS:.4g} ms</text>')
    return "".join([*parts, "</svg>"])


def _stacked(line: Timeline) -> list[tuple[int, Span]]:
    """Return the messages with the row in which each has room."""
    free: list[float] = []
    found = []
    messages = sorted(
        (span for span in line.spans if span.kind == "message"), key=lambda one: one.start_seconds
    )
    for span in messages:
        row = next((i for i, until in enumerate(free) if until <= span.start_seconds), len(free))
        if row == len(free):
            free.append(0.0)
        free[row] = span.stop_seconds
        found.append((row, span))
    return found


def _box(
    start: float, seconds: float, top: float, height: float, colour: str, said: str, scale: float
) -> str:
    return (
        f'<rect x="{start * scale:.1f}" y="{top:.1f}" width="{max(seconds * scale, LEAST):.2f}" '
        f'height="{height:.1f}" fill="{colour}" stroke="white" stroke-width="0.3">'
        f"<title>{escape(said)}</title></rect>"
    )
