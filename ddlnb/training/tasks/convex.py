"""Convex tasks with known constants, to compare measured rates of convergence with theory."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.errors import require, require_whole
from ddlnb.training.tasks.task import Constants, Evaluation, LearningTask, Samples
from ddlnb.workloads.tasks import Batch

SAMPLES = 16_384
SPECTRUM = tuple(np.geomspace(1.0, 0.05, 20).tolist())
GROUPS = 10  # "labels" of the quadratic's samples, by their pull in the steepest direction


class _Quadratic(nn.Module):
    """f(x) = sum_i h_i (x_i - 1)^2 / 2; a sample z adds a pull of its own, -z.(x - 1)."""

    eigenvalues: Tensor

    def __init__(self, eigenvalues: tuple[float, ...]):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(len(eigenvalues)))
        self.register_buffer("eigenvalues", torch.tensor(eigenvalues))

    def forward(self, pulls: Tensor) -> Tensor:
        away = self.point - 1
        return (self.eigenvalues * away.square()).sum() / 2 - (pulls @ away).mean()


def _build_quadratic(eigenvalues: tuple[float, ...], seed: int) -> nn.Module:
    return _Quadratic(eigenvalues)  # always from zero: theory needs a known distance to go


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
        partial(_build_quadratic, eigenvalues),
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


def _build_logistic(features: int, seed: int) -> nn.Module:
    return _Logistic(features)


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
        partial(_build_logistic, features),
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
