"""Section 5.3 on digits: what is trained, and what the times say, as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ddlnb.clusters.cluster import Cluster
from ddlnb.results.items import ItemVerdict
from ddlnb.results.statistics import Verdict
from ddlnb.studies.findings import Findings, findings, item_verdict
from ddlnb.studies.sec5_3_compression_level.density import INTERIOR, OPEN, level_methods
from ddlnb.studies.sec5_3_compression_level.layer_density import layer_methods, layer_times
from ddlnb.training.cost.pure_case import made_up_cluster, made_up_digits
from ddlnb.training.runs.compare import compare
from ddlnb.units import MS
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

SAMPLES_PER_SECOND = 10_000  # of the made-up device that trains digits
LINKS = (("1 Gb/s", "5 us"), ("100 Mb/s", "5 us"))  # made-up, between such devices


@cache
def _digits() -> Workload:
    return made_up_digits(SAMPLES_PER_SECOND)


def _links() -> list[Cluster]:
    return [made_up_cluster(*link) for link in LINKS]


def train_levels(
    densities: Sequence[float], *, workers: int, seeds: int, steps: int, tune: bool = False
) -> pd.DataFrame:
    """Train digits with every density of top-k, and with those by layer for the made-up links."""
    methods = [*level_methods(densities), *layer_methods(_digits(), _links(), workers)]
    return compare(
        "digits", methods, workers=workers, seeds=seeds, steps=steps, tune=tune, evaluate_every=1
    ).curves


def digits_layer_times(curves: pd.DataFrame, target: float, workers: int) -> pd.DataFrame:
    """Return `layer_times` of digits behind the made-up links."""
    return layer_times(curves, target, _digits(), _links(), workers)


def level_table(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return `level_verdicts` to read, by network."""
    import pandas as pd

    table = verdicts.set_index("network")
    return pd.DataFrame(
        {
            "best density": table["best_density"],
            "time to target (s)": table["seconds"].round(2),
            "least density over it": table["least_over_best"].round(2),
            "largest density over it": table["largest_over_best"].round(2),
            "best lossless over it": table["dense_over_best"].round(2),
            "verdict": table["verdict"],
        }
    )


def level_findings(verdicts: pd.DataFrame) -> Findings:
    """Return the best density of every network, and whether it is a reason to compress."""
    return findings(
        *(
            f"{row['network']}: the best density is {row['best_density']:g} ({row['verdict']}); "
            f"the best lossless method takes {row['dense_over_best']:.2f} times as long."
            for row in verdicts.to_dict("records")
        ),
        items=[_item(row) for row in verdicts.to_dict("records")],
    )


def _item(row: Mapping[str, Any]) -> ItemVerdict:
    """Judge whether a level between the ends of the sweep is the best one."""
    verdict = {INTERIOR: Verdict.HOLDS, OPEN: Verdict.UNDECIDED}.get(
        row["verdict"], Verdict.CONTRADICTED
    )
    said = f"{row['network']}: the best density is {row['best_density']:g}, {row['verdict']}"
    return item_verdict("A62", [verdict], "measured, simulated", said)


def hidden_densities(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return `hidden_table` to read, by network: shares in per cent, seconds in ms."""
    import pandas as pd

    table = hidden.set_index("network")
    return pd.DataFrame(
        {
            "entries sent by layer (%)": (100 * table["sent"]).round(1),
            "densities from": table["least"],
            "to": table["largest"],
            "best fixed density": table["fixed"],
            "by layer (ms)": (table["seconds"] / MS).round(1),
            "fixed (ms)": (table["fixed_seconds"] / MS).round(1),
            "best lossless (ms)": (table["dense_seconds"] / MS).round(1),
            "computation (ms)": (table["computing"] / MS).round(1),
        }
    )


def hidden_findings(hidden: pd.DataFrame) -> Findings:
    """Return how much more a density by layer sends in the time of the best fixed density."""
    return findings(
        *(
            f"{row['network']}: by layer {row['sent']:.0%} of the entries travel in "
            f"{row['seconds'] / MS:.0f} ms, where {row['fixed']:.1%} do if all layers have one "
            f"density; the best lossless method takes {row['dense_seconds'] / MS:.0f} ms."
            for row in hidden.to_dict("records")
        )
    )


def layer_table(times: pd.DataFrame) -> pd.DataFrame:
    """Return `layer_times` to read, by network and choice of densities."""
    import pandas as pd

    table = times.set_index(["network", "label"])
    return pd.DataFrame(
        {
            "iterations": table["iterations"].round(1),
            "iteration (ms)": (table["iteration_seconds"] / MS).round(2),
            "time to target (ms)": (table["seconds"] / MS).round(1),
            "best fixed over this": table["over_fixed"].round(2),
            "verdict": table["verdict"],
        }
    )


def layer_findings(times: pd.DataFrame) -> Findings:
    """Return how choosing by layer compares with the best fixed density of the sweep."""
    layered = times[times["kind"] == "by layer"]
    return findings(
        *(
            f"{row['network']}, {row['label']}: {row['iterations']:.0f} iterations, "
            f"{row['over_fixed']:.2f} times the speed of the best fixed density "
            f"({row['verdict'] or 'the best itself'})."
            for row in layered.to_dict("records")
        )
    )
