"""Papers, frameworks and GPUs that a fit has not seen: how far off it is, so how sure it may be.

Runs of one paper are off together: its cluster, its libraries and what it calls a run differ from
those of the others. What runs within a paper say about each other is no measure of that. Here whole
papers are left out, and whole frameworks: the interval of a paper, framework or GPU that nothing
was fitted to is as wide as those were off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.parallelism.forecast.cases import Column
from ddlnb.parallelism.forecast.fit.observations import H100, PAPERS, Observations, observed
from ddlnb.parallelism.forecast.fit.other_frameworks import FITTED, THEORY, fit_framework
from ddlnb.parallelism.forecast.fit.trivial import mfu
from ddlnb.parallelism.forecast.forecast import FREEDOM, INTERVAL
from ddlnb.parallelism.forecast.parameters import Fitted
from ddlnb.parallelism.forecast.step import step

SHARED = ("matrix_share", "attention_share", "elementwise")
WITH_PAPERS = "megatron"  # the framework of which there are several papers
LATER = "nemo"  # the framework of which there is no run
RUNS = {"nanotron": H100} | {name: path for name, (path, _) in FITTED.items()}


@dataclass(frozen=True)
class LeftOut:
    """Runs that were left out, those that were known, and the fit to them."""

    kind: str
    left_out: str
    runs: Observations
    known: tuple[Observations, ...]
    fitted: Fitted

    @property
    def off(self) -> Column:
        """Logarithm of measured by forecast seconds of every run."""
        return np.log(self.runs.seconds / step(self.runs.cases, self.fitted).seconds)

    @property
    def constant(self) -> Column:
        """Tokens/s per GPU if all runs had the median MFU of the known ones: a trivial forecast."""
        share = np.median(np.concatenate([mfu(one) for one in self.known]))
        return np.asarray(share * self.runs.cases.peak / self.runs.cases.model_flops)


def papers_left_out(fitted: Fitted, runs: Observations) -> Iterator[LeftOut]:
    """Return each paper's runs with a fit of Megatron-LM to the other papers."""
    for paper in dict.fromkeys(runs.papers.tolist()):
        own = runs.papers == paper
        known = runs.select(~own)
        found = fit_framework(fitted, WITH_PAPERS, known)
        yield LeftOut("paper", paper, runs.select(own), (known,), found)


def frameworks_left_out(fitted: Fitted, names: Sequence[str]) -> Iterator[LeftOut]:
    """Return each framework's runs with the mean of the other frameworks in its place."""
    for name in names:
        others = [one for one in names if one != name]
        found = with_mean(fitted, name, others)
        yield LeftOut("framework", name, published(name), tuple(map(published, others)), found)


def with_mean(fitted: Fitted, name: str, others: Sequence[str]) -> Fitted:
    """Return the fit in which a framework has the geometric mean of what others were fitted to."""
    values = {
        one: float(np.exp(np.mean([np.log(getattr(fitted.of(other), one)) for other in others])))
        for one in SHARED
    }
    return replace(fitted, frameworks={**fitted.frameworks, name: THEORY | values})


def published(name: str) -> Observations:
    """Return a framework's runs as papers publish them: of nanotron's search only the best.

    The best of a model and a number of GPUs; the others were run to be compared with it.
    """
    runs = observed(RUNS[name])
    if name != "nanotron":
        return runs
    places = np.array([f"{m} {g:.0f}" for m, g in zip(runs.models, runs.cases.gpus, strict=True)])
    groups = [np.flatnonzero(places == one) for one in np.unique(places)]
    return runs.select(np.array([group[np.argmax(runs.rates[group])] for group in groups]))


def between(left_out: Iterable[LeftOut]) -> float:
    """Return the scale of Student's t with `FREEDOM` degrees of papers that were left out.

    A random effect: the mean by which a paper is off has a variance between papers, known from as
    many of them as there are, and its runs have one about that mean, known from all runs. Every
    paper weighs the same. The sum has degrees of freedom by Satterthwaite (1946).
    """
    from scipy.special import stdtrit

    off = [one.off for one in left_out]
    among = float(np.mean([values.mean() ** 2 for values in off]))
    within = float(np.mean([values.var() for values in off]))
    runs = sum(map(len, off))
    freedom = (among + within) ** 2 / (among**2 / len(off) + within**2 / (runs - len(off)))
    ends = [stdtrit(degrees, (1 + INTERVAL) / 2) for degrees in (freedom, FREEDOM)]
    return float(np.sqrt(among + within) * ends[0] / ends[1])


def with_unseen(fitted: Fitted) -> Fitted:
    """Return the fit with what is taken for other papers, frameworks and GPUs, and their spread."""
    names = list(RUNS)
    spread = {
        "paper": between(papers_left_out(fitted, observed(PAPERS))),
        "elsewhere": between(frameworks_left_out(fitted, names)),
    }
    found = with_mean(fitted, LATER, names)
    return replace(found, spread={**found.spread, **spread})
