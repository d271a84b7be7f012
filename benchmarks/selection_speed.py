"""How quick the largest entries are found: our selection beside `torch.topk`, turn by turn.

    python -m benchmarks.selection_speed [--elements 25000000] [--density 0.001] [--repetitions 9]

Both find the same set, which is checked. The copy of the same array is the least that any
compressor could take.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from ddlnb.compression.selection import largest
from ddlnb.compression.sparsifier import kept

TENSORS = {
    "normal": torch.randn,
    "heavy tails": lambda elements: torch.randn(elements) / (torch.rand(elements) + 1e-6) ** 2,
    "layers of other scales": lambda elements: torch.cat(
        [10.0**scale * torch.randn(elements // 5) for scale in range(5)]
    ),
    "almost all zero": lambda elements: torch.randn(elements) * (torch.rand(elements) < 5e-4),
}


def by_topk(flat: torch.Tensor, count: int) -> torch.Tensor:
    """What our selection is compared with."""
    return flat.abs().topk(count, sorted=False).indices


def seconds_of(flat: torch.Tensor, count: int, repetitions: int) -> dict[str, float]:
    """Median seconds of each way, after one turn that does not count."""
    copy = torch.empty_like(flat)
    ways = {
        "selection": lambda: largest(flat, count),
        "torch.topk": lambda: by_topk(flat, count),
        "copy": lambda: copy.copy_(flat),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            found[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) for name, seconds in found.items()}


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--repetitions", type=int, default=9)
    options = parser.parse_args()
    torch.manual_seed(0)
    count = kept(options.density, options.elements)
    print(
        f"{count} of {options.elements} entries, {torch.get_num_threads()} threads, "
        f"medians of {options.repetitions}"
    )
    for name, make in TENSORS.items():
        flat = make(options.elements)
        ours, theirs = (flat.abs()[way(flat, count)].sort().values for way in (largest, by_topk))
        assert torch.equal(ours, theirs)
        seconds = seconds_of(flat, count, options.repetitions)
        times = ", ".join(f"{way} {1e3 * value:.1f} ms" for way, value in seconds.items())
        print(
            f"{name}: {times}; torch.topk takes {seconds['torch.topk'] / seconds['selection']:.1f} "
            f"times as long as selection, selection {seconds['selection'] / seconds['copy']:.1f} "
            f"times as long as the copy"
        )


if __name__ == "__main__":
    main()
