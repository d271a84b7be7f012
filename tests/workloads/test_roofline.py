"""Seconds from data sheets: laws, and how far off left-out models are."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.files import HARDWARE
from ddlnb.hardware.catalogue import get_gpu, gpus
from ddlnb.hardware.gpu import ON_CORES
from ddlnb.workloads.roofline import (
    EAGER,
    SOFTWARE,
    efficiency_of,
    estimate,
    passes_of,
    usual_precision,
)
from ddlnb.workloads.workload import Gradient, Layer, Workload, read_profile

RESNET = read_profile("resnet50_b64_rtx2080ti")
BERT = read_profile("bert-large_b8_rtx2080ti")


@pytest.mark.parametrize("gpu", [*gpus()])
def test_every_gpu_takes_every_precision_that_it_has(gpu):
    for precision in get_gpu(gpu).flops:
        found = estimate(BERT, gpu, precision)
        assert found.hardware == gpu.lower()
        assert 0 < found.compute_seconds < 10
        assert 0 < found.spread < 0.5


def toy(operations: float = 0.0, shape: tuple[int, ...] | None = None) -> Workload:
    """Two layers with work, the second of which has the loss."""
    layers = tuple(
        Layer(name, 0, 2e12, 4e12, 1e11, 3e11, 1e11, 1e11, operations, 2 * operations)
        for name in "ab"
    )
    gradients = tuple(Gradient(f"{name}.weight", name, 8, shape=shape) for name in "ba")
    return Workload("toy", 1, layers, gradients, "by hand")


ROUND = replace(get_gpu("H100"), flops={"fp32": 1e12, "bf16": 1e13}, memory_bandwidth=1e11)


def test_seconds_are_flops_and_bytes():
    """Checked by hand: two layers, on a GPU of round numbers."""
    share = efficiency_of(ROUND, "fp32")
    found = estimate(toy(), ROUND, "fp32")
    computing, moving = 1 / share.matrix.value, 1 / share.memory.value
    assert found.forward_seconds == pytest.approx(2 * (2 * computing + 2 * moving))
    assert found.backward_seconds == pytest.approx(2 * (4 * computing + 4 * moving))


def test_bytes_of_the_loss_and_of_images_do_not_shrink_with_the_precision():
    share = efficiency_of(ROUND, "bf16")
    computing, moving = 0.2 / share.matrix.value, 1 / share.memory.value
    found = estimate(toy(), ROUND, "bf16")
    assert found.layers[0].forward_seconds == pytest.approx(computing + moving)
    assert found.layers[1].forward_seconds == pytest.approx(computing + 1.5 * moving)
    assert found.gradients[0].backward_seconds == pytest.approx(2 * computing + 3.5 * moving)
    assert found.gradients[1].backward_seconds == pytest.approx(2 * computing + 2 * moving)
    images = efficiency_of(ROUND, "bf16", convolves=True)
    found = estimate(toy(shape=(2, 1, 2, 2)), ROUND, "bf16")
    expected = 0.2 / images.matrix.value + 1.5 / images.memory.value
    assert found.layers[0].forward_seconds == pytest.approx(expected)


def test_a_host_that_hands_over_many_operations_decides_in_every_precision():
    operations = 1e6
    host = efficiency_of(ROUND, "fp32").host.value
    for precision in ("fp32", "bf16"):
        found = estimate(toy(operations), ROUND, precision)
        assert found.compute_seconds == pytest.approx(6 * operations * host)
    few = estimate(toy(10), ROUND, "fp32")
    assert few.compute_seconds == pytest.approx(estimate(toy(), ROUND, "fp32").compute_seconds)


def test_a_host_runs_ahead_while_the_gpu_computes():
    """The first layer keeps the GPU busy; what the host hands over meanwhile costs nothing."""
    host = efficiency_of(ROUND, "fp32").host.value
    alone = estimate(toy(), ROUND, "fp32")
    ahead = alone.layers[0].forward_seconds / host * 0.9
    busy, empty = toy().layers
    late = replace(empty, forward_operations=ahead)
    found = estimate(replace(toy(), layers=(busy, late)), ROUND, "fp32")
    assert found.compute_seconds == pytest.approx(alone.compute_seconds)


def test_a_higher_rate_is_never_slower():
    gpu = get_gpu("RTX3090")
    base = estimate(RESNET, gpu, "fp32").compute_seconds
    for faster in (
        replace(gpu, flops={**gpu.flops, "fp32": 2 * gpu.flops["fp32"]}),
        replace(gpu, memory_bandwidth=2 * gpu.memory_bandwidth),
    ):
        assert base / 2 < estimate(RESNET, faster, "fp32").compute_seconds < base


def test_a_measured_rate_is_kept_and_the_sheet_gives_the_shares():
    found = estimate(RESNET, "V100", samples_per_second=370)
    assert found.local_batch / found.compute_seconds == pytest.approx(370)
    assert found.spread == 0
    sheet = estimate(RESNET, "V100")
    ratio = [
        one.forward_seconds / other.forward_seconds
        for one, other in zip(found.layers, sheet.layers, strict=True)
        if other.forward_seconds
    ]
    assert np.ptp(ratio) == pytest.approx(0, abs=1e-9)


def test_backward_work_that_nobody_counted_is_twice_the_forward_work():
    layers = tuple(
        replace(one, backward_flops=0.0, backward_bytes=0.0, backward_matrix_bytes=0.0)
        for one in BERT.layers
    )
    found = estimate(replace(BERT, layers=layers), "A100", "fp32")
    assert 1.8 < found.backward_seconds / found.forward_seconds <= 2.0


def test_the_usual_precision_follows_the_gradients_and_the_gpu():
    half = tuple(replace(one, bytes_per_element=2) for one in BERT.gradients)
    assert usual_precision(BERT, get_gpu("A100")) == "tf32"
    assert usual_precision(BERT, get_gpu("V100")) == "fp32"
    assert usual_precision(replace(BERT, gradients=half), get_gpu("A100")) == "bf16"
    assert usual_precision(replace(BERT, gradients=half), get_gpu("V100")) == "fp16"


def test_what_was_not_measured_is_less_certain():
    assert (
        efficiency_of(get_gpu("A100"), "bf16").spread
        < efficiency_of(get_gpu("B200"), "bf16").spread
    )
    assert estimate(RESNET, "A100", "bf16").spread > 1.5 * estimate(BERT, "A100", "bf16").spread


@pytest.mark.thorough(but=24)
@pytest.mark.parametrize("model", [RESNET, BERT], ids=["resnet50", "bert-large"])
@pytest.mark.parametrize("name", gpus())
def test_no_precision_is_slower_than_fp32(name, model):
    """GeForce has as many FLOP/s in tf32 as in fp32, Pascal no matrix units for fp16."""
    ways = [(one, EAGER) for one in gpus()[name].flops if one not in ON_CORES]
    ways += [("tf32", software) for software in SOFTWARE if "tf32" in gpus()[name].flops]
    plain = {way: estimate(model, name, "fp32", software=way).compute_seconds for way in SOFTWARE}
    for precision, software in ways:
        found = estimate(model, name, precision, software=software)
        assert found.compute_seconds <= plain[software]


@pytest.mark.parametrize("model", [RESNET, BERT], ids=["resnet50", "bert-large"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_program_that_is_written_better_is_never_slower_and_fuses_what_it_moves(precision, model):
    eager, compiled, tuned = (
        estimate(model, "V100", precision, software=one) for one in ("eager", "compiled", "tuned")
    )
    assert eager.compute_seconds >= compiled.compute_seconds >= tuned.compute_seconds
    assert "for an eager program" in estimate(model, "V100").source
    assert "for a tuned program" in tuned.source
    shares = [efficiency_of(ROUND, "bf16", software=one).moved.value for one in ("eager", "tuned")]
    assert shares[0] == 1 > shares[1]


def test_only_programs_that_are_not_eager_predict_masked_words_alone():
    eager, tuned = (passes_of(BERT, "fp32", one) for one in ("eager", "tuned"))
    for before, after in zip(eager, tuned, strict=True):
        for name, work in before.items():
            share = 0.15 if name.startswith("cls.") else 1.0
            assert after[name].flops == pytest.approx(share * work.flops)
            assert after[name].operations == work.operations


def test_bad_input_is_refused():
    with pytest.raises(UnknownName, match="precision of V100-SXM2-32GB 'bf16'"):
        estimate(RESNET, "V100", "bf16")
    with pytest.raises(UnknownName, match="software 'fast'"):
        estimate(RESNET, "V100", software="fast")
    with pytest.raises(InputError, match="samples_per_second 0 must be"):
        estimate(RESNET, "V100", samples_per_second=0)
    empty = tuple(Layer(one.name) for one in RESNET.layers)
    with pytest.raises(InputError, match="no FLOPs"):
        estimate(replace(RESNET, layers=empty), "V100")


def test_left_out_models_are_closer_than_with_a_constant_utilisation():
    rows = pd.read_csv(HARDWARE / "roofline_left_out.csv")
    ours = (rows["estimated_seconds"] / rows["measured_seconds"] - 1).abs()
    trivial = (rows["constant_utilisation_seconds"] / rows["measured_seconds"] - 1).abs()
    for what, most in (("model", 0.11), ("gpu", 0.2)):
        chosen = rows["left_out"] == what
        assert ours[chosen].median() < most
        assert ours[chosen].median() < 0.6 * trivial[chosen].median()
