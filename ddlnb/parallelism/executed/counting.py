"""What a rank exchanges and keeps, counted from inside torch while it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ddlnb.errors import MissingPart

# Operator of torch -> the primitive that it is, and the argument that holds the buffer.
_OPERATORS = {
    "_c10d_functional.all_reduce": ("all-reduce", 0),
    "_c10d_functional.all_reduce_": ("all-reduce", 0),
    "_c10d_functional.all_gather_into_tensor": ("all-gather", 0),
    "_c10d_functional.reduce_scatter_tensor": ("reduce-scatter", 0),
    "_c10d_functional.all_to_all_single": ("all-to-all", 0),
    "c10d.allreduce_": ("all-reduce", 0),
    "c10d._allgather_base_": ("all-gather", 0),
    "c10d._reduce_scatter_base_": ("reduce-scatter", 1),
    "c10d.alltoall_base_": ("all-to-all", 1),
    "c10d.send": ("send", 0),
}
_SILENT = ("wait_tensor", "_wrap_tensor_autograd", "recv_", "barrier")
Key = tuple[str, tuple[int, ...]]  # primitive, ranks of the group


class Counting(TorchDispatchMode):
    """Counts calls and bytes by primitive and group, as `GroupExchange` defines the bytes.

    Only numbers of the training count: integers (how many tokens come, shapes) are bookkeeping.
    """

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[Key] = Counter()
        self.bytes: Counter[Key] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # it becomes operators on plain tensors, which come here
        name = str(func).removesuffix(".default")
        if "c10d" in name and not name.endswith(_SILENT):
            self._count(name, args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        if name not in _OPERATORS:
            raise MissingPart(
                f"the bytes of operator {name} cannot be counted, as this torch has it and nobody "
                f"knew of it; add it to _OPERATORS, or take the torch of environment.yml"
            )
        primitive, at = _OPERATORS[name]
        tensors = args[at] if isinstance(args[at], list | tuple) else [args[at]]
        tensors = [one for one in tensors if one.is_floating_point()]
        group = _group_of(args)
        size = sum(one.numel() * one.element_size() for one in tensors)
        if name == "_c10d_functional.all_gather_into_tensor":  # its argument is what goes in
            size *= group.size()
        if tensors:
            key = primitive, tuple(dist.get_process_group_ranks(group))
            self.times[key] += 1
            self.bytes[key] += size


def _group_of(args: tuple[Any, ...]) -> dist.ProcessGroup:
    for one in args:
        if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type()):
            return dist.ProcessGroup.unbox(one)
    named = [one for one in args if isinstance(one, str)]
    return dist.distributed_c10d._resolve_process_group(named[-1])  # type: ignore[arg-type]


@dataclass
class Keeping:
    """Bytes that autograd keeps from forward to backward passes: now, and at the peak."""

    module: nn.Module  # whose parameters do not count, FSDP's gathered ones neither
    now: int = 0
    peak: int = 0
    holders: Counter[int] = field(default_factory=Counter)

    def hold(self, tensor: Tensor) -> _Held:
        """Return what autograd keeps instead of the tensor."""
        # Detached: a kept output would otherwise hold the graph that holds it.
        held = _Held(tensor.detach(), self)
        if not tensor.is_floating_point() or self._is_parameter(local_of(tensor), held.storage):
            held.storage = 0
        if held.storage:
            if not self.holders[held.storage]:
                self.now += held.bytes
                self.peak = max(self.peak, self.now)
            self.holders[held.storage] += 1
        return held

    def _is_parameter(self, local: Tensor, storage: int) -> bool:
        if isinstance(local._base, nn.Parameter):
            return True
        now = (local_of(one).untyped_storage() for one in self.module.parameters())
        return storage in {one.data_ptr() for one in now}

    def release(self, held: _Held) -> None:
        """Count what nobody keeps any more."""
        self.holders[held.storage] -= 1
        if not self.holders[held.storage]:
            self.now -= held.bytes


class _Held:
    """A kept tensor that says when it is let go."""

    def __init__(self, tensor: Tensor, keeping: Keeping):
        self.tensor, self.keeping = tensor, keeping
        storage = local_of(tensor).untyped_storage()
        self.storage, self.bytes = storage.data_ptr(), storage.nbytes()

    def __del__(self) -> None:
        if self.storage:
            self.keeping.release(self)


@contextmanager
def counting_kept(module: nn.Module) -> Iterator[Keeping]:
    """Count what autograd keeps inside the context, parameters of the module left out."""
    keeping = Keeping(module)
    with saved_tensors_hooks(keeping.hold, lambda held: held.tensor):
        yield keeping


def local_of(tensor: Any) -> Tensor:
    """Return the part of a tensor that lies on this rank."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return getattr(tensor, "elem", tensor)  # of a collective that has not been waited for


def local_bytes(tensors: Any) -> int:
    """Return the bytes that tensors take on this rank."""
    return sum(local_of(one.detach()).nbytes for one in tensors)
