"""Quantisers: bits that are really packed, rounding without bias, and what signs lose.

Statistical tests state the probability that they fail although the law holds. Seeds are fixed.
"""

import math

import numpy as np
import pytest
import torch

from ddlnb.compression import packing
from ddlnb.compression.base import Codec, Round, Traffic
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.half import BFloat16, Float16
from ddlnb.compression.qsgd import QSGD
from ddlnb.compression.sign import SignVote
from ddlnb.compression.terngrad import TernGrad
from ddlnb.errors import InputError
from ddlnb.plans.requests import AllReduce
from tests.toy_exchange import averages, normal

ALONE = Round(rank=0, workers=1, step=0)
ERROR_LEVEL = 1e-9  # of every test by Hoeffding's inequality
DRAWS = 4000


def through(codec: Codec, tensor: torch.Tensor, round_: Round = ALONE) -> torch.Tensor:
    """What the payload of a tensor stands for."""
    return codec.decode(codec.encode(tensor, round_, {}), tensor.numel())


def draws(codec: Codec, tensor: torch.Tensor) -> torch.Tensor:
    """What it stands for in many rounds, a row each."""
    return torch.stack([through(codec, tensor, Round(0, 1, step)) for step in range(DRAWS)])


# Sizes.


@pytest.mark.item("A24", how="measured")
@pytest.mark.parametrize("elements", [1, 8, 9, 700_001])
def test_one_bit_signs_take_one_bit(elements):
    values = normal(elements).numpy()
    expected = np.packbits(values < 0, bitorder="little")
    assert np.array_equal(packing.pack_signs(values).numpy(), expected)
    assert packing.pack_signs(np.array([0.0, -0.0], np.float32)).tolist() == [0]


@pytest.mark.parametrize("levels", [1, 2, 3, 5, 7, 8, 31, 100, 127, 128, 1000, 16383, 32767])
def test_codes_are_one_stream_of_bits(levels):
    """Elements that are exact multiples of the norm over the levels have only one code."""
    multiples = torch.randint(-levels, levels + 1, (10_001,)).numpy()
    values = (multiples / np.float32(levels)).astype(np.float32)
    packed = packing.pack_levels(values, np.ones(1, np.float32), len(values), levels, 0)
    bits = packing.code_bits(levels)
    stream = np.unpackbits(packed.numpy(), bitorder="little")[: bits * len(values)]
    codes = stream.reshape(-1, bits) @ (1 << np.arange(bits))
    # The quotient may be one rounding off the multiple, and is then rounded at random.
    assert np.mean(codes != multiples + levels) < 1e-3
    assert np.abs(codes - multiples - levels).max() <= 1
    found = packing.unpack_levels(packed, len(values), np.ones(1, np.float32), len(values), levels)
    np.testing.assert_array_equal(found.numpy(), ((codes - levels) / levels).astype(np.float32))


def test_five_ternary_digits_share_a_byte():
    packed = packing.pack_ternary(np.array([-1, 0, 1, 1, -1, 1], np.float32), 1.0, seed=0)
    assert packed.tolist() == [0 + 3 * 1 + 9 * 2 + 27 * 2 + 81 * 0, 2 + 3 + 9 + 27 + 81]
    assert packing.unpack_ternary(packed, 6, 2.0).tolist() == [-2, 0, 2, 2, -2, 2]


