"""Model intensity and the communication-to-computation ratio (survey, sections 1 and 2).

Intensity is I = C / D: C is the work on one sample, forward and backward, D the number of
parameters. The survey does not say how it counted C, so the audit computes I under every plain
convention and shows the published value in a column of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import pandas as pd

from ddlnb.results.published import quoted
from ddlnb.workloads.intensity import FLOPS_PER_MAC, _per_parameter, c2c, intensity
from ddlnb.workloads.workload import Workload

AUDITED_MODELS = ("resnet50", "bert-base", "bert-large")
AGREES_WITHIN = 0.05
ENCODER = "bert.encoder."
QUOTED_BATCH = 8  # the batch of the BERT-Large iteration whose FLOPs the survey quotes
GIGA = 1e9


@dataclass(frozen=True)
class IntensityRow:
    """One model under one counting convention; relative_error is against the published value."""

    model: str
    convention: str
    intensity: float
    published: float
    relative_error: float
    verdict: str


def audit(workloads: Iterable[Workload] | None = None) -> list[IntensityRow]:
    """Intensity by model and convention beside the published one, models of the survey only.

    Without workloads, the survey's three models are traced now (a few seconds). The last row
    divides the FLOPs that the survey itself quotes for an iteration of BERT-Large, and disagrees
    with the intensity it quotes.
    """
    if workloads is None:
        from ddlnb.workloads.tracing import trace

        workloads = [trace(model) for model in AUDITED_MODELS]
    rows = [
        _row(workload.model, convention, count(workload))
        for workload in workloads
        for convention, count in CONVENTIONS.items()
        if convention != ENCODER_ONLY or _encoder_forward_macs(workload)
    ]
    flops = quoted("A11", "work of one bert-large iteration at batch 8") * GIGA
    quoted_parameters = quoted("A10", "parameters of bert-large")
    return [
        *rows,
        _row("bert-large", "the survey's own FLOPs", flops / QUOTED_BATCH / quoted_parameters),
    ]


def ordering_holds(rows: Iterable[IntensityRow]) -> dict[str, bool]:
    """By convention that covers all three models: whether the survey's ordering comes out.

    The ordering: ResNet-50 well above both BERTs (at least 1.5 times), and these two alike.
    """
    by_convention: dict[str, dict[str, float]] = {}
    for row in rows:
        by_convention.setdefault(row.convention, {})[row.model] = row.intensity
    return {
        convention: resnet >= 1.5 * max(base, large) and abs(large / base - 1) <= AGREES_WITHIN
        for convention, values in by_convention.items()
        if len(values) == len(AUDITED_MODELS)
        for resnet, base, large in [[values[model] for model in AUDITED_MODELS]]
    }


def _row(model: str, convention: str, value: float) -> IntensityRow:
    published = quoted("A06", f"intensity of {model}")
    error = value / published - 1
    return IntensityRow(model, convention, value, published, error, _verdict(error))


def _verdict(relative_error: float) -> str:
    if abs(relative_error) <= AGREES_WITHIN:
        return "agrees"
    return "too high" if relative_error > 0 else "too low"


def _forward_macs(workload: Workload) -> float:
    return sum(layer.forward_flops for layer in workload.layers) / FLOPS_PER_MAC


def _encoder_forward_macs(workload: Workload) -> float:
    encoder = (layer for layer in workload.layers if layer.name.startswith(ENCODER))
    return sum(layer.forward_flops for layer in encoder) / FLOPS_PER_MAC


def _as_counted(workload: Workload) -> float:
    return intensity(workload)


def _as_counted_twice(workload: Workload) -> float:
    return intensity(workload, flops_per_fma=2)


def _three_forward(workload: Workload) -> float:
    return _per_parameter(workload, 3 * _forward_macs(workload))


def _four_forward(workload: Workload) -> float:
    return _per_parameter(workload, 4 * _forward_macs(workload))


def _encoder_only(workload: Workload) -> float:
    return _per_parameter(workload, 3 * FLOPS_PER_MAC * _encoder_forward_macs(workload))


ENCODER_ONLY = "3x forward, FMA = 2, encoder only"
CONVENTIONS: dict[str, Callable[[Workload], float]] = {
    "forward + backward, FMA = 1": _as_counted,
    "forward + backward, FMA = 2": _as_counted_twice,
    "3x forward, FMA = 1": _three_forward,
    "4x forward, FMA = 1": _four_forward,
    ENCODER_ONLY: _encoder_only,
}


def intensity_table(rows: Iterable[IntensityRow]) -> pd.DataFrame:
    """The audit, one row per model and convention, the published intensity beside ours."""
    frame = pd.DataFrame([asdict(row) for row in rows])
    return frame.round({"intensity": 0, "relative_error": 3}).set_index(["model", "convention"])


def c2c_table(rows: Iterable[IntensityRow], batches: Mapping[str, int]) -> pd.DataFrame:
    """C2C of the models, with the published intensities and with ours, relative to the first model.

    ``batches`` gives each model's local batch. Ours is forward + backward with FMA = 1.
    """
    ours = {r.model: r.intensity for r in rows if r.convention == "forward + backward, FMA = 1"}
    first = next(iter(batches))
    table = []
    for model, batch in batches.items():
        published = quoted("A06", f"intensity of {model}")
        table.append(
            {
                "model": model,
                "local_batch": batch,
                "published_c2c": c2c(published, batch),
                "our_c2c": c2c(ours[model], batch),
            }
        )
    frame = pd.DataFrame(table).set_index("model")
    for column in ("published_c2c", "our_c2c"):
        frame[f"{column.split('_')[0]}_relative"] = frame[column] / frame.loc[first, column]
    return frame
