"""Notebook explorer: the methods on a cluster whose numbers follow sliders.

A setting is where the sliders stand. Everything else follows from it, by the same simulator as
everywhere. The widget has a bar for every method, the timeline of the one that
was clicked, and writes the cluster into a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from io import BytesIO
from itertools import product
from pathlib import Path
from threading import Timer
from typing import Any

import ipywidgets as widgets
import pandas as pd

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster, write_cluster
from ddlnb.errors import DdlnbError, require, require_known
from ddlnb.figures.gantt import timelines
from ddlnb.figures.style import colour_of, text_on
from ddlnb.plans.methods import Method
from ddlnb.results.timeline import Timeline
from ddlnb.search.search import WITHOUT_SERVERS, SearchResult, search_plan
from ddlnb.search.space import SEARCHED
from ddlnb.simulator.forecast import methods_on, single_seconds
from ddlnb.simulator.simulate import Cell, simulate, steady_seconds
from ddlnb.survey.site import render
from ddlnb.units import BITS_PER_BYTE, GB, US, show_rate, show_seconds
from ddlnb.workloads.workload import Workload, read_profile

MODELS = {
    "resnet50": "resnet50_b64_rtx2080ti",
    "bert-base": "bert-base_b64_rtx2080ti",
    "bert-large": "bert-large_b8_rtx2080ti",
}
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
BASE = "survey-10GbE"  # what no slider changes is as there: nodes of four GPUs on PCIe
SHOWN = "MG-WFBP"  # the method whose timeline is shown first
SEARCHED_PLANS = 60  # half a second or so: the search follows when the sliders rest
STEADY = (1, 2)  # the iterations that a timeline shows
read_once = cache(get_cluster)


@dataclass(frozen=True)
class Setting:
    """Where the sliders stand: Gb/s and microseconds between nodes, workers, samples per worker."""

    model: str = "resnet50"
    gigabits: float = 10.0
    latency_us: float = 50.0
    workers: int = 16
    batch: int = 64

    @property
    def workload(self) -> Workload:
        """The model at that batch; its seconds grow with the samples."""
        return _workload(self.model, self.batch)

    @property
    def cluster(self) -> Cluster:
        """The cluster with that network; all its fits but the network's stay."""
        base, rate = read_once(BASE), self.gigabits * GB / BITS_PER_BYTE
        effects = base.effects
        changed = {
            "between_bandwidth": rate,
            "between_latency": self.latency_us * US,
            "connection_bandwidth": min(effects.connection_bandwidth, rate),
            "duplex_bandwidth": 2 * rate,
        }
        return replace(
            base,
            name="explored",
            network=f"{self.gigabits:.3g} Gb/s, {self.latency_us:.3g} us",
            nodes=max(1, max(WORKERS) // base.gpus_per_node),
            workers=self.workers,
            effects=effects.but(**changed),
            fits={name: fit for name, fit in base.fits.items() if name not in changed},
            planning=None,
            about=f"{BASE} with another network, from the explorer",
        )


@lru_cache(maxsize=32)
def _workload(model: str, batch: int) -> Workload:
    require(model in MODELS, f"model {model!r} must be one of {', '.join(MODELS)}")
    return read_profile(MODELS[model]).at_batch(batch)


def explored_speeds(setting: Setting) -> pd.DataFrame:
    """Return a row per method: throughput in samples/s, efficiency, iteration seconds.

    ``efficiency`` is the share of linear scaling, ``waiting`` the share of an iteration in which a
    worker waits for messages.
    """
    workload, cluster = setting.workload, setting.cluster
    cells = [Cell(workload, cluster, method) for method in methods_on(cluster)]
    single = single_seconds(cells[0])
    rows = [
        {
            "method": cell.method.name,
            "throughput": cell.samples / found.iteration_seconds,
            "efficiency": single / found.iteration_seconds,
            "waiting": found.exposed_seconds / found.iteration_seconds,
            "iteration_seconds": found.iteration_seconds,
        }
        for cell, found in zip(cells, steady_seconds(cells), strict=True)
    ]
    return pd.DataFrame(rows)


GRID: Mapping[str, tuple[Any, ...]] = {
    "workers": (16, 64),
    "network (Gb/s)": (1.0, 3.0, 10.0, 25.0, 100.0),
    "latency (us)": (5.0, 50.0),
}


@dataclass(frozen=True)
class Grid:
    """The methods at every place of some sliders, which a page shows without a kernel.

    ``axes`` are the places of each slider, ``speeds`` a table of `explored_speeds` for every
    combination, the last slider moving first.
    """

    axes: Mapping[str, Sequence[object]]
    speeds: Sequence[pd.DataFrame]

    def _repr_html_(self) -> str:
        methods = self.speeds[0]["method"].to_list()
        percent = [speeds[["efficiency", "waiting"]].mul(100).round() for speeds in self.speeds]
        rates = [speeds["throughput"].map("{:.4g}".format).astype(float) for speeds in self.speeds]
        pairs = zip(rates, percent, strict=True)
        return render(
            "explorer.html",
            key=f"grid-{id(self)}",
            fixed=[places[0] for places in self.axes.values() if len(places) == 1],
            axes={name: list(places) for name, places in self.axes.items() if len(places) > 1},
            methods=methods,
            colours=[colour_of(method) for method in methods],
            rows=[
                shares.assign(rate=rate)[["rate", *shares]].to_numpy().tolist()
                for rate, shares in pairs
            ],
        )


def explored_grid(models: Sequence[str] = tuple(MODELS)) -> Grid:
    """Return the methods at every place of GRID for these models, at the batch of their profiles.

    Raises UnknownName for an unknown model.
    """
    for model in models:
        require_known("model", model, MODELS)
    axes: dict[str, Sequence[object]] = {"model": models, **GRID}
    settings = [
        Setting(model, gigabits, latency, workers, read_profile(MODELS[model]).local_batch)
        for model in models
        for workers, gigabits, latency in product(*GRID.values())
    ]
    return Grid(axes, [explored_speeds(setting) for setting in settings])


def explored_timeline(setting: Setting, method: str | Method) -> Timeline:
    """Return two steady iterations of a method, as one worker sees them."""
    line = simulate(setting.workload, setting.cluster, method, iterations=STEADY[1] + 1)
    return line.window(*STEADY)


def save_explored(setting: Setting, path: str | Path) -> Path:
    """Write the cluster as a file that every command and function takes, and return its path.

    Raises InputError for a path that is no .yaml file.
    """
    require(Path(path).suffix == ".yaml", f"cluster file {str(path)!r} must have a name in .yaml")
    return write_cluster(setting.cluster, path)


FULL = 420  # pixels of a bar of the fastest method
REST = 0.5  # seconds without a move, after which the search begins
NAME = 130  # pixels of the name on a bar


class Explorer(widgets.VBox):
    """Sliders for the network, the workers and the model; the methods follow them.

    A bar is the throughput of a method; a click on it shows its timeline. ``setting`` is where the
    sliders stand, ``chosen`` the method that is shown.
    """

    def __init__(self, start: Setting | None = None) -> None:
        """Draw the methods at the given setting."""
        start, self.chosen = start or Setting(), SHOWN
        looks = {"style": {"description_width": "9em"}, "layout": widgets.Layout(width="34em")}
        logarithmic = {"base": 10, "step": 0.02, "readout_format": ".3g", **looks}
        self.model = widgets.Dropdown(
            options=list(MODELS), value=start.model, description="model", **looks
        )
        self.batch = widgets.IntSlider(
            start.batch, 1, 256, description="samples per worker", **looks
        )
        self.workers = widgets.SelectionSlider(
            options=WORKERS, value=start.workers, description="workers", **looks
        )
        self.gigabits = widgets.FloatLogSlider(
            start.gigabits, min=-1, max=3, description="network (Gb/s)", **logarithmic
        )
        self.latency = widgets.FloatLogSlider(
            start.latency_us, min=0, max=3, description="latency (us)", **logarithmic
        )
        self.bars = {n: _bar(n) for n in (*explored_speeds(start)["method"], SEARCHED)}
        self.said = {name: widgets.Label() for name in self.bars}
        self.picture = widgets.Image(format="png")
        self.path = widgets.Text(value="my-cluster.yaml", description="file")
        self.save = widgets.Button(description="save as cluster", icon="save")
        self.saved = widgets.Label()
        self.found: SearchResult | None = None  # of the setting that is shown
        self._rest: Timer | None = None
        for name, bar in self.bars.items():
            bar.on_click(lambda _, name=name: self.choose(name))
        self.save.on_click(lambda _: self.keep())
        sliders = (self.model, self.batch, self.workers, self.gigabits, self.latency)
        for slider in sliders:
            slider.observe(lambda _: self.redraw(), names="value")
        rows = [widgets.HBox([self.bars[name], self.said[name]]) for name in self.bars]
        rows += [self.picture, widgets.HBox([self.path, self.save, self.saved])]
        super().__init__([*sliders, *rows])
        self.redraw()
        self.show()

    @property
    def setting(self) -> Setting:
        """Where the sliders stand."""
        return Setting(
            self.model.value,
            self.gigabits.value,
            self.latency.value,
            self.workers.value,
            self.batch.value,
        )

    def redraw(self) -> None:
        """Simulate the methods where the sliders stand; picture and search come when they rest."""
        speeds = explored_speeds(self.setting)
        self.fastest = float(speeds["throughput"].max())
        self.found = None
        with self.hold_sync():
            for row in speeds.to_dict("records"):
                self._say(
                    row["method"],
                    row["throughput"],
                    f"{row['efficiency']:.0%} of linear, waits {row['waiting']:.0%}",
                )
        self.bars[SEARCHED].layout.width = f"{NAME}px"
        self.said[SEARCHED].value = "searching when the sliders rest"
        if self.chosen == SEARCHED:
            self.chosen = SHOWN
        if self._rest is not None:
            self._rest.cancel()
        self._rest = Timer(REST, self.rest)
        self._rest.daemon = True
        self._rest.start()

    def _say(self, method: str, rate: float, remark: str) -> None:
        """Make the bar of a method as long as its throughput, and write it beside."""
        self.bars[method].layout.width = f"{NAME + FULL * min(1.0, rate / self.fastest):.0f}px"
        self.said[method].value = f"{show_rate(rate)} samples/s; {remark}"

    def rest(self) -> None:
        """Draw the chosen timeline where the sliders stand, and search a plan there."""
        self.show()
        self.search()

    def search(self) -> None:
        """Search a plan without servers where the sliders stand, and draw it beside the methods."""
        setting = self.setting
        try:
            found = search_plan(
                setting.workload,
                setting.cluster,
                space=WITHOUT_SERVERS,
                most_plans=SEARCHED_PLANS,
                progress=False,
            )
        except DdlnbError as error:
            self.said[SEARCHED].value = str(error)
            return
        if setting != self.setting:  # a slider moved meanwhile, and another search follows
            return
        self.found = found
        bound = show_seconds(found.lower_bound_seconds)
        rate = setting.workers * setting.batch / found.iteration_seconds
        self._say(SEARCHED, rate, f"no plan takes less than {bound}: {found.gap:.0%} above")

    def choose(self, method: str) -> None:
        """Show the timeline of this method."""
        if method == SEARCHED and self.found is None:
            return  # it is still searched
        self.chosen = method
        self.show()

    def show(self) -> None:
        """Draw the timeline of the chosen method."""
        method = self.found.method if self.chosen == SEARCHED and self.found else self.chosen
        line = explored_timeline(self.setting, method)
        takes = f"{self.chosen}, {show_seconds(line.iteration_seconds)} an iteration"
        drawn = BytesIO()
        timelines({takes: line}, rank=None).savefig(drawn, format="png", bbox_inches="tight")
        self.picture.value = drawn.getvalue()

    def keep(self) -> Path | None:
        """Write the cluster into the named file; what is wrong with it is shown."""
        try:
            path = save_explored(self.setting, self.path.value)
        except (DdlnbError, OSError) as error:
            self.saved.value = str(error)
            return None
        self.saved.value = f"kept: ddlnb forecast --model {self.model.value} --cluster {path}"
        return path


explorer = Explorer


def _bar(method: str) -> widgets.Button:
    bar = widgets.Button(description=method, tooltip=f"show the timeline of {method}")
    bar.style.button_color = colour_of(method)
    bar.style.text_color = text_on(colour_of(method))
    return bar
