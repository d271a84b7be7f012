"""The survey's comparative study (section 4, Fig. 4): what was run there, its fit and its forecast.

The methods there were configured by public scripts (github HKBU-HPML/ddl-benchmarks), not always
as their papers say, and some of their cost is that of the scripts. `as_run` gives each method the
way it was run. The clusters in data/clusters and METHODS are what a user has today: the same
network, and every method proper.

The testbed is calibrated to what is published of it: the cells of Fig. 4, except those that
`ddlnb survey check` calls suspicious, and the times of single messages that the survey's text
quotes. A YAML file says what is fitted. Everything is fitted as it was run; what belongs to a
script and not to a network has parameters of its own, which no cluster in data gets.
Forecasts that were made before cells with more than 8 GPUs were seen are in data/forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PositiveFloat,
    field_validator,
    model_validator,
)

from ddlnb.calibration.calibrate import Calibrated
from ddlnb.calibration.clusters import Calibration, calibrate_parameters
from ddlnb.calibration.observations import HopTime, IterationTime, Observation, observe, with_values
from ddlnb.calibration.parameters import Parameter, ParameterValues
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import EFFECTS
from ddlnb.clusters.file import get_cluster, write_cluster
from ddlnb.errors import InputError, ResultsError, look_up, require, require_known
from ddlnb.files import CALIBRATION, DATA, PUBLISHED, write_atomically
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import Bucketing, merged
from ddlnb.plans.methods import METHODS, SURVEYED, Method, get_method
from ddlnb.plans.plan import Message
from ddlnb.progress import Show
from ddlnb.reading import read_yaml
from ddlnb.results.rows import SINGLE
from ddlnb.results.schema import Column, Kind, Schema, read_cells
from ddlnb.simulator.draws import Z90
from ddlnb.simulator.simulate import Cell
from ddlnb.simulator.tasks import Identity
from ddlnb.survey.checks import check_table, without_suspicious
from ddlnb.survey.published import FIG4_CELLS, fig4_cells, quoted
from ddlnb.units import BITS_PER_BYTE, KIB, MB, MIB, seconds_from
from ddlnb.workloads.workload import Workload, read_profile


def _listed(value: object) -> object:
    """Return one name as a tuple of one."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


@dataclass(frozen=True)
class Setup:
    """The clusters to calibrate, the parameters to fit, and the least model error to assume."""

    clusters: tuple[Cluster, ...]
    parameters: tuple[Parameter, ...]
    model_error: float


