"""A strategy on one rank: trained, compared with one worker, and counted while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ddlnb.launch.rank import RankContext
from ddlnb.parallelism.executed.counting import Counting, Key, counting_kept
from ddlnb.parallelism.executed.model import layers_of, mean_loss
from ddlnb.parallelism.executed.split import Part
from ddlnb.parallelism.executed.trainer import EPSILON, RATE, Trainer
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.transformer import Transformer

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
    context: RankContext, cases: list[tuple[Transformer, Layout]], seed: int
) -> list[Counted | None]:
    """Return what this rank counted in each case; None in those with fewer ranks."""
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
    losses = []
    counting, kept, states = Counting(), 0, {}
    for step, batch in enumerate(batches):
        tokens, targets = (_own(part, shape, layout, trainer.where) for part in batch)
        if step == ITERATIONS - 1:
            with counting, counting_kept(trainer.module) as keeping:
                losses.append(trainer.iteration(tokens, targets))
            kept, states = keeping.peak, trainer.state_bytes()
        else:
            losses.append(trainer.iteration(tokens, targets))
    return Counted(
        stage=trainer.where["pp"],
        loss_error=_loss_error(losses, alone_losses, layout, trainer),
        parameter_error=_parameter_error(trainer, alone),
        times=dict(counting.times),
        bytes=dict(counting.bytes),
        memory={**states, "activations": kept},
    )


def _batch(shape: Transformer, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return tokens and what follows each of them."""
    drawn = torch.randint(
        shape.vocab,
        (samples, shape.sequence + 1),
        generator=torch.Generator().manual_seed(seed),
    )
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def _own(part: Tensor, shape: Transformer, layout: Layout, where: Mapping[str, int]) -> Tensor:
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
