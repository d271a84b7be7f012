"""The text task: a source of known entropy, so that the best loss is known and tests are exact.

The source is a Markov chain of order two over twenty symbols. The model sees three symbols, so its
expected loss is a finite sum over all contexts: the entropy of the source plus the model's excess.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.training.tasks.task import Constants, Evaluation, LearningTask, Samples
from ddlnb.workloads.tasks import Batch

SYMBOLS = 20
SEEN = 3  # symbols that the model sees; the source depends on two
PASSAGE = 16  # symbols to predict in one sample
PASSAGES = 12_288
SHARPNESS = 1.2  # of the source: the standard deviation of its logits' two parts
SOURCE_SEED, TEXT_SEED = 1, 2

Numbers = np.ndarray


class Source(NamedTuple):
    """``following[a, b, c]``: probability of c after a, b; ``pairs[a, b]``: that of a, b."""

    following: Numbers
    pairs: Numbers


@cache
def source() -> Source:
    """Return the source of the text. Pairs are stationary, up to rounding."""
    draw = np.random.default_rng(SOURCE_SEED)
    before, last = SHARPNESS * draw.standard_normal((2, SYMBOLS, SYMBOLS))
    weights = np.exp(before[:, None, :] + 1.5 * last[None, :, :])
    following = weights / weights.sum(2, keepdims=True)
    pairs = np.full((SYMBOLS, SYMBOLS), SYMBOLS**-2.0)
    for _ in range(500):
        pairs = np.einsum("ab,abc->bc", pairs, following)
    return Source(following, pairs)


@cache
def _constants() -> Constants:
    following, pairs = source()
    entropy = -np.einsum("ab,abc,abc->", pairs, following, np.log(following))
    right = np.einsum("ab,ab->", pairs, following.max(2))
    return Constants(best_loss=float(entropy), best_accuracy=float(right))


@cache
def _passages() -> Samples:
    steps = source().following.cumsum(2).tolist()
    draw = np.random.default_rng(TEXT_SEED)
    text = [0, 0]
    for chance in draw.random(SEEN + PASSAGE * PASSAGES + 100).tolist():
        text.append(min(bisect_right(steps[text[-2]][text[-1]], chance), SYMBOLS - 1))
    kept = torch.tensor(text[102:])  # the first symbols still depend on how the text began
    windows = kept.unfold(0, SEEN + PASSAGE, PASSAGE).contiguous()
    return Samples((windows,), windows.mode(1).values)


class _NextSymbol(nn.Module):
    """Gives the logits of the next symbol from the last three (Bengio et al. 2003)."""

    def __init__(self, width: int = 12, hidden: int = 96):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.hidden = nn.Linear(SEEN * width, hidden)
        self.next_symbol = nn.Linear(hidden, SYMBOLS)

    def forward(self, contexts: Tensor) -> Tensor:
        return self.next_symbol(F.relu(self.hidden(self.symbols(contexts).flatten(-2))))


def _build(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _NextSymbol()


def _loss(module: nn.Module, batch: Batch) -> Tensor:
    (passages,) = batch
    contexts = passages.unfold(1, SEEN, 1)[:, :-1]
    return F.cross_entropy(module(contexts).flatten(0, 1), passages[:, SEEN:].flatten())


@cache
def _all_contexts() -> tuple[Tensor, Tensor]:
    """Return every context of three symbols, and the probability of each with each next symbol."""
    following, pairs = source()
    chances = np.einsum("ab,abc,bcd->abcd", pairs, following, following)
    contexts = torch.cartesian_prod(*[torch.arange(SYMBOLS)] * SEEN)
    return contexts, torch.from_numpy(chances.reshape(-1, SYMBOLS))


def _evaluate(module: nn.Module) -> Evaluation:
    contexts, chances = _all_contexts()
    with torch.no_grad():
        scores = module(contexts).double()
    loss = -(chances * scores.log_softmax(1)).sum().item()
    right = chances.gather(1, scores.argmax(1, keepdim=True)).sum().item()
    return Evaluation(loss, right)


TEXT = LearningTask(
    "text",
    _build,
    _passages,
    _loss,
    _evaluate,
    _constants,
    local_batch=16,
    learning_rate=1.0,
    about="the next symbol of text from a source of known entropy; exact test loss",
)