class ParameterEntry(BaseModel):
    """A parameter as the file writes it; ``why`` gives the reason for its prior."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    effect: str
    prior: str
    spread: PositiveFloat
    low: str
    high: str
    why: str
    network: str | None = None
    model: Names = ()
    method: Names = ()

    @field_validator("effect")
    @classmethod
    def _is_known(cls, effect: str) -> str:
        require_known("effect", effect, EFFECTS)
        return effect

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> ParameterEntry:
        require(not (self.network and self.model), "must name a network or models, not both")
        is_of_many = self.effect == "compute_factor" and len(self.model) > 1
        require(not is_of_many, f"seconds of {', '.join(self.model)} must be an entry for each")
        for name in self.method:
            get_method(name)
        return self

    def parameter(self, workloads: Mapping[str, Workload]) -> Parameter:
        """Return the parameter; seconds of a model become a factor of those of its workload."""
        low, high, prior = (
            self._parsed(value, workloads) for value in (self.low, self.high, self.prior)
        )
        return Parameter(
            self.effect,
            (self.network,) if self.network else self.model,
            methods=self.method,
            low=low,
            high=high,
            prior=prior,
            prior_spread=self.spread,
        )

    def _parsed(self, value: str, workloads: Mapping[str, Workload]) -> float:
        if self.effect != "compute_factor" or not self.model:
            return EFFECTS[self.effect].unit.parse(value)
        (model,) = self.model
        workload = look_up("model with a workload", model, workloads)
        return seconds_from(value) / workload.compute_seconds


class SetupFile(BaseModel):
    """The file: names of clusters, parameters, and the least model error."""

    model_config = ConfigDict(extra="forbid")

    clusters: list[str]
    parameters: list[ParameterEntry]
    model_error: float = 0.0


def read_setup(path: Path, workloads: Mapping[str, Workload]) -> Setup:
    """Return the set-up in a file. Raises InputError that names the entry and the key.

    A compute_factor of one model is written as the seconds of an iteration, and becomes a factor of
    those of its workload in ``workloads``.
    """
    file = read_yaml(path, SetupFile)
    parameters = []
    for number, entry in enumerate(file.parameters, start=1):
        try:
            parameters.append(entry.parameter(workloads))
        except InputError as error:
            raise InputError(f"{path}: parameters {number}: {error}") from error
    clusters = tuple(get_cluster(name) for name in file.clusters)
    return Setup(clusters, tuple(parameters), file.model_error)


HARDWARE = "rtx2080ti"
BATCHES = {"resnet50": 64, "bert-base": 64, "bert-large": 8}
CLUSTERS = {
    "10GbE": "survey-10GbE",
    "100GbE": "survey-100GbE",
    "100GbIB": "survey-100GbIB",
}
GPUS = (4, 8, 16, 32)
SMALL = 8192  # elements of a tensor that MG-WFBP's code does not send alone
# The times of layers by which MG-WFBP planned, over those of the profile: it timed layers in a run
# of its own. Chosen by hand so that its cells with 16 and 32 GPUs have the messages that their
# seconds tell; every fit has them, also those that leave these cells out.
PLANNED_TIMES = {"resnet50": 1.5, "bert-base": 0.6, "bert-large": 0.6}
# By which of its tables MG-WFBP planned: the InfiniBand cards' also where they carried TCP.
PLANNED_FOR = {"10GbE": "10GbE", "100GbE": "56GbIB", "100GbIB": "56GbIB"}


def merged_as_run(workload: Workload, cost: AlphaBeta) -> list[Message]:
    """Merge as MG-WFBP's public code does: a small tensor never travels alone.

    One that the rule of `ddlnb.plans.bucketing.merged` leaves alone joins the message before it.
    """
    joined: list[Message] = []
    for message in merged(workload, cost):
        if joined and len(message.pieces) == 1 and message.elements < SMALL:
            before = joined.pop()
            priority = min(before.priority, message.priority)
            message = Message((*before.pieces, *message.pieces), priority)
        joined.append(message)
    return joined


def as_run(method: str | Method) -> Method:
    """Return the method the way the survey ran it.

    MG-WFBP: small tensors do not travel alone. ByteScheduler-A2A: parts of 4 million parameters, 16
    million in flight. ByteScheduler-PS: the schedule of WFBP-PS on BytePS, where only the server's
    queue differs. The others are as they are in METHODS.
    """
    method = get_method(method)
    if method.name == "MG-WFBP":
        return replace(method, bucketing=Bucketing(merged_as_run, needs_cost=True))
    if method.name == "ByteScheduler-A2A":
        return method.tuned(partition=16 * MB, credit=64 * MB)
    if method.name == "ByteScheduler-PS":
        return replace(METHODS["WFBP-PS"], name=method.name, scheduling=method.scheduling)
    return method


def fig4_workload(model: str) -> Workload:
    """Return the profile of a model on the survey's GPU at its local batch. Raises UnknownName."""
    batch = look_up("model of Fig. 4", model, BATCHES)
    return read_profile(f"{model}_b{batch}_{HARDWARE}")


def fig4_cluster(network: str, gpus: int) -> Cluster:
    """Return the survey's testbed on one of its networks, with this many GPUs. Raises UnknownName.

    Within one node no network is used: its rows are one configuration, run once for each network.
    """
    return get_cluster(look_up("network of Fig. 4", network, CLUSTERS)).with_workers(gpus)


@cache
def planning_costs() -> dict[tuple[str, int], AlphaBeta]:
    """Return the costs that MG-WFBP's public code plans with, by network and number of workers."""
    return {
        (network, int(row["workers"])): AlphaBeta(
            float(row["latency_seconds"]), float(row["seconds_per_byte"])
        )
        for row in read_cells(PUBLISHED / "mgwfbp_planning.csv")
        for network, table in PLANNED_FOR.items()
        if table == row["network"]
    }


def cell_as_run(workload: Workload, cluster: Cluster, method: str | Method) -> Cell:
    """Return the cell of a method as the survey ran it, with the cost by which it planned."""
    return Cell(workload, _planning(Identity((cluster,)), workload.model), as_run(method))


@lru_cache(maxsize=256)
def _planning(cluster: Identity, model: str) -> Cluster:
    """Return the cluster with the cost by which MG-WFBP planned: one for all methods."""
    (on,) = cluster.parts
    cost = planning_costs().get((on.network, on.workers))
    if cost is not None:  # times of layers are compared with it alone
        factor = PLANNED_TIMES.get(model, 1.0)
        cost = AlphaBeta(cost.latency_seconds / factor, cost.seconds_per_byte / factor)
    return replace(on, planning=cost)


