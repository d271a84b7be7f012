"""The compressors by name: those of the package, and those that a user registers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain

from ddlnb.compression.base import FAMILIES, FEEDBACKS, Compressor
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
from ddlnb.errors import require
from ddlnb.registry import parsed, register

COMPRESSORS: dict[str, type[Compressor]] = {
    kind.name: kind
    for kind in (
        *(Float16, BFloat16, SignVote, ScaledSign, QSGD, TernGrad),
        *(TopK, GTopK, RandomK, DeepGradientCompression, PowerSGD),
    )
}
FLAGS = ("feedback", "whole-model")
RESERVED: list[Iterable[str]] = [FLAGS]  # words of method texts; what else has some adds them
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
        not (isinstance(kind, type) and issubclass(kind, Compressor)) or family in FAMILIES,
        f"compressor {kind!r} declares the family {family!r}; choose one of {', '.join(FAMILIES)}",
    )
    feedback = getattr(kind, "feedback", FEEDBACKS[0])
    require(
        not isinstance(feedback, str) or feedback in FEEDBACKS,
        f"compressor {kind!r} declares feedback {feedback!r}; choose one of {', '.join(FEEDBACKS)}",
    )
    of_a_gpu = [number for passes in getattr(kind, "on_gpu", None) or () for number in passes]
    require(
        all(0 <= number < math.inf for number in of_a_gpu),
        f"compressor {kind!r} declares {of_a_gpu} as kernels and bytes of elements on a GPU; give "
        f"finite numbers of at least 0",
    )
    register("compressor", kind, Compressor, COMPRESSORS, chain.from_iterable(RESERVED))
