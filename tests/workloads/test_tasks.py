"""Tasks: what they promise to the engines, and what they refuse."""

import copy
import hashlib
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ddlnb.errors import InputError
from ddlnb.files import DIGITS, SURVEY_NOTES
from ddlnb.workloads.models import BYTE_VALUES, TASKS, read_digits
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import task

SMALL = ("small-conv", "small-transformer")


def draw(local_batch, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(local_batch, 4, generator=generator),)


def mean_square(module, batch):
    return module(batch[0]).pow(2).mean()


@pytest.mark.parametrize("name", TASKS)
def test_every_task_travels_by_pickle(name):
    chosen = get_task(name)
    travelled = pickle.loads(pickle.dumps(chosen))
    assert replace(travelled, build=chosen.build) == chosen  # partials never compare equal
    with torch.device("meta"):
        assert type(travelled.build()) is type(chosen.build())


@pytest.mark.parametrize("name", TASKS)
def test_batches_depend_on_the_seed_and_nothing_else(name):
    first, other = get_task(name).batch(2, 3), get_task(name).batch(2, 4)
    torch.manual_seed(99)
    again = get_task(name).batch(2, 3)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    assert all(len(tensor) == 2 for tensor in first)


@pytest.mark.parametrize("name", SMALL)
def test_small_models_learn_in_thirty_steps(name):
    chosen = get_task(name)
    torch.manual_seed(0)
    module = chosen.build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        loss = chosen.loss(module, chosen.batch(chosen.local_batch, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]


def test_an_untrained_transformer_guesses_every_byte_alike():
    chosen = get_task("small-transformer")
    torch.manual_seed(0)
    loss = chosen.loss(chosen.build(), chosen.batch(8, 0)).item()
    assert loss == pytest.approx(math.log(BYTE_VALUES), rel=0.1)


def test_what_small_models_learn_is_frozen_and_the_digits_are_the_published_ones():
    begins = {SURVEY_NOTES: "f7e4d161a50823b0", DIGITS: "09f66e6debdee2cd"}
    for path, digest in begins.items():  # or losses of the small models would change
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(digest)
    images, labels = read_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert (images.min(), images.max()) == (0, 16)
    # Classes 0 to 9, as the repository's own description counts them.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_that_cannot_be_read_are_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr("ddlnb.workloads.models.DIGITS", tmp_path / "digits.csv.gz")
    with pytest.raises(InputError, match=r"digits\.csv\.gz, which cannot be read .*checkout"):
        read_digits()


@pytest.mark.parametrize("name", SMALL)
def test_the_mean_of_two_ranks_is_the_gradient_of_the_joined_batch(name):
    chosen = get_task(name)
    torch.manual_seed(0)
    module = chosen.build().double()  # so that rounding cannot hide a wrong mean
    halves = [chosen.batch(4, seed) for seed in (1, 2)]
    joined = tuple(torch.cat(pair) for pair in zip(*halves, strict=True))
    parts = [gradients(chosen, module, half) for half in halves]
    for first, second, whole in zip(*parts, gradients(chosen, module, joined), strict=True):
        torch.testing.assert_close((first + second) / 2, whole)


def gradients(chosen, module, batch):
    loss = chosen.loss(module, batch)
    assert loss.dtype == torch.float64
    return torch.autograd.grad(loss, list(module.parameters()))


@pytest.mark.parametrize("name", SMALL)
def test_builds_are_equal_under_one_seed_and_hold_about_a_million_parameters(name):
    built = []
    for _ in range(2):
        torch.manual_seed(5)
        built.append(get_task(name).build())
    ours, theirs = (dict(module.named_parameters()) for module in built)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert 500_000 < sum(parameter.numel() for parameter in ours.values()) < 2_000_000


def test_your_own_module_becomes_a_task_that_leaves_it_alone():
    module = nn.Linear(4, 2)
    before = copy.deepcopy(module.state_dict())
    own = pickle.loads(pickle.dumps(task(module, batch=draw, loss=mean_square, name="mine")))
    built = own.build()
    with torch.no_grad():
        built.weight.zero_()
    assert own.name == "mine"
    assert torch.equal(module.weight, before["weight"])
    assert torch.equal(own.build().weight, before["weight"])
    assert get_task(own) is own
    made = task(build, batch=draw, loss=mean_square)
    assert made.build() is not made.build()


def build():
    return nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("module", "options", "told"),
    [
        (nn.Linear, {}, r"is a type, not a torch\.nn\.Module; pass a module inst"),
        (
            lambda: "a net",
            {},
            r"model 'a net' is a str, not a torch\.nn\.Module; pass a module inst",
        ),
        (build().requires_grad_(False), {}, "no trainable parameter.*requires_grad=True"),
        (nn.ReLU(), {}, "no trainable parameter.*requires_grad=True"),
        (nn.LazyLinear(2), {}, "call the module once"),
        (build(), {"batch": 3}, r"batch of model 'Linear'.*not a function"),
        (build(), {"loss": "cross_entropy"}, r"loss of model 'Linear'.*not a function"),
        (build(), {"local_batch": 0}, "local_batch 0"),
    ],
)
def test_what_is_no_task_is_refused_with_the_way_out(module, options, told):
    with pytest.raises(InputError, match=told):
        task(module, **{"batch": draw, "loss": mean_square, **options})
