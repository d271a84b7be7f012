"""What matrices sustain on a GPU: less than its data sheet, by power and by clock."""

from __future__ import annotations

from ddlnb.hardware.gpu import Gpu

# Share of the peak that the largest bf16 matrices reach for long. Ampere: about 270 of 312 TFLOP/s
# (ml-engineering, maximum achievable matmul); Hopper and Blackwell are held back by their power
# limit: a judgement, between what short benchmarks (0.8) and training reach (0.6).
SUSTAINED = {"Ampere": 0.87, "Hopper": 0.72, "Blackwell": 0.72}
SUSTAINED_ELSE = 0.75
IN_FP8 = 0.8  # of that, where numbers are scaled and cast: a judgement


def sustained_share(gpu: Gpu, precision: str = "bf16") -> float:
    """Return the share of its peak that matrices of any size reach on a GPU."""
    share = SUSTAINED.get(gpu.generation, SUSTAINED_ELSE)
    return share * (IN_FP8 if precision == "fp8" else 1)
