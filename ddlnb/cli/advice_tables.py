"""Tables of advice, for the terminal and the page: texts, in columns worth their width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlnb.advice.advise import Advice
    from ddlnb.advice.layouts.advise import LayoutAdvice


def shown_options(found: Advice) -> list[dict[str, Any]]:
    """Return the options as texts, in columns that are worth their width."""
    from ddlnb.units import show_bytes, show_rate, show_rates

    rows = found.options
    has_memory = rows["memory_bytes"].notna().any()
    has_cost = rows["cost"].notna().any()
    has_draws = rows["draws"].any()
    shown = []
    for row in rows.to_dict("records"):
        line = {
            "option": row["option"],
            "GPUs": row["gpus"],
            "servers": row["server_machines"],
            "samples/s": show_rate(row["throughput_samples_per_s"]),
            "90 % interval": show_rates(row["low"], row["high"]),
            **({"draws": row["draws"]} if has_draws else {}),
            "over 1st": f"{row['over_best']:.2f}",
            "best in": "-" if math.isnan(row["chance_best"]) else f"{row['chance_best']:.0%}",
        }
        if has_memory:
            line["memory"] = show_bytes(int(row["memory_bytes"])) + _fits(row["fits"])
        cost = row["cost" if has_cost else "gpu_hours"]
        what = "cost/M samples" if has_cost else "GPU h/M samples"
        line[what] = "no price" if math.isnan(cost) else f"{cost:.3g}"
        line["changes"] = row["kind"] if row["learning"] else "-"
        shown.append(line)
    return shown


def shown_reasons(found: Advice) -> list[dict[str, Any]]:
    """Return the counterfactuals as texts."""
    from ddlnb.units import show_seconds

    return [
        {
            "with": row["what"],
            "iteration": show_seconds(row["iteration_seconds"]),
            "times as fast": f"{row['times_as_fast']:.2f}",
        }
        for row in found.reasons.to_dict("records")
    ]


def shown_layouts(found: LayoutAdvice) -> list[dict[str, Any]]:
    """Return the options of a large model as texts."""
    from ddlnb.units import GIB, show_rate, show_rates

    is_priced = found.options["cost"].notna().any()
    column, what = ("cost", "cost/M tokens") if is_priced else ("gpu_hours", "GPU h/M tokens")
    return [
        {
            "option": row["option"],
            "GPUs": row["gpus"],
            "tokens/s/GPU": show_rate(row["tokens_per_s_per_gpu"]),
            "90 % interval": show_rates(row["low"] / row["gpus"], row["high"] / row["gpus"]),
            "over the first": f"{row['over_best']:.2f}",
            "best in": "-" if math.isnan(row["chance_best"]) else f"{row['chance_best']:.0%}",
            "slow": f"{row['chance_of_slow']:.0%}",
            "memory": f"{row['memory_bytes'] / GIB:.0f} GiB",
            what: f"{row[column]:.3g}",
            "changes": row["kind"] if row["learning"] else "-",
        }
        for row in found.options.to_dict("records")
    ]


def shown_layout_reasons(found: LayoutAdvice) -> list[dict[str, Any]]:
    """Return the counterfactuals of a large model as texts, each with the layout that is best."""
    from ddlnb.units import show_rate, show_rates

    gpus = found.question.gpus
    return [
        {
            "with": row["what"],
            "step": f"{row['iteration_seconds']:.3g} s",
            "tokens/s/GPU": show_rate(row["tokens_per_s"] / gpus),
            "90 % interval": show_rates(row["low"] / gpus, row["high"] / gpus),
            "times as fast": f"{row['times_as_fast']:.2f}",
            "layout": row["layout"],
        }
        for row in found.reasons.to_dict("records")
    ]


def _fits(fits: bool | None) -> str:
    return "" if fits is None or fits else " (does not fit)"
