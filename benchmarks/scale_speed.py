"""How quick forecasts of large models are: all layouts of a model, and one of them.

python -m benchmarks.scale_speed
"""

from functools import partial

import pandas as pd

from benchmarks.command import command
from benchmarks.repeated import seconds_of
from ddlnb.parallelism.forecast.layouts import scale

MACHINES = (  # nodes of eight H100, and the framework: nemo's layouts are interleaved, too
    ("llama3-8b", 8, "nanotron"),
    ("llama3-70b", 64, "nanotron"),
    ("llama3-405b", 2048, "nanotron"),
    ("llama3-70b", 2048, "nemo"),
)
REPETITIONS = 3


def main() -> None:
    """Print the least seconds of some repetitions."""
    rows = []
    for model, nodes, framework in MACHINES:
        ask = partial(scale, model, "H100", nodes, framework=framework, global_batch=16 * nodes * 8)
        seconds = min(seconds_of(ask) for _ in range(REPETITIONS))
        layouts = len(ask().outlook.cases)
        rows.append((model, framework, 8 * nodes, layouts, seconds, 1000 * seconds / layouts))
    columns = ["model", "framework", "GPUs", "layouts", "seconds", "ms per layout"]
    print(pd.DataFrame(rows, columns=columns).round(3).to_string(index=False))


if __name__ == "__main__":
    command(main)
