"""Advice as one HTML page that stands on its own: no script, no style, no font from elsewhere."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.cli.advice_tables import (
    shown_layout_reasons,
    shown_layouts,
    shown_options,
    shown_reasons,
)
from ddlnb.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlnb.advice.advise import Advice
    from ddlnb.advice.layouts.advise import LayoutAdvice

TEMPLATE = Path(__file__).with_name("advice.html")


def advice_page(found: Advice | LayoutAdvice) -> str:
    """Return the page: the answer, the options, the reasons, the gap, and what is not known."""
    from jinja2 import Environment

    from ddlnb.figures import advice_options, advice_reasons
    from ddlnb.provenance import provenance

    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text())
    return template.render(
        **_about(found),
        found=found,
        options_picture=_picture(advice_options(found.options)),
        reasons_picture=_picture(advice_reasons(found.reasons)),
        made=provenance(),
    )


def _about(found: Advice | LayoutAdvice) -> dict[str, Any]:
    """Return what differs between advice on methods and advice on splits."""
    from ddlnb.advice.layouts.advise import LayoutAdvice
    from ddlnb.units import gpus_in_words, show_bytes, show_seconds

    if isinstance(found, LayoutAdvice):
        asked = found.question
        return {
            "title": str(asked),
            "about": f"{asked.tokens:,} tokens in a step of "
            f"{counted(asked.global_batch, 'sequence')}",
            "first": found.options["option"].iloc[0],
            "others": "others change learning, or use fewer GPUs",
            "options": shown_layouts(found),
            "reasons": shown_layout_reasons(found),
        }
    on, workload = found.question.cluster, found.question.workload
    return {
        "title": f"{workload.model} on {on.label}",
        "about": f"{counted(workload.local_batch, 'sample')} per GPU, which computes "
        f"{show_seconds(workload.compute_seconds)} and sends {show_bytes(workload.gradient_bytes)} "
        f"in an iteration; {gpus_in_words(on.workers)}, {on.network}",
        "first": found.best.name,
        "others": "others change learning, take further machines, or use fewer GPUs",
        "gap": found.gap,
        "options": shown_options(found),
        "reasons": shown_reasons(found),
    }


def _picture(figure: Figure) -> str:
    """Return a figure as the address of an image in the page itself."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, bbox_inches="tight")
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()
