"""Settings of a run, its optimizers, schedules and tasks: parsed once, and refused with a reason.

The size of a step of LARS and LAMB is that of the weights, not of the gradient. What is known of a
task is so, and every sample has one owner.
"""

import math
import pickle
import platform
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ddlnb
from ddlnb.errors import InputError, MissingPart, UnknownName
from ddlnb.training.executors.clock import get_straggler
from ddlnb.training.method import training_method
from ddlnb.training.optimizers import (
    LAMB,
    LARS,
    OPTIMIZERS,
    LambSteps,
    LarsSteps,
    get_optimizer,
    get_schedule,
)
from ddlnb.training.runs.compare import EXTENSIONS, SCANNED, SPACING
from ddlnb.training.runs.runner import key
from ddlnb.training.runs.train import train
from ddlnb.training.settings import RATE_SPAN, training_settings
from ddlnb.training.tasks import made
from ddlnb.training.tasks.built_in import SYMBOLS, TEXT, logistic, quadratic, seeded, source
from ddlnb.training.tasks.catalogue import (
    LEARNING_TASKS,
    RECORD,
    cifar10,
    get_learning_task,
    wikitext,
)
from ddlnb.training.tasks.made import LETTERS_OF, RENDERED, SIDE, TESTED
from ddlnb.training.tasks.task import get_split, validation_task

LARGE_RATES = ("adam", "lars", "lamb")


def layers() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    parameters = [nn.Parameter(torch.randn(3, 4, generator=generator)), nn.Parameter(torch.ones(3))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sgd(0.01)", lambda given: torch.optim.SGD(given, 0.1, weight_decay=0.01)),
        ("momentum(0.8)", lambda given: torch.optim.SGD(given, 0.1, momentum=0.8)),
        (
            "momentum(0.8, 0.01, true)",
            lambda given: torch.optim.SGD(
                given, 0.1, momentum=0.8, weight_decay=0.01, nesterov=True
            ),
        ),
        ("adam(0.01, (0.5, 0.6))", lambda g: torch.optim.Adam(g, 0.1, (0.5, 0.6), 1e-8, 0.01)),
        (
            "lars(0.01, 0.8, 0.02, true)",
            lambda given: LarsSteps(
                given, lr=0.1, trust=0.01, momentum=0.8, weight_decay=0.02, exclude_vectors=True
            ),
        ),
        (
            "lamb(0.02, (0.5, 0.6), true)",
            lambda given: LambSteps(
                given, lr=0.1, weight_decay=0.02, betas=(0.5, 0.6), exclude_vectors=True
            ),
        ),
    ],
)
def test_parameters_reach_the_optimizer(text, expected):
    ours, theirs = layers(), layers()
    mine, other = get_optimizer(text).make(ours, lr=0.1), expected(theirs)
    for _ in range(3):
        mine.step()
        other.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_defaults_are_left_out_of_the_text(name):
    assert str(get_optimizer(name)) == name


def test_first_rates_know_the_parameters():
    task = get_learning_task("digits")
    assert get_optimizer("momentum(0.5)").first_rate(task) == task.learning_rate / 2
    assert get_optimizer("lars(0.01)").first_rate(task) == pytest.approx(
        get_optimizer("lars").first_rate(task) / 10
    )


LOCAL = ("local(8)", "post-local(4, 10)", "adaptive-local(1, 8)")
ONCE = ("local(1)", "post-local(1, 10)", "adaptive-local(1, 1)", "asp")


@pytest.mark.parametrize(
    ("methods", "optimizers", "said"),
    [
        (LOCAL, LARGE_RATES, "by plain SGD steps.*take sgd or momentum"),
        # Momentum is not applied twice.
        (
            ["bsp + dgc(0.01)"],
            ["momentum", *LARGE_RATES],
            "applies momentum before it compresses.*take sgd",
        ),
    ],
)
def test_an_optimizer_that_does_not_go_with_a_method_is_refused(methods, optimizers, said):
    for method, optimizer in product(methods, optimizers):
        with pytest.raises(InputError, match=said):
            training_settings("digits", method, optimizer=optimizer).job()


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        *product(ONCE, OPTIMIZERS),
        *product(["bsp + dgc(0.01)"], ["sgd", "lars(0.001, 0)"]),
        *product(["bsp + dgc(0.01, 0)"], ["momentum", *LARGE_RATES]),
    ],
)
def test_rounds_of_one_step_take_any_optimizer_and_dgc_what_has_no_momentum(method, optimizer):
    training_settings("digits", method, optimizer=optimizer).job()


