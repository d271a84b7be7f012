"""Lists that keep values but no graphs.

Torch's pipelines hold losses and outputs until the iteration ends. Where B and W are split, these
hold the graph, and with it everything that W does not need, of every micro batch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Outputs(list[Any]):
    """Outputs of micro batches, kept as values."""

    def append(self, output: Any) -> None:
        """Keep the value of an output."""
        super().append(output.detach() if isinstance(output, Tensor) else output)


class ReadOnce(list[Any]):
    """Losses: the backward pass reads each once, with its graph; then the value is left."""

    def __getitem__(self, at: Any) -> Any:
        loss = super().__getitem__(at)
        self[at] = loss.detach()
        return loss
