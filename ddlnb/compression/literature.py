"""What the literature says of a compressor, as values: family, quoted ratio, error bound.

Every compressor declares its own (`ddlnb.compression.base.Compressor`); the tests compare the
declarations with what the compressor does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# What travels of a tensor: few bits of every entry, few entries, or few directions.
QUANTISATION, SPARSIFICATION, LOW_RANK = "quantisation", "sparsification", "low rank"
FAMILIES = (QUANTISATION, SPARSIFICATION, LOW_RANK)

# The kinds of law that bound an error.
CONTRACTION, UNBIASED, ROUNDING, NONE = "contraction", "unbiased", "rounding", "no bound"

# Where a quote is from: the survey's section, common knowledge of the literature that was not read
# again, or a derivation from the format of the message.
SURVEY, KNOWN, DERIVED = "[A s.3.1.3]", "[k]", "[d]"


@dataclass(frozen=True)
class Quote:
    """How many times fewer bytes a message is said to have than dense float32 numbers.

    The ratio is between ``low`` and ``high``; ``tag`` says where it is from.
    """

    low: float
    high: float
    tag: str

    @classmethod
    def of(cls, ratio: float, tag: str = DERIVED) -> Quote:
        """Return the quote of a single ratio."""
        return cls(ratio, ratio, tag)

    def __str__(self) -> str:
        values = [f"{value:.4g}" for value in dict.fromkeys((self.low, self.high))]
        return f"{' to '.join(values)} {self.tag}"


class Bound(NamedTuple):
    """A bound of the error of one round without memory, averaged over the random draws.

    The mean of |Q(v) - v|^2 is at most ``loss`` times |v|^2, and equal to it if ``exact``.
    """

    loss: float
    law: str
    formula: str
    exact: bool = False
