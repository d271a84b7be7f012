"""The learning tasks of the package: digits, text, and convex ones with known constants.

Digits are scikit-learn's 1,797 handwritten ones, for a small convolutional model.

The text comes from a source of known entropy, so that the best loss is known and tests are exact: a
Markov chain of order two over twenty symbols. The model sees three symbols, so its expected loss is
a finite sum over all contexts: the entropy of the source plus the model's excess.

The quadratic and logistic regression are there to compare measured rates of
convergence with theory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.errors import require, require_whole
from ddlnb.training.tasks.task import Constants, Evaluation, LearningTask, Samples
from ddlnb.workloads.models import read_digits
from ddlnb.workloads.task import Batch

TESTED = 360  # images to test on, always the same; the other 1,437 are for training


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return what ``make()`` returns, its numbers drawn from this seed and no others disturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _convolutions() -> nn.Module:
    """Return two convolutions and a linear layer, 9,930 parameters, without batch statistics."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def _build(seed: int) -> nn.Module:  # tasks by name are equal in all processes, as functions are
    return seeded(_convolutions, seed)


@cache
def _images() -> tuple[Samples, Samples]:
    pixels, labels = read_digits()
    images = torch.tensor(pixels) / 8 - 1
    targets = torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:TESTED], order[TESTED:]
    return (
        Samples((images[train], targets[train]), targets[train]),
        Samples((images[test], targets[test]), targets[test]),
    )


def _images_to_train() -> Samples:
    return _images()[0]


