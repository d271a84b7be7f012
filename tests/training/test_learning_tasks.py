"""Learning tasks: what is known of them is so, and every sample has one owner."""

from __future__ import annotations

import math
import pickle
from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from ddlnb.errors import InputError, MissingPart, UnknownName
from ddlnb.training.optimizers import get_schedule
from ddlnb.training.runs.train import train
from ddlnb.training.tasks.built_in import SYMBOLS, TEXT, logistic, quadratic, source
from ddlnb.training.tasks.catalogue import (
    LEARNING_TASKS,
    RECORD,
    cifar10,
    get_learning_task,
    wikitext,
)
from ddlnb.training.tasks.task import get_split

SPLITS = ("iid", "non-iid(0.1)", "non-iid(10.0)")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("workers", [1, 7, 32])
def test_every_sample_belongs_to_exactly_one_worker(split, workers):
    labels = LEARNING_TASKS["digits"].samples().labels
    shards = get_split(split).shards(labels, workers, seed=3)
    assert torch.equal(torch.cat(shards).sort().values, torch.arange(len(labels)))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    again = get_split(split).shards(labels, workers, seed=3)
    assert all(torch.equal(one, other) for one, other in zip(shards, again, strict=True))


def test_a_smaller_alpha_skews_labels_more():
    labels = LEARNING_TASKS["digits"].samples().labels

    def skew(split: str) -> float:
        """The mean total variation distance of a worker's labels from all labels."""
        every = labels.bincount(minlength=10) / len(labels)
        shards = get_split(split).shards(labels, 8, seed=0)
        shares = [labels[shard].bincount(minlength=10) / len(shard) for shard in shards]
        return sum((share - every).abs().sum().item() / 2 for share in shares) / len(shards)

    assert skew("iid") < skew("non-iid(10.0)") < skew("non-iid(1.0)") < skew("non-iid(0.1)")


def test_an_epoch_takes_every_sample_of_a_worker_once():
    task = LEARNING_TASKS["digits"]
    draws = task.batches(get_split("iid"), 3, 10, seed=1)
    shard = 479  # a third of 1,437
    for draw in draws:
        seen = torch.cat([draw(step)[0].flatten(1) for step in range(48)])[:shard]
        assert len(torch.unique(seen, dim=0)) >= shard - 2  # few images are there twice
    later, earlier = draws[0](50)[0], draws[0](3)[0]
    assert torch.equal(task.batches(get_split("iid"), 3, 10, seed=1)[0](50)[0], later)
    assert torch.equal(draws[0](3)[0], earlier)


@pytest.mark.parametrize("name", LEARNING_TASKS)
def test_tasks_travel_and_repeat(name):
    task = pickle.loads(pickle.dumps(LEARNING_TASKS[name]))
    first, second = task.build(5), LEARNING_TASKS[name].build(5)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert task.evaluate(first) == pytest.approx(task.evaluate(second), nan_ok=True)
    curves = [train(name, "bsp", workers=2, steps=3, seed=7) for _ in range(2)]
    pd.testing.assert_frame_equal(*curves, check_exact=True)
    other_seed = train(name, "bsp", workers=2, steps=3, seed=8)
    assert not np.array_equal(other_seed["test_loss"], curves[0]["test_loss"])


def test_digits_are_learnt():
    curve = train("digits", "bsp", workers=2, steps=400, local_batch=32, evaluate_every=100)
    assert curve["test_accuracy"].iloc[0] < 0.3
    assert curve["test_accuracy"].max() >= 0.97


def test_the_source_of_the_text_is_stationary_and_its_entropy_right():
    following, pairs = source()
    assert following.sum(2) == pytest.approx(np.ones((SYMBOLS, SYMBOLS)))
    assert np.einsum("ab,abc->bc", pairs, following) == pytest.approx(pairs, abs=1e-12)
    # Of the text itself, under the source: five standard errors, a chance below 1e-6 of failing.
    (passages,) = TEXT.samples().tensors
    a, b, c = (passages[:, place : place + 16].flatten().numpy() for place in (1, 2, 3))
    costs = -np.log(following[a, b, c])
    error = costs.std() / math.sqrt(len(costs))
    assert costs.mean() == pytest.approx(TEXT.constants().best_loss, abs=5 * error)


def test_text_loss_stays_above_its_entropy_and_approaches_it():
    entropy = TEXT.constants().best_loss
    curve = train("text", "bsp", workers=2, steps=300, evaluate_every=100)
    excess = curve["test_loss"] - entropy
    assert (excess > 0).all()
    assert excess.is_monotonic_decreasing
    assert excess.iloc[-1] < 0.15 * excess.iloc[0]


def test_the_source_itself_as_a_model_has_the_best_loss_and_accuracy():
    following, _ = source()
    scores = torch.from_numpy(np.log(following))

    class Knowing(torch.nn.Module):
        def forward(self, contexts):
            return scores[contexts[:, 1], contexts[:, 2]]

    known = TEXT.constants()
    found = TEXT.evaluate(Knowing())
    assert found == pytest.approx((known.best_loss, known.best_accuracy))


def objective(task, values: torch.Tensor) -> float:
    module = task.build(0)
    (parameter,) = module.parameters()
    parameter.data = values.clone()
    return task.evaluate(module).loss


def hessian(task) -> np.ndarray:
    """At zero, by finite differences of the evaluated objective."""
    size = len(next(task.build(0).parameters()))
    wide = 2.0**-6
    unit = wide * torch.eye(size)
    found = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            corners = [s * unit[i] + t * unit[j] for s in (1, -1) for t in (1, -1)]
            pp, pm, mp, mm = (objective(task, corner) for corner in corners)
            found[i, j] = (pp - pm - mp + mm) / (4 * wide**2)
    return found


