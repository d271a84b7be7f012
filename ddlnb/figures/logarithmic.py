"""Logarithmic axes that can be read: two labelled ticks at least, and numbers as they are said."""

from __future__ import annotations

import math

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

STEPS = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))  # ticks in a decade, from few to many
FEWEST, ENOUGH = 2, 4  # ticks: a scale needs two, and reads well with four
PLAIN = (1e-3, 1e6)  # what is written with all its digits
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label_logarithmic_axes(figure: Figure) -> None:
    """Give every logarithmic axis readable ticks, unless its ticks are set one by one.

    It is called when everything is drawn: ticks follow the range.
    """
    for ax in figure.axes:
        for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            is_set = isinstance(axis.get_major_locator(), FixedLocator)
            if axis.get_scale() == "log" and not is_set:
                low, high = sorted(limits)
                _label(axis, low, high)


def _label(axis: Axis, low: float, high: float) -> None:
    steps = next((s for s in STEPS if len(_ticks(low, high, s)) >= ENOUGH), STEPS[-1])
    if len(_ticks(low, high, STEPS[0])) >= FEWEST and high / low > 1e3:
        steps = STEPS[0]
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_figures(value)))
    axis.set_minor_locator(NullLocator())


def _ticks(low: float, high: float, steps: tuple[float, ...]) -> list[float]:
    """Return the multiples of powers of ten within the range.

    >>> _ticks(0.9, 30, (1, 5))
    [1.0, 5.0, 10.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        step * 10.0**power
        for power in powers
        for step in steps
        if low <= step * 10.0**power <= high
    ]


def in_figures(value: float) -> str:
    """Return a number as it is read: 0.01, 20 or 500000, and powers of ten beyond.

    >>> in_figures(0.01), in_figures(500000), in_figures(1e-9), in_figures(2e7)
    ('0.01', '500000', '10⁻⁹', '2·10⁷')
    """
    if value == 0 or PLAIN[0] <= abs(value) < PLAIN[1]:
        return f"{value:.10f}".rstrip("0").rstrip(".")
    digits, power = f"{value:.9e}".split("e")
    factor = digits.rstrip("0").rstrip(".")
    tens = "10" + str(int(power)).translate(SUPERSCRIPTS)
    return tens if factor == "1" else f"{factor}·{tens}"
