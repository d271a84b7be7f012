"""What a GPU sustains in the layers of a large model: read by every forecast of its steps.

Less than its data sheet: power and clock leave a share of the peak to matrices of any size, and
layers of a model get a share of that, which is fitted to published runs.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddlnb.hardware.gpu import Gpu
from ddlnb.parallelism.forecast.frameworks import Parameters, saved_fit

Flops = TypeVar("Flops", float, NDArray[np.float64])


def matrix_flops(peak: Flops, sustained: Flops, values: Parameters) -> Flops:
    """Return the FLOP/s that matrices in the layers of a model get, of GPUs with these peaks."""
    return peak * sustained * values.matrix_share


def layer_flops(gpu: Gpu, precision: str = "bf16", framework: str = "nanotron") -> float:
    """Return the FLOP/s that matrices in the layers of a model get on a GPU, by the saved fit.

    >>> import ddlnb
    >>> h100 = ddlnb.hardware.get_gpu("H100")
    >>> round(layer_flops(h100) / h100.peak("bf16"), 2)
    0.56
    """
    values = saved_fit().of(framework)
    return matrix_flops(gpu.peak(precision), gpu.sustained(precision), values)


def gpu_columns(gpu: Gpu, precision: str) -> dict[str, Any]:
    """Return the columns of `Cases` that describe a GPU at a precision."""
    return {
        "peak": gpu.peak(precision),
        "core_peak": gpu.peak("bf16" if precision == "fp8" else precision),
        "sustained": gpu.sustained(precision),
        "memory": gpu.memory,
        "memory_bandwidth": gpu.memory_bandwidth,
        "inside": gpu.inside_bandwidth,
    }