@pytest.mark.parametrize(
    "task", [quadratic((3.0, 0.5, 0.1), 2.0, 500), logistic(3, 500)], ids=lambda task: task.name
)
def test_constants_of_convex_tasks_are_right(task):
    known = task.constants()
    values = np.linalg.eigvalsh(hessian(task))
    # The logistic curvature is largest at zero, where it is a quarter of the second moments.
    assert values[-1] == pytest.approx(known.smoothness, rel=1e-3)
    assert known.strong_convexity <= values[0] * (1 + 1e-3)
    optimum = torch.tensor(known.optimum)
    assert objective(task, optimum) == pytest.approx(known.best_loss, abs=1e-7)
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        elsewhere = optimum + 0.1 * torch.randn(3, generator=draw)
        assert objective(task, elsewhere) > known.best_loss
    # The gradients of single samples at the optimum: their mean is zero, their variance known.
    module = task.build(0)
    (parameter,) = module.parameters()
    parameter.data = optimum.clone()
    gradients = []
    for one in range(500):
        batch = tuple(tensor[one : one + 1] for tensor in task.samples().tensors)
        gradients.append(torch.autograd.grad(task.loss(module, batch), parameter)[0])
    single = torch.stack(gradients)
    assert single.mean(0).abs().max() < 1e-5
    assert single.square().sum(1).mean().item() == pytest.approx(known.noise, rel=1e-4)


def test_a_quadratic_without_noise_shrinks_as_theory_says():
    task = quadratic((1.0, 0.25), noise=0.0, samples=10)
    curve = train(task, "bsp", workers=2, steps=10, lr=1.0, evaluate_every=1)
    expected = [0.5 * 0.0**k + 0.125 * 0.75 ** (2 * k) for k in range(11)]
    assert curve["test_loss"].tolist() == pytest.approx(expected, rel=1e-5)


def test_files_of_a_user_make_tasks(tmp_path):
    draw = np.random.default_rng(0)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for name in names:
        records = draw.integers(0, 256, (8, RECORD), dtype=np.uint8)
        records[:, 0] = draw.integers(0, 10, 8)
        (tmp_path / name).write_bytes(records.tobytes())
    for name in ("wiki.train.raw", "wiki.test.raw"):
        (tmp_path / name).write_bytes(b"all work and no play makes a dull text. " * 40)
    for make in (cifar10, wikitext):
        curve = train(make(tmp_path), "bsp", workers=2, steps=2, local_batch=2)
        assert np.isfinite(curve["test_loss"]).all()
    with pytest.raises(MissingPart, match=r"data_batch_1\.bin.*cifar-10-binary"):
        cifar10(tmp_path / "elsewhere").samples()
    with pytest.raises(MissingPart, match=r"wiki\.train\.raw"):
        wikitext(tmp_path / "elsewhere").samples()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: get_learning_task("digit"), "did you mean 'digits'"),
        (lambda: get_learning_task("cifar10"), "give their folder as data"),
        (lambda: get_learning_task("digits", "somewhere"), "leave out data"),
        (lambda: get_split("non-iid(0)"), "alpha 0.0 must be positive"),
        (lambda: get_split("nonid"), "did you mean 'non-iid'"),
        (lambda: get_schedule("warm-up(0)"), "over 0 must be a whole number"),
        (lambda: quadratic(()), "at least one"),
        (lambda: quadratic((1.0, -1.0)), "must be positive"),
        (lambda: logistic(penalty=0), "penalty 0"),
        (lambda: train("digits", "bsp", workers=2000, steps=1), "2000 workers cannot share"),
        (lambda: train("digits", "bsp", lr=-1.0), "learning rate -1.0"),
        (lambda: train("digits", "bsp", lr=math.nan), "learning rate nan"),
        (lambda: train("digits", "bsp", optimizer="sdg"), "did you mean 'sgd'"),
        (lambda: train("digits", "bsp", executor="lokstep"), "did you mean 'lockstep'"),
        (lambda: train("digits", "bsp", steps=0), "steps 0"),
        (lambda: train("digits", "bsp", local_batch=0), "local_batch 0"),
        (lambda: train("digits", "bsp", evaluate_every=0), "evaluate_every 0"),
    ],
)
def test_bad_options_say_the_way_out(call, told):
    with pytest.raises((InputError, UnknownName), match=told.replace("(", r"\(")):
        call()


def test_the_quadratic_s_samples_have_the_noise_it_tells():
    assert astuple(LEARNING_TASKS["quadratic"].constants())[:5] == pytest.approx(
        (0.0, math.nan, 1.0, 0.05, 4.0), nan_ok=True
    )
    pulls = LEARNING_TASKS["quadratic"].samples().tensors[0].double()
    assert pulls.square().sum(1).mean().item() == pytest.approx(4.0, rel=1e-5)


def test_cifar_is_evaluated_image_by_image(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (507, RECORD), dtype=np.uint8)
    images[:, 0] %= 10
    (tmp_path / "test_batch.bin").write_bytes(images.tobytes())
    task = cifar10(tmp_path)
    module = task.build(0)
    pixels = torch.from_numpy(images[:, 1:]).reshape(-1, 3, 32, 32).float() / 127.5 - 1
    labels = torch.from_numpy(images[:, 0]).long()
    with torch.no_grad():
        scores = module(pixels)
    found = task.evaluate(module)
    assert found.loss == pytest.approx(F.cross_entropy(scores, labels).item(), rel=1e-5)
    assert found.accuracy == pytest.approx((scores.argmax(1) == labels).float().mean().item())
