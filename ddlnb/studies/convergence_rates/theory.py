"""What theory says of the convergence of each method (Tang et al., arXiv 2003.06307, section 8).

What it says of methods without barriers is from Lian et al. 2015 (arXiv 1506.08272): updates of
bounded age cost terms that fall faster than the leading one.
"""

from __future__ import annotations

from dataclasses import dataclass

LEADING = -0.5  # the slope of 1/sqrt(nT) against log T and against log n


@dataclass(frozen=True)
class Rate:
    """The rate of a method, and how we know: [k] was not re-read, [P] is a primary paper."""

    method: str
    rate: str
    tag: str


RATES = (
    Rate("bsp", "O(1/sqrt(nT))", "[k]"),
    Rate("local(4)", "O(1/sqrt(nT)) while H <= T^(1/4)/n^(3/4)", "[k]"),
    Rate("local(16)", "O(1/sqrt(nT)) while H <= T^(1/4)/n^(3/4)", "[k]"),
    Rate("ssp(3)", "O(1/sqrt(nT)) while staleness is O(sqrt(nT))", "[k]"),
    Rate("asp", "O(1/sqrt(nT)) while staleness is O(sqrt(nT))", "[k]"),
    Rate("bsp + qsgd(1)", "O(sqrt(1+w)/sqrt(nT))", "[k]"),
    Rate("bsp + top-k(0.1) + feedback", "O(1/sqrt(nT)) + O(1/(delta^2 T))", "[k]"),
    Rate("d-psgd(ring)", "O(1/sqrt(nT) + n/(rho^2 T))", "[P CHOCO s.2]"),
    Rate("choco(ring, 0.3) + top-k(0.2)", "O(1/sqrt(nT) + n/(rho^4 delta^2 T))",
         "[P CHOCO Thm 4.1]"),
)  # fmt: skip


def local_steps_allowed(steps: int, workers: int) -> float:
    """Return the most local steps H for which theory promises the rate: T^(1/4)/n^(3/4) [k].

    >>> round(local_steps_allowed(4096, 4), 2)
    2.83
    """
    return steps**0.25 / workers**0.75
