"""Model parallelism, a pipeline of layers and data parallelism on real ranks (section 1, Fig. 1).

All three train a multi-layer perceptron on the batches that one worker also trains it on, and end
with that worker's parameters up to rounding.

Before a layer every worker needs the outputs of all neurons below: an all-gather. Backward, every
worker has a part of the gradient of each of these outputs, and the owner needs the sum: a
reduce-scatter. Both are built of an all-to-all, as workers own different numbers of neurons.

Model parallelism as Fig. 1 (a) draws it: the neurons of each layer are split over workers.

Model and data parallelism as a schematic (survey, Fig. 1). Nothing in it is measured.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from ddlnb.engines.job import Job
from ddlnb.engines.settings import OPTIMIZERS, TRAINING
from ddlnb.engines.worker import run_job
from ddlnb.errors import require, require_whole
from ddlnb.figures.style import METHOD_COLOURS, note, styled
from ddlnb.launch.rank import RankContext, process_group
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import METHODS
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.launchers import ranks_at
from ddlnb.units import counted, show_bytes
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
    def total_work(self) -> int:
        """The multiply-accumulates of all its layers."""
        return sum(self.work.values())


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
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            result = forward()
        self._kept = {place: size for place, size in kept.items() if place not in own}
        return result

    def update(self) -> None:
        """Apply the gradients, and forget them; note the memory of what belongs to parameters."""
        self._optimizer.step()
        self._state_bytes = sum(
            one.nbytes
            for value in self._module.parameters()
            for one in (value, value.grad, *self._optimizer.state[value].values())
            if isinstance(one, Tensor)
        )
        self._optimizer.zero_grad()

    def train(self, task: Task, batch: int, steps: int) -> tuple[float, ...]:
        """Take steps on the joined batches with all layers at hand, and return the losses."""
        losses = []
        for step in range(steps):
            samples = task.batch(batch, step % BATCHES)
            loss = self.watched(partial(task.loss, self._module, samples))
            loss.backward()
            losses.append(loss.item())
            self.update()
        return tuple(losses)

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
    below, losses, sent = (batch, entering_width(stage)), [], 0
    with process_group(context, context.store(), context.count):
        for step in range(steps):
            images, labels = task.batch(batch, step % BATCHES)
            entering = images if first else _received(below, context.rank - 1).requires_grad_()
            if last:
                leaving = trainee.watched(partial(task.loss, stage, (entering, labels)))
                losses.append(leaving.item())
                gradient = None
            else:
                leaving = trainee.watched(partial(stage, entering))
                sent += _send(leaving.detach(), context.rank + 1)
                gradient = _received(leaving.shape, context.rank + 1)
            leaving.backward(gradient)
            if entering.grad is not None:
                sent += _send(entering.grad, context.rank - 1)
            trainee.update()
    neighbours = (not first) + (not last)
    return trainee.share(losses=tuple(losses), bytes_sent=sent, exchanges=steps * neighbours)


def _received(shape: Sequence[int], rank: int) -> Tensor:
    tensor = torch.empty(*shape)
    dist.recv(tensor, rank)
    return tensor


def _send(tensor: Tensor, rank: int) -> int:
    dist.send(tensor.contiguous(), rank)
    return tensor.nbytes


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
        sizes = [math.prod(shape) for shape in shapes]
        entering, flat = torch.empty(sum(sizes)), [tensor.reshape(-1) for tensor in leaving]
        dist.all_to_all_single(entering, torch.cat(flat), sizes, list(map(len, flat)))
        self.bytes_sent += sum(one.nbytes for rank, one in enumerate(flat) if rank != self.rank)
        self.exchanges += 1
        parts = zip(entering.split(sizes), shapes, strict=True)
        return [part.view(shape) for part, shape in parts]


class AllGather(Function):
    """All neurons' outputs forward; the sum of their gradients, for the owner, backward.

    Nothing is sent backward for the outputs of the model, as all workers know the whole loss.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: Exchange, width: int, of_model: bool) -> Tensor:
        """Return the outputs of all neurons."""
        ctx.for_owner = exchange.own_columns if of_model else exchange.scattered_sum
        return exchange.gathered(own, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of this worker's outputs."""
        return ctx.for_owner(gradients[0]), None, None, None


class SplitNeurons(nn.Module):
    """One worker's neurons of every layer; a forward pass returns the outputs of all workers'.

    Each linear layer keeps the rows of its weight that belong to the worker's neurons, under the
    name that it has in the model; its ``out_features`` still count the neurons of all workers.
    """

    def __init__(self, model: nn.Sequential, exchange: Exchange):
        super().__init__()
        self._exchange = exchange
        for name, layer in copy.deepcopy(model).named_children():
            for value in layer.parameters():
                sizes = evenly(len(value), exchange.count)
                value.data = value.data.split(sizes)[exchange.rank].clone()
            self.add_module(name, layer)

    def forward(self, samples: Tensor) -> Tensor:
        """Return the model's outputs: with an exchange before every next layer, and at the end."""
        values, width = samples, 0
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                if width:
                    values = AllGather.apply(values, self._exchange, width, False)
                width = layer.out_features
            values = layer(values)
        return AllGather.apply(values, self._exchange, width, True)


def train_neurons(context: RankContext, task: Task, batch: int, steps: int) -> Share:
    """Train this rank's neurons of every layer on the whole batch; called on every rank."""
    torch.manual_seed(SEED)
    exchange = Exchange(context.rank, context.count)
    trainee = Trainee(SplitNeurons(task.build(), exchange), batch)  # type: ignore[arg-type]
    with process_group(context, context.store(), context.count):
        losses = trainee.train(task, batch, steps)
    return trainee.share(
        losses=losses, bytes_sent=exchange.bytes_sent, exchanges=exchange.exchanges
    )


def joined(shares: list[Share]) -> dict[str, Tensor]:
    """Return the parameters of the model whose neurons these workers hold."""
    return {
        name: torch.cat([share.parameters[name] for share in shares])
        for name in shares[0].parameters
    }


COUNTS = (
    *("workers", "samples", "parameters", "state_bytes", "activation_bytes"),
    *("bytes_sent", "formula_bytes", "exchanges"),
)
RATIOS = ("imbalance", "speedup_bound", "first_loss", "last_loss", "difference")


def compare_parallelism(
    *, workers: int = 2, batch: int = 64, steps: int = 8, where: str = "local"
) -> pd.DataFrame:
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
    with ranks_at(where, workers, (__name__, *TRAINING)) as ranks:
        [alone] = ranks.run(_train_whole, task, batch, steps, count=1)
        split = ranks.run(train_neurons, task, batch, steps)
        stages = ranks.run(train_stage, task, batch, steps)
        reports = ranks.run(run_job, data_parallel_job(workers, batch, steps))
        [part] = ranks.run(_train_whole, task, batch // workers, 1, count=1)
    shares = [  # a data-parallel worker holds what one worker of its batch holds
        replace(
            part,
            parameters=report.parameters or {},
            losses=report.losses,
            bytes_sent=round(report.bytes_sent),
            exchanges=len(report.losses),  # one message per step
        )
        for report in reports
    ]
    in_turn = [max(share.work[layer] for share in split) for layer in split[0].work]
    stage_layers = {name: value for stage in stages for name, value in stage.parameters.items()}
    rows = {
        "one worker": _row([alone], alone.parameters, alone, alone.total_work),
        "model parallelism": _row(split, joined(split), alone, sum(in_turn)),
        "pipeline of layers": _row(stages, stage_layers, alone, alone.total_work),
        "data parallelism": _row(shares, shares[0].parameters, alone, part.total_work),
    }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("parallelism")
    table["samples"] = [batch, batch, batch, batch // workers]
    table["formula_bytes"] = pd.Series(traffic(workers, batch))
    return table.astype(dict.fromkeys(COUNTS, int))[[*COUNTS, *RATIOS]]


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
    trainee = Trainee(task.build(), batch)
    losses = trainee.train(task, batch, steps)
    return trainee.share(losses=losses)


def _row(
    shares: list[Share], parameters: dict[str, Tensor], alone: Share, longest: int
) -> dict[str, float]:
    """Return the columns of a run; ``longest`` is the work that cannot be done side by side."""
    require(parameters.keys() == alone.parameters.keys(), "the models have different parameters")
    work = [share.total_work for share in shares]
    known = [share.losses for share in shares if share.losses]
    losses = [sum(step) / len(known) for step in zip(*known, strict=True)]
    return {
        "workers": len(shares),
        "parameters": max(sum(map(torch.numel, share.parameters.values())) for share in shares),
        "state_bytes": max(share.state_bytes for share in shares),
        "activation_bytes": max(share.activation_bytes for share in shares),
        "bytes_sent": sum(share.bytes_sent for share in shares) / len(losses),
        "exchanges": max(share.exchanges for share in shares) // len(losses),
        "imbalance": max(work) * len(work) / sum(work),
        "speedup_bound": alone.total_work / longest,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "difference": max(
            float((value - alone.parameters[name]).abs().max())
            for name, value in parameters.items()
        ),
    }


def parallelism_findings(rows: pd.DataFrame) -> Findings:
    """Return the result, memory, traffic and balance of `compare_parallelism`'s rows."""
    workers, batch = int(rows["workers"].iloc[1]), int(rows["samples"].iloc[0])
    shares = (100 * rows / rows.iloc[0]).map("{:.0f} %".format)
    times = rows["exchanges"].map(lambda count: counted(int(count), "time"))
    split, pipeline, data = shares["state_bytes"].iloc[1:]
    return findings(
        f"Result: after training no parameter differs from the one worker's by more than "
        f"{rows['difference'].max():.1e}.",
        f"Memory: the busiest of {workers} workers keeps {split} of "
        f"one worker's parameters, gradients and momentum if the neurons are split, "
        f"{pipeline} in the pipeline and "
        f"{data} with data parallelism; of its activations it keeps "
        f"{_each(shares['activation_bytes'])}.",
        f"Traffic in a step of {batch} samples: {_each(rows['bytes_sent'].map(show_bytes))}, "
        f"with {_each(times)} to wait for "
        f"others. Split neurons send in proportion to the batch, data parallelism in proportion "
        f"to the parameters: at {break_even_batch():.0f} samples they send equally much, whatever "
        f"the number of workers.",
        f"Imbalance: the busiest worker computes {_each(rows['imbalance'].map('{:.2f}'.format))} "
        f"times the mean. If sending took no time, a step would be at most "
        f"{_each(rows['speedup_bound'].map('{:.2f}'.format))} times as fast as one "
        f"worker's: stages of a pipeline wait for each other as long as the batch is not cut.",
    )


def _each(texts: pd.Series) -> str:
    """Return the texts of split neurons, the pipeline and data parallelism."""
    return "{}, {} and {}".format(*texts.iloc[1:])


WORKERS = (METHOD_COLOURS["WFBP-PS"], METHOD_COLOURS["BSP-A2A"])  # a colour for each
LEFT = (1, 6)  # edges of what the two workers have
HALVES = ("first", "second")


@styled
def parallelism_schematic(layers: int = 4) -> plt.Figure:
    """The two ways of Fig. 1, and a pipeline of layers beside them, with two workers each."""
    figure, (neurons, batches, pipeline) = plt.subplots(1, 3, figsize=(15, 4.4))
    neurons.set_title("Fig. 1 (a), model parallelism:\nthe neurons of each layer are split")
    batches.set_title("Fig. 1 (b), data parallelism:\nthe batch is split")
    pipeline.set_title("A pipeline of layers:\nthe layers are split")
    names, half = [f"layer {layer + 1}" for layer in range(layers)], layers // 2
    outputs = {layers - 2: "outputs up,\ngradients\ndown"}
    average = {layers - 1: "average of\ngradients"}
    for worker, which in enumerate(HALVES):
        _boxes(neurons, worker, [f"{name},\n{which} half" for name in names], "the whole batch")
        _boxes(batches, worker, names, f"{which} half of the batch")
        own = [name if worker == (layer >= half) else "" for layer, name in enumerate(names)]
        _boxes(pipeline, worker, own, "the whole batch")
    for layer in range(layers):
        _arrow(neurons, layer + 0.8, layer + 0.8, outputs.get(layer, ""), -0.72, "<|-|>")
        _arrow(batches, layer + 0.3, layer + 0.3, average.get(layer, ""), 0.12, "<|-|>")
    _arrow(pipeline, half - 0.55, half + 0.35, "activations", 0.42, "-|>")
    _arrow(pipeline, half - 0.85, half + 0.05, "their gradients", -0.75, "<|-")
    return note(figure, "schematic, nothing measured")


def _boxes(ax: plt.Axes, worker: int, texts: Sequence[str], batch: str) -> None:
    """Draw a worker's layers, one above the other; there is none where the text is empty."""
    ax.set(xlim=(0, 10), ylim=(-0.6, len(texts) + 0.35))
    ax.axis("off")
    x, colour = LEFT[worker], WORKERS[worker]
    look: dict[str, Any] = {"boxstyle": "round,pad=0.02,rounding_size=0.12", "alpha": 0.75}
    for layer, text in enumerate(texts):
        if text:
            ax.add_patch(FancyBboxPatch((x, layer), 3, 0.62, facecolor=colour, **look))
            ax.text(x + 1.5, layer + 0.31, text, ha="center", va="center", fontsize=10)
    ax.text(x + 1.5, -0.12, f"worker {worker}\n{batch}", ha="center", va="top", fontsize=9)


def _arrow(ax: plt.Axes, left: float, right: float, text: str, lift: float, style: str) -> None:
    """Draw an arrow between the workers, from this height to that one; its text is lifted."""
    ends = (4, left), (6, right)
    ax.add_patch(FancyArrowPatch(*ends, arrowstyle=style, mutation_scale=14, color="#333333"))
    ax.text(5, (left + right) / 2 + lift, text, ha="center", va="bottom", fontsize=8)
