"""A module of a training script whose gradients travel by a plan, in place of torch's DDP.

The script makes the process group and the optimizer, as it does for DistributedDataParallel; the
plan is executed by the engine that `ddlnb.measure` measures (`ddlnb.engines.replica`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddlnb.engines.probes import COST_PROBES, cost_of, shares_cores, timed_all_reduces
from ddlnb.engines.replica import Replica
from ddlnb.engines.settings import MakeOptimizer, MeasurementSettings
from ddlnb.engines.targets import is_searched
from ddlnb.engines.torch_engine import transport_for
from ddlnb.errors import InputError, ModelError, PlanError, require, require_whole
from ddlnb.launch.rank import RankContext, address_towards
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Gate, Plan
from ddlnb.plans.plan_file import plan_from_json, plan_to_json, read_plan
from ddlnb.plans.requests import SPLIT
from ddlnb.registry import supplied
from ddlnb.workloads.profiling import profile
from ddlnb.workloads.task import Task
from ddlnb.workloads.workload import Workload

PROFILED = 10  # iterations, before a plan is made
REPETITIONS = 25  # of each all-reduce that is timed
TRIED = 4  # iterations of every plan that may be the quickest
BESIDE = "MG-WFBP", "DDP"  # methods whose plans are tried beside one that is searched


class DistributedModel(nn.Module):
    """A module that trains with the averages of all ranks' gradients, which a plan sends.

    ``step`` stands where a script has ``optimizer.step()`` and ``zero_grad()``, after every
    backward pass outside of `no_sync`; all else is as with torch's DistributedDataParallel.
    ``plan`` is a Plan, the file of one (`ddlnb plan --out`), or a method by name, whose plan is
    made from what the ranks measure here and now of ``task``:
    `ddlnb.task` of the same module. For "searched" they also try some plans, that of DDP among
    them, for a few iterations, and take the quickest. Every rank must have called
    ``torch.distributed.init_process_group``. Parameters and buffers start as rank 0 has them;
    buffers go their own ways from there. The optimizer must treat parameters independently of one
    another, as SGD, Adam and AdamW do, and hold all that are trained.

    Raises InputError for methods with parameter servers, which a script has none of, and where
    there is no process group; ModelError for a module that the plan was not made for.

    >>> model = DistributedModel(module, optimizer, "plan.json")  # doctest: +SKIP
    >>> for inputs, labels in batches:  # doctest: +SKIP
    ...     nn.functional.cross_entropy(model(inputs), labels).backward()
    ...     model.step()
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan | Method | str | Path,
        *,
        task: Task | None = None,
        timeout_seconds: float = 120.0,
    ):
        super().__init__()
        require(
            dist.is_available() and dist.is_initialized(),
            "DistributedModel needs torch's process group; start the script with torchrun and call "
            "torch.distributed.init_process_group first",
        )
        self.module = module
        _require_optimized(module, optimizer)
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)
        self._context = _context(timeout_seconds)
        # Messages leave from a thread of their own: on the script's group they would come between
        # its collectives, in another order on each rank.
        self._group = dist.new_group()
        self.plan = self._planned(plan, task)
        _require_same(self.plan, next(module.parameters()).device)
        require(
            not self.plan.servers,
            f"plan {self.plan.method!r} needs parameter servers, which a training script has none "
            f"of; take a plan of all-reduces, such as MG-WFBP's",
        )
        self._shares: list[_Share] = []

        def share(parameters: Iterable[nn.Parameter]) -> Any:
            self._shares.append(_Share(optimizer, parameters))
            return self._shares[-1]

        self._replica = self._replica_of(module, self.plan, share)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the module does; layers whose updates are on the way wait for them."""
        return self.module(*inputs, **named)

    def step(self) -> None:
        """Update the parameters with the averages, now or layer by layer in the next forward pass.

        Either way with the learning rates of now. Raises ModelError if a gradient is absent.
        """
        for share in self._shares:
            share.remember()
        self._replica.finish()

    def synchronize(self) -> None:
        """Wait until all updates are applied, before parameters are read other than by forward."""
        self._replica.synchronize()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients in here, and send nothing: the next backward pass outside sends sums."""
        self._replica.accumulates = True
        try:
            yield
        finally:
            self._replica.accumulates = False

    def clip_grad_norm_(self, most: float) -> torch.Tensor:
        """Scale the averages down to a norm of at most ``most``, and return the norm that they had.

        It is called between ``backward`` and ``step``. Raises InputError if the plan updates
        layers one by one, of which none may wait for the norm of all.
        """
        require(
            self.plan.gate is Gate.ALL_LAYERS,
            f"plan {self.plan.method!r} updates each layer as soon as its gradients are there, and "
            f"a norm needs all of them; take a method that waits for all layers, such as MG-WFBP",
        )
        averages = self._replica.averages()
        norm = nn.utils.get_total_norm(averages)
        scale = (most / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        for average in averages:
            average.mul_(scale)
        return norm

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """Return the state once all updates are applied."""
        self.synchronize()
        return super().state_dict(*args, **named)

    def close(self) -> None:
        """Apply what is pending and let go of the module and of the connections to other ranks.

        All ranks call it, and none goes on before the others have all that it sent them.
        """
        self._replica.close()
        dist.barrier()
        dist.destroy_process_group(self._group)
        del self._group

    def _planned(self, plan: Plan | Method | str | Path, task: Task | None) -> Plan:
        """Return the plan, which rank 0 makes for all if it is that of a method."""
        if isinstance(plan, Plan):
            return plan
        if isinstance(plan, Path) or (isinstance(plan, str) and plan.endswith(".json")):
            return read_plan(plan)
        method = get_method(plan)
        if task is None:
            raise InputError(
                f"the plan of method {method.name!r} is made from measured seconds; give a task "
                f"(task=ddlnb.task(module, batch=..., loss=...)), or the file of a plan"
            )
        context, device = self._context, next(self.module.parameters()).device
        dist.barrier()  # all compute at the same time, as in training
        workload = task.recorded or profile(task, iterations=PROFILED, device=device.type)
        shared = shares_cores(task, device.type)
        timed = timed_all_reduces(context, COST_PROBES, REPETITIONS, device, shared)
        slowest = torch.tensor(timed, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        cost = cost_of(slowest.tolist())
        settings = MeasurementSettings(workers=context.count, device=device.type)
        made = [] if context.rank else _plans_of(method, workload, cost, settings)
        said = json.loads(_of_rank_0(json.dumps([plan_to_json(one) for one in made]), device))
        plans = [plan_from_json(text, "the plan of rank 0") for text in said]
        return plans[0] if len(plans) == 1 else self._quickest(plans, task, device)

    def _quickest(self, plans: list[Plan], task: Task, device: torch.device) -> Plan:
        """Return the plan whose iterations are the shortest, of some that all ranks try."""
        module = task.build().to(device)
        batch = tuple(one.to(device) for one in task.batch(task.local_batch, self._context.rank))
        seconds = []
        for plan in plans:
            make_optimizer = partial(torch.optim.SGD, lr=0.0)
            replica = self._replica_of(module, plan, make_optimizer)
            for step in range(TRIED + 1):
                replica.step(partial(task.loss, module, batch))
                if step == 0:  # the clock starts between iterations, whose messages may overlap
                    dist.barrier()
                    start = time.perf_counter()
            replica.synchronize()
            dist.barrier()
            seconds.append(time.perf_counter() - start)
            replica.close()
        slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return plans[int(slowest.argmin())]

    def _replica_of(self, module: nn.Module, plan: Plan, make_optimizer: MakeOptimizer) -> Replica:
        """Return what trains a module by a plan on this rank."""
        context, per_node = self._context, int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        transport = transport_for(context, None, plan, per_node=per_node, group=self._group)
        trained = make_optimizer, context.count, context.timeout_seconds, context.rank
        return Replica(module, plan, transport, *trained)


class _Share:
    """The part of an optimizer that updates some of its parameters, with the rates of a step."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]):
        chosen = set(parameters)
        self._optimizer = optimizer
        self._parameters = [
            [one for one in group["params"] if one in chosen] for group in optimizer.param_groups
        ]
        self.remember()

    def remember(self) -> None:
        """Take the learning rates, and all else that schedulers change, as they are now."""
        self._rates = [dict(group) for group in self._optimizer.param_groups]

    def step(self) -> None:
        """Update these parameters by their gradients."""
        groups = self._optimizer.param_groups
        now = [dict(group) for group in groups]
        for group, rates, parameters in zip(groups, self._rates, self._parameters, strict=True):
            group.update(rates, params=parameters)
        try:
            self._optimizer.step()
        finally:
            for group, before in zip(groups, now, strict=True):
                group.update(before)


def _require_optimized(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    held = {one for group in optimizer.param_groups for one in group["params"]}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter not in held:
            raise ModelError(
                f"parameter {name!r} is trained, and the optimizer does not hold it; give it all "
                f"of module.parameters(), or set requires_grad=False on the parameter"
            )


def _plans_of(
    method: Method, workload: Workload, cost: AlphaBeta, settings: MeasurementSettings
) -> list[Plan]:
    """Return the plan of a method; if it is searched, all that may be the quickest.

    What was measured is the backend's all-reduce. Its halves, which go over connections of ours,
    may take longer or less: plans are tried with and without.
    """
    if not is_searched(method):
        return [method.plan(workload, cost=cost)]
    search: Any = supplied("searched plan")
    planner: Any = method.planner
    whole = replace(planner, space=replace(planner.space, split=False))
    found = [search(one, workload, cost, settings) for one in (planner, whole)]
    for name in BESIDE:
        plan = get_method(name).plan(workload, cost=cost)
        halves = replace(plan, method=f"{name} in halves", exchange=SPLIT, gate=Gate.OWN_LAYER)
        found += [plan, halves]
    return list({plan.digest: plan for plan in found}.values())


def _context(timeout_seconds: float) -> RankContext:
    """Return what the engine has to know of this rank, of torchrun's environment."""
    require_whole(timeout_seconds=int(timeout_seconds))
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    return RankContext(
        rank=dist.get_rank(),
        count=dist.get_world_size(),
        owner_host=host,
        store_address="",
        store_secret=b"",
        prefix="",
        host=address_towards(host),
        threads=torch.get_num_threads(),
        timeout_seconds=timeout_seconds,
    )


def _require_same(plan: Plan, device: torch.device) -> None:
    """Raise PlanError on all ranks unless they have the same plan."""
    digest = int(plan.digest, 16) >> 2  # of 64 bits
    least, most = (torch.tensor(digest, device=device) for _ in range(2))
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if least != most:
        raise PlanError(
            f"ranks have different plans (rank {dist.get_rank()} has {plan.digest}); give all of "
            f"them the same file"
        )


def _of_rank_0(text: str, device: torch.device) -> str:
    """Return rank 0's text, on every rank."""
    said = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(device)
    count = torch.tensor([said.numel()], device=device)
    dist.broadcast(count, 0)
    if dist.get_rank():
        said = torch.empty(int(count.item()), dtype=torch.uint8, device=device)
    dist.broadcast(said, 0)
    return bytes(said.cpu().tolist()).decode()
