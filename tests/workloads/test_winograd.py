"""Convolutions that take fewer multiplications: which ones, and that only seconds change."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.workloads.roofline import efficiency_of, estimate, gpu_seconds
from ddlnb.workloads.task import task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Work

MANY = 32
CONVOLUTIONS = {
    "3 x 3": (nn.Conv2d(MANY, MANY, 3, padding=1), True),
    "without a margin": (nn.Conv2d(MANY, 2 * MANY, 3, bias=False), True),
    "stride 2": (nn.Conv2d(MANY, MANY, 3, stride=2), False),
    "dilated": (nn.Conv2d(MANY, MANY, 3, dilation=2), False),
    "in groups": (nn.Conv2d(MANY, MANY, 3, groups=MANY), False),
    "1 x 1": (nn.Conv2d(MANY, MANY, 1), False),
    "5 x 5": (nn.Conv2d(MANY, MANY, 5), False),
    "to few channels": (nn.Conv2d(MANY, 3, 3), False),
    "transposed": (nn.ConvTranspose2d(MANY, MANY, 3), False),
    "of a line": (nn.Conv1d(8 * MANY, MANY, 3), False),
}


def traced(module):
    line = isinstance(module, nn.Conv1d)
    shape = (8 * MANY, 64) if line else (MANY, 8, 8)
    first = nn.Identity() if line else nn.Conv2d(MANY, MANY, 1)  # whose output needs a gradient
    return trace(
        task(
            nn.Sequential(first, module),
            batch=lambda n, _: (torch.randn(n, *shape),),
            loss=lambda model, batch: model(batch[0]).pow(2).mean(),
        ),
        2,
    )


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_only_plain_convolutions_of_3_x_3_take_fewer_multiplications(name):
    module, takes = CONVOLUTIONS[name]
    layer = traced(module).layers[-1]
    share = 1.0 if takes else 0.0
    assert layer.forward_flops > 0
    assert layer.forward_winograd_flops == share * layer.forward_flops
    assert layer.backward_winograd_flops == share * layer.backward_flops


def test_of_vgg_all_but_the_first_convolution_and_the_classifier_do():
    layers = {one.name: one for one in trace("vgg16").layers}
    assert layers["0"].forward_winograd_flops == 0  # three channels
    assert layers["2"].forward_winograd_flops == layers["2"].forward_flops > 0
    of_all = [one.forward_winograd_flops for one in layers.values()]
    of_flops = sum(one.forward_flops for one in layers.values())
    assert sum(of_all) == pytest.approx(0.9864 * of_flops, rel=1e-4)


def test_fewer_multiplications_are_done_in_single_precision_only():
    """By hand: a convolution whose bytes take no time."""
    workload = traced(CONVOLUTIONS["3 x 3"][0])
    gpu = replace(get_gpu("A100"), memory_bandwidth=1e30)
    fp32, fp16 = (efficiency_of(gpu, name, convolves=True) for name in ("fp32", "fp16"))
    assert fp32.winograd.value > 1
    assert fp16.winograd.value == 1
    flops = 1e15
    work = Work(flops, 0.0, 0.0, 1.0, winograd_flops=0.5 * flops)
    fewer = 0.5 * flops + 0.5 * flops / fp32.winograd.value
    assert gpu_seconds(work, gpu, "fp32", fp32) == pytest.approx(
        fewer / gpu.peak("fp32") / fp32.matrix.value
    )
    assert gpu_seconds(work, gpu, "fp16", fp16) == pytest.approx(
        flops / gpu.peak("fp16") / fp16.matrix.value
    )
    without = tuple(
        replace(one, forward_winograd_flops=0.0, backward_winograd_flops=0.0)
        for one in workload.layers
    )
    plain = replace(workload, layers=without)
    assert plain.flops == workload.flops
    assert plain.structure == workload.structure
    for precision in ("tf32", "fp16", "bf16"):
        seconds = [estimate(one, "A100", precision).compute_seconds for one in (plain, workload)]
        assert seconds[0] == seconds[1]
    busy = replace(gpu, flops={**gpu.flops, "fp32": 1e9})  # so that no host holds it up
    before, after = (estimate(one, busy, "fp32").compute_seconds for one in (plain, workload))
    assert after < before < after * fp32.winograd.value


@pytest.mark.parametrize("gpu", ["GTX 1080 Ti", "K80", "V100"])
def test_a_rate_that_is_forecast_is_taken_as_measured(gpu):
    """Of 3 x 3 convolutions a GPU computes fewer products than are counted, up to a quarter."""
    vgg = trace("vgg16", 64)
    forecast = estimate(vgg, gpu, "fp32", software="tuned")
    rate = 64 / forecast.compute_seconds
    told = estimate(vgg, gpu, "fp32", samples_per_second=rate)
    assert told.compute_seconds == pytest.approx(forecast.compute_seconds)
    with pytest.raises(InputError, match="give the samples per second of one GPU"):
        estimate(vgg, gpu, "fp32", samples_per_second=100 * rate)