def survey_setup() -> Setup:
    """Return what is fitted, given the profiles of the survey's models as they are now."""
    return read_setup(
        CALIBRATION / "survey.yaml", {model: fig4_workload(model) for model in BATCHES}
    )


FORECAST_COLUMNS = [
    *("model", "local_batch", "network", "method", "gpus"),
    *("throughput_samples_per_s", "low", "high"),
]
AS_RUN = "as-run"  # in the column settings: by the scripts of the survey's authors
FITTED = CALIBRATION / "survey_fitted.csv"  # the values of parameters: fitted, and drawn
HELD_OUT = CALIBRATION / "survey_held_out.csv"  # predictions of cells that were not fitted


def fitted_values(path: Path = FITTED) -> list[ParameterValues]:
    """Return the fitted values of the survey's parameters, followed by draws of them.

    Raises ResultsError for a file that is not of the parameters in data/calibration/survey.yaml.
    """
    parameters = survey_setup().parameters
    names = [parameter.name for parameter in parameters]
    schema = Schema(
        tuple(Column(name, Kind.POSITIVE) for name in names),
        exact=True,
        what="table of fitted values",
        way_out="fit them again: ddlnb cluster fit survey --write",
    )
    rows = schema.read(path).to_numpy(float).tolist()
    if not rows:
        raise ResultsError(f"{path} has no values; {schema.way_out}")
    return [ParameterValues(parameters, tuple(row)) for row in rows]


def fig4_cells_to_forecast(
    models: tuple[str, ...] = tuple(BATCHES),
    networks: tuple[str, ...] = tuple(CLUSTERS),
    gpus: tuple[int, ...] = GPUS,
    values: ParameterValues | None = None,
) -> list[Cell]:
    """Return the cells of Fig. 4 as run, 252 by default, in the order of the figure's panels.

    ``values`` are those of the fit by default.
    """
    values = fitted_values()[0] if values is None else values
    clusters = [fig4_cluster(network, count) for network in networks for count in gpus]
    return [
        with_values(cell_as_run(workload, cluster, method), values)
        for workload in map(fig4_workload, models)
        for cluster in clusters
        for method in SURVEYED
    ]


def forecast_fig4(
    models: tuple[str, ...] = tuple(BATCHES),
    networks: tuple[str, ...] = tuple(CLUSTERS),
    gpus: tuple[int, ...] = GPUS,
    *,
    draws: int = 200,
    seed: int = 0,
    progress: Show = None,
) -> pd.DataFrame:
    """Forecast cells of Fig. 4 as run: the rows of `ddlnb.forecast`, with settings AS_RUN.

    Draws are those of all parameters together that the fit left; raises InputError for more than it
    left.
    """
    from ddlnb.simulator.forecast import forecast_cells

    fitted, *drawn = fitted_values()
    require(
        draws <= len(drawn), f"draws {draws} must be at most {len(drawn)}, those in {FITTED.name}"
    )
    cells = fig4_cells_to_forecast(models, networks, gpus, fitted)
    rows = forecast_cells(
        cells,
        draws=draws,
        seed=seed,
        progress=progress,
        drawn=(
            [replace(with_values(cell, values), planned_on=cell.cluster) for cell in cells]
            for values in drawn[:draws]
        ),
    )
    return rows.assign(settings=(AS_RUN + " " + rows["settings"]).str.strip())


def write_forecast(
    path: str | Path | None, *, draws: int = 200, seed: int = 0, progress: Show = None
) -> pd.DataFrame:
    """Forecast all cells of Fig. 4, and write them as CSV with the columns FORECAST_COLUMNS.

    The forecast is made from the files in data alone.
    """
    rows = forecast_fig4(draws=draws, seed=seed, progress=progress)
    if path is not None:
        text = rows[FORECAST_COLUMNS].to_csv(index=False, float_format="%.6g")
        write_atomically(path, text)
    return rows


# Relative standard deviations of what is published.
CELL = 0.01  # of a cell, the mean of five runs of a hundred iterations
ALONE = 0.003  # of one GPU, which no network disturbs
# Of a single message between two processes, taken for a hop of a collective. A judgement.
HOP = 0.3
DRAWS = 300  # of the parameters together, kept for forecasts


