"""Seconds of compressors by the data sheet of a GPU."""

import pytest

from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.profile import SHEET, compression_on, sheet_profile
from ddlnb.errors import InputError
from ddlnb.training.cost.requests import coding_seconds


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_takes_seconds_that_grow_with_the_tensor(name):
    seconds = sheet_profile("A100").of(get_compressor(name))
    small, large = (seconds.before(n) + seconds.after(n, 4) for n in (1_000, 100_000_000))
    assert 0 < small < large
    assert seconds.after(1_000, 16) >= seconds.after(1_000, 4)


def test_a_gpu_with_more_bandwidth_is_quicker_on_large_tensors():
    old, new = (sheet_profile(gpu).of(get_compressor("qsgd")) for gpu in ("V100", "H100"))
    assert new.before(100_000_000) < old.before(100_000_000)
    assert new.before(0) == old.before(0)  # the host starts kernels


def test_without_a_sheet_there_is_no_number():
    assert compression_on(SHEET, "rtx2080ti") == sheet_profile("RTX2080Ti")
    with pytest.raises(InputError, match="'cpu-1thread' follow from no data sheet; give a profile"):
        compression_on(SHEET, "cpu-1thread")


def test_a_compressor_that_does_not_say_what_it_does_has_no_number(monkeypatch):
    monkeypatch.setattr(COMPRESSORS["qsgd"], "on_gpu", None)
    with pytest.raises(InputError, match=r"qsgd\(127, None\) does not declare its kernels"):
        sheet_profile("A100").of(get_compressor("qsgd"))


def test_powersgd_takes_kernels_by_its_rank_and_none_for_what_travels_whole():
    """A product, then three operations for each column, so that a rank of 32 is no gift."""
    profile, matrix, vector = sheet_profile("A100"), (512, 512), (512,)
    encoding = {
        rank: coding_seconds([(PowerSGD(rank), matrix)], profile, 8)[0] for rank in (1, 2, 4)
    }
    more = encoding[2] - encoding[1]
    assert more == pytest.approx(3 * profile.start_seconds)
    assert encoding[4] - encoding[2] == pytest.approx(2 * more)
    assert coding_seconds([(PowerSGD(4), vector)], profile, 8, feedback=True) == (0.0, 0.0)
