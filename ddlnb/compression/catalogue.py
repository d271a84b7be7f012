"""The compressors by name: those of the package, and those that a user registers.

Averages of several tensors side by side: requests that are alike travel as one.

So a message of many tensors costs the latency of one, and every tensor gets the bits that it would
get alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddlnb.compression.base import FAMILIES, Compressor
from ddlnb.compression.dgc import DeepGradientCompression
from ddlnb.compression.gtop_k import GTopK
from ddlnb.compression.half import BFloat16, Float16
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.qsgd import QSGD
from ddlnb.compression.random_k import RandomK
from ddlnb.compression.scaled_sign import ScaledSign
from ddlnb.compression.sign import SignVote
from ddlnb.compression.terngrad import TernGrad
from ddlnb.compression.top_k import TopK
from ddlnb.errors import UnknownName, require
from ddlnb.plans.requests import AllGather, AllReduce, Flow, Gathered
from ddlnb.registry import parsed, parts_of, register

COMPRESSORS: dict[str, type[Compressor]] = {
    kind.name: kind
    for kind in (
        *(Float16, BFloat16, SignVote, ScaledSign, QSGD, TernGrad),
        *(TopK, GTopK, RandomK, DeepGradientCompression, PowerSGD),
    )
}
# These are made for one model, so that no default fits all models.
FOR_ONE_MODEL: dict[str, type[Compressor]] = {LayerTopK.name: LayerTopK}


def get_compressor(text: str | Compressor | None) -> Compressor | None:
    """Return the compressor that a text such as ``"top-k(0.01)"`` names; None for "none".

    Raises UnknownName and InputError.

    >>> get_compressor("top-k(0.01)")
    TopK(density=0.01)
    """
    if text is None or text == "none":
        return None
    if isinstance(text, Compressor):
        return text
    return parsed("compression", text, COMPRESSORS | FOR_ONE_MODEL)


def register_compressor(kind: type[Compressor]) -> None:
    """Add a compressor to COMPRESSORS, so that its name works wherever a compressor is named.

    ``kind`` is a frozen dataclass that inherits from Compressor, with a ``name``, a ``family`` and
    a default for every parameter. ``del COMPRESSORS[name]`` removes it. Raises InputError, with the
    reason, for a class that cannot be registered.

    >>> import ddlnb
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Tenth(TopK):
    ...     density: float = 0.1
    ...     name = "tenth"
    >>> ddlnb.register_compressor(Tenth)
    >>> print(ddlnb.training_method("local(8) + tenth"))
    local(8) + tenth(0.1) on A2A
    >>> del COMPRESSORS["tenth"]
    """
    family = getattr(kind, "family", "")
    require(
        not issubclass(kind, Compressor) or family in FAMILIES,
        f"compressor {kind.__qualname__} declares the family {family!r}; choose one of "
        f"{', '.join(FAMILIES)}",
    )
    register("compressor", kind, Compressor, COMPRESSORS)


FEEDBACK = "feedback"
JOINED = (AllReduce, AllGather)  # what several tensors can ask for together


def compression_named(text: str) -> tuple[Compressor, bool]:
    """Return the compressor that a plan names, and whether it has error feedback.

    Raises UnknownName and InputError.

    >>> compression_named("top-k(0.01) + feedback")
    (TopK(density=0.01), True)
    """
    name, *flags = parts_of(text, "+")
    for flag in flags:
        if flag != FEEDBACK:
            raise UnknownName("flag of a compression", flag, [FEEDBACK])
    compressor = get_compressor(name)
    require(compressor is not None, f"compression {text!r} compresses nothing")
    assert compressor is not None
    return compressor, bool(flags)


def together(flows: Sequence[Flow]) -> Flow:
    """Yield the requests of flows joined by kind and type of number; return all results.

    A flow asks for `AllReduce` or `AllGather`, one after the other.
    """
    results: list[Any] = [None] * len(flows)
    answers: list[Any] = [None] * len(flows)
    open_ = list(range(len(flows)))
    while open_:
        asked: dict[tuple[str, torch.dtype], list[tuple[int, Any]]] = {}
        for number in list(open_):
            try:
                request = flows[number].send(answers[number])
            except StopIteration as finished:
                results[number] = finished.value
                open_.remove(number)
                continue
            kind = type(request).__name__, _tensor(request).dtype
            asked.setdefault(kind, []).append((number, request))
        for kind in sorted(asked, key=str):
            numbers, requests = zip(*asked[kind], strict=True)
            answer = yield from _joined(requests)
            for number, own in zip(numbers, answer, strict=True):
                answers[number] = own
    return results


def _tensor(request: Any) -> Tensor:
    tensor: Tensor = request.payload if isinstance(request, AllGather) else request.tensor
    return tensor


def _joined(requests: Sequence[Any]) -> Flow:
    """Yield one request for several of a kind, and return their answers."""
    tensors = [_tensor(request) for request in requests]
    sizes = [tensor.numel() for tensor in tensors]
    whole = torch.cat([tensor.reshape(-1) for tensor in tensors])

    def part(one: Tensor) -> list[Tensor]:
        # Copies: numbers in a payload are aligned as if it had come alone.
        return [p.clone() for p in one.split(sizes)]

    if isinstance(requests[0], AllGather):
        gathered = yield AllGather(whole)
        return [Gathered(one) for one in zip(*map(part, gathered), strict=True)]
    total = yield AllReduce(whole)
    return [own.view_as(t) for own, t in zip(part(total), tensors, strict=True)]
