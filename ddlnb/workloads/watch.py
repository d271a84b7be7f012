"""Which module reads which parameter, and when layers are entered and gradients arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Count:
    """Work since the start of the run.

    FLOPs, bytes of operations without and with FLOPs, and how many operations there were; FLOPs of
    convolutions that `takes_winograd`, and kernels inside operations.
    """

    flops: float
    bytes: float
    matrix_bytes: float
    operations: float
    winograd_flops: float
    kernels: float


class Watch(TorchFunctionMode):
    """Notes which module is running when a torch function first gets each parameter."""

    def __init__(self, module: nn.Module, count: Callable[[], Count]):
        super().__init__()
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = trained
        self.count = count
        self.layer_of: dict[str, str] = {}
        self.outside: set[str] = set()
        self.entered: list[tuple[str, Count]] = []
        self.arrived: list[tuple[str, Count]] = []
        self._names = {id(parameter): name for name, parameter in trained.items()}
        self._running: list[str] = []
        for name, submodule in module.named_modules():
            submodule.register_forward_pre_hook(partial(self._enter, name), prepend=True)
            submodule.register_forward_hook(self._leave, always_call=True)
        for name, parameter in trained.items():
            parameter.register_post_accumulate_grad_hook(partial(self._arrive, name))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # Asking for .shape or .dtype returns no tensor and reads no value; .T and .data do.
        if func.__name__ != "__get__" or isinstance(result, Tensor):
            self._note_reads((args, kwargs))
        return result

    def _note_reads(self, arguments: object) -> None:
        for value in _tensors(arguments):
            name = self._names.get(id(value))
            if name is None or name in self.layer_of:
                continue
            if self._running:
                self.layer_of[name] = self._running[-1]
            else:
                self.outside.add(name)

    def _enter(self, name: str, module: nn.Module, args: object) -> None:
        self._running.append(name)
        self.entered.append((name, self.count()))

    def _leave(self, module: nn.Module, args: object, result: object) -> None:
        self._running.pop()

    def _arrive(self, name: str, parameter: Tensor) -> None:
        self.arrived.append((name, self.count()))


def _tensors(value: object) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _tensors(inner)