def calibrate_survey(
    *, starts: int = 1, seed: int = 0, cells: Path = FIG4_CELLS, progress: Show = None
) -> Calibration:
    """Fit the survey's testbed to its quotes and its published cells."""
    setup = survey_setup()
    observations = [*quoted_observations(setup.clusters), *cell_observations(cells)]
    found = calibrate_parameters(
        observations,
        setup.parameters,
        starts=starts,
        seed=seed,
        robust=True,
        by_sides=True,
        progress=progress,
    )
    return replace(found, model_error=max(found.model_error, setup.model_error))


def calibrate_testbed(write: bool, seed: int, progress: Show) -> Calibrated:
    """Return what `ddlnb.calibrate("survey")` does; ``write`` replaces what is kept in data."""
    found = calibrate_survey(seed=seed, progress=progress)
    clusters = tuple(found.clusters(survey_setup().clusters))
    return Calibrated(found, clusters, tuple(write_survey(found)) if write else ())


def quoted_observations(clusters: Sequence[Cluster]) -> list[Observation]:
    """Return what the survey's text says of single messages (A14, A15)."""

    def observed(cluster: Cluster, key: str, words: str, size: int) -> Observation:
        rate = quoted(key, f"rate of a {words} message over {cluster.network}")
        seconds = size * BITS_PER_BYTE / (rate * 1e9)
        return observe(HopTime(cluster, size), seconds, HOP, "published")

    sizes = (("A14", "1 MB", MIB), ("A15", "16 KB", 16 * KIB))
    return [observed(cluster, *size) for cluster in clusters for size in sizes]


def cell_observations(path: Path = FIG4_CELLS) -> list[Observation]:
    """Return the published cells of Fig. 4, except suspicious ones."""
    rows = fig4_cells(path)
    return observations_of(without_suspicious(rows, check_table(rows)))


def observations_of(cells: pd.DataFrame) -> list[Observation]:
    """Return an observation of every published cell of Fig. 4, in their order.

    What runs on one GPU is the same whatever its row says of methods and networks. Raises
    UnknownName for what the figure does not have.
    """
    cluster_of, workload_of = cache(fig4_cluster), cache(fig4_workload)  # a file each
    found = []
    for row in cells.to_dict("records"):
        is_alone = row["method"] == SINGLE
        cluster = cluster_of(row["network"] or next(iter(CLUSTERS)), int(row["gpus"]))
        method = "BSP-A2A" if is_alone else row["method"]
        cell = cell_as_run(workload_of(row["model"]), cluster, method)
        seconds = cell.samples / row["throughput_samples_per_s"]
        spread = ALONE if is_alone else CELL
        found.append(observe(IterationTime(cell), seconds, spread, "published"))
    return found


def write_survey(found: Calibration, folder: Path = DATA) -> list[Path]:
    """Write the fitted clusters, profiles and values into the folder of data; return the files."""
    from ddlnb.workloads.profiling import write_profile

    paths = [
        write_cluster(cluster, folder / "clusters" / f"{cluster.name}.yaml")
        for cluster in found.clusters([get_cluster(name) for name in CLUSTERS.values()])
    ]
    for model, batch in BATCHES.items():
        name = f"compute_factor@{model}"
        if name in found.value_of:
            workload = _rescaled(fig4_workload(model), found, name)
            profile = f"{model}_b{batch}_{HARDWARE}"
            paths.append(write_profile(workload, profile, folder / "profiles"))
    return [*paths, write_values(found, folder / "calibration" / FITTED.name)]


def write_values(found: Calibration, path: Path) -> Path:
    """Write the fitted values of all parameters, and below them draws of them together.

    A factor of computation is told relative to the profile that is written with the fitted one.
    """
    values = np.array([found.values, *found.posterior.samples(DRAWS)])
    names = [parameter.name for parameter in found.parameters]
    for column, parameter in enumerate(found.parameters):
        if parameter.effect == "compute_factor" and parameter.of:
            values[:, column] /= found.values[column]
    text = pd.DataFrame(values, columns=names).to_csv(index=False, float_format="%.6g")
    return write_atomically(path, text)


def _rescaled(workload: Workload, found: Calibration, name: str) -> Workload:
    """Return the workload with the fitted seconds and their spread."""
    low, high = found.intervals[name]
    source = (
        f"FLOPs and bytes of the trace shared out over seconds fitted by ddlnb cluster fit survey "
        f"to {len(found.observations)} observations"
    )
    spread = math.log(high / low) / (2 * Z90)
    return replace(workload.scaled(found.value_of[name], source), spread=spread)
