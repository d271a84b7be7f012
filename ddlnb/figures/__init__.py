"""One function per figure: tidy frames or timelines in, a matplotlib Figure out.

Nothing is computed here but positions on paper. Drawing changes no global setting, and every figure
says where its numbers come from. A figure has a ``caption``, which ends with the first sentence of
its function's docstring.

>>> import ddlnb
>>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
>>> timeline = ddlnb.simulate(workload, "two-cores-4-workers", "MG-WFBP")
>>> ddlnb.figures.timelines({"MG-WFBP": timeline})
<DescribedFigure size 1100x202 with 1 Axes>

This room holds what several users draw; a picture that one notebook alone needs is in the
notebook's module of `ddlnb.survey`. Both are found by their name here: a function under ``@styled``
is a figure, loaded on first use. No module of this room has the name of a figure, which it would
hide.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_FIGURE = re.compile(r"^@styled\ndef (\w+)", re.MULTILINE)
_MODULE_OF = {
    name: f"ddlnb.{path.parent.name}.{path.stem}"
    for room in ("survey", "figures")
    for path in sorted((Path(__file__).parents[1] / room).glob("*.py"))
    for name in _FIGURE.findall(path.read_text(encoding="utf-8"))
}
_MODULE_OF |= {"colour_of": "ddlnb.figures.style", "explorer": "ddlnb.survey.explorer"}
_MODULE_OF["animation"] = "ddlnb.survey.animations"

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ddlnb.figures' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
