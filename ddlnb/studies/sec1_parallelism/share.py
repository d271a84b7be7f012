"""What one worker held, computed and sent: the same record for every way of sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from ddlnb.engines.optimizers import OPTIMIZERS


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
