"""One worker's copy of a model, trained under a plan: hooks on a real forward and backward pass.

Gradients go to memory as they come and messages start; updates wait for the messages that carry
their gradients, with one optimizer for the whole model, or one for every layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ddlnb.engines.base import Transport
from ddlnb.engines.job import Tracer, recorded
from ddlnb.engines.scheduler import Compressing, GradientMemory, MessageScheduler
from ddlnb.engines.settings import MakeOptimizer
from ddlnb.errors import ModelError, PlanError
from ddlnb.plans.plan import Gate, Plan
from ddlnb.plans.plan_file import require_same_gradients
from ddlnb.registry import supplied


class Update:
    """The optimizer of some parameters, and the messages that carry their gradients."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        gradients: list[torch.Tensor],
        messages: list[int],
        make_optimizer: MakeOptimizer,
    ):
        self.messages = messages
        self.optimizer = make_optimizer(parameters)
        self._pairs = list(zip(parameters, gradients, strict=True))

    def apply(self) -> None:
        """Take one step with the gradients as they are in memory."""
        for parameter, gradient in self._pairs:
            parameter.grad = gradient
        self.optimizer.step()
        for parameter, _ in self._pairs:
            parameter.grad = None


def updates_of(
    plan: Plan,
    parameters: Sequence[nn.Parameter],
    views: Sequence[torch.Tensor],
    make_optimizer: MakeOptimizer,
) -> dict[str, Update]:
    """Return one update for the whole model, or one per layer in the order the plan needs them."""

    def update(positions: list[int], messages: Iterable[int]) -> Update:
        chosen = [parameters[position] for position in positions]
        gradients = [views[position] for position in positions]
        return Update(chosen, gradients, list(messages), make_optimizer)

    everything = list(range(len(parameters)))
    if plan.gate is Gate.ALL_LAYERS:
        return {"all layers": update(everything, range(len(plan.messages)))}
    return {
        layer: update([i for i in everything if plan.gradients[i].layer == layer], messages)
        for layer, messages in plan.messages_of_layer.items()
    }


def transfer_state(before: Iterable[Update], after: Iterable[Update]) -> None:
    """Give the optimizers of ``after`` what those of ``before`` remember of each parameter."""
    remembered = {
        parameter: state for update in before for parameter, state in update.optimizer.state.items()
    }
    for update in after:
        for group in update.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in remembered:
                    update.optimizer.state[parameter] = remembered[parameter]


