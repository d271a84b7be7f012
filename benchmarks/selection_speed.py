"""Measure how fast the largest entries are found: our selection and `torch.topk`, in turns.

    python -m benchmarks.selection_speed [--elements 25000000] [--density 0.001] [--repetitions 9]

Both must find the same set. Copying the same array is the least that any compressor could take.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from ddlnb.compression.sparse import kept, largest

TENSORS = {
    "normal": torch.randn,
    "heavy tails": lambda elements: torch.randn(elements) / (torch.rand(elements) + 1e-6) ** 2,
    "layers of other scales": lambda elements: torch.cat(
        [10.0**scale * torch.randn(elements // 5) for scale in range(5)]
    ),
    "almost all zero": lambda elements: torch.randn(elements) * (torch.rand(elements) < 5e-4),
}


def by_topk(flat: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the largest entries as `torch.topk` finds them."""
    return flat.abs().topk(count, sorted=False).indices


def seconds_of(flat: torch.Tensor, count: int, repetitions: int) -> dict[str, float]:
    """Return the median seconds of each candidate, after one turn that does not count."""
    copy = torch.empty_like(flat)
    candidates = {
        "selection": lambda: largest(flat, count),
        "torch.topk": lambda: by_topk(flat, count),
        "copy": lambda: copy.copy_(flat),
    }
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repetitions + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) for name, seconds in found.items()}


def main() -> None:
    """Print the medians and their ratios."""
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
        ours, theirs = (flat.abs()[by(flat, count)].sort().values for by in (largest, by_topk))
        assert torch.equal(ours, theirs)
        seconds = seconds_of(flat, count, options.repetitions)
        times = ", ".join(f"{by} {1e3 * value:.1f} ms" for by, value in seconds.items())
        print(
            f"{name}: {times}; torch.topk takes {seconds['torch.topk'] / seconds['selection']:.1f} "
            f"times as long as selection, selection {seconds['selection'] / seconds['copy']:.1f} "
            f"times as long as the copy"
        )


if __name__ == "__main__":
    main()
