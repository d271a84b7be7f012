"""What a measurement runs: methods on engines that can run them, and the baselines beside them.

Each target is a cell of the table: its columns say what runs, and which runs are still missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from ddlnb.engines.catalogue import BASELINES, ENGINES, Engine, get_engine, require_runs
from ddlnb.engines.settings import DEFAULTS, MeasurementSettings, optimizer_name
from ddlnb.errors import InputError, require, require_known
from ddlnb.files import machine
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS, SHIPPED, Method, get_method, require_tunable
from ddlnb.registry import several
from ddlnb.results.rows import ResultsFile
from ddlnb.workloads.task import Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

Methods = str | Method | Sequence[str | Method]


@dataclass(frozen=True)
class Target:
    """A method on an engine, or a baseline."""

    name: str
    engine: str
    method: Method | None = None

    @property
    def uses_servers(self) -> bool:
        """Whether parameter servers take part."""
        return self.method is not None and self.method.exchange == "push_pull"

    @property
    def reduces_itself(self) -> bool:
        """Whether all-reduces are ours, so that topology and collective say how they travel."""
        method = self.method
        return self.engine == "torch" and method is not None and method.exchange == "all_reduce"

    @property
    def plans_anew(self) -> bool:
        """Whether the plan is a searched one that our own engine can replace while it trains."""
        return self.engine == "torch" and self.method is not None and is_searched(self.method)

    def settings_text(self, settings: MeasurementSettings, *, replayed: bool) -> str:
        """Return how the run differs from a plain one, for the tidy column ``settings``.

        >>> method = get_method("ByteScheduler-PS").tuned(partition="1MB", credit="4MB")
        >>> Target(method.name, "torch", method).settings_text(DEFAULTS, replayed=True)
        'partition=1000000B credit=4000000B replayed'
        """
        words = []
        if self.method is not None:
            words += self.method.sizes.split()
            if self.reduces_itself and settings.topology != "ring":
                words.append(f"topology={settings.topology}")
            if self.reduces_itself and settings.collective is not None:
                words.append(f"collective={settings.collective.replace(' ', '')}")
            if self.plans_anew and settings.replan is not None:
                words.append(f"replan={settings.replan}")
            if self.method.needs_cost and settings.cost is not None:
                words.append(
                    f"cost={settings.cost.latency_seconds:g}s+{settings.cost.seconds_per_byte:g}s/B"
                )
        words += [f"becomes={change.word}" for change in settings.changes]
        if settings.device != "cpu":
            words.append(f"backend={settings.backend}")
        if replayed:
            words.append("replayed")
        if settings.site.scale != 1:
            words.append(f"scale={settings.site.scale:g}")
        if settings.site.hosts:
            words.append(f"hosts={','.join(settings.site.hosts)}")
        if settings.site.ranks_per_node != 1:
            words.append(f"ranks_per_node={settings.site.ranks_per_node}")
        return " ".join(words)


def targets_of(methods: Methods = "all", settings: MeasurementSettings = DEFAULTS) -> list[Target]:
    """Return what to run for these methods ("all", one, or a list): baselines first.

    Of the settings count ``engine``, ``baselines``, ``partition``, ``credit``, ``collective``,
    ``topology``, ``device`` and ``replan``. ``engine`` is one name or several; every method runs on
    each of them that can, and "all" are those that any can (`left_out_on_gpus` are not among them).
    ``baselines`` are those of that name; True are ``single``, ``DDP`` and those of the engines.
    With engines that have no methods, such as "ddp", only baselines run. Raises UnknownName for an
    unknown method or engine, InputError for a method that none can run, and for a
    ``partition``, ``credit``, ``topology`` or ``replan`` that no method has.
    """
    names = [settings.engine] if isinstance(settings.engine, str) else settings.engine
    engines = [get_engine(name) for name in names]
    require(bool(engines), "engine names none; name at least one")
    able = [one for one in engines if one.exchanges]
    if settings.collective is not None:
        require(
            [one.name for one in able] == ["torch"],
            f"collective {settings.collective!r} says how all-reduces of our own engine travel; "
            f"take engine 'torch' instead of {', '.join(names)}, or leave it out",
        )
    chosen = _methods(methods, able, settings)
    of_baselines = _baselines(settings.baselines, engines)
    of_baselines += [one.name for one in engines if one.baseline and not able]
    listed = [Target(str(ENGINES[n].baseline), n) for n in dict.fromkeys(of_baselines)]
    require_tunable(chosen, partition=settings.partition, credit=settings.credit)
    for method in chosen:
        tuned = method.tuned(partition=settings.partition, credit=settings.credit)
        listed += [
            Target(method.name, one.name, tuned)
            for one in able
            if not one.refuses(tuned, settings.device)
        ]
    require(
        settings.replan is None or any(one.plans_anew for one in listed),
        f"replan={settings.replan} lets method 'searched' of our own engine plan anew when the "
        f"network drifts; add that method and engine 'torch', or leave replan out",
    )
    require(
        settings.topology == "ring" or any(one.reduces_itself for one in listed),
        f"topology {settings.topology!r} says how all-reduces of our own engine travel; add a "
        f"method of the A2A architecture and engine 'torch', or leave topology out",
    )
    return listed


def left_out_on_gpus(settings: MeasurementSettings) -> list[str]:
    """Return the methods that engines of the settings run on CPUs alone, and "all" leaves out."""
    settings = settings.changed(baselines=False, replan=None, topology="ring")
    on_cpus = targets_of("all", settings.changed(device="cpu", backend="gloo"))
    here = {one.name for one in targets_of("all", settings)}
    return [one.name for one in on_cpus if one.name not in here]


def is_searched(method: Method) -> bool:
    """Return whether the method's plan is searched for, in a space."""
    return hasattr(method.planner, "space")


