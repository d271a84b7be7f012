"""A DDP job that is watched while it trains, and a notebook's cell that is traced."""

import threading

import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import ddlnb
from ddlnb.errors import InputError

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
