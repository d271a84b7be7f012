"""The engines: what executes a plan on real processes, and which methods each of them can run.

An engine is an entry here and a module that ranks import. Its ``start`` names a function of
(context, job, store, module) that returns a `Trainer` and the loss of a batch; ``serve``, of
(context, job, store), what runs on the ranks that are parameter servers. A job without a plan asks
for the engine's own default, its baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ddlnb.engines.foreign import lacking
from ddlnb.errors import InputError, MissingPart, UnknownName
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import KeptPlan
from ddlnb.plans.requests import SPLIT
from ddlnb.registry import is_supplied, supplied

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
        return _named(self.start)

    def server(self) -> Callable[..., Any]:
        """Return the function that ``serve`` names."""
        return _named(self.serve)


def _not_for_torch(method: Method, plan: Plan | None, device: str) -> str:
    credit = method.credit_bytes if plan is None else plan.credit_bytes
    if device == "cuda" and credit is not None and method.exchange != "push_pull":
        return (
            "does not observe the end of an all-reduce on GPUs, for which a credit waits: leave "
            "the method out, or take device 'cpu'"
        )
    named = bool(plan and plan.collectives) or method.exchange == SPLIT
    compressed = bool(plan and plan.compressed_by)
    for part, needed in (("collective", named), ("compressed messages", compressed)):
        if needed and not is_supplied(part):
            return f"has no {part} here: install all of ddlnb"
    return supplied("compressed messages").cannot_run(plan) if compressed else ""


def _not_for_horovod(method: Method, plan: Plan | None, device: str) -> str:
    if plan is not None and plan.collectives:
        return "has one all-reduce of its own for all messages, and the plan names collectives"
    if plan is not None and plan.compressed_by:
        compressions = " and ".join(plan.compressed_by)
        return f"sends gradients as they are, and the plan compresses messages by {compressions}"
    return ""


def _named(path: str) -> Callable[..., Any]:
    module, name = path.split(":")
    return getattr(import_module(module), name)


_BYTEPS = {f"byteps.{part}": f"{part}/c_lib*.so" for part in ("torch", "server")}
_LISTED = [
    Engine("single", "one worker, no communication",
           "ddlnb.engines.torch_engine:single", baseline="single"),
    Engine("ddp", "PyTorch's DistributedDataParallel with its defaults",
           "ddlnb.engines.torch_engine:ddp", baseline="DDP"),
    Engine("torch", "ours: torch.distributed for all-reduces, ZeroMQ for parameter servers",
           "ddlnb.engines.torch_engine:start", "ddlnb.engines.torch_engine:serve",
           exchanges=frozenset({"all_reduce", "push_pull", SPLIT}), refusal=_not_for_torch),
    Engine("horovod", "Horovod: our plans on its all-reduces, and its own DistributedOptimizer",
           "ddlnb.engines.horovod.engine:start", baseline="horovod",
           exchanges=frozenset({"all_reduce", SPLIT}), refusal=_not_for_horovod,
           missing=partial(lacking, "Horovod", {"PyTorch": "torch/mpi_lib_v2*.so"})),
    Engine("byteps", "BytePS: our plans on its parameter servers, priorities and credit",
           "ddlnb.engines.byteps.engine:start", "ddlnb.engines.byteps.engine:serve",
           exchanges=frozenset({"push_pull"}), missing=partial(lacking, "BytePS", _BYTEPS)),
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


def require_runs(engine: str, method: Method, device: str = "cpu") -> None:
    """Raise InputError, with the reason and the engines that can, if it cannot run the method."""
    if reason := get_engine(engine).refuses(method, device):
        able = [e.name for e in ENGINES.values() if not e.refuses(method, device)]
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
