"""A figure that says in words what is seen: a caption, and a text in place of the picture.

Both are read off the figure when they are asked for, so that they say what was drawn.
"""

from __future__ import annotations

import base64
import io
import re
import struct

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.figures.marks import seen_in

DOTS_PER_INCH, SHOWN_PER_INCH = 150, 100  # a picture is shown smaller, to be sharp
MOST_PANELS = 12  # that a text goes through one by one


class DescribedFigure(Figure):
    """A matplotlib Figure with a caption and an alternative text, which notebooks show with it."""

    shows = ""  # the first sentence of what its function says of itself

    @property
    def caption(self) -> str:
        """What the figure is about, and the title that it has or its only panel has."""
        panels = self._panels()
        title = self.get_suptitle() or (panels[0].get_title() if len(panels) == 1 else "")
        return " ".join(_sentence(text) for text in (title, self.shows) if text)

    @property
    def alternative_text(self) -> str:
        """What the figure shows, for those who do not see it: panels, axes, marks and source."""
        panels = self._panels()
        said = [self.caption, f"{len(panels)} panels." if len(panels) > 1 else ""]
        for ax in panels[:MOST_PANELS]:
            said += [_name(ax) if len(panels) > 1 else "", seen_in(ax, self)]
        if len(panels) > MOST_PANELS:
            said.append(f"{len(panels) - MOST_PANELS} more panels.")
        said += [f"Colours show: {label}." for label in self._colours()]
        said.append(_sentence(self.get_supxlabel()))
        return one_line(" ".join(text for text in said if text))

    def _panels(self) -> list[Axes]:
        """Return the axes in sight, without bars that explain colours."""
        return [ax for ax in self.axes if ax.get_visible() and not hasattr(ax, "_colorbar")]

    def _colours(self) -> list[str]:
        """Return what the bars that explain colours are labelled with."""
        bars = [ax for ax in self.axes if ax.get_visible() and hasattr(ax, "_colorbar")]
        labels = [ax.get_ylabel() or ax.get_xlabel() for ax in bars]
        return list(dict.fromkeys(one_line(label) for label in labels if label))

    def _ipython_display_(self) -> None:
        """Show the picture, and the caption beneath; their metadata travel to the report."""
        from IPython.display import display

        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
        picture = drawn.getvalue()
        about = {"alt": self.alternative_text, "caption": self.caption, "width": _width(picture)}
        shown = {"image/png": base64.b64encode(picture).decode(), "text/plain": repr(self)}
        display(shown, raw=True, metadata={"image/png": about})
        beneath = {"text/markdown": f"*{self.caption}*", "text/plain": self.caption}
        display(beneath, raw=True, metadata={"text/markdown": {"is_caption": True}})


def described(figure: Figure, description: str | None) -> DescribedFigure:
    """Return the same figure, which now says what it shows; ``description`` is a docstring."""
    figure.__class__ = DescribedFigure  # whichever of pyplot's functions made it
    assert isinstance(figure, DescribedFigure)
    figure.shows = shows(description)
    return figure


def shows(description: str | None) -> str:
    """Return the first sentence of a docstring, in one line.

    >>> shows('''Bars of throughput,
    ...    by method. More is better.''')
    'Bars of throughput, by method.'
    """
    return _sentence(re.split(r"\. +(?=[A-Z`])", one_line(description or ""))[0])


def one_line(text: str) -> str:
    """Return the text with single spaces."""
    return " ".join(text.split())


def _sentence(text: str) -> str:
    text = one_line(text).rstrip(".")
    return f"{text}." if text else ""


def _name(ax: Axes) -> str:
    return _sentence(ax.get_title() or ax.get_title(loc="left"))


def _width(picture: bytes) -> int:
    """Return the pixels across at which a PNG picture is shown."""
    (across,) = struct.unpack(">I", picture[16:20])
    return round(across * SHOWN_PER_INCH / DOTS_PER_INCH)
