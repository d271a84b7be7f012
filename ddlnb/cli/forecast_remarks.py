"""What a reader of a forecast must know about it: remarks below its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method

SCRIPTS = "the settings and schedulers of its authors' scripts"


def remarks(
    rows: pd.DataFrame, on: Cluster, methods: Sequence[Method], *, drawn: bool
) -> list[str]:
    """Return the remarks that apply to these rows of `ddlnb.forecast`; often there is none.

    ``methods`` are those that were forecast, and ``drawn`` says whether intervals were asked for.
    """
    said = [_left_out(on, methods), _within_a_node(rows, on, methods), _as_run(rows, on, methods)]
    if drawn:
        said.append(_assumed(on))
    return [one for one in said if one]


def _left_out(on: Cluster, methods: Sequence[Method]) -> str:
    from ddlnb.plans.methods import METHODS

    if on.takes_servers or any(one.name not in METHODS for one in methods):
        return ""
    able = [one.name for one in METHODS.values() if one.architecture != "PS"]
    if [one.name for one in methods] != able:
        return ""  # chosen by name
    lacking = _listed([name for name in METHODS if name not in able])
    why = "(server_place)" if on.server_place is None else f"on {on.topology or 'its network'}"
    return f"{on.name} has no parameter servers {why}, so that {lacking} are left out."


def _within_a_node(rows: pd.DataFrame, on: Cluster, methods: Sequence[Method]) -> str:
    served = {one.name for one in methods if one.architecture == "PS"}
    within = rows[rows["method"].isin(served) & rows["gpus"].between(2, on.gpus_per_node)]
    if within.empty:
        return ""
    counts = _listed([str(count) for count in sorted(within["gpus"].unique())])
    names = _listed(list(dict.fromkeys(within["method"])))
    verb = "reduces" if within["method"].nunique() == 1 else "reduce"
    return (
        f"On {counts} GPUs, within one node, no parameter server takes part, as in BytePS: {names} "
        f"{verb} gradients inside the node."
    )


def _as_run(rows: pd.DataFrame, on: Cluster, methods: Sequence[Method]) -> str:
    """Say that cells of Fig. 4 have another forecast, where methods were run in another way."""
    from ddlnb.calibration.testbed import BATCHES, CLUSTERS, run_otherwise

    is_of_figure = on.name in CLUSTERS.values() and all(
        BATCHES.get(model) == batch
        for model, batch in zip(rows["model"], rows["local_batch"], strict=True)
    )
    names = [one.name for one in methods if run_otherwise(one.name)]
    if not is_of_figure or not names or on.label != on.name:
        return ""
    return (
        f"Each method is forecast as its paper describes it. In the survey's Fig. 4 "
        f"{_listed(names)} ran differently, with {SCRIPTS}; --fig4 forecasts that, and shows other "
        f"numbers for the same cell."
    )


def _assumed(on: Cluster) -> str:
    from ddlnb.clusters.cluster import ASSUMED_ERROR
    from ddlnb.clusters.effects import UNITS

    known = [f"{name} within a factor of {UNITS[name].within:g}" for name in on.assumed]
    if on.model_error == ASSUMED_ERROR:
        known.append(f"simulated seconds within a model_error of {ASSUMED_ERROR:.0%}")
    if not known:
        return ""
    return (
        f"Intervals are wide where {on.name} gives none, and assume to be known: "
        f"{_listed(known)}. Give your own to narrow them (docs/own_cluster.md)."
    )


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[:-1] else words)
