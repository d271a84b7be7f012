"""Losses that let go of their graphs.

Torch's pipelines keep the losses of all micro batches until the iteration ends. Where B and W are
split, each holds what its own backward pass needed, which nobody needs any more.
"""

from __future__ import annotations

from typing import Any


class ReadOnce(list[Any]):
    """A list whose losses are read once, by their backward pass; then only values are left."""

    def __getitem__(self, at: Any) -> Any:
        loss = super().__getitem__(at)
        self[at] = loss.detach()
        return loss
