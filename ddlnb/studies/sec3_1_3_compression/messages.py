"""What one message of a compressor takes: bits as serialised, entropy, milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ddlnb.compression.base import Codec, Compressor, Round
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.profile import CompressionProfile, compression_profile
from ddlnb.compression.random_k import RandomK
from ddlnb.compression.top_k import TopK
from ddlnb.plans.requests import AllGather, AllReduce, Flow, lockstep
from ddlnb.units import MS

COMPARED = (
    *("fp16", "bf16", "signsgd", "ef-sign", "qsgd(127)", "qsgd(7)", "terngrad"),
    *("top-k(0.01)", "top-k(0.001)", "gtop-k(0.001)", "random-k(0.01)", "dgc(0.001)"),
    *("powersgd(1)", "powersgd(4)"),
)
SIDE = 1024  # of the square matrix whose bits are counted
MEGA = 1_000_000
GATHERED = 8  # workers whose payloads are decoded


def compressors_named(names: Iterable[str]) -> list[Compressor]:
    """Return the compressors of these names, without those that mean none."""
    return [one for one in map(get_compressor, names) if one is not None]


def compressor_table(
    compressors: Iterable[str] = COMPARED,
    profile: str | CompressionProfile = "cpu-1thread",
    side: int = SIDE,
    seed: int = 0,
) -> pd.DataFrame:
    """Return bits per coordinate as serialised, ratios and seconds, one row per compressor.

    Bits are those of a message of a square matrix of normal numbers; the entropy is that of what
    its codes stand for, in bits per coordinate: what no coding of single values can go below (NaN
    where a message is no string of codes). Milliseconds are per million coordinates on this
    profile; decoding is of the payloads of GATHERED workers.
    """
    profile = compression_profile(profile)
    tensor = torch.randn(side, side, generator=torch.Generator().manual_seed(seed))
    rows = []
    for compressor in compressors_named(compressors):
        bits = 8 * message_bytes(compressor, tensor) / tensor.numel()
        seconds = profile.of(compressor)
        rows.append(
            {
                "compressor": str(compressor),
                "feedback": compressor.feedback,
                "bits": bits,
                "ratio": 32 / bits,
                "quoted": str(compressor.quoted_ratio((side, side)) or "-"),
                "entropy (bits)": entropy_bits(compressor, tensor),
                "encode (ms)": seconds.before(MEGA) / MS,
                "decode (ms)": seconds.after(MEGA, GATHERED) / MS,
            }
        )
    return pd.DataFrame(rows).set_index("compressor").round(3)


def message_bytes(compressor: Compressor, tensor: Tensor) -> int:
    """Return the bytes that one worker makes of its own tensor, counted on what it asks for.

    Counted are all tensors to reduce, payloads to gather and messages of the second of two workers.
    """
    counted: list[int] = []
    flows = [compressor.average(tensor, Round(rank, 2, 0), {}) for rank in range(2)]
    lockstep([flows[0], _counted(flows[1], counted)])
    return sum(counted)


def entropy_bits(compressor: Compressor, tensor: Tensor) -> float:
    """Return the entropy of single values of what a codec's payload stands for, in bits.

    It is NaN for what is no codec, and for payloads of entries and their indices, which do not
    stand for a string of codes.
    """
    if not isinstance(compressor, Codec) or isinstance(compressor, TopK | RandomK):
        return math.nan
    payload = compressor.encode(tensor, Round(0, 1, 0), {})
    values = compressor.decode(payload, tensor.numel())
    counts = values.unique(return_counts=True)[1].double()
    shares = counts / counts.sum()
    return abs(float(-(shares * shares.log2()).sum()))


def _counted(flow: Flow, counted: list[int]) -> Flow:
    """Run the flow, and write down the bytes of what it asks for."""
    answer = None
    while True:
        try:
            request = flow.send(answer)
        except StopIteration as finished:
            return finished.value
        counted.append(_request_bytes(request))
        answer = yield request


def _request_bytes(request: Any) -> int:
    if isinstance(request, AllReduce):
        return int(request.tensor.numel() * request.tensor.element_size())
    if isinstance(request, AllGather):
        return len(request.payload)
    return sum(len(payload) for payload in request.outgoing.values())
