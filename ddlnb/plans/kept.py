"""A plan that is kept, as a method that has this one plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ddlnb.errors import PlanError
from ddlnb.plans.bucketing import Bucketing
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.plan import Message, Order, Plan
from ddlnb.units import counted
from ddlnb.workloads.workload import Gradient, Workload


@dataclass(frozen=True)
class KeptPlan:
    """A planner that has one plan; for another workload with the same gradients it is the same."""

    plan: Plan

    def __hash__(self) -> int:
        """Return a hash of little: caches ask for it often, and that of a plan takes long."""
        return hash((self.plan.method, len(self.plan.messages), len(self.plan.gradients)))

    def __call__(self, workload: Workload, cluster: Any = None) -> Plan:
        """Return the plan with the workload's gradients, whose seconds may be others.

        Raises PlanError for a workload with other gradients.
        """
        return fitted(self.plan, workload)


def fitted(plan: Plan, workload: Workload) -> Plan:
    """Return the plan for this workload. Raises PlanError where its gradients are others."""
    if plan.gradients == workload.gradients:
        return plan
    for ours, theirs in zip(plan.gradients, workload.gradients, strict=False):
        if _shape(ours) != _shape(theirs):
            raise PlanError(
                f"plan {plan.method!r} has gradient {_said(ours)} where workload "
                f"{workload.model!r} has {_said(theirs)}; make the plan from this workload"
            )
    if len(plan.gradients) != len(workload.gradients):
        raise PlanError(
            f"plan {plan.method!r} has {counted(len(plan.gradients), 'gradient')} and workload "
            f"{workload.model!r} {len(workload.gradients)}; make the plan from this workload"
        )
    return replace(plan, gradients=workload.gradients)


def require_same_gradients(plan: Plan, other: Plan) -> None:
    """Raise PlanError unless both plans send the same gradients, listed in the same order."""
    ours, theirs = ([_shape(gradient) for gradient in one.gradients] for one in (plan, other))
    if ours != theirs:
        raise PlanError(
            f"plan {other.method!r} ({other.digest}) sends other gradients than "
            f"{plan.method!r} ({plan.digest}), whose place it is to take; make both from the same "
            f"workload"
        )


def method_of(plan: Plan) -> Method:
    """Return the method that has this plan, by the plan's name: it runs wherever methods run.

    Its plan fits workloads with the same gradients, whatever their seconds.
    """
    return Method(
        name=f"{plan.method} (kept)" if plan.method in METHODS else plan.method,
        scheduling="searched",
        bucketing=Bucketing(_kept),
        exchange=plan.exchange,
        launch=plan.launch,
        priority=plan.order is Order.PRIORITY,
        gate=plan.gate,
        compression=" and ".join(plan.compressed_by) or None,
        planner=KeptPlan(plan),
    )


def _kept(workload: Workload) -> list[Message]:
    raise AssertionError("a kept plan has its messages")


def _shape(gradient: Gradient) -> tuple[str, str, int, int]:
    return gradient.name, gradient.layer, gradient.elements, gradient.bytes_per_element


def _said(gradient: Gradient) -> str:
    return f"{gradient.name!r} of {gradient.elements:,} x {gradient.bytes_per_element} B"
