"""What differs by framework: a few of the parameters, fitted to runs of FSDP and Megatron-LM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddlnb.parallelism.forecast.fit.fit import scale
from ddlnb.parallelism.forecast.fit.observations import FOUNDRY, PAPERS, Observations, observed
from ddlnb.parallelism.forecast.parameters import Fitted
from ddlnb.parallelism.forecast.step import step

# Of these frameworks' activations: 34 bytes per element (arXiv 2205.05198, equation 1) less 2 for
# masks of dropout, which large models do without; 16 of them are four times the feed-forward
# width's. Logits in bf16 and in fp32. Starting kernels: a judgement, no run is bound by it. Without
# a fused kernel attention runs at the rate of matrices, and computes the masked half, too. Of a
# network of their own (nanotron's was shared), replicas reach what InfiniBand does on two nodes
# (data/hardware/protocols.yaml), less two hops of 7 us to every further node per message of 160 MB.
THEORY = {
    "states": 0.0,
    "kept": 16.0,
    "kept_inner": 4.0,
    "logits": 6.0,
    "launch": 1.5e-3,
    "fixed": 0.03,
    "attention_share": 0.5,
    "reduction_share": 0.9,
    "reduction_growth": 0.002,
}
FITTED = {
    "fsdp": (
        FOUNDRY,
        ("matrix_share", "attention_share", "elementwise", "reduction_share"),
    ),
    "megatron": (PAPERS, ("matrix_share", "elementwise")),
}
TAIL = 0.05
LOOSE = 1.0  # by how much a parameter may differ from nanotron's: a standard deviation of its log


def with_frameworks(fitted: Fitted) -> Fitted:
    """Return the fit with what differs by framework, and the spread of its runs."""
    for name, (path, _) in FITTED.items():
        runs = observed(path)
        fitted = fit_framework(fitted, name, runs)
        off = np.log(runs.seconds / step(runs.cases, fitted).seconds)
        fitted = replace(fitted, spread={**fitted.spread, name: scale(off)})
    return fitted


def fit_framework(fitted: Fitted, name: str, runs: Observations) -> Fitted:
    """Return the fit with the parameters of a framework at their best; others are kept."""
    from scipy.optimize import least_squares

    which = FITTED[name][1]
    base = np.log([getattr(fitted.parameters, one) for one in which])

    def of(logs: np.ndarray) -> Fitted:
        values = THEORY | dict(zip(which, np.exp(logs).tolist(), strict=True))
        return replace(fitted, frameworks={**fitted.frameworks, name: values})

    def off(logs: np.ndarray) -> np.ndarray:
        unexplained = np.log(step(runs.cases, of(logs)).seconds / runs.seconds)
        return np.concatenate([unexplained, TAIL * (logs - base) / LOOSE])

    bounds = [fitted.parameters.__dataclass_fields__[one].metadata for one in which]
    low, high = (np.log([one[end] for one in bounds]) for end in ("low", "high"))
    found = least_squares(off, base, bounds=(low, high), loss="cauchy", f_scale=TAIL)
    return of(found.x)
