"""Model parallelism, a pipeline of layers and data parallelism on real ranks (section 1, Fig. 1).

All three train a multi-layer perceptron on the batches that one worker also trains it on, and end
with that worker's parameters up to rounding.

Before a layer every worker needs the outputs of all neurons below: an all-gather. Backward, every
worker has a part of the gradient of each of these outputs, and the owner needs the sum: a
reduce-scatter. Both are built of sends, because workers own different numbers of neurons.

Model parallelism as Fig. 1 (a) draws it: the neurons of each layer are split over workers.

Model and data parallelism as a schematic (survey, Fig. 1). Nothing in it is measured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from ddlnb.engines.job import Job, Report
from ddlnb.engines.settings import OPTIMIZERS, TRAINING
from ddlnb.engines.worker import run_job
from ddlnb.errors import require, require_whole
from ddlnb.figures.style import METHOD_COLOURS, note, styled
from ddlnb.launch.rank import RankContext, process_group
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import METHODS
from ddlnb.survey.items import Findings, findings
from ddlnb.units import show_bytes
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Batch, Task
from ddlnb.workloads.tracing import trace

WIDTHS = (256, 96, 64, 48, 10)  # neurons of the input and of every linear layer
SEED = 0
BATCHES = 8  # Distinct batches; later steps start over with the first.


def mlp(widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    """Return a multi-layer perceptron for the 256 pixels of a handwritten digit."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mlp_task(parts: int = 1) -> Task:
    """Return the task of training the perceptron, with batches that the workers share."""
    digits = get_task("small-conv")
    return replace(digits, name="mlp", build=mlp, batch=partial(_part, parts))