def ranks_needed(chosen: Iterable[Target], workers: int, servers: int) -> int:
    """Return how many processes these targets need at most."""
    return workers + (servers if any(one.uses_servers for one in chosen) else 0)


def _methods(asked: Methods, able: list[Engine], settings: MeasurementSettings) -> list[Method]:
    """Return the methods, each once; none if no engine has methods."""
    collective = settings.collective
    listed = several([] if asked is None else asked)
    require(bool(listed), f"methods {asked!r} name none; name at least one, or 'all'")
    for name in BASELINES.keys() & {name for name in listed if isinstance(name, str)}:
        raise InputError(
            f"{name!r} is a baseline, not a method; it runs beside the methods (not with "
            f"--no-baselines, baselines=False), or alone as an engine (--engine {BASELINES[name]})"
        )
    if not able:
        return []
    if "all" in listed:
        listed = [
            one
            for one in METHODS.values()
            if any(not e.refuses(one, settings.device) for e in able)
            and (collective is None or one.exchange == "all_reduce")
        ]
    meant = [get_method(one) for one in listed]
    chosen = {method.name: method for method in meant}
    require(
        all(one == chosen[one.name] for one in meant),
        "two methods or plans that differ have the same name; measure one after the other",
    )
    for method in chosen.values():
        _require_own_name(method)
        require(
            collective is None or method.exchange == "all_reduce",
            f"{method.name!r} has no all-reduce that could be {collective!r}; take a method of the "
            f"A2A architecture, or leave collective out",
        )
        if all(one.refuses(method, settings.device) for one in able):
            require_runs(able[0].name, method, settings.device)
    return list(chosen.values())


def _baselines(asked: bool | Sequence[str], engines: list[Engine]) -> list[str]:
    """Return the engines of the baselines that are asked for."""
    if isinstance(asked, bool):
        names = ["single", "ddp", *(one.name for one in engines if one.baseline)]
        return names if asked else []
    for name in asked:
        require_known("baseline", name, BASELINES)
    return [BASELINES[name] for name in asked]


def _require_own_name(method: Method) -> None:
    known = METHODS.get(method.name, method)
    sizes: dict[str, Any] = {"partition_bytes": None, "credit_bytes": None, "tunes": False}
    require(
        replace(known, **sizes) == replace(method, **sizes),
        f"method {method.name!r} differs from the catalogue's of that name in more than "
        f"its sizes; give it a name of its own",
    )


def cells_of(
    task: Task, chosen: Sequence[Target], settings: MeasurementSettings
) -> list[dict[str, object]]:
    """Return the columns of each target's cell. Raises ModelError for what cannot be trained."""
    local_batch = settings.batch_of(task)
    workload = task.recorded or trace(task, local_batch)
    common = {
        "model": task.name,
        "structure": workload.structure,
        "local_batch": local_batch,
        "network": settings.site.network_name,
        "source": settings.site.source,
        "optimizer": optimizer_name(settings.optimizer),
        "iterations": settings.iterations,
        "warmup": settings.warmup,
        "machine": machine() if settings.device == "cpu" else f"{machine()}, {settings.device}",
    }
    replayed = task.recorded is not None
    return [
        {
            **common,
            "method": one.name,
            "gpus": 1 if one.engine == "single" else settings.workers,
            "engine": one.engine,
            "servers": settings.server_count if one.uses_servers else 0,
            "settings": " ".join(
                [
                    *one.settings_text(settings, replayed=replayed).split(),
                    *_plan_words(one, workload, settings),
                ]
            ),
        }
        for one in chosen
    ]


# Costs of an all-reduce with which rules are told apart.
NOMINAL = [AlphaBeta(10.0**power, 1e-9) for power in range(-6, 1)]


def _plan_words(one: Target, workload: Workload, settings: MeasurementSettings) -> list[str]:
    """Return a word for the plan of a method of one's own, whose rule may be another tomorrow."""
    if one.method is None or is_searched(one.method) or one.name in SHIPPED:
        return []
    servers = max(1, settings.server_count)
    costs = [settings.cost or NOMINAL[0], *(NOMINAL if one.method.needs_cost else ())]
    plans = [one.method.plan(workload, cost=cost, servers=servers).digest for cost in costs]
    return [f"plan={sha256(' '.join(plans).encode()).hexdigest()[:16]}"]


def missing_runs(
    cells: Sequence[Mapping[str, object]], repetitions: int, results: ResultsFile
) -> list[tuple[int, int]]:
    """Return what is not among the results, as repetition and number of the cell, in order.

    Every repetition begins with another cell.
    """
    return [
        (repetition, index)
        for repetition in range(repetitions)
        for index in ((number + repetition) % len(cells) for number in range(len(cells)))
        if not results.has(cells[index], repetition)
    ]
