"""How quick forecasts of large models are: all layouts of a model, and one of them.

python -m benchmarks.scale_speed
"""

from __future__ import annotations

import time

from ddlnb.parallelism.forecast.layouts import scale

MACHINES = (  # nodes of eight H100, and the framework: nemo's layouts are interleaved, too
    ("llama3-8b", 8, "nanotron"),
    ("llama3-70b", 64, "nanotron"),
    ("llama3-405b", 2048, "nanotron"),
    ("llama3-70b", 2048, "nemo"),
)
REPETITIONS = 3


def main() -> None:
    print(
        f"{'model':<12} {'framework':<9} {'GPUs':>6} {'layouts':>8} {'seconds':>8} "
        f"{'ms per layout':>14}"
    )
    for model, nodes, framework in MACHINES:
        batch = 16 * nodes * 8
        best = float("inf")
        for _ in range(REPETITIONS):
            started = time.perf_counter()
            found = scale(model, "H100", nodes, framework=framework, global_batch=batch)
            best = min(best, time.perf_counter() - started)
        count = len(found.outlook.cases)
        print(
            f"{model:<12} {framework:<9} {8 * nodes:>6} {count:>8} {best:>8.3f} "
            f"{1000 * best / count:>14.3f}"
        )


if __name__ == "__main__":
    main()
