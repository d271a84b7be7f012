"""A strategy on one rank: trained, compared with one worker, and counted while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
)
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from ddlnb.errors import require
from ddlnb.launch.rank import RankContext
from ddlnb.parallelism.executed.counting import Counting, Key, counting_kept, local_bytes, local_of
from ddlnb.parallelism.executed.model import layers_of, mean_loss
from ddlnb.parallelism.executed.sharding import Mesh, Part, ShardedAdam, split, unflattened
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import pipeline_stages
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.own_schedules import register_schedule
from ddlnb.parallelism.schedules import (
    SCHEDULES,
    PipelineSchedule,
    schedule,
)


class ReadOnce(list[Any]):
    """A list whose losses are read once, by their backward pass; then only values are left."""

    def __getitem__(self, at: Any) -> Any:
        loss = super().__getitem__(at)
        self[at] = loss.detach()
        return loss


RATE = 0.01
EPSILON = 1e-4  # large, so that Adam shows gradients that are off by a factor


class Trainer:
    """One rank's share of the model, its optimizer, and how it takes an iteration."""

    def __init__(self, shape: Transformer, layout: Layout, rank: int, seed: int):
        require(
            not (layout.shard or layout.lora or SCHEDULES[layout.schedule].vee),
            f"layout {layout}: hybrid sharding (shard), adapters (lora) and V schedules are not "
            f"executed; leave them out",
        )
        self.shape, self.layout = shape, layout
        self.mesh = Mesh(layout, rank)
        self.where = self.mesh.where
        self.parts = self._parts(layers_of(shape, seed))
        for part in self.parts:
            split(part, shape, self.mesh)
        self.module = nn.ModuleList(self.parts)
        self.data = self.mesh.group("data") if layout.shards > 1 else None
        experts = layout.ep > 1 and layout.shards > layout.ep
        self.expert_data = self.mesh.group("expert-data") if experts else None
        parameters = list(self.module.parameters())
        self.optimizer: torch.optim.Adam | ShardedAdam = (
            ShardedAdam(parameters, self.data, layout.zero, RATE, EPSILON)
            if layout.zero in (1, 2) and self.data is not None
            else torch.optim.Adam(parameters, lr=RATE, eps=EPSILON)
        )
        is_plain = layout.zero == 0 and layout.tp == layout.pp == layout.ep == 1
        self.replica = (  # torch's DDP, where replicas keep everything
            DistributedDataParallel(self.parts[0], process_group=self.data)
            if is_plain and self.data is not None
            else None
        )
        self.pipeline: Any = self._pipeline() if layout.pp > 1 else None

    def iteration(self, tokens: Tensor, targets: Tensor) -> float | None:
        """Train on this replica's micro batches; return the loss where this rank knows it."""
        self.optimizer.zero_grad()
        loss = self._forward_and_backward(tokens, targets)
        self._average_gradients()
        self.optimizer.step()
        return loss

    def state_bytes(self) -> dict[str, int]:
        """Return the bytes of parameters, gradients and optimizer states on this rank."""
        parameters = list(self.module.parameters())
        if isinstance(self.optimizer, ShardedAdam):
            adam, gradients = self.optimizer.adam, self.optimizer.gradient_bytes()
        else:
            adam = self.optimizer
            gradients = local_bytes(one.grad for one in parameters if one.grad is not None)
        moments = [value for state in adam.state.values() for value in state.values() if value.ndim]
        return {
            "parameters": local_bytes(parameters),
            "gradients": gradients,
            "optimizer": local_bytes(moments),
        }

    def whole_parameters(self) -> dict[str, Tensor]:
        """Return this stage's parameters as one worker has them; experts only those held here."""
        named = (each for part in self.parts for each in part.layers.named_parameters())
        detached = ((name, one.detach()) for name, one in named)
        return {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in detached
        }

    def _parts(self, layers: dict[str, nn.Module]) -> list[Part]:
        """Deal the layers to chunks as `pipeline_stages` deals those of the shape."""
        pp, vpp = self.layout.pp, self.layout.vpp
        stages, named = pipeline_stages(self.shape.shape, pp, vpp), iter(layers.items())
        chunks = [stages[number % pp].chunks[number // pp] for number in range(pp * vpp)]
        counts = [sum(alike for _, alike in chunk) for chunk in chunks]
        parts = [Part(dict(islice(named, count))) for count in counts]
        return parts[self.where["pp"] :: pp]

    def _pipeline(self) -> Any:
        layout, group = self.layout, self.mesh.group("pp")
        numbers = range(self.where["pp"], layout.pp * layout.vpp, layout.pp)
        stages = [
            pipelining.PipelineStage(
                part, number, layout.pp * layout.vpp, torch.device("cpu"), group=group
            )
            for part, number in zip(self.parts, numbers, strict=True)
        ]
        kind = SCHEDULES[layout.schedule]
        if not kind.torch:
            runtime = _PipelineScheduleRuntime(stages, layout.micro_batches, loss_fn=mean_loss)
            runtime._prepare_schedule_with_comms(_actions(layout))
            runtime._internal_losses = ReadOnce()
            return runtime
        theirs = getattr(pipelining, kind.torch)
        held = stages if kind.chunked else stages[0]
        return theirs(held, layout.micro_batches, loss_fn=mean_loss)

    def _forward_and_backward(self, tokens: Tensor, targets: Tensor) -> float | None:
        with loss_parallel() if self.layout.tp > 1 else nullcontext():
            if self.pipeline is not None:
                return self._pipelined(tokens, targets)
            count = self.layout.micro_batches
            total = 0.0
            batches = zip(tokens.chunk(count), targets.chunk(count), strict=True)
            for number, (inputs, wanted) in enumerate(batches):
                is_silent = self.replica is not None and number < count - 1  # DDP exchanges once
                with self.replica.no_sync() if self.replica and is_silent else nullcontext():
                    loss = mean_loss((self.replica or self.parts[0])(inputs), wanted) / count
                    loss.backward()
                if isinstance(self.optimizer, ShardedAdam):
                    self.optimizer.micro_batch_is_done()
                total += local_of(loss.detach()).item()
            return total

    def _pipelined(self, tokens: Tensor, targets: Tensor) -> float | None:
        losses: list[Tensor] = []
        first, last = self.where["pp"] == 0, self.where["pp"] == self.layout.pp - 1
        given = {"target": targets, "losses": losses} if last else {}
        self.pipeline.step(*([tokens] if first else []), **given)
        return sum(local_of(one).item() for one in losses) / len(losses) if last else None

    def _average_gradients(self) -> None:
        """Add up what DDP, FSDP and the sharded optimizer leave: repeated parts, tp, pp, ep."""
        if self.layout.sequence_parallel:
            self._add_up_repeated()
        for _, one in self._named():  # torch made some whole, such as that of a split embedding
            if isinstance(one, DTensor) and isinstance(one.grad, DTensor):
                one.grad = one.grad.redistribute(placements=one.placements)
        if self.data is None or self.replica is not None or self.layout.zero:
            return
        # The gradients of experts already are sums over the replicas that share them.
        for is_expert, group in ((False, self.data), (True, self.expert_data)):
            own = [one for name, one in self._named() if self._is_expert(name) == is_expert]
            _average(own, group, self.layout.shards)

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.module.named_parameters())

    def _is_expert(self, name: str) -> bool:
        return self.layout.ep > 1 and name.endswith(("feed_forward.up", "feed_forward.down"))

    def _add_up_repeated(self) -> None:
        """All-reduce gradients of what tensor ranks hold alike but saw other tokens of."""
        repeated = [one for _, one in self._named() if _is_repeated(one)]
        flat = torch.cat([local_of(one.grad).flatten() for one in repeated])
        dist.all_reduce(flat, group=self.mesh.group("tp"))
        for one, whole in zip(repeated, unflattened(flat, repeated), strict=True):
            if isinstance(one, DTensor):
                whole = DTensor.from_local(whole, one.device_mesh, one.placements, run_check=False)
            one.grad = whole


def _is_repeated(parameter: nn.Parameter) -> bool:
    """Return whether a gradient is a sum that lacks what other tensor ranks saw."""
    gradient = parameter.grad
    return not isinstance(gradient, DTensor) or isinstance(gradient.placements[0], Partial)


def _actions(layout: Layout) -> dict[int, list[_Action | None]]:
    """Return our schedule in torch's words."""
    words = {"F": "F", "B": "I" if SCHEDULES[layout.schedule].splits else "B", "W": "W"}
    orders = schedule(layout.schedule, layout.pp, layout.micro_batches, layout.vpp)
    return {
        stage: [
            _Action(
                stage + one.chunk * layout.pp, _ComputationType(words[one.kind]), one.micro_batch
            )
            for one in order
        ]
        for stage, order in enumerate(orders)
    }


def _average(parameters: list[nn.Parameter], group: dist.ProcessGroup | None, ranks: int) -> None:
    """Average gradients in one all-reduce, as replicas do without DDP."""
    if not parameters:
        return
    gradients = [local_of(one.grad) for one in parameters]
    flat = torch.cat([one.flatten() for one in gradients]) / ranks
    if group is not None:
        dist.all_reduce(flat, group=group)
    for one, values in zip(gradients, unflattened(flat, gradients), strict=True):
        one.copy_(values)


ITERATIONS = 3  # the last one is counted; torch settles shapes and buckets before


@dataclass(frozen=True)
class Counted:
    """What one rank did: which stage it was, how far it is from one worker, what it counted."""

    stage: int
    loss_error: float
    parameter_error: float
    times: Mapping[Key, int]
    bytes: Mapping[Key, int]
    memory: Mapping[str, int]  # parameters, gradients, optimizer, activations


def run_strategies(
    context: RankContext,
    cases: list[tuple[Transformer, Layout]],
    seed: int,
    schedules: Sequence[PipelineSchedule] = (),
) -> list[Counted | None]:
    """Return what this rank counted in each case; None in those with fewer ranks.

    ``schedules`` are those of layouts that the caller registered.
    """
    for entry in schedules:
        register_schedule(entry)
    results: list[Counted | None] = []
    for number, (shape, layout) in enumerate(cases):
        if context.rank >= layout.ranks:
            results.append(None)
            continue
        store = dist.PrefixStore(f"case{number}", context.store())
        dist.init_process_group(
            "gloo",
            store=store,
            rank=context.rank,
            world_size=layout.ranks,
            timeout=timedelta(seconds=context.timeout_seconds),
        )
        try:
            results.append(run_strategy(shape, layout, context.rank, seed))
        finally:
            dist.destroy_process_group()
    return results


def run_strategy(shape: Transformer, layout: Layout, rank: int, seed: int) -> Counted:
    """Train for some iterations on a rank of the running process group."""
    trainer = Trainer(shape, layout, rank, seed)
    batches = [_batch(shape, layout.samples, seed + step) for step in range(ITERATIONS)]
    alone, alone_losses = _one_worker(shape, batches, seed)
    *early, last = ([_own(part, layout, trainer.where) for part in batch] for batch in batches)
    losses = [trainer.iteration(*batch) for batch in early]
    with Counting() as counting, counting_kept(trainer.module) as keeping:
        losses.append(trainer.iteration(*last))
    return Counted(
        stage=trainer.where["pp"],
        loss_error=_loss_error(losses, alone_losses, layout, trainer),
        parameter_error=_parameter_error(trainer, alone),
        times=dict(counting.times),
        bytes=dict(counting.bytes),
        memory={**trainer.state_bytes(), "activations": keeping.peak},
    )


def _batch(shape: Transformer, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return tokens and what follows each of them."""
    drawn = torch.randint(
        shape.vocab,
        (samples, shape.sequence + 1),
        generator=torch.Generator().manual_seed(seed),
    )
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def _own(part: Tensor, layout: Layout, where: Mapping[str, int]) -> Tensor:
    """Return this rank's samples and its tokens of them."""
    samples = part.chunk(layout.dp)[where["dp"]]
    return samples.chunk(layout.cp, 1)[where["cp"]].contiguous()


def _one_worker(
    shape: Transformer, batches: list[tuple[Tensor, Tensor]], seed: int
) -> tuple[dict[str, Tensor], list[float]]:
    """Train one worker on the whole batches; return its parameters and losses."""
    model = Part(layers_of(shape, seed))
    adam = torch.optim.Adam(model.parameters(), lr=RATE, eps=EPSILON)
    losses = []
    for tokens, targets in batches:
        adam.zero_grad()
        loss = mean_loss(model(tokens), targets)
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return dict(model.layers.named_parameters()), losses


def _loss_error(
    losses: list[float | None], alone: list[float], layout: Layout, trainer: Trainer
) -> float:
    """Return the largest relative error of the losses, averaged over replicas."""
    if losses[0] is None:
        return 0.0
    mean = torch.tensor(losses, dtype=torch.float64)
    if trainer.data is not None:
        dist.all_reduce(mean, group=trainer.data)
        mean /= layout.shards
    wanted = torch.tensor(alone, dtype=torch.float64)
    return float(((mean - wanted) / wanted).abs().max())


def _parameter_error(trainer: Trainer, alone: dict[str, Tensor]) -> float:
    """Return the largest difference between a parameter here and one worker's."""
    worst = 0.0
    for name, value in trainer.whole_parameters().items():
        wanted = alone[name].detach()
        if value.shape != wanted.shape:  # experts: those of this rank
            at = trainer.mesh.members("ep").index(trainer.mesh.rank)
            wanted = wanted.chunk(trainer.layout.ep)[at]
        worst = max(worst, float((value - wanted).abs().max()))
    return worst
