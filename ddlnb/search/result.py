"""What a search returns: a plan, how fast it is, and how much faster any plan could be."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddlnb.plans.methods import Method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import method_of
from ddlnb.search.bound import Bound
from ddlnb.units import show_seconds


@dataclass(frozen=True)
class SearchResult:
    """A searched plan: ``iteration_seconds`` are simulated, no plan takes fewer than the bound.

    ``fixed`` holds the seconds of the methods' own plans by name, on the same cluster;
    ``evaluated`` how many plans were played, ``search_seconds`` how long that took, and
    ``is_complete`` whether the search ended by itself, not by its time limit. ``method`` is the
    plan as a method, which `ddlnb.simulate`, `ddlnb.forecast` and `ddlnb.measure` take. Where
    ``compression`` is not dense, ``dense`` is what was found for dense gradients,
    and `ddlnb.iteration_cost` takes the plan.
    """

    plan: Plan
    iteration_seconds: float
    bound: Bound
    fixed: dict[str, float] = field(repr=False)
    evaluated: int
    search_seconds: float
    is_complete: bool = True
    compression: str = "dense"
    dense: SearchResult | None = field(default=None, repr=False)

    @property
    def lower_bound_seconds(self) -> float:
        """The seconds that an iteration takes at least, whatever the plan."""
        return self.bound.seconds

    @property
    def gap(self) -> float:
        """How much longer than the lower bound an iteration takes: 0.03 is 3 %."""
        return self.iteration_seconds / self.bound.seconds - 1

    @property
    def best_fixed(self) -> str | None:
        """The quickest method, None where none was asked for."""
        return min(self.fixed, key=lambda name: self.fixed[name]) if self.fixed else None

    @property
    def speedup(self) -> float:
        """How many times as fast as the quickest method; 1 where none was asked for."""
        if self.best_fixed is None:
            return 1.0
        return self.fixed[self.best_fixed] / self.iteration_seconds

    @property
    def method(self) -> Method:
        """The plan as a method of its own."""
        return method_of(self.plan)

    def __str__(self) -> str:
        plan = self.plan
        first = str(plan).partition("\n")[0]
        lines = [
            first,
            f"iteration {show_seconds(self.iteration_seconds)} (simulated); at least "
            f"{show_seconds(self.bound.seconds)} whatever the plan, by {self.bound.limit}: "
            f"{round(self.gap, 6) + 0.0:.1%} above",
        ]
        if self.best_fixed is not None:
            lines.append(
                f"best method {self.best_fixed}: {show_seconds(self.fixed[self.best_fixed])}, "
                f"{self.speedup:.3f} times as long"
            )
        if self.dense is not None:
            seconds = self.dense.iteration_seconds
            lines.append(
                f"dense, searched: {show_seconds(seconds)}, {seconds / self.iteration_seconds:.3f} "
                f"times as long"
            )
        ended = "" if self.is_complete else "; stopped by its time limit"
        lines.append(f"{self.evaluated} plans played in {show_seconds(self.search_seconds)}{ended}")
        return "\n".join(lines)
