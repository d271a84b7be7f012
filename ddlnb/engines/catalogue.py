"""The engines: what executes a plan on real processes, and which methods each of them can run.

An engine is an entry here and a module that ranks import. Its ``start`` names a function of
(context, job, store, module) that returns a `Trainer` and the loss of a batch; ``serve``, of
(context, job, store), what runs on the ranks that are parameter servers. A job without a plan asks
for the engine's own default, its baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ddlnb.engines.byteps import runtime
from ddlnb.engines.horovod import runtime as horovod_runtime
from ddlnb.errors import InputError, MissingPart, UnknownName
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import KeptPlan
from ddlnb.plans.requests import SPLIT


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
    refusal: Callable[[Method], str] = _nothing
    missing: Callable[[], str] = _nothing

    def refuses(self, method: Method) -> str:
        """Return why this engine cannot run the method; "" if it can."""
        if not self.exchanges:
            return "runs no methods, only its own default"
        if method.exchange not in self.exchanges:
            answered = " and ".join(sorted(self.exchanges))
            return f"answers {answered}, and the method asks for {method.exchange}"
        return self.refusal(method)

    def starter(self) -> Callable[..., Any]:
        """Return the function that ``start`` names."""
        return _named(self.start)

    def server(self) -> Callable[..., Any]:
        """Return the function that ``serve`` names."""
        return _named(self.serve)


def _plan_of(method: Method) -> Plan | None:
    return method.planner.plan if isinstance(method.planner, KeptPlan) else None


def _compresses(method: Method) -> str:
    plan = _plan_of(method)
    if plan is None or not plan.compressed_by:
        return ""
    compressions = " and ".join(plan.compressed_by)
    return f"sends gradients as they are, and the plan compresses messages by {compressions}"


def _cannot_compress(method: Method) -> str:
    plan = _plan_of(method)
    if plan is None or not plan.compressed_by:
        return ""
    from ddlnb.engines.compressing import cannot_run  # takes torch along

    return cannot_run(plan)


def _names_collectives(method: Method) -> str:
    plan = _plan_of(method)
    if plan is None or not plan.collectives:
        return ""
    return "has one all-reduce of its own for all messages, and the plan names collectives"


def _not_for_horovod(method: Method) -> str:
    return _names_collectives(method) or _compresses(method)


def _named(path: str) -> Callable[..., Any]:
    module, name = path.split(":")
    return getattr(import_module(module), name)


_LISTED = [
    Engine("single", "one worker, no communication",
           "ddlnb.engines.torch_engine:single", baseline="single"),
    Engine("ddp", "PyTorch's DistributedDataParallel with its defaults",
           "ddlnb.engines.torch_engine:ddp", baseline="DDP"),
    Engine("torch", "ours: torch.distributed for all-reduces, ZeroMQ for parameter servers",
           "ddlnb.engines.torch_engine:start", "ddlnb.engines.torch_engine:serve",
           exchanges=frozenset({"all_reduce", "push_pull", SPLIT}), refusal=_cannot_compress),
    Engine("horovod", "Horovod: our plans on its all-reduces, and its own DistributedOptimizer",
           "ddlnb.engines.horovod.engine:start", baseline="horovod",
           exchanges=frozenset({"all_reduce", SPLIT}), refusal=_not_for_horovod,
           missing=horovod_runtime.missing),
    Engine("byteps", "BytePS: our plans on its parameter servers, priorities and credit",
           "ddlnb.engines.byteps.engine:start", "ddlnb.engines.byteps.engine:serve",
           exchanges=frozenset({"push_pull"}), missing=runtime.missing),
]  # fmt: skip
ENGINES: dict[str, Engine] = {engine.name: engine for engine in _LISTED}
BASELINES: dict[str, str] = {e.baseline: e.name for e in _LISTED if e.baseline}


def get_engine(name: str) -> Engine:
    """Return the engine of this name. Raises UnknownName with a suggestion."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    return ENGINES[name]


def installed() -> list[str]:
    """Return the engines with methods that lack nothing on this machine."""
    return [one.name for one in ENGINES.values() if one.exchanges and not one.missing()]


def require_installed(name: str) -> None:
    """Raise MissingPart if this machine lacks something that the engine needs."""
    if lack := get_engine(name).missing():
        raise MissingPart(f"engine {name!r} cannot run here: {lack}")


def require_runs(engine: str, method: Method) -> None:
    """Raise InputError, with the reason and the engines that can, if it cannot run the method."""
    if reason := get_engine(engine).refuses(method):
        able = [e.name for e in ENGINES.values() if not e.refuses(method)]
        raise InputError(
            f"engine {engine!r} cannot run {method.name!r}: it {reason}; "
            f"engines that can: {', '.join(able) or 'none'}"
        )


def support() -> list[tuple[str, str, str]]:
    """Return (method, engine, reason why not) for all methods and engines; "" is support."""
    return [
        (method.name, engine.name, engine.refuses(method))
        for method in METHODS.values()
        for engine in ENGINES.values()
        if engine.exchanges
    ]
