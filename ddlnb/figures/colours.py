"""One colour for each method, engine, model, network and algorithm, in all figures.

All are of Okabe and Ito's palette, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from typing import Any

METHOD_COLOURS = {
    "single": "#999999",
    "DDP": "#3d3d3d",
    "horovod": "#7a5230",
    "BSP-PS": "#F0E442",
    "BSP-A2A": "#E69F00",
    "WFBP-PS": "#56B4E9",
    "WFBP-A2A": "#0072B2",
    "MG-WFBP": "#009E73",
    "ByteScheduler-PS": "#CC79A7",
    "ByteScheduler-A2A": "#D55E00",
    "DeAR": "#6a51a3",
    "searched": "#000000",
}
OTHER_COLOUR = "#b0a695"  # a method of the reader's own, and whatever else has no colour yet
ENGINE_COLOURS = {
    "single": "#999999",
    "ddp": "#3d3d3d",
    "torch": "#0072B2",
    "horovod": "#E69F00",
    "byteps": "#009E73",
}
MODEL_COLOURS = {"resnet50": "#0072B2", "bert-base": "#E69F00", "bert-large": "#009E73"}
NETWORK_COLOURS = {"10GbE": "#D55E00", "100GbE": "#E69F00", "100GbIB": "#009E73"}
MEASURED_COLOURS = ("#0072B2", "#CC79A7", "#56B4E9")  # networks that the survey does not have
ARCHITECTURE_COLOURS = {"PS": METHOD_COLOURS["WFBP-PS"], "A2A": METHOD_COLOURS["WFBP-A2A"]}

ALGORITHM_COLOURS = {
    "ring": "#0072B2",
    "tree": "#D55E00",
    "double-tree": "#CC79A7",
    "recursive-doubling": "#E69F00",
    "halving-doubling": "#56B4E9",
    "direct": "#009E73",
    "swing": "#7a5230",
    "torus": "#3d3d3d",
    "hierarchical": "#F0E442",
    "blueconnect": "#999999",
}

# The palette in an order that keeps neighbours apart; beyond it, dashes tell lines apart.
PALETTE = (
    *("#3d3d3d", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7a5230"),
)
DASHES = ("-", "--", ":", "-.")
BRIGHT = 0.5  # the luminance beyond which dark text reads better
DARK, GREY, PALE = "#3d3d3d", "#777777", "#dddddd"


def colour_of(method: str) -> str:
    """Return the colour of this method in every figure."""
    return METHOD_COLOURS.get(method, OTHER_COLOUR)


def text_on(colour: str) -> str:
    """Return the colour in which text on this one can be read.

    >>> text_on("#0072B2"), text_on("#F0E442")
    ('white', 'black')
    """
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > BRIGHT else "white"


def line_look(number: int) -> dict[str, Any]:
    """Return colour and dash of the line of this number, counted from 0.

    >>> line_look(0), line_look(9)
    ({'color': '#3d3d3d', 'linestyle': '-'}, {'color': '#0072B2', 'linestyle': '--'})
    """
    dash = DASHES[number // len(PALETTE) % len(DASHES)]
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": dash}
