"""A DDP job that is watched while it trains, and a notebook's cell that is traced."""

import threading

import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import ddlnb
from ddlnb.errors import InputError
from ddlnb.launch.rank import RankContext, process_group
from ddlnb.launch.ranks import Ranks

LATE = 0.08  # seconds after which a bucket comes back


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_that_waits(seconds):
    """Return a model in DDP whose buckets come back so late."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))

    def send(_, bucket) -> torch.futures.Future[torch.Tensor]:
        done = torch.futures.Future()
        threading.Timer(seconds, done.set_result, (bucket.buffer(),)).start()
        return done

    model.register_comm_hook(None, send)
    return model


def train(model, passes=4):
    for _ in range(passes):
        model(torch.ones(8, 64)).sum().backward()


def test_what_is_exposed_is_as_long_as_buckets_are_late_and_no_gradient_changes():
    model = model_that_waits(LATE)
    plain = DistributedDataParallel(torch.nn.Linear(64, 64))
    plain.load_state_dict(model.state_dict())
    with ddlnb.watch(model) as seen:
        train(model)
        with model.no_sync():
            train(model, passes=1)
        train(model, passes=1)
    train(model, passes=1)
    train(plain, passes=7)
    assert len(seen.rows) == 4
    assert (seen.rows["exposed_seconds"] >= 0.95 * LATE).all()
    assert (seen.rows["seconds"] >= seen.rows["exposed_seconds"]).all()
    assert "One rank sends nothing" in str(seen)
    seen.ranks = 2  # what stands for them here is the bucket that comes late
    assert "communication is exposed for" in str(seen)
    of_both = (parameters_to_vector(p.grad for p in one.parameters()) for one in (model, plain))
    assert torch.equal(*of_both)


def test_what_is_hidden_is_not_counted():
    """The same late buckets, behind a layer whose backward pass is later still."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            threading.Event().wait(3 * LATE)
            return gradient

    layers = [torch.nn.Linear(64, 64) for _ in range(2)]
    model = torch.nn.Sequential(layers[0], torch.nn.Identity(), layers[1])
    model[1].forward = Slow.apply
    model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    with ddlnb.watch(model) as seen:
        train(model)
    assert (seen.rows["seconds"] >= 3 * LATE).all()
    assert (seen.rows["exposed_seconds"] < 2 * LATE).all()


def test_a_pass_that_fails_leaves_nothing_and_other_models_are_refused():
    model = model_that_waits(0.0)
    with ddlnb.watch(model) as seen:
        with pytest.raises(InputError, match="0 backward passes of the watched model"):
            str(seen)
        train(model)
    assert len(seen.rows) == 3
    assert not any(one._post_accumulate_grad_hooks for one in model.parameters())
    with pytest.raises(InputError, match="a Linear cannot be watched"), ddlnb.watch(model.module):
        pass


class Computing(torch.nn.Module):
    """Takes so long in each forward pass, and changes nothing."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        threading.Event().wait(self.seconds)
        return x


def sharded(context: RankContext, late: float) -> dict[str, list[float]]:
    """Return what is seen of shards that train, of which the first rank computes for longer.

    The second of six passes keeps its gradients for the third. What comes out is as if unwatched.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    computing = Computing(late if context.rank == 0 else 0.0)
    model = torch.nn.Sequential(layers[0], computing, *layers[1:])

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        for number in range(6):
            model.set_requires_gradient_sync(number != 1)
            train(model, passes=1)
        return [one.grad.full_tensor() for one in model.parameters()]

    with process_group(context, context.store(), context.count):
        for one in (*layers, model):
            fully_shard(one)
        before = gradients()
        with ddlnb.watch(model) as seen:
            during = gradients()
        assert all(map(torch.equal, before, during))
        [group] = layers[0]._get_fsdp_state()._fsdp_param_groups
        assert "unshard" not in vars(group)
    return seen.rows.to_dict("list")


@pytest.mark.ranks
def test_shards_wait_for_the_rank_that_computes_and_it_for_nobody():
    with Ranks(2, imports=(__name__,)) as ranks:
        busy, idle = ranks.run(sharded, LATE)
    assert len(busy["seconds"]) == len(idle["seconds"]) == 4
    for seconds, exposed in zip(busy["seconds"], busy["exposed_seconds"], strict=True):
        assert seconds - exposed >= 0.99 * LATE
    assert busy["seconds"][0] - busy["exposed_seconds"][0] >= 1.99 * LATE
    assert min(idle["exposed_seconds"]) >= 0.5 * LATE


def test_a_cell_is_traced_and_its_page_shown():
    shell = InteractiveShell.instance()
    shown = []
    shell.display_pub.publish = lambda data, **_: shown.append(data["text/html"])
    shell.run_line_magic("load_ext", "ddlnb")
    shell.user_ns |= {"train": train, "model": model_that_waits(0.0)}
    assert shell.run_cell("%%ddlnb_trace job\ntrain(model)").success
    assert "&lt;canvas" in shown[0]
    assert shell.user_ns["job"].by_rank["computation"].iloc[0] > 0
    shell.run_cell("%%ddlnb_trace\nraise ValueError")
    refused = shell.run_cell("%%ddlnb_trace two words\n1")
    assert "not 'two words'" in str(refused.error_in_exec)
    assert len(shown) == 1
