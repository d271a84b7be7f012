"""What an engine is: its name, what it can do, and where the code is that ranks import.

Its ``start`` names a function of (context, job, store, module) that returns a `Trainer` and the
loss of a batch; ``serve``, of (context, job, store), what runs on the ranks that are parameter
servers. A job without a plan asks for the engine's own default, its baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from ddlnb.plans.methods import Method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import KeptPlan

Refusal = Callable[[Method, Plan | None, str], str]  # of a method, its kept plan, and a device


def _nothing(*_: object) -> str:
    return ""


@dataclass(frozen=True)
class Engine:
    """What an engine is called, what it can do, and where its code is.

    ``exchanges`` are the requests it answers, none if it runs its baseline only. ``refusal`` says
    why it cannot run a method, ``missing`` what this machine lacks; both are "" if nothing does.
    """

    name: str
    about: str
    start: str
    serve: str = ""
    baseline: str | None = None
    exchanges: frozenset[str] = frozenset()
    refusal: Refusal = _nothing
    missing: Callable[[], str] = _nothing

    def refuses(self, method: Method, device: str = "cpu") -> str:
        """Return why this engine cannot run the method on a device; "" if it can."""
        if not self.exchanges:
            return "runs no methods, only its own default"
        if method.exchange not in self.exchanges:
            answered = " and ".join(sorted(self.exchanges))
            return f"answers {answered}, and the method asks for {method.exchange}"
        kept = method.planner.plan if isinstance(method.planner, KeptPlan) else None
        return self.refusal(method, kept, device)

    def starter(self) -> Callable[..., Any]:
        """Return the function that ``start`` names."""
        return resolve_name(self.start)

    def server(self) -> Callable[..., Any]:
        """Return the function that ``serve`` names."""
        return resolve_name(self.serve)
