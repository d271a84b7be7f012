"""Measure how fast the largest entries are found: our selection and `torch.topk`, in turns.

    python -m benchmarks.selection_speed [--elements 25000000] [--density 0.001] [--repetitions 9]

Both must find the same set. Copying the same array is the least that any compressor could take.
"""

from functools import partial

import torch

from benchmarks.command import command
from benchmarks.repeated import in_turns
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


def main(*, elements: int = 25_000_000, density: float = 0.001, repetitions: int = 9) -> None:
    """Print the medians and their ratios."""
    torch.manual_seed(0)
    count = kept(density, elements)
    print(
        f"{count} of {elements} entries, {torch.get_num_threads()} threads, "
        f"medians of {repetitions}"
    )
    for name, make in TENSORS.items():
        flat = make(elements)
        ours, theirs = (flat.abs()[by(flat, count)].sort().values for by in (largest, by_topk))
        assert torch.equal(ours, theirs)
        copied = torch.empty_like(flat)
        candidates = {
            "selection": partial(largest, flat, count),
            "torch.topk": partial(by_topk, flat, count),
            "copy": partial(copied.copy_, flat),
        }
        seconds = in_turns(candidates, repetitions).median()
        times = ", ".join(f"{by} {1e3 * value:.1f} ms" for by, value in seconds.items())
        print(
            f"{name}: {times}; torch.topk takes {seconds['torch.topk'] / seconds['selection']:.1f} "
            f"times as long as selection, selection {seconds['selection'] / seconds['copy']:.1f} "
            f"times as long as the copy"
        )


if __name__ == "__main__":
    command(main)
