"""Plans as files: JSON with a line for every gradient and message, checked when it is read.

A plan that is kept, as a method that has this one plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddlnb.errors import PlanError
from ddlnb.files import require_writable_file
from ddlnb.plans.bucketing import Bucketing
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.plans.plan import Gate, Launch, Message, Order, Piece, Plan
from ddlnb.reading import json_of, read_text, reading
from ddlnb.units import counted
from ddlnb.workloads.workload import Gradient, Workload

VERSION = 1
WAY_OUT = "write it with `ddlnb plan --out`"


def plan_to_json(plan: Plan) -> str:
    """Return the plan as JSON text; `plan_from_json` reads it."""
    said = {
        "version": VERSION,
        "method": plan.method,
        "exchange": plan.exchange,
        "launch": plan.launch.value,
        "order": plan.order.value,
        "gate": plan.gate.value,
        "credit_bytes": plan.credit_bytes,
        "servers": plan.servers,
        "placement": list(plan.placement),
        "collectives": list(plan.collectives),
        "compressions": list(plan.compressions),
        "digest": plan.digest,
        "gradients": [
            [g.name, g.layer, g.elements, g.bytes_per_element, g.backward_seconds]
            for g in plan.gradients
        ],
        "messages": [
            [message.priority, [[p.gradient, p.start, p.stop] for p in message.pieces]]
            for message in plan.messages
        ],
    }
    rows = [f' "{key}": {_rows(value)}' for key, value in said.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def plan_from_json(text: str, source: str = "the text") -> Plan:
    """Return the plan of a JSON text. Raises PlanError for what is not one, or was changed."""
    said = json_of(text, source, WAY_OUT, PlanError)
    if not isinstance(said, dict) or said.get("version") != VERSION:
        found = said.get("version") if isinstance(said, dict) else None
        raise PlanError(f"{source} is no plan of version {VERSION}, but of {found!r}; {WAY_OUT}")
    with reading(source, WAY_OUT, PlanError):
        plan = Plan(
            method=_checked(str, said["method"]),
            gradients=tuple(_gradient(*row) for row in said["gradients"]),
            messages=tuple(
                Message(tuple(_piece(*piece) for piece in pieces), _checked(int, priority))
                for priority, pieces in said["messages"]
            ),
            exchange=_checked(str, said["exchange"]),
            launch=Launch(said["launch"]),
            order=Order(said["order"]),
            gate=Gate(said["gate"]),
            credit_bytes=None
            if said["credit_bytes"] is None
            else _checked(int, said["credit_bytes"]),
            servers=_checked(int, said["servers"]),
            placement=tuple(_checked(int, one) for one in said["placement"]),
            collectives=tuple(_checked(str, one) for one in said["collectives"]),
            # Plans of earlier editions compress nothing, and do not say so.
            compressions=tuple(_checked(str, one) for one in said.get("compressions", [])),
        )
    if plan.digest != said.get("digest"):
        raise PlanError(
            f"{source} was changed by hand: its digest is {plan.digest} and it says "
            f"{said.get('digest')!r}; write that digest, if the change is meant"
        )
    return plan


def write_plan(plan: Plan, path: str | Path) -> Path:
    """Write the plan into a file that `read_plan` reads, and return its path.

    Raises InputError where no file can be written.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> plan = ddlnb.get_method("WFBP-A2A").plan(workload)
    >>> path = ddlnb.write_plan(plan, "plan.json")  # doctest: +SKIP
    >>> ddlnb.read_plan(path).digest == plan.digest  # doctest: +SKIP
    True
    """
    require_writable_file(path, "plan.json")
    path = Path(path)
    path.write_text(plan_to_json(plan))
    return path


def read_plan(path: str | Path) -> Plan:
    """Return the plan in a file. Raises PlanError for a file that is not there or holds none.

    >>> import ddlnb
    >>> ddlnb.read_plan("none.json")
    Traceback (most recent call last):
    ddlnb.errors.PlanError: there is no plan none.json; make one with `ddlnb plan --out none.json`
    """
    path = Path(path)
    if not path.is_file():
        raise PlanError(f"there is no plan {path}; make one with `ddlnb plan --out {path}`")
    return plan_from_json(read_text(path, error=PlanError), str(path))


def _gradient(name: Any, layer: Any, elements: Any, bytes_: Any, seconds: Any) -> Gradient:
    return Gradient(
        _checked(str, name),
        _checked(str, layer),
        _checked(int, elements),
        _checked(int, bytes_),
        float(seconds),
    )


def _piece(gradient: Any, start: Any, stop: Any) -> Piece:
    return Piece(_checked(str, gradient), _checked(int, start), _checked(int, stop))


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _rows(value: Any) -> str:
    """Return a value as JSON, a list of lists with a line for each."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
    return json.dumps(value)


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
    """Return the plan for this workload. Raises PlanError where its gradients are others.

    They may become ready in another order: recurrent layers on a CPU have another than on a GPU.
    """
    if plan.gradients == workload.gradients:
        return plan
    if len(plan.gradients) != len(workload.gradients):
        raise PlanError(
            f"plan {plan.method!r} has {counted(len(plan.gradients), 'gradient')} and workload "
            f"{workload.model!r} {len(workload.gradients)}; make the plan from this workload"
        )
    by_name = [sorted(one.gradients, key=lambda one: one.name) for one in (plan, workload)]
    for ours, theirs in zip(*by_name, strict=True):
        if _shape(ours) != _shape(theirs):
            raise PlanError(
                f"plan {plan.method!r} has gradient {_said(ours)} where workload "
                f"{workload.model!r} has {_said(theirs)}; make the plan from this workload"
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


def method_for(given: str | Method | Plan) -> Method:
    """Return the method of this name or of this plan, or the Method itself. Raises UnknownName."""
    return method_of(given) if isinstance(given, Plan) else get_method(given)


def _kept(workload: Workload) -> list[Message]:
    raise AssertionError("a kept plan has its messages")


def _shape(gradient: Gradient) -> tuple[str, str, int, int]:
    return gradient.name, gradient.layer, gradient.elements, gradient.bytes_per_element


def _said(gradient: Gradient) -> str:
    return f"{gradient.name!r} of {gradient.elements:,} x {gradient.bytes_per_element} B"
