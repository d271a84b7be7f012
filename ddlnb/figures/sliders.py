"""The explorer: sliders, a bar for every method, a timeline on click, and a cluster to keep."""

from __future__ import annotations

from pathlib import Path
from threading import Timer
from typing import Any

import ipywidgets as widgets

from ddlnb.errors import DdlnbError
from ddlnb.figures.colours import colour_of, text_on
from ddlnb.figures.gantt import KIND_COLOURS
from ddlnb.figures.svg import MESSAGE, timeline_svg
from ddlnb.search.result import SearchResult
from ddlnb.search.space import SEARCHED
from ddlnb.survey.explorer import (
    MODELS,
    SHOWN,
    WORKERS,
    Setting,
    explored_search,
    explored_speeds,
    explored_timeline,
    save_explored,
)
from ddlnb.units import show_rate, show_seconds

FULL = 420  # pixels of a bar of the fastest method
REST = 0.5  # seconds without a move, after which the search begins
LABEL = {"description_width": "9em"}
WIDE = widgets.Layout(width="34em")


def explorer(start: Setting | None = None) -> Explorer:
    """Sliders for the network, the workers and the model; the methods follow them.

    A bar is the throughput of a method; a click on it shows its timeline.
    """
    return Explorer(start or Setting())


class Explorer(widgets.VBox):
    """The widget: ``setting`` is where its sliders stand, ``chosen`` the method that is shown."""

    def __init__(self, start: Setting) -> None:
        """Draw the methods at the given setting."""
        self.chosen = SHOWN
        self.model = widgets.Dropdown(
            options=list(MODELS), value=start.model, description="model", style=LABEL
        )
        self.batch = _slider(widgets.IntSlider, "samples per worker", start.batch, 1, 256)
        self.workers = widgets.SelectionSlider(
            options=WORKERS,
            value=start.workers,
            description="workers",
            continuous_update=True,
            style=LABEL,
            layout=WIDE,
        )
        self.gigabits = _log_slider("network (Gb/s)", start.gigabits, -1, 3)
        self.latency = _log_slider("latency (us)", start.latency_us, 0, 3)
        self.bars = {name: _bar(name) for name in explored_speeds(start)["method"]}
        self.said = {name: widgets.Label() for name in self.bars}
        self.picture = widgets.HTML()
        self.path = widgets.Text(value="my-cluster.yaml", description="file", style=LABEL)
        self.save = widgets.Button(description="save as cluster", icon="save")
        self.saved = widgets.Label()
        self.bars[SEARCHED] = _bar(SEARCHED)
        self.said[SEARCHED] = widgets.Label()
        self.found: SearchResult | None = None  # of the setting that is shown
        self._rest: Timer | None = None
        for name, bar in self.bars.items():
            bar.on_click(lambda _, name=name: self.choose(name))
        self.save.on_click(lambda _: self.keep())
        for slider in (self.model, self.batch, self.workers, self.gigabits, self.latency):
            slider.observe(lambda _: self.redraw(), names="value")
        rows = [widgets.HBox([self.bars[name], self.said[name]]) for name in self.bars]
        super().__init__(
            [
                *(self.model, self.batch, self.workers, self.gigabits, self.latency),
                *rows,
                self.picture,
                widgets.HBox([self.path, self.save, self.saved]),
            ]
        )
        self.redraw()

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
        """Simulate the methods where the sliders stand, and draw what comes of it."""
        speeds = explored_speeds(self.setting)
        fastest = speeds["throughput"].max()
        with self.hold_sync():
            for row in speeds.to_dict("records"):
                bar = self.bars[row["method"]]
                bar.layout.width = f"{130 + FULL * row['throughput'] / fastest:.0f}px"
                self.said[row["method"]].value = (
                    f"{show_rate(row['throughput'])} samples/s, {row['efficiency']:.0%} of linear, "
                    f"waits {row['waiting']:.0%}"
                )
        self.fastest = float(fastest)
        self.found = None
        self.bars[SEARCHED].layout.width = "130px"
        self.said[SEARCHED].value = "searching when the sliders rest"
        if self.chosen == SEARCHED:
            self.chosen = SHOWN
        self.show()
        if self._rest is not None:
            self._rest.cancel()
        self._rest = Timer(REST, self.search)
        self._rest.daemon = True
        self._rest.start()

    def search(self) -> None:
        """Search a plan where the sliders stand, and draw it beside the methods."""
        setting = self.setting
        try:
            found = explored_search(setting)
        except DdlnbError as error:
            self.said[SEARCHED].value = str(error)
            return
        if setting != self.setting:  # a slider moved meanwhile, and another search follows
            return
        self.found = found
        rate = setting.workers * setting.batch / found.iteration_seconds
        width = 130 + FULL * min(1.0, rate / self.fastest)
        self.bars[SEARCHED].layout.width = f"{width:.0f}px"
        self.said[SEARCHED].value = (
            f"{show_rate(rate)} samples/s; no plan takes less than "
            f"{show_seconds(found.lower_bound_seconds)}: {found.gap:.0%} above"
        )

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
        title = f"{self.chosen}: an iteration takes {show_seconds(line.iteration_seconds)}"
        colours = {**KIND_COLOURS, "message": MESSAGE}
        shown = {span.kind for span in line.spans}
        legend = " ".join(
            f'<span style="color:{colour}">&#9632;</span> {kind}'
            for kind, colour in colours.items()
            if kind in shown
        )
        self.picture.value = (
            f"<div><b>{title}</b> (simulated, two iterations) {legend}</div>"
            f"{timeline_svg(line, title)}"
        )

    def keep(self) -> Path | None:
        """Write the cluster into the named file; what is wrong with it is shown."""
        try:
            path = save_explored(self.setting, self.path.value)
        except (DdlnbError, OSError) as error:
            self.saved.value = str(error)
            return None
        self.saved.value = f"kept: ddlnb forecast --model {self.model.value} --cluster {path}"
        return path


def _slider(kind: Any, said: str, value: int, least: int, most: int) -> Any:
    return kind(
        value=value,
        min=least,
        max=most,
        description=said,
        continuous_update=True,
        style=LABEL,
        layout=WIDE,
    )


def _log_slider(said: str, value: float, least: int, most: int) -> widgets.FloatLogSlider:
    return widgets.FloatLogSlider(
        value=value,
        base=10,
        min=least,
        max=most,
        step=0.02,
        readout_format=".3g",
        description=said,
        continuous_update=True,
        style=LABEL,
        layout=WIDE,
    )


def _bar(method: str) -> widgets.Button:
    bar = widgets.Button(description=method, tooltip=f"show the timeline of {method}")
    bar.style.button_color = colour_of(method)
    bar.style.text_color = text_on(colour_of(method))
    return bar