class Replica:
    """Trains a module so that every step uses the gradients averaged over all workers.

    ``make_optimizer`` gets parameters and returns a torch optimizer; with `Gate.OWN_LAYER` it is
    called once per layer, so it must treat parameters independently of one another (SGD, Adam and
    AdamW do). The modules of all ranks must start equal. ``waited_seconds`` and ``bytes_sent``
    grow with every step. ``rank`` and ``seed`` are for compressors that draw random numbers. Raises
    ModelError if the module is not the one the plan was made for.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        transport: Transport,
        make_optimizer: MakeOptimizer,
        workers: int,
        timeout_seconds: float = 120.0,
        rank: int = 0,
        seed: int = 0,
    ):
        self.module = module
        self.waited_seconds = 0.0
        self._workers, self._rank, self._seed = workers, rank, seed
        self._make_optimizer, self._timeout_seconds = make_optimizer, timeout_seconds
        self._sent_before = 0.0
        self._pending: set[str] = set()
        self._has_begun = self._has_sent = False
        self.accumulates = False  # gradients into those of the parameters, and sends nothing
        self._tracer: Tracer | None = None
        self._trace_hooks: list[RemovableHandle] = []
        self._mark, self._layer = 0.0, ""
        self._parameters = _planned_parameters(module, plan)
        self._adopt(plan, transport)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, position))
            for position, parameter in enumerate(self._parameters)
        ]

    def _adopt(self, plan: Plan, transport: Transport) -> None:
        self.plan, self._transport = plan, transport
        first = self._parameters[0]
        memory = GradientMemory(plan, first.dtype, first.device)
        compressing = self._compressing(plan, first) if plan.compressed_by else None
        self._scheduler = MessageScheduler(
            plan, memory, transport, self._timeout_seconds, compressing
        )
        self._scales = _scales(plan, self._workers)
        self._views = [
            memory.gradient(gradient.name).view(parameter.shape)
            for gradient, parameter in zip(plan.gradients, self._parameters, strict=True)
        ]
        self._updates = updates_of(plan, self._parameters, self._views, self._make_optimizer)
        self._gates: list[RemovableHandle] = []
        if plan.gate is Gate.OWN_LAYER:
            self._gates = [
                # First of the module's hooks: others, such as weight_norm's, read parameters too.
                self.module.get_submodule(layer).register_forward_pre_hook(
                    partial(self._gate, layer), prepend=True
                )
                for layer in self._updates
            ]

    def _compressing(self, plan: Plan, first: nn.Parameter) -> Compressing:
        named = self.module.named_parameters()
        shapes = {name: tuple(one.shape) for name, one in named if one.requires_grad}
        where = (self._rank, self._workers, self._seed, first.dtype, first.device.type)
        made: Compressing = supplied("compressed messages")(plan, shapes, *where)
        return made

    @property
    def bytes_sent(self) -> float:
        """The payload bytes that this worker has sent."""
        return self._sent_before + self._transport.bytes_sent

    def step(self, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run one forward and one backward pass on this worker's batch and return its loss.

        With `Gate.OWN_LAYER` the update of a layer is applied when the next forward pass gets
        there; call `synchronize` before reading parameters.
        """
        self._mark, self._layer = time.perf_counter(), "input"
        value = loss()
        self._note("forward", self._layer)
        value.backward()
        self.finish()
        return value.detach()

    def begin(self) -> None:
        """Get ready for the gradients of a backward pass; the first of them does it as well."""
        if self._pending:
            raise ModelError(
                f"layer {next(iter(self._pending))!r} was not entered in this forward pass, so it "
                f"has not got its last update; run every layer in every step, or choose a method "
                f"whose forward pass waits for all layers"
            )
        self._scheduler.begin()
        self._has_begun, self._has_sent = True, False

    def send(self) -> None:
        """Start what waited for the end of backward. Raises ModelError for an absent gradient."""
        if not self._has_begun:
            self.begin()
        if self._has_sent:
            return
        if absent := self._scheduler.backward_done():
            raise ModelError(
                f"no gradient arrived for {', '.join(absent[:5])}"
                f"{' and others' if len(absent) > 5 else ''} in this iteration; every parameter "
                f"must take part in every step, or have requires_grad=False"
            )
        self._has_sent = True

    def averages(self) -> list[torch.Tensor]:
        """Return the averaged gradients of the plan once all have arrived; updates will use them.

        A method that updates a layer when the next forward pass gets there does not wait for all.
        """
        self.send()
        for message in range(len(self.plan.messages)):
            self._scheduler.wait(message)
        return self._views

    def finish(self) -> None:
        """Apply the updates of a backward pass that is through, or have the next forward do it."""
        self.send()
        self._has_begun = False
        self._pending = set(self._updates)
        if self.plan.gate is Gate.ALL_LAYERS:
            self.synchronize()

    def synchronize(self) -> None:
        """Wait for all messages and apply every update that is still to come."""
        for layer in list(self._updates):
            self._apply(layer)

    def replan(self, plan: Plan, transport: Transport) -> None:
        """Train under another plan from the next step on, its messages carried by ``transport``.

        All messages of the steps so far arrive and all their updates are applied before; parameters
        and what the optimizers remember of them stay as they are. All ranks must call it between
        the same two steps. Raises PlanError for a plan with other gradients, and for compressed
        ones, whose memories of what was not sent belong to their messages.
        """
        require_same_gradients(self.plan, plan)
        if self.plan.compressed_by or plan.compressed_by:
            raise PlanError(
                f"plan {plan.method!r} cannot take over from {self.plan.method!r} while messages "
                f"are compressed; replan dense plans"
            )
        self.synchronize()
        tracer, before = self._tracer, self._updates
        self.trace(None)
        for gate in self._gates:
            gate.remove()
        self._sent_before += self._transport.bytes_sent
        self._transport.close()
        self._adopt(plan, transport)
        transfer_state(before.values(), self._updates.values())
        self.trace(tracer)

    def close(self) -> None:
        """Apply what is pending, remove the hooks and close the transport."""
        self.synchronize()
        self.trace(None)
        for hook in (*self._hooks, *self._gates):
            hook.remove()
        self._transport.close()

    def trace(self, tracer: Tracer | None) -> None:
        """Record spans from the next step on, or stop recording."""
        self._tracer = self._scheduler.tracer = tracer
        for hook in self._trace_hooks:
            hook.remove()
        layers = {gradient.layer for gradient in self.plan.gradients} if tracer else ()
        self._trace_hooks = [
            self.module.get_submodule(layer).register_forward_pre_hook(
                partial(self._enter, layer), prepend=True
            )
            for layer in layers
        ]

    def _enter(self, layer: str, *_: object) -> None:
        self._note("forward", self._layer)
        self._layer = layer

    def _gate(self, layer: str, *_: object) -> None:
        if layer in self._pending:
            self._apply(layer)
            self._mark = time.perf_counter()

    def _apply(self, layer: str) -> None:
        if layer not in self._pending:
            return
        self._pending.discard(layer)
        update = self._updates[layer]
        start = time.perf_counter()
        for message in update.messages:
            self._scheduler.wait(message)
        arrived = time.perf_counter()
        self.waited_seconds += arrived - start
        if self._tracer is not None:
            self._tracer.record("wait", layer, start, arrived)
        with recorded(self._tracer, "update", layer):
            update.apply()

    def _on_gradient(self, position: int, parameter: nn.Parameter) -> None:
        if self.accumulates and not self._has_begun:
            return
        if not self._has_begun:
            self.begin()
        if self.accumulates or self._scheduler.has(position):  # its message may be under way
            raise ModelError(
                f"gradient {self.plan.gradients[position].name!r} came a second time without a "
                f"step in between; call step() after every backward pass, add the losses of "
                f"several before it, or run all but the last of them in no_sync()"
            )
        gradient = parameter.grad
        assert gradient is not None
        torch.mul(gradient, self._scales[position], out=self._views[position])
        parameter.grad = None
        self._note("backward", self.plan.gradients[position].name)
        self._scheduler.gradient_ready(position)

    def _note(self, kind: str, name: str) -> None:
        if self._tracer is not None:
            now = time.perf_counter()
            self._tracer.record(kind, name, self._mark, now)
            self._mark = now


def _scales(plan: Plan, workers: int) -> list[float]:
    """Return what each gradient is multiplied by: 1 / n; 1 where a compressor makes the average."""
    by_message = zip(plan.compressions, plan.gradients_of, strict=False)
    compressed = {one for compression, gradients in by_message if compression for one in gradients}
    return [1.0 if one in compressed else 1.0 / workers for one in range(len(plan.gradients))]


def _planned_parameters(module: nn.Module, plan: Plan) -> list[nn.Parameter]:
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    planned = {gradient.name: gradient.elements for gradient in plan.gradients}
    for name in planned.keys() ^ trained.keys():
        where = "the plan only" if name in planned else "the model only"
        raise ModelError(f"parameter {name!r} is in {where}; make the plan from this model")
    for name, elements in planned.items():
        if trained[name].numel() != elements:
            raise ModelError(
                f"parameter {name!r} has {trained[name].numel():,} elements in the model and "
                f"{elements:,} in the plan; make the plan from this model"
            )
    dtypes = {parameter.dtype for parameter in trained.values()}
    if len(dtypes) > 1:
        raise ModelError(f"parameters mix {sorted(map(str, dtypes))}; convert to one dtype")
    return [trained[gradient.name] for gradient in plan.gradients]
