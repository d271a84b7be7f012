"""Model parallelism as Fig. 1 (a) draws it: the neurons of each layer are split over workers."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ddlnb.engines.process_group import process_group
from ddlnb.launch.rank import RankContext
from ddlnb.studies.sec1_parallelism.exchange import AllGather, Exchange, GatherOutputs, evenly
from ddlnb.studies.sec1_parallelism.perceptron import BATCHES, SEED
from ddlnb.studies.sec1_parallelism.share import Share, Trainee
from ddlnb.workloads.tasks import Task


class SplitNeurons(nn.Module):
    """One worker's neurons of every layer; a forward pass returns the outputs of all workers'.

    Each linear layer keeps the rows of its weight that belong to the worker's neurons, under the
    name that it has in the model.
    """

    def __init__(self, model: nn.Sequential, exchange: Exchange):
        super().__init__()
        self._exchange, self._names, self._widths = exchange, [], {}
        for name, layer in model.named_children():
            self._names.append(name)
            if isinstance(layer, nn.Linear):
                self._widths[name] = layer.out_features
                layer = _rows(layer, exchange.rank, exchange.count)
            self.add_module(name, layer)

    def forward(self, samples: Tensor) -> Tensor:
        """Return the model's outputs: with an exchange before every next layer, and at the end."""
        values, width = samples, None
        for name in self._names:
            if name in self._widths:
                if width is not None:
                    values = AllGather.apply(values, self._exchange, width)
                width = self._widths[name]
            values = self.get_submodule(name)(values)
        return GatherOutputs.apply(values, self._exchange, width)


def train_neurons(context: RankContext, task: Task, batch: int, steps: int) -> Share:
    """Train this rank's neurons of every layer on the whole batch; called on every rank."""
    torch.manual_seed(SEED)
    exchange = Exchange(context.rank, context.count)
    split = SplitNeurons(task.build(), exchange)  # type: ignore[arg-type]
    trainee, losses = Trainee(split, batch), []
    with process_group(context, context.store(), context.count):
        for step in range(steps):
            samples = task.batch(batch, step % BATCHES)
            loss = trainee.watched(partial(task.loss, split, samples))
            loss.backward()
            losses.append(loss.item())
            trainee.update()
    return trainee.share(
        losses=tuple(losses), bytes_sent=exchange.bytes_sent, exchanges=exchange.exchanges
    )


def joined(shares: list[Share]) -> dict[str, Tensor]:
    """Return the parameters of the model whose neurons these workers hold."""
    return {
        name: torch.cat([share.parameters[name] for share in shares])
        for name in shares[0].parameters
    }


def _rows(layer: nn.Linear, rank: int, count: int) -> nn.Linear:
    """Return the layer of the neurons that belong to the rank, with the same parameters."""
    sizes = evenly(layer.out_features, count)
    own = nn.Linear(layer.in_features, sizes[rank])
    with torch.no_grad():
        own.weight.copy_(layer.weight.split(sizes)[rank])
        own.bias.copy_(layer.bias.split(sizes)[rank])
    return own
