"""The compressors there are, by name, and how their parameters are written."""

from __future__ import annotations

from ddlnb.choices import parsed
from ddlnb.compression.base import Compressor
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

COMPRESSORS: dict[str, type[Compressor]] = {
    kind.name: kind
    for kind in (
        *(Float16, BFloat16, SignVote, ScaledSign, QSGD, TernGrad),
        *(TopK, GTopK, RandomK, DeepGradientCompression, PowerSGD),
    )
}
# These are made for one model, so that there is no default that fits any.
FOR_ONE_MODEL: dict[str, type[Compressor]] = {LayerTopK.name: LayerTopK}


def get_compressor(text: str | Compressor | None) -> Compressor | None:
    """The compressor that a text such as ``"top-k(0.01)"`` stands for; None for "none".

    Raises UnknownName and InputError.

    >>> get_compressor("top-k(0.01)")
    TopK(density=0.01)
    """
    if text is None or text == "none" or isinstance(text, Compressor):
        return None if text == "none" else text  # type: ignore[return-value]
    return parsed("compression", text, COMPRESSORS | FOR_ONE_MODEL)
