"""Optimizers and schedules by name and parameters, and the methods that cannot use them.

The size of a step of LARS and LAMB is that of the weights, not of the gradient.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from ddlnb.errors import InputError, UnknownName
from ddlnb.training.optimizers import (
    LAMB,
    LARS,
    OPTIMIZERS,
    LambSteps,
    LarsSteps,
    get_optimizer,
    get_schedule,
)
from ddlnb.training.runs.train import train
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.catalogue import get_learning_task

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
    kind = OPTIMIZERS[name](weight_decay=0.25)
    assert get_optimizer(str(kind)) == kind
    assert "0.25" in str(kind)


def test_first_rates_know_the_parameters():
    task = get_learning_task("digits")
    assert get_optimizer("momentum(0.5)").first_rate(task) == task.learning_rate / 2
    assert get_optimizer("lars(0.01)").first_rate(task) == pytest.approx(
        get_optimizer("lars").first_rate(task) / 10
    )


def test_rows_name_the_optimizer_with_its_parameters():
    curve = train("quadratic", "bsp", steps=1, workers=2, optimizer="momentum(momentum=0.5)")
    assert set(curve["optimizer"]) == {"momentum(0.5)"}
    assert set(curve["learning_rate"]) == {get_learning_task("quadratic").learning_rate / 2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("momentum(1)", "momentum 1.0 must be at least 0 and below 1"),
        ("momentum(0)", "sgd has none"),
        ("sgd(-1)", "weight_decay -1.0 must not be negative"),
        ("lars(0)", "trust 0.0 must be above 0"),
        ("adam(0, (0.9, 1))", "beta 1.0 must be"),
        ("adam(0, 0.9)", "betas 0.9 must be a tuple"),
    ],
)
def test_wrong_parameters_are_refused(text, told):
    with pytest.raises(InputError, match=told):
        get_optimizer(text)


def test_the_nearest_name_is_told():
    with pytest.raises(UnknownName, match="did you mean 'momentum'"):
        get_optimizer("momentun(0.9)")


@pytest.mark.parametrize("optimizer", LARGE_RATES)
@pytest.mark.parametrize("method", ["local(8)", "post-local(4, 10)", "adaptive-local(1, 8)"])
def test_local_steps_refuse_rates_that_are_none_for_plain_sgd(method, optimizer):
    with pytest.raises(InputError, match=r"by plain SGD steps.*take sgd or momentum"):
        training_settings("digits", method, optimizer=optimizer).job()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["local(1)", "post-local(1, 10)", "adaptive-local(1, 1)", "asp"])
def test_rounds_of_one_step_take_any_optimizer(method, optimizer):
    training_settings("digits", method, optimizer=optimizer).job()


@pytest.mark.parametrize("optimizer", ["momentum", *LARGE_RATES])
def test_momentum_is_not_applied_twice(optimizer):
    with pytest.raises(InputError, match=r"applies momentum before it compresses.*take sgd"):
        training_settings("digits", "bsp + dgc(0.01)", optimizer=optimizer).job()
    training_settings("digits", "bsp + dgc(0.01, 0)", optimizer=optimizer).job()


def test_dgc_takes_what_has_no_momentum():
    for optimizer in ("sgd", "lars(0.001, 0)"):
        training_settings("digits", "bsp + dgc(0.01)", optimizer=optimizer).job()


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


def test_lars_goes_against_the_gradient():
    made = make(LARS, 1.0, momentum=0.0)
    for change, gradient in zip(moved(stepped(made, 1)), gradients(0), strict=True):
        cosine = torch.cosine_similarity(change.flatten(), gradient.flatten(), 0)
        assert cosine.item() == pytest.approx(-1, abs=1e-5)


@pytest.mark.parametrize("made", [make(LARS, 10.0), make(LAMB, 0.1)])
def test_scaling_all_gradients_changes_nothing(made):
    for one, other in zip(stepped(made), stepped(made, scale=1e3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("made", [make(LARS, 10.0), make(LAMB, 0.1)])
def test_scaling_all_weights_scales_the_steps(made):
    small, large = moved(stepped(made)), moved(stepped(made, start=64.0), 64.0)
    for one, other in zip(small, large, strict=True):
        torch.testing.assert_close(64 * one, other, rtol=1e-3, atol=1e-3)


def test_lars_with_decay_and_momentum_is_the_formula():
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


def test_lamb_goes_in_the_direction_of_adam():
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


def test_schedules_have_the_shape_of_their_names():
    assert [get_schedule("constant").factor(step, 9) for step in (1, 9)] == [1, 1]
    assert [get_schedule("warm-up(4)").factor(step, 9) for step in (1, 4, 9)] == [0.25, 1, 1]
    cosine = [get_schedule("cosine(2)").factor(step, 11) for step in (1, 2, 7, 12)]
    assert cosine == pytest.approx([0.5, 1, 0.5, 0])
    assert get_schedule("cosine").factor(0, 9) <= get_schedule("cosine").factor(1, 9) == 1


@pytest.mark.parametrize("warm_up", [0, 1, 5, 9])
def test_a_cosine_ends_one_step_before_zero(warm_up):
    schedule = get_schedule(f"cosine({warm_up})")
    factors = [schedule.factor(step, 10) for step in range(1, 12)]
    assert factors[max(1, warm_up) - 1] == 1
    assert factors[9] > 0
    assert factors[10] == pytest.approx(0)
    assert factors[:10] == [schedule.factor(step, 10) for step in range(1, 11)]


@pytest.mark.parametrize("times", [1.0, 8.0])
def test_linear_scaling_rises_in_equal_steps_and_arrives_exactly(times):
    factors = [get_schedule(f"linear-scaling({times}, 20)").factor(step, 60) for step in range(61)]
    assert factors[0] == 1
    assert factors[20:] == [times] * 41
    for before, after in pairwise(factors[:21]):
        assert after - before == pytest.approx((times - 1) / 20)


def test_linear_scaling_then_falls_as_half_a_cosine():
    schedule = get_schedule("linear-scaling(8, 20, cosine)")
    factors = [schedule.factor(step, 59) for step in range(61)]
    assert factors[20] == 8
    assert factors[40] == pytest.approx(4)
    assert factors[60] == pytest.approx(0)
    assert all(after < before for before, after in pairwise(factors[20:]))


def test_bad_schedules_are_named():
    with pytest.raises(InputError, match=r"times 0.5 must be at least 1"):
        get_schedule("linear-scaling(0.5)")
    with pytest.raises(UnknownName, match=r"unknown decay 'cosin'.*did you mean 'cosine'"):
        get_schedule("linear-scaling(8, 20, cosin)")