def _part(parts: int, local_batch: int, seed: int) -> Batch:
    """Return part ``seed % parts`` of the joined batch number ``seed // parts``."""
    joined = get_task("small-conv").batch(local_batch * parts, seed // parts)
    first = seed % parts * local_batch
    return tuple(tensor[first : first + local_batch] for tensor in joined)


@dataclass(frozen=True)
class Share:
    """A worker's part in the training.

    ``state_bytes`` are those of its parameters, their gradients and the optimizer's momentum;
    ``activation_bytes`` what autograd kept from one forward to its backward pass, samples included.
    ``work`` holds the multiply-accumulates of the forward pass, layer by layer of those it has.
    ``bytes_sent`` and ``exchanges`` are of all steps together; an exchange is a point at which the
    worker waits for others. ``losses`` are those of the joined batch where the worker knows it.
    """

    parameters: dict[str, Tensor]
    state_bytes: int
    activation_bytes: int
    work: dict[str, int]
    losses: tuple[float, ...] = ()
    bytes_sent: int = 0
    exchanges: int = 0

    @property
    def parameter_count(self) -> int:
        """The number of parameters that this worker holds."""
        return sum(value.numel() for value in self.parameters.values())


class Trainee:
    """A worker's layers with their optimizer: takes steps, and notes what they needed."""

    def __init__(self, module: nn.Module, samples: int):
        self._module, self._samples = module, samples
        self._optimizer: Optimizer = OPTIMIZERS["sgd"](module.parameters())
        self._kept: dict[int, int] = {}
        self._state_bytes = 0

    def watched(self, forward: Callable[[], Tensor]) -> Tensor:
        """Return what the forward pass returns, and note the memory that it keeps."""
        own = {value.untyped_storage().data_ptr() for value in self._module.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            result = forward()
        self._kept = kept
        return result

    def update(self) -> None:
        """Apply the gradients, and forget them."""
        self._optimizer.step()
        self._state_bytes = _bytes_of(_state(self._module, self._optimizer))
        self._optimizer.zero_grad()

    def share(self, **known: Any) -> Share:
        """Return the record of this worker, with what only the caller knows."""
        named = self._module.named_modules()
        layers = {name: one for name, one in named if isinstance(one, nn.Linear)}
        return Share(
            parameters={n: value.detach() for n, value in self._module.named_parameters()},
            state_bytes=self._state_bytes,
            activation_bytes=sum(self._kept.values()),
            work={name: self._samples * one.weight.numel() for name, one in layers.items()},
            **known,
        )


def _state(module: nn.Module, optimizer: Optimizer) -> Iterable[Tensor]:
    for value in module.parameters():
        yield value
        if value.grad is not None:
            yield value.grad
        yield from (one for one in optimizer.state[value].values() if isinstance(one, Tensor))


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def stages_of(model: nn.Sequential, count: int) -> list[nn.Sequential]:
    """Cut the model into the given number of stages, each beginning at a linear layer.

    >>> from ddlnb.survey.sec1_parallelism import mlp
    >>> [len(stage) for stage in stages_of(mlp(), 2)]
    [5, 3]
    """
    starts = [index for index, layer in enumerate(model) if isinstance(layer, nn.Linear)]
    cuts = [starts[len(starts) * stage // count] for stage in range(1, count)]
    layers = list(model.named_children())
    return [
        nn.Sequential(OrderedDict(layers[start:stop]))
        for start, stop in pairwise([0, *cuts, len(model)])
    ]


def entering_width(stage: nn.Sequential) -> int:
    """Return how many activations per sample enter the stage."""
    return next(layer.in_features for layer in stage if isinstance(layer, nn.Linear))


def train_stage(context: RankContext, task: Task, batch: int, steps: int) -> Share:
    """Train this rank's layers; activations come from below, gradients from above."""
    torch.manual_seed(SEED)
    stage = stages_of(task.build(), context.count)[context.rank]  # type: ignore[arg-type]
    trainee = Trainee(stage, batch)
    first, last = context.rank == 0, context.rank == context.count - 1
    losses, sent = [], 0
    with process_group(context, context.store(), context.count):
        for step in range(steps):
            images, labels = task.batch(batch, step % BATCHES)
            entering = images if first else _received(context.rank - 1, stage, batch)
            if last:
                loss = trainee.watched(partial(task.loss, stage, (entering, labels)))
                losses.append(loss.item())
                loss.backward()
            else:
                leaving = trainee.watched(partial(stage, entering))
                sent += _send(leaving.detach(), context.rank + 1)
                gradient = torch.empty_like(leaving)
                dist.recv(gradient, context.rank + 1)
                leaving.backward(gradient)
            if not first:
                assert entering.grad is not None
                sent += _send(entering.grad, context.rank - 1)
            trainee.update()
    neighbours = (not first) + (not last)
    return trainee.share(losses=tuple(losses), bytes_sent=sent, exchanges=steps * neighbours)


def _received(rank: int, stage: nn.Sequential, batch: int) -> Tensor:
    activations = torch.empty(batch, entering_width(stage))
    dist.recv(activations, rank)
    return activations.requires_grad_()


def _send(tensor: Tensor, rank: int) -> int:
    dist.send(tensor.contiguous(), rank)
    return tensor.numel() * tensor.element_size()


FLOAT_BYTES = 4  # single precision
PARAMETERS = sum(wide * narrow + narrow for wide, narrow in pairwise(WIDTHS))


def exchanged_neurons() -> int:
    """Return how many numbers per sample the workers exchange when they split the neurons.

    The outputs of every layer forward, and their gradients backward, but for those of the last
    layer: every worker computes the whole loss, and has them.
    """
    outputs = WIDTHS[1:]
    return 2 * sum(outputs) - outputs[-1]


def traffic(workers: int, batch: int) -> dict[str, float]:
    """Return the bytes that all workers together send in a step, by the way of sharing.

    Split neurons: each of them goes to the n - 1 other workers, once per sample and direction.
    Pipeline: what crosses a cut does so once up and once down. Data: a ring all-reduce of all
    parameters, 2 (n - 1) times their bytes.
    """
    cuts = [entering_width(stage) for stage in stages_of(mlp(), workers)[1:]]
    return {
        "one worker": 0,
        "model parallelism": FLOAT_BYTES * batch * (workers - 1) * exchanged_neurons(),
        "pipeline of layers": FLOAT_BYTES * batch * 2 * sum(cuts),
        "data parallelism": workers * ring_bytes_sent(FLOAT_BYTES * PARAMETERS, workers),
    }


def break_even_batch() -> float:
    """Return the batch at which split neurons and data parallelism send equally much.

    Both grow with n - 1, so that it is the same for all numbers of workers:
    2 parameters / (exchanged numbers per sample).
    """
    return 2 * PARAMETERS / exchanged_neurons()


def evenly(width: int, parts: int) -> list[int]:
    """Return how many of ``width`` neurons each worker owns: the first ones one more.

    >>> evenly(10, 4)
    [3, 3, 2, 2]
    """
    return [width // parts + (part < width % parts) for part in range(parts)]


class Exchange:
    """Sends tensors between one worker and all others; counts its bytes and its exchanges."""

    def __init__(self, rank: int, count: int):
        self.rank, self.count = rank, count
        self.bytes_sent = self.exchanges = 0

    def gathered(self, own: Tensor, width: int) -> Tensor:
        """Return the outputs of all neurons, given those of this worker's: (samples, width)."""
        widths = evenly(width, self.count)
        parts = self._swap([own] * self.count, [(len(own), part) for part in widths])
        return torch.cat(parts, dim=1)

    def scattered_sum(self, partial: Tensor) -> Tensor:
        """Return the sum over workers of the columns of this worker's neurons, in rank order."""
        parts = partial.split(evenly(partial.shape[1], self.count), dim=1)
        shape = tuple(parts[self.rank].shape)
        return torch.stack(self._swap(parts, [shape] * self.count)).sum(dim=0)

    def own_columns(self, whole: Tensor) -> Tensor:
        """Return the columns of this worker's neurons."""
        return whole.split(evenly(whole.shape[1], self.count), dim=1)[self.rank]

    def _swap(self, leaving: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Send every worker its tensor, and return those that they sent, each of its shape."""
        entering = [torch.empty(shape) for shape in shapes]
        entering[self.rank] = leaving[self.rank]
        waiting: list[Any] = []
        for other in (rank for rank in range(self.count) if rank != self.rank):
            tensor = leaving[other].contiguous()
            waiting += [dist.isend(tensor, other), dist.irecv(entering[other], other)]
            self.bytes_sent += tensor.numel() * tensor.element_size()
        for work in waiting:
            work.wait()
        self.exchanges += 1
        return entering


class AllGather(Function):
    """All neurons' outputs forward; the sum of their gradients, for the owner, backward."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: Exchange, width: int) -> Tensor:
        """Return the outputs of all neurons."""
        ctx.exchange = exchange
        return exchange.gathered(own, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this worker's outputs, of which every worker has a part."""
        return ctx.exchange.scattered_sum(gradients[0]), None, None


class GatherOutputs(AllGather):
    """All outputs of the model forward; backward nothing is sent, for all know the whole loss."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return this worker's columns of the gradient."""
        return ctx.exchange.own_columns(gradients[0]), None, None


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


def compare_parallelism(*, workers: int = 2, batch: int = 64, steps: int = 8) -> pd.DataFrame:
    """Return a row each for one worker, model parallelism, a pipeline and data parallelism.

    Model parallelism splits the neurons of each layer, a pipeline the layers, data parallelism the
    batch. ``difference`` is the largest difference of a parameter from the one worker's after
    ``steps`` steps. Of the busiest worker are ``samples``, ``parameters``, ``state_bytes``,
    ``activation_bytes`` (see `Share`) and ``exchanges``, the times per step that it waits for
    others. ``bytes_sent`` is what all workers together send in a step, ``formula_bytes`` what
    `traffic` says. ``imbalance`` is the most that a worker computes over the mean;
    ``speedup_bound`` how many times faster than one worker the step can be, if sending took no
    time: workers that split neurons wait at every layer for the one with most of them, the stages
    of the pipeline for each other.

    Raises InputError for a batch that the workers cannot share, and for more workers than the
    model has linear layers.
    """
    require_whole(workers=workers, batch=batch, steps=steps)
    require(2 <= workers < len(WIDTHS), f"workers {workers} must be 2 to {len(WIDTHS) - 1}")
    require(batch % workers == 0, f"batch {batch} must divide evenly among {workers} workers")
    task = mlp_task()
    with Ranks(workers, imports=(__name__, *TRAINING)) as ranks:
        [alone] = ranks.run(_train_whole, task, batch, steps, count=1)
        split = ranks.run(train_neurons, task, batch, steps)
        stages = ranks.run(train_stage, task, batch, steps)
        reports = ranks.run(run_job, data_parallel_job(workers, batch, steps))
        [part] = ranks.run(_train_whole, task, batch // workers, 1, count=1)
    shares = [_of_report(report, part) for report in reports]
    runs = {
        "one worker": _row([alone], alone.parameters, alone, _total(alone)),
        "model parallelism": _row(split, joined(split), alone, _slowest_layers(split)),
        "pipeline of layers": _row(stages, _all_layers(stages), alone, sum(map(_total, stages))),
        "data parallelism": _row(shares, shares[0].parameters, alone, _total(part)),
    }
    return _table(runs, workers, batch)


def data_parallel_job(workers: int, batch: int, steps: int) -> Job:
    """Return the job of data parallelism: one all-reduce of all gradients per step (BSP-A2A)."""
    task = mlp_task(workers)
    return Job(
        task=task,
        engine="torch",
        workers=workers,
        local_batch=batch // workers,
        iterations=steps,
        plan=METHODS["BSP-A2A"].plan(trace(task, batch // workers)),
        seed=SEED,
        batches=BATCHES,
        keep_parameters=True,
    )


def _train_whole(context: RankContext, task: Task, batch: int, steps: int) -> Share:
    """Train the whole model on whole batches, alone."""
    torch.manual_seed(SEED)
    model = task.build()
    trainee, losses = Trainee(model, batch), []
    for step in range(steps):
        samples = task.batch(batch, step % BATCHES)
        loss = trainee.watched(partial(task.loss, model, samples))
        loss.backward()
        losses.append(loss.item())
        trainee.update()
    return trainee.share(losses=tuple(losses))


def _of_report(report: Report, part: Share) -> Share:
    """Return the share of a data-parallel worker, who holds what one worker of its batch holds."""
    assert report.parameters is not None
    return Share(
        parameters=report.parameters,
        state_bytes=part.state_bytes,
        activation_bytes=part.activation_bytes,
        work=part.work,
        losses=report.losses,
        bytes_sent=round(report.bytes_sent),
        exchanges=len(report.losses),  # one message per step
    )


def _row(
    shares: list[Share], parameters: dict[str, Tensor], alone: Share, longest: int
) -> dict[str, float]:
    """Return the columns of a run; ``longest`` is the work that cannot be done side by side."""
    work = [_total(share) for share in shares]
    known = [share.losses for share in shares if share.losses]
    losses = [sum(step) / len(known) for step in zip(*known, strict=True)]
    steps = len(losses)
    return {
        "workers": len(shares),
        "parameters": max(share.parameter_count for share in shares),
        "state_bytes": max(share.state_bytes for share in shares),
        "activation_bytes": max(share.activation_bytes for share in shares),
        "bytes_sent": sum(share.bytes_sent for share in shares) / steps,
        "exchanges": max(share.exchanges for share in shares) // steps,
        "imbalance": max(work) * len(work) / sum(work),
        "speedup_bound": _total(alone) / longest,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "difference": _difference(parameters, alone.parameters),
    }


def _total(share: Share) -> int:
    return sum(share.work.values())


def _slowest_layers(shares: list[Share]) -> int:
    """Return the work of workers that wait for each other at every layer."""
    return sum(max(share.work[layer] for share in shares) for layer in shares[0].work)


def _all_layers(stages: list[Share]) -> dict[str, Tensor]:
    return {name: value for stage in stages for name, value in stage.parameters.items()}


def _difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    require(left.keys() == right.keys(), "the two models have different parameters")
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def _table(runs: dict[str, dict[str, float]], workers: int, batch: int) -> pd.DataFrame:
    table = pd.DataFrame.from_dict(runs, orient="index").rename_axis("parallelism")
    table.insert(1, "samples", [batch, batch, batch, batch // workers])
    after = table.columns.get_loc("bytes_sent") + 1
    table.insert(after, "formula_bytes", pd.Series(traffic(workers, batch)))
    counts = table.columns[: after + 2]  # all but ratios and losses
    return table.astype(dict.fromkeys(counts, int))


def parallelism_findings(rows: pd.DataFrame) -> Findings:
    """Return the result, memory, traffic and balance of `compare_parallelism`'s rows."""
    alone, split, pipeline, data = (rows.loc[name] for name in rows.index)
    workers, batch = int(split["workers"]), int(alone["samples"])
    return findings(
        f"Result: after training no parameter differs from the one worker's by more than "
        f"{rows['difference'].max():.1e}.",
        f"Memory: the busiest of {workers} workers keeps {_share(split, alone, 'state_bytes')} of "
        f"one worker's parameters, gradients and momentum if the neurons are split, "
        f"{_share(pipeline, alone, 'state_bytes')} in the pipeline and "
        f"{_share(data, alone, 'state_bytes')} with data parallelism; of its activations it keeps "
        f"{_share(split, alone, 'activation_bytes')}, "
        f"{_share(pipeline, alone, 'activation_bytes')} and "
        f"{_share(data, alone, 'activation_bytes')}.",
        f"Traffic in a step of {batch} samples: {_sent(split)}, {_sent(pipeline)} and "
        f"{_sent(data)}, with {_times(split)}, {_times(pipeline)} and {_times(data)} to wait for "
        f"others. Split neurons send in proportion to the batch, data parallelism in proportion "
        f"to the parameters: at {break_even_batch():.0f} samples they send equally much, whatever "
        f"the number of workers.",
        f"Imbalance: the busiest worker computes {split['imbalance']:.2f}, "
        f"{pipeline['imbalance']:.2f} and {data['imbalance']:.2f} times the mean. If sending took "
        f"no time, a step would be at most {split['speedup_bound']:.2f}, "
        f"{pipeline['speedup_bound']:.2f} and {data['speedup_bound']:.2f} times as fast as one "
        f"worker's: stages of a pipeline wait for each other as long as the batch is not cut.",
    )


def _share(row: pd.Series, alone: pd.Series, column: str) -> str:
    return f"{100 * row[column] / alone[column]:.0f} %"


def _sent(row: pd.Series) -> str:
    return show_bytes(row["bytes_sent"])


def _times(row: pd.Series) -> str:
    count = int(row["exchanges"])
    return f"{count} time" + "s" * (count != 1)


WORKERS = (METHOD_COLOURS["WFBP-PS"], METHOD_COLOURS["BSP-A2A"])  # a colour for each
LEFT = (1, 6)  # edges of what the two workers have


@styled
def parallelism_schematic(layers: int = 4) -> Figure:
    """The two ways of Fig. 1, and a pipeline of layers beside them, with two workers each."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4))
    for ax in axes:
        ax.set(xlim=(0, 10), ylim=(-0.6, layers + 0.35))
        ax.axis("off")
    _split_neurons(axes[0], layers)
    _split_batch(axes[1], layers)
    _split_layers(axes[2], layers)
    note(figure, "schematic, nothing measured")
    return figure


def _split_neurons(ax: Axes, layers: int) -> None:
    ax.set_title("Fig. 1 (a), model parallelism:\nthe neurons of each layer are split")
    for worker, half in enumerate(("first", "second")):
        for layer in range(layers):
            _box(ax, worker, layer, f"layer {layer + 1},\n{half} half")
        _caption(ax, worker, "the whole batch")
    for layer in range(layers):
        label = "outputs up,\ngradients\ndown" if layer == layers - 2 else ""
        _arrow(ax, (4, layer + 0.8), (6, layer + 0.8), label, -0.72, both=True)


def _split_batch(ax: Axes, layers: int) -> None:
    ax.set_title("Fig. 1 (b), data parallelism:\nthe batch is split")
    for worker, half in enumerate(("first", "second")):
        for layer in range(layers):
            _box(ax, worker, layer, f"layer {layer + 1}")
        _caption(ax, worker, f"{half} half of the batch")
    for layer in range(layers):
        label = "average of\ngradients" if layer == layers - 1 else ""
        _arrow(ax, (4, layer + 0.3), (6, layer + 0.3), label, 0.12, both=True)


def _split_layers(ax: Axes, layers: int) -> None:
    ax.set_title("A pipeline of layers:\nthe layers are split")
    half = layers // 2
    for layer in range(layers):
        _box(ax, int(layer >= half), layer, f"layer {layer + 1}")
    _arrow(ax, (4, half - 0.55), (6, half + 0.35), "activations", 0.42)
    _arrow(ax, (6, half + 0.05), (4, half - 0.85), "their gradients", -0.75)
    for worker in range(2):
        _caption(ax, worker, "the whole batch")


def _box(ax: Axes, worker: int, layer: int, text: str) -> None:
    x, style = LEFT[worker], "round,pad=0.02,rounding_size=0.12"
    colour = WORKERS[worker]
    ax.add_patch(FancyBboxPatch((x, layer), 3, 0.62, boxstyle=style, facecolor=colour, alpha=0.75))
    ax.text(x + 1.5, layer + 0.31, text, ha="center", va="center", fontsize=10)


def _arrow(
    ax: Axes,
    tail: tuple[float, float],
    head: tuple[float, float],
    text: str,
    lift: float,
    *,
    both: bool = False,
) -> None:
    style = "<|-|>" if both else "-|>"
    ax.add_patch(FancyArrowPatch(tail, head, arrowstyle=style, mutation_scale=14, color="#333333"))
    middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2 + lift)
    ax.text(*middle, text, ha="center", va="bottom", fontsize=8)


def _caption(ax: Axes, worker: int, text: str) -> None:
    x = LEFT[worker] + 1.5
    ax.text(x, -0.12, f"worker {worker}\n{text}", ha="center", va="top", fontsize=9)
