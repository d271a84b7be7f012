"""Optimizers by name and parameters, and the methods that cannot use them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddlnb.errors import InputError, UnknownName
from ddlnb.training import lars_lamb
from ddlnb.training.optimizers import OPTIMIZERS, get_optimizer
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
            lambda given: lars_lamb.LARS(given, 0.1, 0.8, 0.02, 0.01, True),
        ),
        (
            "lamb(0.02, (0.5, 0.6), true)",
            lambda given: lars_lamb.LAMB(given, 0.1, (0.5, 0.6), 1e-6, 0.02, True),
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