def classification_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch of inputs and labels."""
    inputs, labels = batch
    return F.cross_entropy(module(inputs), labels)


def evaluate_classifier(module: nn.Module, inputs: Tensor, labels: Tensor) -> Evaluation:
    """Return mean cross-entropy and accuracy on these inputs."""
    with torch.no_grad():
        scores = module(inputs.clone())  # a model may change its input
    right = (scores.argmax(1) == labels).float().mean().item()
    return Evaluation(F.cross_entropy(scores, labels).item(), right)


def _evaluate(module: nn.Module) -> Evaluation:
    return evaluate_classifier(module, *_images()[1].tensors)


DIGITS = LearningTask(
    "digits",
    _build,
    _images_to_train,
    classification_loss,
    _evaluate,
    Constants,
    local_batch=16,
    learning_rate=0.2,
    about="scikit-learn's handwritten digits, a convolutional model of 9,930 parameters",
)


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


def _build_text(seed: int) -> nn.Module:
    return seeded(_NextSymbol, seed)


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


def _evaluate_text(module: nn.Module) -> Evaluation:
    contexts, chances = _all_contexts()
    with torch.no_grad():
        scores = module(contexts).double()
    loss = -(chances * scores.log_softmax(1)).sum().item()
    right = chances.gather(1, scores.argmax(1, keepdim=True)).sum().item()
    return Evaluation(loss, right)


TEXT = LearningTask(
    "text",
    _build_text,
    _passages,
    _loss,
    _evaluate_text,
    _constants,
    local_batch=16,
    learning_rate=1.0,
    about="the next symbol of text from a source of known entropy; exact test loss",
)


SAMPLES = 16_384
SPECTRUM = tuple(np.geomspace(1.0, 0.05, 20).tolist())
GROUPS = 10  # "labels" of the quadratic's samples, by their pull in the steepest direction


class _Quadratic(nn.Module):
    """f(x) = sum_i h_i (x_i - 1)^2 / 2; a sample z adds a pull of its own, -z.(x - 1).

    It always begins at zero: theory needs a known distance to go.
    """

    eigenvalues: Tensor

    def __init__(self, eigenvalues: tuple[float, ...]):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(len(eigenvalues)))
        self.register_buffer("eigenvalues", torch.tensor(eigenvalues))

    def forward(self, pulls: Tensor) -> Tensor:
        away = self.point - 1
        return (self.eigenvalues * away.square()).sum() / 2 - (pulls @ away).mean()


@cache
def _pulls(dimensions: int, noise: float, samples: int) -> Samples:
    draw = np.random.default_rng(0)
    pulls = draw.standard_normal((samples, dimensions))
    pulls -= pulls.mean(0)
    pulls *= np.sqrt(noise / np.square(pulls).sum(1).mean()) if noise else 0.0
    order = pulls[:, 0].argsort().argsort()
    groups = torch.from_numpy(order * GROUPS // samples)
    return Samples((torch.from_numpy(pulls).float(),), groups)


def _quadratic_loss(module: nn.Module, batch: Batch) -> Tensor:
    return module(*batch)


def _evaluate_quadratic(eigenvalues: tuple[float, ...], module: nn.Module) -> Evaluation:
    point = next(module.parameters()).detach().double()
    curvature = torch.tensor(eigenvalues, dtype=torch.float64)
    return Evaluation((curvature * (point - 1).square()).sum().item() / 2)


def _quadratic_constants(eigenvalues: tuple[float, ...], noise: float) -> Constants:
    return Constants(
        best_loss=0.0,
        smoothness=max(eigenvalues),
        strong_convexity=min(eigenvalues),
        noise=noise,
        optimum=(1.0,) * len(eigenvalues),
    )


def quadratic(
    eigenvalues: tuple[float, ...] = SPECTRUM, noise: float = 4.0, samples: int = SAMPLES
) -> LearningTask:
    """Return a quadratic with these eigenvalues, from zero to its optimum 0 at (1, ..., 1).

    ``noise`` is the mean squared norm of what one sample adds to the gradient, everywhere.
    Raises InputError.
    """
    require_whole(2, samples=samples)
    eigenvalues = tuple(float(value) for value in eigenvalues)
    require(
        bool(eigenvalues) and min(eigenvalues) > 0,
        f"eigenvalues {eigenvalues} must be positive, at least one",
    )
    require(noise >= 0, f"noise {noise} must not be negative")
    return LearningTask(
        "quadratic",
        partial(seeded, partial(_Quadratic, eigenvalues)),
        partial(_pulls, len(eigenvalues), noise, samples),
        _quadratic_loss,
        partial(_evaluate_quadratic, eigenvalues),
        partial(_quadratic_constants, eigenvalues, noise),
        local_batch=1,
        learning_rate=0.1,
        about="a noisy quadratic; smoothness, convexity, noise and optimum are known",
        replacement=True,
    )


class _Logistic(nn.Module):
    """A linear classifier without bias, zero at first."""

    def __init__(self, features: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(features))

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.weights


@cache
def _clouds(features: int, samples: int) -> Samples:
    """Return points with unequal variances, and labels drawn from a logistic model of them."""
    draw = np.random.default_rng(0)
    points = draw.standard_normal((samples, features)) * np.geomspace(2.0, 0.5, features)
    truth = draw.standard_normal(features)
    positive = draw.random(samples) < 1 / (1 + np.exp(-points @ truth))
    labels = torch.from_numpy(positive)
    return Samples((torch.from_numpy(points).float(), labels.float()), labels.long())


def _logistic_loss(penalty: float, module: nn.Module, batch: Batch) -> Tensor:
    points, labels = batch
    (weights,) = module.parameters()
    data = F.binary_cross_entropy_with_logits(module(points), labels)
    return data + penalty / 2 * weights.square().sum()


def _evaluate_logistic(
    features: int, samples: int, penalty: float, module: nn.Module
) -> Evaluation:
    points, labels = (tensor.double() for tensor in _clouds(features, samples).tensors)
    weights = next(module.parameters()).detach().double()
    scores = points @ weights
    loss = F.binary_cross_entropy_with_logits(scores, labels)
    right = ((scores > 0) == (labels > 0.5)).double().mean().item()
    return Evaluation((loss + penalty / 2 * weights.square().sum()).item(), right)


@cache
def _logistic_constants(features: int, samples: int, penalty: float) -> Constants:
    """Find the optimum by Newton's method, the smoothness by the largest second moment."""
    points, labels = (tensor.double().numpy() for tensor in _clouds(features, samples).tensors)
    weights = np.zeros(features)
    for _ in range(50):
        chance = 1 / (1 + np.exp(-points @ weights))
        gradient = points.T @ (chance - labels) / samples + penalty * weights
        if np.linalg.norm(gradient) < 1e-13:
            break
        hessian = (points * (chance * (1 - chance))[:, None]).T @ points / samples
        weights -= np.linalg.solve(hessian + penalty * np.eye(features), gradient)
    scores = points @ weights
    chance = 1 / (1 + np.exp(-scores))
    single = points * (chance - labels)[:, None] + penalty * weights
    loss = (np.logaddexp(0, scores) - labels * scores).mean() + penalty / 2 * weights @ weights
    return Constants(
        best_loss=float(loss),
        best_accuracy=float(((scores > 0) == (labels > 0.5)).mean()),
        smoothness=float(np.linalg.eigvalsh(points.T @ points / samples)[-1] / 4 + penalty),
        strong_convexity=penalty,
        noise=float(np.square(single).sum(1).mean()),
        optimum=tuple(weights.tolist()),
    )


def logistic(features: int = 20, samples: int = SAMPLES, penalty: float = 0.01) -> LearningTask:
    """Return logistic regression on made-up points with a squared penalty, from zero.

    The test loss is the objective on all samples; ``best_accuracy`` is that of its optimum.
    Raises InputError.
    """
    require_whole(2, features=features, samples=samples)
    require(penalty > 0, f"penalty {penalty} must be positive, or there may be no optimum")
    return LearningTask(
        "logistic",
        partial(seeded, partial(_Logistic, features)),
        partial(_clouds, features, samples),
        partial(_logistic_loss, penalty),
        partial(_evaluate_logistic, features, samples, penalty),
        partial(_logistic_constants, features, samples, penalty),
        local_batch=4,
        learning_rate=0.5,
        about="logistic regression on made-up points; smoothness, convexity and optimum are known",
        replacement=True,
    )


QUADRATIC, LOGISTIC = quadratic(), logistic()