@pytest.mark.parametrize("spec", ["ef-sign", "qsgd(7)", "qsgd(5, 1000)", "terngrad", "fp16"])
def test_payloads_do_not_depend_on_the_number_of_threads(spec):
    codec, tensor, threads = get_compressor(spec), normal(700_003), torch.get_num_threads()
    payloads, decoded = [], []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            payloads.append(codec.encode(tensor, ALONE, {}))
            decoded.append(codec.decode(payloads[-1], len(tensor)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*payloads)
    assert torch.equal(*decoded)


@pytest.mark.parametrize("spec", ["qsgd", "terngrad"])
def test_random_numbers_are_those_of_the_round(spec):
    codec, tensor = get_compressor(spec), normal(1000)
    rounds = [
        Round(0, 2, 0),
        Round(1, 2, 0),
        Round(0, 2, 1),
        Round(0, 2, 0, 1),
        Round(0, 2, 0, 0, 1),
    ]
    payloads = [codec.encode(tensor, round_, {}) for round_ in rounds]
    assert not any(torch.equal(payloads[0], other) for other in payloads[1:])
    assert torch.equal(payloads[0], codec.encode(tensor, Round(0, 2, 0), {}))


# Rounding.


@pytest.mark.parametrize(("codec", "bits"), [(Float16(), 11), (BFloat16(), 8)])
def test_half_precision_rounds_to_so_many_bits(codec, bits):
    tensor = normal(5000) * torch.logspace(-3, 4, 5000)
    tensor = tensor[tensor.abs() > 6.2e-5]  # below, fp16 has fewer bits
    error = (through(codec, tensor) - tensor).abs() / tensor.abs()
    assert error.max() <= 2.0**-bits
    assert error.max() > 0.9 * 2.0**-bits, "the bound is met"


def test_half_precision_stays_within_its_range():
    large = torch.tensor([1e6, -7e4, 65504.0, 1e-9])
    assert through(Float16(), large).tolist() == [65504.0, -65504.0, 65504.0, 0.0]
    assert Float16().error_bound(large).loss == 1  # nearly all of it may be cut
    nearly = torch.tensor([torch.finfo(torch.float32).max, -1.0])
    assert through(BFloat16(), nearly).isfinite().all()


@pytest.mark.parametrize(("value", "mean"), [(60000.0, 60000.0), (70000.0, math.inf)])
def test_half_precision_sums_overflow_only_where_means_do(value, mean):
    found = averages(Float16(), [torch.full((3,), value)] * 4)
    assert found[0].average.tolist() == [mean] * 3


@pytest.mark.parametrize("codec", [Float16(), BFloat16()])
def test_half_precision_is_one_all_reduce_whose_partial_sums_are_rounded(codec):
    """As NCCL sums what DistributedDataParallel's hooks and Horovod hand to it."""
    tensors = [normal(1000, seed=rank) for rank in range(4)]
    found = averages(codec, tensors)
    shares = [(tensor / 4).to(codec.dtype) for tensor in tensors]
    by_hand = ((shares[0] + shares[1]) + shares[2]) + shares[3]
    assert torch.equal(found[2].average, by_hand.float())
    assert not torch.equal(found[2].average, sum(share.float() for share in shares))
    assert codec.traffic((10, 100), 4) == [Traffic(AllReduce, 2000)]


def unbiased_bound(spacing: float, elements: int) -> float:
    """How far means of draws from two values so far apart may be off, at the error level.

    Hoeffding's inequality, for all elements together.
    """
    return spacing * math.sqrt(math.log(2 * elements / ERROR_LEVEL) / (2 * DRAWS))


@pytest.mark.parametrize(
    ("codec", "spacing"),
    [
        *((QSGD(levels), lambda t, s=levels: t.norm() / s) for levels in (1, 4, 127)),
        (QSGD(2, bucket=8), lambda t: t.view(4, 8).norm(dim=1).repeat_interleave(8) / 2),
        (TernGrad(), lambda tensor: tensor.abs().max()),
    ],
    ids=["1 level", "4 levels", "127 levels", "buckets", "terngrad"],
)
def test_rounding_at_random_is_unbiased(codec, spacing):
    tensor = normal(32)
    mean = draws(codec, tensor).double().mean(0)
    assert ((mean - tensor).abs() <= spacing(tensor) * unbiased_bound(1.0, 32)).all()


def test_elements_are_rounded_independently_of_each_other():
    """Sums of many equal elements vary as binomial counts do; level: five standard errors."""
    kept = draws(TernGrad(), torch.tensor([1.0] + [0.5] * 400))[:, 1:].sum(1).double()
    assert kept.var() / (400 * 0.25) == pytest.approx(1, abs=5 * math.sqrt(2 / DRAWS))


@pytest.mark.parametrize("spec", ["ef-sign", "qsgd", "qsgd(3, 4)", "terngrad", "terngrad(1)"])
@pytest.mark.parametrize("value", [-3.7, 2.0**-140, 3e38, 0.0])
def test_one_element_comes_back_exactly(spec, value):
    tensor = torch.tensor([value])
    assert torch.equal(through(get_compressor(spec), tensor), tensor)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "spec", ["fp16", "bf16", "signsgd", "ef-sign", "qsgd", "qsgd(3, 4)", "terngrad", "terngrad(1)"]
)
@pytest.mark.parametrize("position", [0, 13, -1])
def test_nan_and_infinity_are_refused_wherever_they_are(spec, bad, position):
    tensor = normal(43)
    tensor[position] = bad
    with pytest.raises(InputError, match="NaN or infinity"):
        next(get_compressor(spec).average(tensor, ALONE, {}))


def test_norms_beyond_float32_are_refused():
    with pytest.raises(InputError, match="norm beyond float32"):
        through(QSGD(7), torch.full((4,), 3e38))


def test_clipping_bounds_the_scale_and_nothing_below_it():
    tensor = torch.cat([torch.ones(99), torch.tensor([50.0])])
    deviation = tensor.pow(2).mean().sqrt().item()
    assert through(TernGrad(2.5), tensor).max().item() == pytest.approx(2.5 * deviation)
    assert through(TernGrad(), tensor).max().item() == 50.0
    assert through(TernGrad(2.5), torch.full((7,), -2.0)).tolist() == [-2.0] * 7


@pytest.mark.parametrize(
    "text", ["qsgd(0)", "qsgd(40000)", "qsgd(7, 0)", "terngrad(0.5)", "signsgd(0)"]
)
def test_parameters_that_cannot_be_are_refused(text):
    with pytest.raises(InputError, match="must be"):
        get_compressor(text)


# Signs.


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
def test_the_majority_wins_and_ties_stay(workers):
    tensors = [normal(83, seed=rank) for rank in range(workers)]
    expected = sum(tensor.sign() for tensor in tensors).sign()
    for averaged, tensor in zip(averages(SignVote(0.25), tensors), tensors, strict=True):
        assert torch.equal(averaged.average, 0.25 * expected)
        assert torch.equal(averaged.sent, 0.25 * tensor.sign())
