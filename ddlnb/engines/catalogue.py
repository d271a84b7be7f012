"""The engines: what executes a plan on real processes, and which methods each of them can run.

An engine is an `Engine`: ours are entries here, those of others are supplied (`ddlnb.registry`)
as ``engine NAME``.
"""

from __future__ import annotations

from ddlnb.engines.engine import Engine
from ddlnb.errors import InputError, MissingPart, UnknownName
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.plan import Plan
from ddlnb.plans.requests import SPLIT
from ddlnb.registry import is_supplied, supplied, supplied_names, supplied_parts


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


_LISTED = [
    Engine("single", "one worker, no communication",
           "ddlnb.engines.torch_engine:single", baseline="single"),
    Engine("ddp", "PyTorch's DistributedDataParallel with its defaults",
           "ddlnb.engines.torch_engine:ddp", baseline="DDP"),
    Engine("torch", "ours: torch.distributed for all-reduces, ZeroMQ for parameter servers",
           "ddlnb.engines.torch_engine:start", "ddlnb.engines.torch_engine:serve",
           exchanges=frozenset({"all_reduce", "push_pull", SPLIT}), refusal=_not_for_torch),
]  # fmt: skip
_LISTED += supplied_parts("engine").values()
ENGINES: dict[str, Engine] = {engine.name: engine for engine in _LISTED}
BASELINES: dict[str, str] = {e.baseline: e.name for e in _LISTED if e.baseline}


def get_engine(name: str) -> Engine:
    """Return the engine of this name.

    Raises UnknownName with a suggestion, MissingPart for an engine whose part of ddlnb is not here.
    """
    if name not in ENGINES and name not in supplied_names("engine"):
        raise UnknownName("engine", name, ENGINES)
    return ENGINES.get(name) or supplied(f"engine {name}")


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
