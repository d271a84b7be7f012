"""The digits task: scikit-learn's 1,797 handwritten digits, and a small convolutional model."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.training.tasks.task import Evaluation, LearningTask, Samples, nothing_known
from ddlnb.workloads.digits import read_digits
from ddlnb.workloads.tasks import Batch

TESTED = 360  # images to test on, always the same; the other 1,437 are for training


def _build(seed: int) -> nn.Module:
    """Return two convolutions and a linear layer, 9,930 parameters, without batch statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )


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


def _train_samples() -> Samples:
    return _images()[0]


def classification_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch of inputs and labels."""
    inputs, labels = batch
    return F.cross_entropy(module(inputs), labels)


def evaluate_classifier(module: nn.Module, inputs: Tensor, labels: Tensor) -> Evaluation:
    """Return mean cross-entropy and accuracy on these inputs."""
    with torch.no_grad():
        scores = module(inputs)
    right = (scores.argmax(1) == labels).float().mean().item()
    return Evaluation(F.cross_entropy(scores, labels).item(), right)


def _evaluate(module: nn.Module) -> Evaluation:
    return evaluate_classifier(module, *_images()[1].tensors)


DIGITS = LearningTask(
    "digits",
    _build,
    _train_samples,
    classification_loss,
    _evaluate,
    nothing_known,
    local_batch=16,
    learning_rate=0.2,
    about="scikit-learn's handwritten digits, a convolutional model of 9,930 parameters",
)
