"""Data sheets against arithmetic: a number that was typed wrong does not fit its own parts."""

import itertools

import pytest

from ddlnb.hardware.catalogue import get_gpu, gpus, interconnects
from ddlnb.hardware.gpu import LANE
from ddlnb.units import BITS_PER_BYTE, GB

ALL_GPUS = list(gpus().values())
ROUNDED = 0.025  # sheets print "4.8 TB/s" for 4.92, and "34 TFLOP/s" for 33.5
# Makers do not publish all the clocks of these, or cut a rate on purpose; a rack or a sheet of the
# whole system says the same a second time.
WITHOUT_CHIP = {
    "B200", "GB200", "B300", "GB300", "H20", "H800", "H100-NVL", "H200-NVL",
}  # fmt: skip
LINKS = {  # lanes of a link of NVLink, and Gb/s of each in one direction
    "NVLink 1": (8, 20), "NVLink 2": (8, 25), "NVLink 3": (4, 50), "NVLink 4": (2, 100),
    "NVLink 5": (2, 200),
}  # fmt: skip
GT_PER_S = {3: 8 * 128 / 130, 4: 16 * 128 / 130, 5: 32 * 128 / 130, 6: 64 * 242 / 256}
SYSTEMS = [  # GPUs, TFLOP/s (sparse ones halved) and GB, GB/s, NVLink's of both directions
    ("A100-SXM4-80GB", 8, {"fp16": 5e3 / 2, "memory": 640, "nvlink": 4.8e3}),
    ("H100-SXM", 8, {"fp8": 32e3 / 2, "memory": 640, "nvlink": 7.2e3}),
    ("H200", 8, {"fp8": 32e3 / 2, "memory": 1128, "nvlink": 7.2e3}),
    (
        "B200",
        8,
        {
            "fp8": 72e3 / 2, "fp4": 144e3 / 2,
            "memory": 1440, "memory_bandwidth": 64e3, "nvlink": 14.4e3,
        },
    ),
    ("B300", 8, {"fp8": 72e3 / 2, "fp4": 108e3, "memory": 2144, "nvlink": 14.4e3}),
    (
        "GB200",
        72,
        {
            "fp64": 2.88e3, "fp32": 5.76e3, "tf32": 180e3 / 2, "fp16": 360e3 / 2, "fp8": 720e3 / 2,
            "fp4": 1440e3 / 2, "memory": 13.4e3, "memory_bandwidth": 576e3, "nvlink": 130e3,
        },
    ),
    (
        "GB300",
        72,
        {
            "fp16": 360e3 / 2, "fp8": 720e3 / 2, "fp4": 1080e3,
            "memory": 20e3, "memory_bandwidth": 576e3, "nvlink": 130e3,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_flops_are_multiprocessors_times_clock_times_flops_in_a_clock(gpu):
    if gpu.chip is None:
        assert gpu.name in WITHOUT_CHIP
        return
    assert set(gpu.flops) == set(gpu.chip.per_clock)
    for precision, rate in gpu.flops.items():
        assert rate == pytest.approx(gpu.chip.flops(precision), rel=ROUNDED), precision


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_bandwidth_of_memory_is_pins_times_their_rate(gpu):
    assert gpu.memory_bus is not None
    assert gpu.memory_bandwidth == pytest.approx(gpu.memory_bus.bandwidth, rel=ROUNDED)


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_nvlink_is_links_times_lanes_times_their_rate(gpu):
    if gpu.nvlink is None or gpu.nvlink.name == "Infinity Fabric":
        return
    lanes, gigabits = LINKS[gpu.nvlink.name]
    assert gpu.nvlink.bandwidth == gpu.nvlink.links * lanes * gigabits / BITS_PER_BYTE * GB


def test_a_lane_of_pcie_is_its_transfers_less_their_code():
    assert {generation: rate / BITS_PER_BYTE for generation, rate in GT_PER_S.items()} == (
        pytest.approx(LANE, rel=1e-3)
    )


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_half_the_digits_on_matrix_units_go_twice_as_fast(gpu):
    """Matrix units double the rate for half the size of a number, from tf32 down."""
    rates = [gpu.flops.get(name) for name in ("tf32", "bf16", "fp8")]
    for wide, narrow in itertools.pairwise(rates):
        if wide is not None and narrow is not None:
            assert narrow == pytest.approx(2 * wide, rel=ROUNDED)


@pytest.mark.parametrize(("name", "count", "system"), SYSTEMS, ids=[one[0] for one in SYSTEMS])
def test_a_system_is_its_gpus(name, count, system):
    gpu = get_gpu(name)
    of_one = {precision: rate / 1e12 for precision, rate in gpu.flops.items()}
    of_one |= {"memory": gpu.memory / 2**30, "memory_bandwidth": gpu.memory_bandwidth / GB}
    of_one["nvlink"] = 2 * gpu.nvlink.bandwidth / GB
    for number, whole in system.items():
        assert count * of_one[number] == pytest.approx(whole, rel=ROUNDED), number


@pytest.mark.parametrize("network", interconnects().values(), ids=repr)
def test_the_rate_of_a_network_is_lanes_times_what_their_code_leaves(network):
    if network.line is None:
        assert network.protocol.name == "EFA"
        return
    assert network.port_rate == pytest.approx(network.line.bandwidth, rel=1e-4)


def test_what_was_wrong_once_does_not_fit():
    """Numbers that stood here before arithmetic was asked: of vectors, an old sheet's, a rumour."""
    assert get_gpu("MI250X").chip.flops("fp32") != pytest.approx(23.95e12, rel=ROUNDED)
    assert get_gpu("T4").memory_bus.bandwidth != pytest.approx(300 * GB, rel=ROUNDED)
    assert interconnects()["56GbIB"].line.bandwidth != pytest.approx(
        54.3 / BITS_PER_BYTE * GB, rel=1e-4
    )
