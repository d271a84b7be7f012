"""DDP's buckets against those of torch's own reducer."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddlnb.errors import InputError, UnknownName
from ddlnb.plans.methods import METHODS, Method, ddp_of, get_method, register_method
from ddlnb.workloads.task import task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import read_profile


class Backwards(nn.Module):
    """Uses its layers in another order than it registers them."""

    def __init__(self):
        super().__init__()
        widths = (700, 1500, 60, 1900, 1200, 80, 10)
        self.layers = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in pairwise(widths))
        self.early = nn.Linear(64, 700)  # is registered last and used first

    def forward(self, inputs):
        stream = self.early(inputs)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def draw(local_batch, seed):
    return (torch.randn(local_batch, 64, generator=torch.Generator().manual_seed(seed)),)


def mean(module, batch):
    return module(batch[0]).mean()


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [None, 2, 5])
def test_the_buckets_are_those_that_torch_rebuilds_after_the_first_iteration(alone, size):
    own = task(Backwards(), batch=draw, loss=mean)
    planned = (ddp_of(size) if size else get_method("DDP")).plan(trace(own))
    trained = DistributedDataParallel(own.build(), bucket_cap_mb=size)
    for _ in range(3):  # it notes them with the third
        own.loss(trained, own.batch(1, 0)).backward()
    told = trained._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert list(planned.message_bytes) == [int(size) for size in told.split(",")]
    assert len(planned.messages) > 1


@pytest.mark.parametrize("name", ["resnet50_b4_cpu-2threads", "bert-large_b4_cpu-2threads"])
def test_the_buckets_of_large_models_are_those_of_the_rule_in_torch(name):
    """Torch's own function, on gradients in the order in which they arrive."""
    workload = read_profile(name)
    tensors = [torch.empty(one.elements, device="meta") for one in workload.gradients]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, [1 << 20, 25 << 20])
    expected = [[workload.gradients[index].name for index in bucket] for bucket in buckets]
    plan = get_method("DDP").plan(workload)
    assert [[piece.gradient for piece in one.pieces] for one in plan.messages] == expected


def test_ddp_is_found_by_name_and_is_none_of_our_methods():
    assert "DDP" not in METHODS
    assert get_method("DDP").architecture == "A2A"
    with pytest.raises(UnknownName, match="did you mean 'DDP'"):
        get_method("ddp")
    row = get_method("MG-WFBP")
    with pytest.raises(InputError, match="another name"):
        register_method(Method(**{**vars(row), "name": "DDP"}))


@pytest.mark.parametrize("name", ["searched", "all", "single", "", " "])
def test_a_name_that_means_something_else_is_not_given(name):
    with pytest.raises(InputError, match=f"method '{name}' has a name that is taken, or no word"):
        register_method(replace(get_method("MG-WFBP"), name=name))


@pytest.mark.parametrize("word", [{"launch": "after backward"}, {"gate": "own layer"}])
def test_a_word_is_no_launch_and_no_gate(word):
    """They were played as the other of both."""
    [(what, value)] = word.items()
    with pytest.raises(
        InputError, match=f"{what} '{value}' of method 'MG-WFBP' is no {what.title()};"
    ):
        replace(get_method("MG-WFBP"), **word)


def test_an_exchange_that_there_is_none_of_is_no_method():
    with pytest.raises(InputError, match="did you mean 'all_reduce'"):
        replace(METHODS["BSP-A2A"], exchange="allreduce")
