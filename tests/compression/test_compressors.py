"""What every compressor of the catalogue promises, whichever it is."""

import math
from dataclasses import dataclass

import pytest
import torch

from ddlnb.compression.base import (
    LOW_RANK,
    QUANTISATION,
    RESIDUAL,
    SPARSIFICATION,
    Codec,
    Compressor,
    Round,
    Traffic,
    average_with_feedback,
)
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.half import Half
from ddlnb.errors import InputError
from ddlnb.plans.requests import AllGather, lockstep
from ddlnb.training.method import training_method
from tests.toy_exchange import averages, normal, recorded

WRITTEN = (
    *(
        "top-k(0.5)",
        "gtop-k(0.5)",
        "random-k(0.5)",
        "random-k(0.5, True)",
        "powersgd(1)",
        "powersgd(1, True)",
    ),
    *("dgc(0.1)", "signsgd(0.5)", "qsgd(1)", "qsgd(7, 16)", "qsgd(32767)", "terngrad(2.5)"),
)
SPECS = [*COMPRESSORS, *WRITTEN]
CODECS = [spec for spec in SPECS if isinstance(get_compressor(spec), Codec)]
SHARED = [spec for spec in SPECS if get_compressor(spec).feedback != "refused"]
SHAPES = [(1,), (7,), (40,), (1, 9), (33, 5), (8, 3, 3, 3)]
ROUNDING = 2.0**-24  # of a float32 sum, as a share of it


def compressor(spec: str) -> Compressor:
    found = get_compressor(spec)
    assert found is not None
    return found


@dataclass(frozen=True)
class Sent(Half):
    """Half precision that is gathered."""

    name = "sent"
    dtype = torch.float16
    average = Codec.average


@dataclass(frozen=True)
class Longer(Sent):
    """Declares a byte per element, and sends two, or the elements themselves."""

    name = "longer"

    def payload_bytes(self, elements: int) -> int:
        return elements


@dataclass(frozen=True)
class Unflattened(Sent):
    """Sends numbers, not bytes."""

    name = "unflattened"

    def encode(self, tensor: torch.Tensor, *_: object) -> torch.Tensor:
        return tensor.half()


@pytest.mark.parametrize(("wrong", "said"), [(Longer, "40 bytes"), (Unflattened, "80 bytes")])
def test_a_payload_that_is_none_of_the_declared_bytes_is_refused(wrong, said):
    codec, tensor, round_ = wrong(), normal(40, seed=1), Round(0, 1, 0)
    for averaging in (Codec.average, average_with_feedback):
        flow = averaging(codec, tensor, round_, {})
        with pytest.raises(InputError, match=f"compressor '{codec.name}' enc.* declares {said}"):
            next(flow)


@dataclass(frozen=True)
class Silent(Sent):
    """Forgets to return its payload."""

    name = "silent"

    def encode(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class Clipped(Sent):
    """Decodes one number too few."""

    name = "clipped"

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        return super().decode(payload, elements)[1:]


@dataclass(frozen=True)
class Doubled(Sent):
    """Decodes numbers of 64 bits."""

    name = "doubled"

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        return super().decode(payload, elements).double()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Silent, "encodes 40 elements to None, which is no tensor"),
        (Clipped, r"decodes .* of 40 elements to torch.float32 of shape \(39,\)"),
        (Doubled, r"decodes .* to torch.float64 of shape \(40,\); return a flat float32 tensor"),
    ],
)
def test_a_compressor_that_returns_something_else_is_told_so(wrong, said):
    codec, tensor, round_ = wrong(), normal(40, seed=1), Round(0, 1, 0)
    flow = average_with_feedback(codec, tensor, round_, {})
    with pytest.raises(InputError, match=f"compressor '{codec.name}' {said}"):
        flow.send([next(flow).payload])


def shares(workers: int, shape: tuple[int, ...], step: int = 0) -> list[torch.Tensor]:
    return [normal(*shape, seed=100 * step + rank) for rank in range(workers)]


def unit_of_sums(spec: str) -> float:
    """By what share one addition of an all-reduce may be off: half precision rounds sums, too."""
    one = compressor(spec)
    return torch.finfo(one.dtype if isinstance(one, Half) else torch.float32).eps / 2


def shown_family(one: Compressor) -> str:
    """The family that the numbers show: what is left of a random matrix.

    A sparsifier keeps less than half of the entries and their different values; at a low rank
    there are fewer directions than the matrix has; the others round values.
    """
    matrix = normal(64, 64)
    [found] = averages(one, [matrix])
    kept = found.sent[found.sent != 0]
    if 2 * len(kept) < matrix.numel() and len(kept.unique()) > len(kept) / 2:
        return SPARSIFICATION
    if torch.linalg.matrix_rank(found.sent.view(64, 64)) < 32:
        return LOW_RANK
    return QUANTISATION


