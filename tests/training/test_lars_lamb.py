"""LARS and LAMB: the size of a step is that of the weights, not of the gradient."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from ddlnb.errors import InputError, UnknownName
from ddlnb.training.lars_lamb import LAMB, LARS
from ddlnb.training.optimizers import get_schedule

SHAPES = ((7, 5), (5,), (3, 2, 2))


def layers(scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    return [nn.Parameter(scale * torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients(step: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


def train(make, steps: int = 5, *, start: float = 1.0, scale: float = 1.0) -> list[nn.Parameter]:
    owned = layers(start)
    optimizer = make(owned)
    for step in range(steps):
        for parameter, gradient in zip(owned, gradients(step, scale), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return owned


def moved(owned: list[nn.Parameter], start: float = 1.0) -> list[torch.Tensor]:
    return [now.detach() - then.detach() for now, then in zip(owned, layers(start), strict=True)]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("make", "share"),
    [(partial(LARS, lr=3.0, trust=0.01, momentum=0.0), 0.03), (partial(LAMB, lr=0.03), 0.03)],
)
def test_a_step_is_a_share_of_the_weights_whatever_the_gradient(make, share, scale):
    for change, weights in zip(moved(train(make, 1, scale=scale)), layers(), strict=True):
        assert change.norm() == pytest.approx(share * weights.norm().item(), rel=1e-4)


def test_lars_goes_against_the_gradient():
    make = partial(LARS, momentum=0.0)
    for change, gradient in zip(moved(train(make, 1)), gradients(0), strict=True):
        cosine = torch.cosine_similarity(change.flatten(), gradient.flatten(), 0)
        assert cosine.item() == pytest.approx(-1, abs=1e-5)


@pytest.mark.parametrize("make", [partial(LARS, lr=10.0), partial(LAMB, lr=0.1, eps=1e-12)])
def test_scaling_all_gradients_changes_nothing(make):
    for one, other in zip(train(make), train(make, scale=1e3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [partial(LARS, lr=10.0), partial(LAMB, lr=0.1)])
def test_scaling_all_weights_scales_the_steps(make):
    small, large = moved(train(make)), moved(train(make, start=64.0), 64.0)
    for one, other in zip(small, large, strict=True):
        torch.testing.assert_close(64 * one, other, rtol=1e-3, atol=1e-3)


def test_lars_with_decay_and_momentum_is_the_formula():
    lr, trust, decay, momentum = 2.0, 0.02, 0.1, 0.8
    expected = [weights.detach().double() for weights in layers()]
    velocities = [torch.zeros_like(weights) for weights in expected]
    for step in range(4):
        for weights, velocity, gradient in zip(expected, velocities, gradients(step), strict=True):
            rate = lr * trust * weights.norm() / (gradient.double().norm() + decay * weights.norm())
            velocity.mul_(momentum).add_(rate * (gradient.double() + decay * weights))
            weights.sub_(velocity)
    make = partial(LARS, lr=lr, trust=trust, weight_decay=decay, momentum=momentum)
    for weights, right in zip(train(make, 4), expected, strict=True):
        torch.testing.assert_close(weights.detach().double(), right, rtol=1e-5, atol=1e-6)


def test_lamb_goes_in_the_direction_of_adam():
    adam = moved(train(partial(torch.optim.Adam, lr=1e-3, eps=1e-6), 1))
    for one, other in zip(moved(train(LAMB, 1)), adam, strict=True):
        cosine = torch.cosine_similarity(one.flatten(), other.flatten(), 0)
        assert cosine.item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (partial(LARS, lr=0.1, momentum=0.9), partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
        (partial(LAMB, lr=0.1), partial(torch.optim.Adam, lr=0.1, eps=1e-6)),
    ],
)
def test_excluded_vectors_take_the_plain_steps(ours, theirs):
    changed = moved(train(partial(ours, exclude_vectors=True, weight_decay=0.3)))
    plain = moved(train(theirs))
    torch.testing.assert_close(changed[1], plain[1], rtol=1e-5, atol=1e-6)
    for layer in (0, 2):
        assert (changed[layer] - plain[layer]).norm() > 0.1 * plain[layer].norm()


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("make", [LARS, LAMB])
def test_zero_weights_and_zero_gradients_are_safe(make, decay):
    still = train(partial(make, weight_decay=decay), scale=0.0)
    for change, weights in zip(moved(still), layers(), strict=True):
        assert change.isfinite().all()
        if decay:
            assert (change * weights).sum() < 0
        else:
            assert not change.any()
    for weights in train(partial(make, weight_decay=decay), start=0.0):
        assert weights.isfinite().all()
        assert weights.norm() > 0
    for weights in train(partial(make, weight_decay=decay), start=0.0, scale=0.0):
        assert not weights.any()


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_tensors_without_gradient_stay(make):
    owned = layers()
    optimizer = make(owned)
    owned[0].grad = torch.ones(SHAPES[0])
    assert optimizer.step(lambda: 7.0) == 7.0
    first, *rest = moved(owned)
    assert first.any()
    assert not any(change.any() for change in rest)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(LARS, lr=-1.0), "lr -1.0 must not be negative"),
        (partial(LARS, momentum=1.0), "momentum 1.0 must be at least 0 and below 1"),
        (partial(LARS, trust=0.0), "trust 0.0 must be above 0"),
        (partial(LAMB, weight_decay=-0.1), "weight_decay -0.1 must not be negative"),
        (partial(LAMB, betas=(0.9, 1.0)), r"betas \(0.9, 1.0\) must be at least 0 and below 1"),
        (partial(LAMB, eps=0.0), "eps 0.0 must be above 0"),
    ],
)
def test_bad_options_are_named(make, reason):
    with pytest.raises(InputError, match=reason):
        make(layers())


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
