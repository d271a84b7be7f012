"""The updates of a model under a plan: an optimizer for all of it, or one for every layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ddlnb.engines.optimizers import MakeOptimizer
from ddlnb.plans.plan import Gate, Plan


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


def hand_over(before: Iterable[Update], after: Iterable[Update]) -> None:
    """Give the optimizers of ``after`` what those of ``before`` remember of each parameter."""
    remembered = {
        parameter: state for update in before for parameter, state in update.optimizer.state.items()
    }
    for update in after:
        for group in update.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in remembered:
                    update.optimizer.state[parameter] = remembered[parameter]