# LARS and LAMB.

SHAPES = ((7, 5), (5,), (3, 2, 2))


def weights_of(scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    return [nn.Parameter(scale * torch.randn(shape, generator=generator)) for shape in SHAPES]


def make(kind: type, lr: float, **options):
    return partial(kind(**options).make, lr=lr)


def gradients(step: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


def stepped(make, steps: int = 5, *, start: float = 1.0, scale: float = 1.0) -> list[nn.Parameter]:
    owned = weights_of(start)
    optimizer = make(owned)
    for step in range(steps):
        for parameter, gradient in zip(owned, gradients(step, scale), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return owned


def moved(owned: list[nn.Parameter], start: float = 1.0) -> list[torch.Tensor]:
    pairs = zip(owned, weights_of(start), strict=True)
    return [now.detach() - then.detach() for now, then in pairs]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("made", "share"),
    [(make(LARS, 3.0, trust=0.01, momentum=0.0), 0.03), (make(LAMB, 0.03), 0.03)],
)
def test_a_step_is_a_share_of_the_weights_whatever_the_gradient(made, share, scale):
    for change, weights in zip(moved(stepped(made, 1, scale=scale)), weights_of(), strict=True):
        assert change.norm() == pytest.approx(share * weights.norm().item(), rel=1e-4)


@pytest.mark.parametrize("made", [make(LARS, 10.0), make(LAMB, 0.1)])
def test_scaling_gradients_changes_nothing_and_scaling_weights_scales_the_steps(made):
    for one, other in zip(stepped(made), stepped(made, scale=1e3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    small, large = moved(stepped(made)), moved(stepped(made, start=64.0), 64.0)
    for one, other in zip(small, large, strict=True):
        torch.testing.assert_close(64 * one, other, rtol=1e-3, atol=1e-3)


def test_lars_is_the_formula_and_lamb_goes_in_the_direction_of_adam():
    lr, trust, decay, momentum = 2.0, 0.02, 0.1, 0.8
    expected = [weights.detach().double() for weights in weights_of()]
    velocities = [torch.zeros_like(weights) for weights in expected]
    for step in range(4):
        for weights, velocity, gradient in zip(expected, velocities, gradients(step), strict=True):
            rate = lr * trust * weights.norm() / (gradient.double().norm() + decay * weights.norm())
            velocity.mul_(momentum).add_(rate * (gradient.double() + decay * weights))
            weights.sub_(velocity)
    made = make(LARS, lr, trust=trust, weight_decay=decay, momentum=momentum)
    for weights, right in zip(stepped(made, 4), expected, strict=True):
        torch.testing.assert_close(weights.detach().double(), right, rtol=1e-5, atol=1e-6)
    adam = moved(stepped(partial(torch.optim.Adam, lr=1e-3, eps=1e-6), 1))
    for one, other in zip(moved(stepped(make(LAMB, 0.01), 1)), adam, strict=True):
        cosine = torch.cosine_similarity(one.flatten(), other.flatten(), 0)
        assert cosine.item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LARS, partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
        (LAMB, partial(torch.optim.Adam, lr=0.1, eps=1e-6)),
    ],
)
def test_excluded_vectors_take_the_plain_steps(ours, theirs):
    changed = moved(stepped(make(ours, 0.1, exclude_vectors=True, weight_decay=0.3)))
    plain = moved(stepped(theirs))
    torch.testing.assert_close(changed[1], plain[1], rtol=1e-5, atol=1e-6)
    for layer in (0, 2):
        assert (changed[layer] - plain[layer]).norm() > 0.1 * plain[layer].norm()


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "lr"), [(LARS, 1.0), (LAMB, 0.01)])
def test_zero_weights_and_zero_gradients_are_safe(kind, lr, decay):
    made = make(kind, lr, weight_decay=decay)
    still = stepped(made, scale=0.0)
    for change, weights in zip(moved(still), weights_of(), strict=True):
        assert change.isfinite().all()
        if decay:
            assert (change * weights).sum() < 0
        else:
            assert not change.any()
    for weights in stepped(made, start=0.0):
        assert weights.isfinite().all()
        assert weights.norm() > 0
    for weights in stepped(made, start=0.0, scale=0.0):
        assert not weights.any()


