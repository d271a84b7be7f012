"""Calibrate: the survey's testbed, this machine, or a cluster that somebody measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from ddlnb.calibration.clusters import Calibration, calibrate_parameters
from ddlnb.calibration.observations import row_observations
from ddlnb.calibration.parameters import listed_effects
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import EFFECTS
from ddlnb.clusters.file import get_cluster, write_cluster
from ddlnb.errors import InputError, require, require_whole
from ddlnb.files import BUILD, require_writable
from ddlnb.progress import Show
from ddlnb.registry import supplied
from ddlnb.units import counted

HERE, SURVEY = "here", "survey"  # names that can be calibrated besides those of clusters
USED = {HERE: ("workers", "out"), SURVEY: ("write",)}  # arguments of `calibrate`
USED_BY_CLUSTERS = ("rows", "out")


@dataclass(frozen=True)
class Calibrated:
    """A fit, the clusters that follow from it, the files written, and who else ran meanwhile."""

    calibration: Calibration
    clusters: tuple[Cluster, ...]
    paths: tuple[Path, ...]
    load: str = ""

    def parameter_rows(self) -> list[dict[str, str]]:
        """Return one row per parameter: value, 90 % interval, and what identifies it."""
        found = self.calibration
        unidentified = set(found.identifiability.unidentified)
        rows = []
        for parameter in found.parameters:
            show = EFFECTS[parameter.effect].unit.show
            low, high = found.intervals[parameter.name]
            rows.append(
                {
                    "parameter": parameter.name,
                    "value": show(found.value_of[parameter.name]),
                    "90 % interval": f"{show(low)} to {show(high)}",
                    "prior": show(parameter.prior),
                    "identified by": "the prior" if parameter.name in unidentified else "the data",
                }
            )
        return rows

    def parameter_table(self) -> pd.DataFrame:
        """Return `parameter_rows` as a table."""
        return pd.DataFrame(self.parameter_rows()).set_index("parameter")


def calibrate(
    what: str | Cluster,
    *,
    rows: str | Path | None = None,
    workers: Sequence[int] | None = None,
    out: str | Path | None = None,
    write: bool = False,
    seed: int = 0,
    progress: Show = None,
) -> Calibrated:
    """Fit the effects of a cluster to measurements.

    ``what`` is one of three things:

    - ``"survey"`` fits the survey's testbed to what is published of it; with
      ``write`` it replaces its clusters and profiles in data.
    - ``"here"`` runs a micro-benchmark of some minutes with these numbers of ``workers``, by
      default 2 and 4, and writes clusters into the folder ``out``, by default build/here.
    - A cluster, its name or its file is fitted to ``rows``, a CSV file of `ddlnb.measure` on that
      cluster, and written into ``out``.

    The result has ``clusters``, ready for `ddlnb.simulate`; ``paths``, the files written; and
    ``calibration``, the fit with its intervals. Its ``parameter_table()`` has one row per fitted
    parameter: value and 90 % interval with units, prior, and whether data or prior identify it.
    ``seed`` is that of the search. Other work on "here" widens the model error (`Load.spread`).
    Raises UnknownName for an unknown cluster, InputError for a cluster without rows, for rows that
    do not belong to it or are fewer than its effects, and for what would change nothing.

    >>> import ddlnb
    >>> found = ddlnb.calibrate("here", workers=[2], out="build/here")  # doctest: +SKIP
    >>> found.clusters, found.paths  # doctest: +SKIP
    >>> print(found.parameter_table())  # doctest: +SKIP
    """
    require_whole(0, seed=seed)
    _refuse_unused(what, rows=rows, workers=workers, out=out, write=write)
    if what == SURVEY:
        return supplied("calibration of the survey's testbed")(write, seed, progress)
    if what == HERE:
        return _here(Path(out or BUILD / HERE), list(workers or (2, 4)), seed, progress)
    cluster = get_cluster(what)
    if rows is None:
        raise InputError(
            f"calibrating cluster {cluster.name!r} needs rows that were measured on it; "
            f"give rows (--rows FILE), or calibrate 'here' or 'survey'"
        )
    folder = Path(out or BUILD / cluster.name)
    require_writable(folder)
    observed, effects = row_observations(cluster, rows), listed_effects(cluster)
    require(
        len(observed) >= len(effects),
        f"{counted(len(observed), 'row')} of {rows} cannot say what the {len(effects)} effects of "
        f"{cluster.name!r} are; measure at least as many: other methods, models and numbers of "
        f"workers",
    )
    found = calibrate_parameters(observed, effects)
    return _written(found, found.clusters([cluster]), folder)


def _refuse_unused(what: str | Cluster, **given: object) -> None:
    """Raise InputError for an argument that this calibration has no use for."""
    used = USED.get(what, USED_BY_CLUSTERS) if isinstance(what, str) else USED_BY_CLUSTERS
    unused = [name for name, value in given.items() if value and name not in used]
    kind = repr(what) if isinstance(what, str) and what in USED else "a cluster"
    require(
        not unused,
        f"calibrating {kind} makes no use of {' and '.join(unused)}; leave it out "
        f"({kind} takes {' and '.join(used)})",
    )


def _here(folder: Path, workers: list[int], seed: int, progress: Show) -> Calibrated:
    from ddlnb.calibration.calibrated_model import calibrate_here, load_sentence, micro_benchmark

    require_writable(folder)
    found, clusters = calibrate_here(
        micro_benchmark(folder, workers=workers, progress=progress), seed=seed
    )
    return replace(_written(found, clusters, folder), load=load_sentence(folder))


def _written(found: Calibration, clusters: Sequence[Cluster], folder: Path) -> Calibrated:
    paths = tuple(write_cluster(one, folder / f"{one.name}.yaml") for one in clusters)
    return Calibrated(found, tuple(clusters), paths)
