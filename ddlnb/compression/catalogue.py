"""The compressors by name: those of the package, and those that a user registers."""

from __future__ import annotations

import dataclasses
import re

from ddlnb.choices import parsed
from ddlnb.compression.base import Compressor
from ddlnb.compression.dgc import DeepGradientCompression
from ddlnb.compression.gtop_k import GTopK
from ddlnb.compression.half import BFloat16, Float16
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.literature import FAMILIES
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.qsgd import QSGD
from ddlnb.compression.random_k import RandomK
from ddlnb.compression.scaled_sign import ScaledSign
from ddlnb.compression.sign import SignVote
from ddlnb.compression.terngrad import TernGrad
from ddlnb.compression.top_k import TopK
from ddlnb.errors import require

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

    ``kind`` is a frozen dataclass whose parameters all have defaults, with a ``name`` and a
    ``family``. Registering a class anew, as a notebook does whose cell runs again, replaces it;
    ``del COMPRESSORS[name]`` removes it. Raises InputError for anything else.
    """
    parameters = getattr(kind, "__dataclass_params__", None)
    require(
        parameters is not None and parameters.frozen and issubclass(kind, Compressor),
        f"compressor {kind!r} must be a frozen dataclass that inherits from Compressor or Codec",
    )
    where, name = f"compressor {kind.__qualname__}", getattr(kind, "name", "")
    require(
        re.fullmatch(r"[a-z][a-z0-9._-]*", name) is not None and name != "none",
        f"{where} has the name {name!r}, and needs one of small letters, digits, dots and dashes",
    )
    require(
        kind.family in FAMILIES,
        f"{where} declares the family {kind.family!r}; choose one of {', '.join(FAMILIES)}",
    )
    abstract = sorted(getattr(kind, "__abstractmethods__", ()))
    require(not abstract, f"{where} does not define {', '.join(abstract)}")
    missing = [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    require(not missing, f"{where} needs a default for each parameter; give one to {missing}")
    known = (COMPRESSORS | FOR_ONE_MODEL).get(name, kind)
    require(
        (known.__module__, known.__qualname__) == (kind.__module__, kind.__qualname__),
        f"{where} has the name {name!r} of {known.__qualname__}; choose another name",
    )
    COMPRESSORS[name] = kind
