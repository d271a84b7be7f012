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
# width's. Logits in bf16 and in fp32. Starting kernels: a judgement, no run is bound by it.
THEORY = {
    "states": 0.0,
    "kept": 16.0,
    "kept_inner": 4.0,
    "logits": 6.0,
    "launch": 1.5e-3,
    "fixed": 0.03,
}
FITTED = {
    "fsdp": (
        FOUNDRY,
        ("matrix_share", "attention_share", "elementwise", "reduction_share"),
    ),
    "megatron": (PAPERS, ("matrix_share", "elementwise")),
}
TAIL = 0.05
LATER_SPREAD = 2.0  # nothing published of it is fitted
LOOSE = 1.0  # by how much a parameter may differ from nanotron's: a standard deviation of its log


def with_frameworks(fitted: Fitted) -> Fitted:
    """Return the fit with what differs by framework, and its spread."""
    for name, (path, which) in FITTED.items():
        fitted = with_framework(fitted, name, observed(path), which)
    later = {"nemo": fitted.frameworks["megatron"]}  # the same code, with flash attention
    spread = {"nemo": LATER_SPREAD * fitted.spread["megatron"]}
    return replace(
        fitted, frameworks={**fitted.frameworks, **later}, spread={**fitted.spread, **spread}
    )


def with_framework(fitted: Fitted, name: str, runs: Observations, which: tuple[str, ...]) -> Fitted:
    """Return the fit with these parameters of a framework fitted to its runs, and their spread."""
    found = fit_framework(fitted, name, runs, which)
    off = np.log(runs.seconds / step(runs.cases, found).seconds)
    return replace(found, spread=dict(found.spread) | {name: scale(off)})


def fit_framework(fitted: Fitted, name: str, runs: Observations, which: tuple[str, ...]) -> Fitted:
    """Return the fit with these parameters of a framework at their best; others are kept."""
    from scipy.optimize import least_squares

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
