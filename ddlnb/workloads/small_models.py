"""Two small models with real data: six convolutions on digits, and a transformer on a text."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.errors import InputError
from ddlnb.paths import SURVEY_NOTES
from ddlnb.workloads.digits import read_digits
from ddlnb.workloads.tasks import Batch, Task, like_parameters

BYTE_VALUES = 256
CONTEXT_BYTES = 64


def small_conv() -> nn.Module:
    """Six 3x3 convolutions and two linear layers; one late tensor holds most of the bytes."""
    steps: dict[str, nn.Module] = {}
    channels = 1
    for index, wider in enumerate((24, 24, 48, 48, 96, 96), start=1):
        steps[f"conv{index}"] = nn.Conv2d(channels, wider, 3, padding=1)
        # BatchNorm would normalise over one rank's batch, not over the joined one.
        steps[f"norm{index}"] = nn.GroupNorm(4, wider)
        steps[f"relu{index}"] = nn.ReLU()
        if index in (2, 4):
            steps[f"pool{index}"] = nn.MaxPool2d(2)
        channels = wider
    steps["flatten"] = nn.Flatten()
    steps["hidden"] = nn.Linear(96 * 4 * 4, 512)
    steps["relu"] = nn.ReLU()
    steps["classes"] = nn.Linear(512, 10)
    return nn.Sequential(OrderedDict(steps))


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """All 1,797 digits as images of 16x16 with values in 0..1, and their labels."""
    pixels, labels = read_digits()
    return F.interpolate(torch.tensor(pixels) / 16, scale_factor=2), torch.tensor(labels)


def _draw_digits(local_batch: int, seed: int) -> Batch:
    images, labels = _digits()
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(images), (local_batch,), generator=draw)
    return images[chosen], labels[chosen]


def _digit_loss(module: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(module(like_parameters(module, images)), labels)


class _Block(nn.Module):
    """One pre-norm transformer block with causal self-attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        joined = self.query_key_value(self.attention_norm(stream))
        query, key, value = joined.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attention_out(mixed.transpose(1, 2).flatten(-2))
        stream = stream + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(stream))))
        return stream


class SmallTransformer(nn.Module):
    """A causal language model over bytes: logits of the next byte at every position."""

    def __init__(self, width: int = 128, heads: int = 4, blocks: int = 4):
        super().__init__()
        self.bytes = nn.Embedding(BYTE_VALUES, width)
        self.positions = nn.Embedding(CONTEXT_BYTES, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.next_byte = nn.Linear(width, BYTE_VALUES)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        stream = self.bytes(text) + self.positions(positions)
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.next_byte(self.norm(stream))
        return logits


@cache
def _text() -> Tensor:
    """Return the bytes of the frozen text, which no edit of the project changes."""
    try:
        content = SURVEY_NOTES.read_bytes()
    except OSError as error:
        raise InputError(
            f"small-transformer trains on {SURVEY_NOTES}, which cannot be read "
            f"({error.strerror}); run from a checkout"
        ) from error
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def _draw_text(local_batch: int, seed: int) -> Batch:
    text = _text()
    draw = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT_BYTES, (local_batch,), generator=draw)
    windows = text[starts[:, None] + torch.arange(CONTEXT_BYTES + 1)]
    return windows[:, :-1], windows[:, 1:]


def _text_loss(module: nn.Module, batch: Batch) -> Tensor:
    context, following = batch
    return F.cross_entropy(module(context).flatten(0, 1), following.flatten())


SMALL_TASKS = (
    Task(
        "small-conv", small_conv, _draw_digits, _digit_loss, 64, "images",
        "six convolutions on scikit-learn's handwritten digits",
    ),
    Task(
        "small-transformer", SmallTransformer, _draw_text, _text_loss, 16, "sentences",
        "a causal transformer that predicts the next byte of this project's own text",
    ),
)  # fmt: skip
