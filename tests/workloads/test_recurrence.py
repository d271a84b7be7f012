"""Recurrent layers as one call of a library: the FLOPs of torch's own steps, other bytes."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddlnb.hardware.catalogue import get_gpu
from ddlnb.workloads.counters import RecurrentCalls
from ddlnb.workloads.roofline import efficiency_of, estimate
from ddlnb.workloads.task import task
from ddlnb.workloads.tracing import trace

STEPS, WIDTH, HIDDEN = 7, 6, 5
KINDS = {
    "LSTM": lambda: nn.LSTM(WIDTH, HIDDEN, 2, batch_first=True),
    "both ways": lambda: nn.LSTM(WIDTH, HIDDEN, 2, bidirectional=True, bias=False),
    "projected": lambda: nn.LSTM(WIDTH, HIDDEN, proj_size=3, batch_first=True),
    "GRU": lambda: nn.GRU(WIDTH, HIDDEN, 2, bidirectional=True, batch_first=True),
    "tanh": lambda: nn.RNN(WIDTH, HIDDEN),
    "relu": lambda: nn.RNN(WIDTH, HIDDEN, nonlinearity="relu"),
}


def draw(local_batch, seed):
    return (torch.randn(local_batch, STEPS, WIDTH),)


def mean_square(module, batch):
    return module(batch[0])[0].pow(2).mean()


def lstm(hidden, steps, layers=1):
    """A task on sequences of two samples, of which the states are what is wide."""
    module = nn.LSTM(hidden, hidden, layers, batch_first=True)
    return task(module, batch=lambda n, _: (torch.randn(n, steps, hidden),), loss=mean_square)


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_that_torch_counts_step_by_step(kind):
    """Torch leaves out what the states before the first step take backward, and the inputs."""
    workload = trace(task(KINDS[kind](), batch=draw, loss=mean_square), 2)
    with torch.device("meta"):
        module, stream = KINDS[kind](), torch.empty(2, STEPS, WIDTH, requires_grad=True)
    with FlopCounterMode(display=False) as steps:
        module(stream)
    forward = sum(layer.forward_flops for layer in workload.layers)
    assert forward == steps.get_total_flops()
    assert workload.flops == 3 * forward


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_have_the_shapes_of_real_ones(kind):
    module, stream = KINDS[kind](), draw(2, 0)[0]
    real, real_states = module(stream)
    with torch.device("meta"), RecurrentCalls():
        shadow, shadow_states = module.to("meta")(stream.to("meta"))
        shadow.sum().backward()
    for one, other in (
        (shadow, real), *zip(tuple(shadow_states), tuple(real_states), strict=True)
    ):  # fmt: skip
        assert one.shape == other.shape
    assert all(one.grad.shape == one.shape for one in module.parameters())


def test_values_are_left_to_torch():
    module, stream = KINDS["LSTM"](), draw(2, 0)[0]
    expected, _ = module(stream)
    with RecurrentCalls():
        found, _ = module(stream)
        packed = nn.utils.rnn.pack_padded_sequence(stream, torch.tensor([7, 4]), batch_first=True)
        assert module(packed)[0].data.shape == (11, HIDDEN)
    assert torch.equal(found, expected)


class NeedsADevice(nn.LSTM):
    """Refuses tensors without one, so that it is traced on fake tensors."""

    def forward(self, stream):
        if stream.is_meta:
            raise NotImplementedError("no kernel for meta tensors")
        return super().forward(stream)


def test_fake_tensors_are_counted_as_those_of_the_meta_device():
    fake, meta = (
        trace(task(kind(WIDTH, HIDDEN, batch_first=True), batch=draw, loss=mean_square), 2)
        for kind in (NeedsADevice, nn.LSTM)
    )
    assert fake.source.startswith("traced on fake tensors")
    for what in ("flops", "matrix_bytes", "kernels"):
        for way in ("forward", "backward"):
            one, other = (getattr(found.layers[0], f"{way}_{what}") for found in (fake, meta))
            assert one == other > 0


def test_bytes_and_kernels_are_those_of_one_call():
    """By hand, an LSTM of one layer without biases: 2 samples, 3 steps, 4 values wide."""
    module = nn.LSTM(4, 4, bias=False, batch_first=True)
    own = task(module, batch=lambda n, _: (torch.randn(n, 3, 4),), loss=mean_square)
    (layer,) = trace(own, 2).layers
    weights, positions, gates = 16 * 4, 2 * 3, 16
    once = weights + positions * (4 + gates)  # of the inputs of all steps; of any gradient
    again = 3 * weights + positions * (4 + gates)  # of the states, step by step
    assert layer.forward_matrix_bytes == 4 * (once + again)
    assert layer.backward_matrix_bytes == 4 * (once + again + 2 * once)
    assert layer.forward_kernels == 1 + 2 * 3
    assert layer.backward_kernels == layer.forward_kernels + 2
    values = positions * (3 * gates + 3 * 4)
    assert layer.forward_bytes >= 4 * values  # and the loss, and states of zeros
    assert layer.forward_operations < 10


def test_more_steps_are_more_kernels_and_no_more_operations():
    short, long = (trace(lstm(8, steps), 2).layers[0] for steps in (10, 1000))
    assert long.forward_operations == short.forward_operations
    assert long.backward_operations == short.backward_operations
    assert long.forward_kernels == 1 + 2 * 1000


def test_launches_decide_where_a_step_computes_next_to_nothing():
    workload = trace(lstm(8, 1000), 2)
    found = estimate(workload, "V100", "fp32")
    launch = efficiency_of(get_gpu("V100"), "fp32").launch.value
    kernels = sum(one.forward_kernels + one.backward_kernels for one in workload.layers)
    assert kernels * launch < found.compute_seconds < 1.2 * kernels * launch
    by_steps = [
        replace(one, forward_operations=one.forward_kernels, forward_kernels=0.0)
        for one in workload.layers
    ]
    slow = estimate(replace(workload, layers=tuple(by_steps)), "V100", "fp32")
    assert slow.compute_seconds > 3 * found.compute_seconds


def test_what_nobody_measured_is_less_certain_and_says_so():
    small, large = (estimate(trace(lstm(*size), 2), "V100") for size in ((8, 500), (2048, 10)))
    usual = efficiency_of(get_gpu("V100"), "fp32", recurs=True).spread
    assert efficiency_of(get_gpu("H100"), "fp32", recurs=True).spread == usual
    assert usual <= large.spread < small.spread
    assert "recurrent layers as calls of cuDNN, which no fit has seen" in small.source
    told = estimate(trace(lstm(8, 500), 2), "V100", samples_per_second=100.0)
    assert told.spread == 0
