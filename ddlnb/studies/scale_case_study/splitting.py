"""Which split is fastest, and where the time of its steps goes."""

from __future__ import annotations

import pandas as pd

from ddlnb.parallelism.forecast.layouts import Ranking

# Parts of a step as the figure of layouts names them.
PARTS = {
    "compute": "computation",
    "optimizer": "update",
    "bubble": "bubble",
    "tensor": "tp",
    "transfers": "pp",
    "reduction": "data",
    "other": "fixed",
}
MEANINGS = {
    "computation": "computation",
    "update": "the optimizer",
    "bubble": "the bubble",
    "tp": "tensor-parallel exchanges",
    "pp": "transfers between stages",
    "data": "the data-parallel reduction",
    "fixed": "the rest",
}


def time_table(ranking: Ranking, top: int) -> pd.DataFrame:
    """Return the best layouts with the seconds of a step by what they go to, the best first.

    The step is that of a run that is not slow: ``seconds`` is the sum of its parts, and
    ``tokens_per_second`` what a GPU does in it. ``memory_gib`` is what the fullest rank needs.
    """
    found, rows = ranking.outlook, {}
    for index in ranking.best_of_splits()[:top]:
        parts = {word: ranking.parts(index)[part] for part, word in PARTS.items()}
        seconds = sum(parts.values())
        tokens = float(found.cases.step_tokens[index] / found.cases.gpus[index])
        rows[str(ranking.layout(index))] = parts | {
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "memory_gib": float(found.most_gib[index]),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("layout")


def split_sentences(ranking: Ranking) -> list[str]:
    """Return the best layout, how fast and how sure, what its time goes to, and why others lose."""
    rows = ranking.rows(2)
    best, table = rows[0], time_table(ranking, 1).iloc[0]
    words = list(MEANINGS)
    lost = table[words].drop("computation").sort_values(ascending=False)
    gpus = int(ranking.outlook.cases.gpus[0])
    said = [
        f"{len(ranking)} of {len(ranking.outlook.cases)} layouts fit on {gpus} GPUs; the fastest "
        f"is `{best['layout']}` with {best['memory_gib']:.0f} GiB.",
        f"It trains {best['tokens_per_s_per_gpu']:.0f} tokens/s per GPU (90 % interval "
        f"{best['low']:.0f} to {best['high']:.0f}), an MFU of {best['mfu']:.1%}; a step takes "
        f"{best['seconds']:.1f} s.",
        f"{table['computation'] / table['seconds']:.0%} of a step is computation. Most of the rest "
        f"goes to {MEANINGS[lost.index[0]]} ({lost.iloc[0] / table['seconds']:.0%}) and "
        f"{MEANINGS[lost.index[1]]} ({lost.iloc[1] / table['seconds']:.0%}).",
    ]
    if best["chance_of_slow"] > 0:
        said.append(
            f"With a chance of {best['chance_of_slow']:.0%} its run is a slow one, whose transfers "
            "between stages lose a quarter of a second each: hence the low end of the interval."
        )
    if len(rows) > 1:
        behind = 1 - rows[1]["tokens_per_s_per_gpu"] / best["tokens_per_s_per_gpu"]
        said.append(
            f"The next split, `{rows[1]['layout']}`, is {behind:.1%} behind: {rows[1]['loses_by']}."
        )
    return said