@pytest.mark.parametrize(("kind", "lr"), [(LARS, 1.0), (LAMB, 0.01)])
def test_tensors_without_gradient_stay(kind, lr):
    owned = weights_of()
    optimizer = make(kind, lr)(owned)
    owned[0].grad = torch.ones(SHAPES[0])
    assert optimizer.step(lambda: 7.0) == 7.0
    first, *rest = moved(owned)
    assert first.any()
    assert not any(change.any() for change in rest)


# Schedules.


def cosine(step: int, first: int, last: int) -> float:
    """Half a cosine from one to zero."""
    return (1 + math.cos(math.pi * (step - first) / (last - first))) / 2


@pytest.mark.parametrize(
    ("text", "steps", "factors"),
    [
        ("constant", 9, {1: 1, 9: 1}),
        ("warm-up(4)", 9, {1: 0.25, 4: 1, 9: 1}),
        ("cosine(2)", 11, {1: 0.5, **{step: cosine(step, 2, 12) for step in range(2, 13)}}),
        # Its last step is one before zero.
        *(
            (f"cosine({first})", 10, {step: cosine(step, first, 11) for step in range(first, 12)})
            for first in (1, 5, 9)
        ),
        ("cosine", 10, {1: 1, 11: 0}),
        (
            "linear-scaling(8, 20, cosine)",
            59,
            {10: 4.5, **{step: 8 * cosine(step, 20, 60) for step in range(20, 61)}},
        ),
    ],
)
def test_schedules_have_the_shape_of_their_names(text, steps, factors):
    schedule = get_schedule(text)
    found = {step: schedule.factor(step, steps) for step in factors}
    assert found == pytest.approx(factors, abs=1e-12)


@pytest.mark.parametrize("times", [1.0, 8.0])
def test_linear_scaling_rises_in_equal_steps_and_arrives_exactly(times):
    factors = [get_schedule(f"linear-scaling({times}, 20)").factor(step, 60) for step in range(61)]
    assert factors[0] == 1
    assert factors[20:] == [times] * 41
    for before, after in pairwise(factors[:21]):
        assert after - before == pytest.approx((times - 1) / 20)


# The settings of a run.


SETTINGS = training_settings("digits", "local(8)", workers=4, steps=100, split="non-iid(0.1)")


def test_text_stands_for_choices_of_settings_that_travel_and_stand_in_curves():
    assert SETTINGS.task is LEARNING_TASKS["digits"]
    assert SETTINGS.method == training_method("local(8) on A2A")
    assert SETTINGS.local_batch == SETTINGS.task.local_batch
    assert SETTINGS.lr == SETTINGS.task.learning_rate
    assert SETTINGS.every == 5
    assert replace(SETTINGS, steps=10).every == 1
    assert replace(SETTINGS, schedule="warm-up(100)").steps == 100  # but no longer one
    assert replace(SETTINGS, method="ssp(3)").method == training_method("ssp(3)")
    again = training_settings(SETTINGS.task, SETTINGS.method, workers=4, steps=100,
                              split=SETTINGS.split)  # fmt: skip
    assert again == SETTINGS
    assert pickle.loads(pickle.dumps(SETTINGS)) == SETTINGS
    curve = ddlnb.train("quadratic", "bsp", workers=2, steps=2, seed=7)
    expected = training_settings("quadratic", "bsp", workers=2, steps=2, seed=7).columns()
    assert curve[list(expected)].iloc[0].to_dict() == expected


