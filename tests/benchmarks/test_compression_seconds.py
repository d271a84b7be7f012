"""Seconds of compressors: measured for all, fitted by lines, each worker with its own numbers."""

import pytest
import torch

from benchmarks.compression_seconds import SIDES, Sample, fit, measure, profile_compression
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.profile import (
    KNEE,
    CompressorSeconds,
    Line,
    compression_profile,
    write_compression_profile,
)
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError


def test_every_compressor_is_measured_or_left_out_with_a_reason(tmp_path):
    profile = profile_compression(sides=(16, 64), workers=(2, 4), repeats=1, threads=1)
    known = {str(kind()) for kind in COMPRESSORS.values()}
    known |= {str(kind().for_whole_model()) for kind in COMPRESSORS.values()}
    assert set(profile.compressors) | set(profile.left_out) == known
    assert not profile.left_out, "all compressors run on the CPU"
    assert "1 thread" in profile.source
    for seconds in profile.compressors.values():
        assert seconds.before(4096) + seconds.after(4096, 4) > 0
    write_compression_profile(profile, "here", tmp_path)
    assert compression_profile("here", tmp_path) == profile


@pytest.mark.parametrize("growth", ["none", "levels", "workers"])
def test_tensors_beyond_the_caches_have_a_pace_of_their_own(growth):
    """A line through small tensors is off by several times for those of a whole model."""
    each = Line() if growth == "none" else Line(3e-6, 5e-10, 1e-9)
    truth = CompressorSeconds(Line(1e-5, 1e-9, 4e-9), Line(2e-5, 1e-9, 9e-9), each, growth)
    samples = [
        Sample("x", side**2, count, truth.before(side**2), truth.after(side**2, count))
        for side in SIDES
        for count in (2, 8)
    ]
    found = fit(samples, growth)
    for elements in (5_000, 1 << 20, 25_000_000):
        assert found.before(elements) == pytest.approx(truth.before(elements), rel=1e-3)
        for workers in (2, 32):
            expected = truth.after(elements, workers)
            assert found.after(elements, workers) == pytest.approx(expected, rel=1e-3)
    assert max(SIDES) ** 2 == 16 * KNEE


def test_every_worker_compresses_numbers_of_its_own():
    """The payloads of an all-gather differ, as in training, and so does what is read of them."""
    seen = []

    class Looking(TopK):
        def add(self, payload, total):
            seen.append(payload.clone())
            super().add(payload, total)

    measure(Looking(0.1), 16, 4, repeats=1)
    assert len({tuple(payload.tolist()) for payload in seen}) == 4
    assert len(seen) == 2 * 4  # a warm-up and one repetition, by the worker that is timed alone


def test_a_missing_device_is_one_clear_error():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(InputError, match=r"'cuda' cannot be used here.*measure on the CPU"):
        profile_compression(device="cuda")