@pytest.mark.parametrize("spec", COMPRESSORS)
def test_the_declared_family_is_the_one_that_the_numbers_show(spec):
    assert compressor(spec).family == shown_family(compressor(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_the_text_of_a_compressor_is_read_back(spec):
    assert get_compressor(str(compressor(spec))) == compressor(spec)


@pytest.mark.parametrize("spec", SPECS)
def test_error_feedback_is_needed_optional_or_refused_with_a_reason(spec):
    one = compressor(spec)
    assert one.feedback in ("needed", "optional", "refused")
    if one.feedback == "refused":
        with pytest.raises(InputError, match=f"has no error feedback: {one.why_no_feedback[:20]}"):
            training_method(f"bsp + {spec} + feedback")
        assert len(one.why_no_feedback) > 20
    else:
        assert training_method(f"bsp + {spec} + feedback").feedback


@pytest.mark.parametrize("spec", CODECS)
def test_payloads_are_as_long_as_counted_and_mean_as_many_numbers(spec):
    codec = compressor(spec)
    assert isinstance(codec, Codec)
    for elements in (*range(1, 45), 1000, 2559, 2560, 2561, 5003):
        payload = codec.encode(normal(elements), Round(0, 1, 0), {})
        assert payload.dtype == torch.uint8
        assert payload.shape == (codec.payload_bytes(elements),)
        decoded = codec.decode(payload, elements)
        assert decoded.dtype == torch.float32
        assert decoded.shape == (elements,)
        if type(codec).average is Codec.average:
            assert codec.traffic((elements,), 4) == [Traffic(AllGather, len(payload))]


@pytest.mark.parametrize("spec", CODECS)
def test_adding_a_payload_adds_what_it_stands_for(spec):
    codec = compressor(spec)
    assert isinstance(codec, Codec)
    payload, total = codec.encode(normal(99), Round(0, 1, 0), {}), normal(99, seed=1)
    expected = total + codec.decode(payload, 99)
    codec.add(payload, total)
    assert torch.equal(total, expected)


@pytest.mark.parametrize("spec", CODECS)
def test_a_payload_may_lie_in_the_middle_of_another(spec):
    codec = compressor(spec)
    assert isinstance(codec, Codec)
    payload = codec.encode(normal(50), Round(0, 1, 0), {})
    joined = torch.cat([torch.zeros(4, dtype=torch.uint8), payload, payload])
    middle = joined[4 : 4 + len(payload)]
    assert torch.equal(codec.decode(middle, 50), codec.decode(payload, 50))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("spec", SPECS)
def test_requests_are_those_that_are_counted(spec, workers):
    for shape in SHAPES:
        made: list[list[Traffic]] = [[] for _ in range(workers)]
        flows = [
            recorded(compressor(spec).average(tensor, Round(rank, workers, 0), {}), made[rank])
            for rank, tensor in enumerate(shares(workers, shape))
        ]
        lockstep(flows)
        expected = compressor(spec).traffic(shape, workers)
        busiest = [
            Traffic(requests[0].request, max(request.bytes for request in requests))
            for requests in zip(*made, strict=True)
        ]
        assert busiest == expected


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("spec", SPECS)
def test_all_workers_get_one_average_of_the_tensors_shape(spec, workers):
    for shape in SHAPES:
        tensors = shares(workers, shape)
        before = [tensor.clone() for tensor in tensors]
        found = averages(compressor(spec), tensors)
        for averaged, tensor, old in zip(found, tensors, before, strict=True):
            assert averaged.average.shape == averaged.sent.shape == shape
            assert averaged.average.dtype == averaged.sent.dtype == torch.float32
            assert torch.equal(averaged.average, found[0].average)
            assert torch.equal(tensor, old), "tensors are not written to"


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("spec", SHARED)
def test_the_mean_of_what_was_sent_is_the_average(spec, workers):
    for shape in SHAPES:
        found = averages(compressor(spec), shares(workers, shape))
        sent = torch.stack([averaged.sent.double() for averaged in found])
        lost = (found[0].average.double() - sent.mean(0)).abs()
        allowed = 1e-6 + workers * unit_of_sums(spec) * sent.abs().mean(0)
        assert (lost <= allowed).all()


@pytest.mark.item("A25", how="measured")
@pytest.mark.parametrize("spec", SHARED)
def test_what_was_sent_and_what_is_kept_are_the_gradient(spec):
    """But for the rounding of one float32 subtraction, and of one addition before."""
    workers, shape = 3, (33, 5)
    memories: list[dict] = [{} for _ in range(workers)]
    for step in range(4):
        tensors = shares(workers, shape, step)
        corrected = [
            tensor + memory[RESIDUAL] if memory else tensor
            for tensor, memory in zip(tensors, memories, strict=True)
        ]
        found = averages(compressor(spec), tensors, memories, step, feedback=True)
        for whole, averaged, memory in zip(corrected, found, memories, strict=True):
            lost = whole.double() - averaged.sent.double() - memory[RESIDUAL].double()
            bound = ROUNDING * (whole.double().abs() + averaged.sent.double().abs())
            assert (lost.abs() <= bound).all()


@pytest.mark.parametrize("spec", SPECS)
def test_a_round_repeats_itself(spec):
    tensors = shares(3, (33, 5))
    once, again = (averages(compressor(spec), tensors, step=5) for _ in range(2))
    assert all(torch.equal(a.average, b.average) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.startswith("signsgd")])
def test_zeros_come_back_as_zeros(spec):
    for averaged in averages(compressor(spec), [torch.zeros(4, 5)] * 2):
        assert not averaged.average.any()
        assert not averaged.sent.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spec", SPECS)
def test_what_is_not_finite_is_refused_or_seen(spec, bad):
    """No compressor turns it into numbers that look right."""
    tensor = normal(12, 5)
    # Random-k need not look at one entry; it must at all of them.
    tensor[... if spec.startswith("random-k") else (7, 2)] = bad
    try:
        found = averages(compressor(spec), [tensor, tensor])
    except InputError:
        return
    assert not any(averaged.average.isfinite().all() for averaged in found)