@pytest.mark.parametrize("task", LEARNING_TASKS.values(), ids=LEARNING_TASKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_rate_that_tuning_may_try_is_allowed(task, optimizer):
    assert max(SCANNED) * SPACING**EXTENSIONS * 2 < RATE_SPAN
    guess = get_optimizer(optimizer).first_rate(task)
    for factor in (SPACING ** -(EXTENSIONS + 1) / 2**5, SPACING ** (EXTENSIONS + 1) * 2):
        assert training_settings(task, "bsp", optimizer=optimizer, lr=factor * guess).lr > 0


# Tasks.


@pytest.mark.parametrize("split", ["iid", "non-iid(0.1)", "non-iid(10.0)"])
@pytest.mark.parametrize("workers", [1, 7, 32])
def test_every_sample_belongs_to_exactly_one_worker(split, workers):
    labels = LEARNING_TASKS["digits"].samples().labels
    shards = get_split(split).shards(labels, workers, seed=3)
    assert torch.equal(torch.cat(shards).sort().values, torch.arange(len(labels)))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    again = get_split(split).shards(labels, workers, seed=3)
    assert all(torch.equal(one, other) for one, other in zip(shards, again, strict=True))


def test_a_smaller_alpha_skews_labels_more_and_an_epoch_takes_every_sample_once():
    labels = LEARNING_TASKS["digits"].samples().labels

    def skew(split: str) -> float:
        """The mean total variation distance of a worker's labels from all labels."""
        every = labels.bincount(minlength=10) / len(labels)
        shards = get_split(split).shards(labels, 8, seed=0)
        shares = [labels[shard].bincount(minlength=10) / len(shard) for shard in shards]
        return sum((share - every).abs().sum().item() / 2 for share in shares) / len(shards)

    assert skew("iid") < skew("non-iid(10.0)") < skew("non-iid(1.0)") < skew("non-iid(0.1)")
    task = LEARNING_TASKS["digits"]
    draws = task.batches(get_split("iid"), 3, 10, seed=1)
    shard = 479  # a third of 1,437
    for draw in draws:
        seen = torch.cat([draw(step)[0].flatten(1) for step in range(48)])[:shard]
        assert len(torch.unique(seen, dim=0)) >= shard - 2  # few images are there twice
    later, earlier = draws[0](50)[0], draws[0](3)[0]
    assert torch.equal(task.batches(get_split("iid"), 3, 10, seed=1)[0](50)[0], later)
    assert torch.equal(draws[0](3)[0], earlier)


@pytest.mark.thorough(but=3)
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


def test_letters_are_as_many_of_every_class_and_none_is_there_twice():
    samples = LEARNING_TASKS["letters"].samples()
    assert samples.tensors[0].shape == (RENDERED - TESTED, 1, SIDE, SIDE)
    counts = samples.labels.bincount(minlength=len(LETTERS_OF))
    assert len(counts) == 62
    assert counts.min() > 0.9 * counts.max()
    some = samples.tensors[0][:5_000].flatten(1)
    assert len(some.unique(dim=0)) == len(some)
    parameters = LEARNING_TASKS["letters"].build(0).parameters()
    assert sum(one.numel() for one in parameters) == 272_814  # as its docstring says


def test_code_is_tested_on_files_that_are_not_trained_on(tmp_path, monkeypatch):
    trained, tested = made._sources()
    assert len(trained) > 4 * len(tested) > 0
    assert tested[:1_000] not in trained
    curve = train("code", "bsp", workers=2, steps=1)
    assert platform.python_version() in curve["made_by"].iloc[0]
    made._sources.cache_clear()
    monkeypatch.setattr(made.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(MissingPart, match="sources of Python's standard library"):
        made._sources()
    made._sources.cache_clear()


def test_digits_are_learnt_and_text_approaches_its_entropy():
    curve = train("digits", "bsp", workers=2, steps=400, local_batch=32, evaluate_every=100)
    assert curve["test_accuracy"].iloc[0] < 0.3
    assert curve["test_accuracy"].max() >= 0.97
    entropy = TEXT.constants().best_loss
    curve = train("text", "bsp", workers=2, steps=300, evaluate_every=100)
    excess = curve["test_loss"] - entropy
    assert (excess > 0).all()
    assert excess.is_monotonic_decreasing
    assert excess.iloc[-1] < 0.15 * excess.iloc[0]


def test_the_source_of_the_text_is_stationary_and_has_the_best_loss_and_accuracy():
    following, pairs = source()
    assert following.sum(2) == pytest.approx(np.ones((SYMBOLS, SYMBOLS)))
    assert np.einsum("ab,abc->bc", pairs, following) == pytest.approx(pairs, abs=1e-12)
    # Of the text itself, under the source: five standard errors, a chance below 1e-6 of failing.
    (passages,) = TEXT.samples().tensors
    a, b, c = (passages[:, place : place + 16].flatten().numpy() for place in (1, 2, 3))
    costs = -np.log(following[a, b, c])
    error = costs.std() / math.sqrt(len(costs))
    assert costs.mean() == pytest.approx(TEXT.constants().best_loss, abs=5 * error)
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
    """Of the mean loss of all samples, at zero."""
    module = task.build(0)
    (parameter,) = module.parameters()
    parameter.data.zero_()
    loss = task.loss(module, task.samples().tensors)
    (slope,) = torch.autograd.grad(loss, parameter, create_graph=True)
    rows = [torch.autograd.grad(one, parameter, retain_graph=True)[0] for one in slope]
    return torch.stack(rows).double().numpy()


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


METHODS_REFUSED = [
    ("local(4) on gossip", r"average over all workers; choose A2A or PS"),
    ("local(0)", r"period 0 must be a whole number"),
    ("post-local(4, -1)", r"after -1"),
    ("adaptive-local(8, 2)", r"low 8 must be at most high 2"),
    ("adaptive-local(1, 8, often)", r"'often' must be one of frequent, rare"),
    ("adaptive-local(1, 8, rare, 0)", r"power 0.0 must be above 0"),
    ("ssp(3) on A2A", r"takes a server that keeps what is common; choose PS"),
    ("asp on gossip", r"asp does not run on gossip.*choose PS"),
    ("ssp(-1)", r"bound -1 must be a whole number"),
    ("ssp(1.5)", r"bound 1.5 must be a whole number"),
    ("dssp(4, 1)", r"low 4 must be at most high 1"),
    ("asp(3)", r"takes none"),
    ("choco + top-k(0.1) + feedback", r"sends none; leave feedback out"),
    ("d-psgd + top-k(0.1)", r"sends its parameters.*use dcd-psgd, ecd-psgd or choco"),
    ("choco on A2A", r"choco.* does not run on A2A.*choose gossip"),
    ("bsp on gossip", r"bsp does not run on gossip"),
    ("choco(ring, gamma=0)", r"gamma 0.0 must be above 0 and at most 1"),
    ("choco(ring, scale=8)", r"scale 8.0 must be above 0 and at most 1"),
    ("dcd-psgd + gtop-k(0.1)", r"gtop-k\(0.1\).*no message that a server or a neighbour"),
    ("d-psgd(rings)", "unknown graph 'rings'"),
    ("d-psgd(ring, afterwards)", "unknown mixing 'afterwards'"),
    ("choco(line)", "unknown graph 'line'"),
    *(
        (f"{name} + signsgd on PS", "does not wait for all; use it on A2A, or with bsp")
        for name in ("asp", "ssp(2)", "r2sp", "dssp(1, 2)")
    ),
]
STRAGGLERS_REFUSED = [
    ("one-slow(0)", "factor 0.0 of a slow worker must be above 0"),
    ("constant(-1)", "seconds -1.0 of a gradient"),
    ("log-normal(-0.1)", "spread -0.1 must not be negative"),
    ("exponential(-1)", "delay -1.0 must not be negative"),
    ("slow", "unknown straggler 'slow'"),
]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: get_learning_task("digit"), "did you mean 'digits'"),
        (lambda: get_learning_task("cifar10"), "give their folder as data"),
        (lambda: get_learning_task("digits", "somewhere"), "leave out data"),
        (lambda: get_split("non-iid(0)"), "alpha 0.0 must be positive"),
        (lambda: get_split("nonid"), "did you mean 'non-iid'"),
        (lambda: get_schedule("warm-up(0)"), "over 0 must be a whole number"),
        (lambda: get_schedule("linear-scaling(0.5)"), "times 0.5 must be at least 1"),
        (lambda: get_schedule("linear-scaling(8, 20, cosin)"), "did you mean 'cosine'"),
        (lambda: get_optimizer("momentun(0.9)"), "did you mean 'momentum'"),
        (lambda: get_optimizer("momentum(1)"), "momentum 1.0 must be at least 0 and below 1"),
        (lambda: get_optimizer("momentum(0)"), "sgd has none"),
        (lambda: get_optimizer("sgd(-1)"), "weight_decay -1.0 must not be negative"),
        (lambda: get_optimizer("lars(0)"), "trust 0.0 must be above 0"),
        (lambda: get_optimizer("adam(0, (0.9, 1))"), "beta 1.0 must be"),
        (lambda: get_optimizer("adam(0, 0.9)"), "betas 0.9 must be a tuple"),
        (lambda: train("digits", "bsp", step=3), "training setting 'step'.*did you mean 'steps'"),
        (lambda: quadratic(()), "at least one"),
        (lambda: quadratic((1.0, -1.0)), "must be positive"),
        (lambda: logistic(penalty=0), "penalty 0"),
        (lambda: train("digits", "bsp", workers=2000, steps=1), "2000 workers cannot share"),
        (lambda: train("digits", "bsp", lr=-1.0), "learning rate -1.0"),
        (lambda: train("digits", "bsp", lr=math.nan), "learning rate nan"),
        (lambda: train("digits", "bsp", lr=True), "is no number; give one"),
        (lambda: train("digits", "bsp", lr="0.1"), "is no number; give one"),
        (lambda: train("digits", "bsp", optimizer="sdg"), "did you mean 'sgd'"),
        (lambda: train("digits", "bsp", executor="lokstep"), "did you mean 'lockstep'"),
        (lambda: train("digits", "bsp", steps=0), "steps 0"),
        (lambda: train("digits", "bsp", local_batch=0), "local_batch 0"),
        (lambda: train("digits", "bsp", evaluate_every=0), "evaluate_every 0"),
        *(
            (
                partial(training_settings, "quadratic", "bsp", steps=100, schedule=schedule),
                "rises over 101 steps, and the run has 100",
            )
            for schedule in ("warm-up(101)", "cosine(101)", "linear-scaling(2, 101)")
        ),
        *((partial(training_method, text), told) for text, told in METHODS_REFUSED),
        *((partial(get_straggler, text), told) for text, told in STRAGGLERS_REFUSED),
        *(
            (partial(replace, SETTINGS, lr=lr), "learning rate .* must be between .* first guess")
            for lr in (1e9, 1e-12, 0, -1.0, math.nan, math.inf)
        ),
    ],
)
def test_bad_options_say_the_way_out(call, told):
    with pytest.raises((InputError, UnknownName), match=told):
        call()


class InPlace(nn.Module):
    """A model whose first operation changes its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs):
        inputs -= 0.5
        return self.layer(inputs.flatten(1))


@pytest.mark.parametrize("tuning", [False, True])
def test_a_model_that_changes_its_input_changes_no_data(tuning):
    digits = get_learning_task("digits")
    task = replace(digits, name="in-place", build=InPlace)
    found = [
        (validation_task(one) if tuning else one).evaluate(seeded(InPlace, 0))
        for one in (task, task)
    ]
    assert found[0] == found[1]


def test_files_that_are_replaced_are_read_again_and_make_other_runs(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)

    def written(letter: bytes) -> tuple[object, str]:
        for name in ("train", "test"):
            (tmp_path / "data" / f"wiki.{name}.raw").write_bytes(letter * 5000)
        task = wikitext("data")
        assert key(training_settings(wikitext(tmp_path / "data"), "bsp")) == key(
            training_settings(task, "bsp")
        )
        return int(task.samples().tensors[0][0, 0]), key(training_settings(task, "bsp"))

    (first, one), (second, other) = written(b"a"), written(b"bb")
    assert (first, second) == (ord("a"), ord("b"))
    assert one != other


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
