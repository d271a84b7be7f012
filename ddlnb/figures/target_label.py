"""Whose iterations and whose seconds a time to a target is made of: the label of its axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def target_label(unit: str, table: pd.DataFrame) -> str:
    """Return the label of an axis of times to a target, in this unit.

    ``table`` has the columns task, whose iterations were measured, and model, whose seconds were
    simulated.

    >>> import pandas as pd
    >>> print(target_label("minutes", pd.DataFrame({"task": ["digits"], "model": ["bert-large"]})))
    minutes to target: seconds
    of bert-large, iterations of digits
    """
    first = table.iloc[0]
    task, model = first["task"], first["model"]
    whose = (
        f"iterations\nand seconds of {task}"
        if task == model
        else f"seconds\nof {model}, iterations of {task}"
    )
    return f"{unit} to target: {whose}"
