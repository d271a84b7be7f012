"""Published shapes and values that the tests of this room compare with."""

from __future__ import annotations

from ddlnb.parallelism.model import gpt

# arXiv 2104.04473, Table 1: parameters in 1e9, heads, hidden, layers, tensor and pipeline ranks.
WEAK_SCALING = (
    (1.7, 24, 2304, 24, 1, 1),
    (3.6, 32, 3072, 30, 2, 1),
    (7.5, 32, 4096, 36, 4, 1),
    (18.4, 48, 6144, 40, 8, 1),
    (39.1, 64, 8192, 48, 8, 2),
    (76.1, 80, 10240, 60, 8, 4),
    (145.6, 96, 12288, 80, 8, 8),
    (310.1, 128, 16384, 96, 8, 16),
    (529.6, 128, 20480, 105, 8, 35),
    (1008.0, 160, 25600, 128, 8, 64),
)
GPT3 = gpt("gpt-3", 96, 12288, 96, 51200, 2048).shape


def megatron(heads: int, hidden: int, layers: int):
    """Return a row of that table as a model."""
    return gpt("row", layers, hidden, heads, 51200, 2048)
