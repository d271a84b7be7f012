"""Advice as one HTML page that stands on its own: no script, no style, no font from elsewhere."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.cli.advice_tables import shown_options, shown_reasons

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlnb.advice.advise import Advice

TEMPLATE = Path(__file__).with_name("advice.html")


def advice_page(found: Advice) -> str:
    """Return the page: the answer, the options, the reasons, the gap, and what is not known."""
    from jinja2 import Environment

    from ddlnb.figures import advice_options, advice_reasons
    from ddlnb.provenance import provenance

    question = found.question
    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text())
    return template.render(
        title=f"{question.workload.model} on {question.cluster.label}",
        workload=question.workload,
        cluster=question.cluster,
        found=found,
        options=shown_options(found),
        reasons=shown_reasons(found),
        options_picture=_picture(advice_options(found.options)),
        reasons_picture=_picture(advice_reasons(found.reasons)),
        made=provenance(),
    )


def _picture(figure: Figure) -> str:
    """Return a figure as the address of an image in the page itself."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, bbox_inches="tight")
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()
