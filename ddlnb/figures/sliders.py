"""The explorer: sliders, a bar for every method, a timeline on click, and a cluster to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets as widgets

from ddlnb.errors import DdlnbError
from ddlnb.figures.colours import colour_of
from ddlnb.figures.gantt import KIND_COLOURS
from ddlnb.figures.svg import MESSAGE, timeline_svg
from ddlnb.studies.explorer import (
    MODELS,
    SHOWN,
    WORKERS,
    Setting,
    explored_speeds,
    explored_timeline,
    save_explored,
)
from ddlnb.units import show_seconds

FULL = 420  # pixels of a bar of the fastest method
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
                    f"{row['throughput']:.4g} samples/s, {row['efficiency']:.0%} of linear, "
                    f"waits {row['waiting']:.0%}"
                )
        self.show()

    def choose(self, method: str) -> None:
        """Show the timeline of this method."""
        self.chosen = method
        self.show()

    def show(self) -> None:
        """Draw the timeline of the chosen method."""
        line = explored_timeline(self.setting, self.chosen)
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
    bar.style.text_color = "white"
    return bar
