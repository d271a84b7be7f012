"""What a GPU sustains in the layers of a large model: read by every forecast of its steps.

Less than its data sheet: power and clock leave a share of the peak to matrices of any size, and
layers of a model get a share of that, which is fitted to published runs.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from ddlnb.hardware.gpu import Gpu
from ddlnb.parallelism.forecast.frameworks import Parameters, saved_fit

# Share of the peak that the largest bf16 matrices reach for long. Ampere: about 270 of 312 TFLOP/s
# (ml-engineering, maximum achievable matmul); Hopper and Blackwell are held back by their power
# limit: a judgement, between what short benchmarks (0.8) and training reach (0.6).
SUSTAINED = {"Ampere": 0.87, "Hopper": 0.72, "Blackwell": 0.72}
SUSTAINED_ELSE = 0.75
IN_FP8 = 0.8  # of that, where numbers are scaled and cast: a judgement
Flops = TypeVar("Flops", float, np.ndarray)


def sustained_share(gpu: Gpu, precision: str = "bf16") -> float:
    """Return the share of its peak that matrices of any size reach on a GPU."""
    share = SUSTAINED.get(gpu.generation, SUSTAINED_ELSE)
    return share * (IN_FP8 if precision == "fp8" else 1)


def matrix_flops(peak: Flops, sustained: Flops, values: Parameters) -> Flops:
    """Return the FLOP/s that matrices in the layers of a model get, of GPUs with these peaks."""
    return peak * sustained * values.matrix_share


def layer_flops(gpu: Gpu, precision: str = "bf16", framework: str = "nanotron") -> float:
    """Return the FLOP/s that matrices in the layers of a model get on a GPU, by the saved fit.

    >>> import ddlnb
    >>> h100 = ddlnb.get_gpu("H100")
    >>> round(layer_flops(h100) / h100.peak("bf16"), 2)
    0.55
    """
    values = saved_fit().of(framework)
    return matrix_flops(gpu.peak(precision), sustained_share(gpu, precision), values)


def gpu_columns(gpu: Gpu, precision: str) -> dict[str, Any]:
    """Return the columns of `Cases` that describe a GPU at a precision."""
    return {
        "peak": gpu.peak(precision),
        "core_peak": gpu.peak("bf16" if precision == "fp8" else precision),
        "sustained": sustained_share(gpu, precision),
        "memory": gpu.memory,
        "memory_bandwidth": gpu.memory_bandwidth,
        "inside": gpu.inside_bandwidth,
    }
