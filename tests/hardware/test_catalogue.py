"""The hardware that is known by name: laws of the catalogue, names, and words."""

import itertools
from dataclasses import replace

import pytest

from ddlnb.errors import InputError
from ddlnb.hardware import catalogue
from ddlnb.hardware.catalogue import (
    get_gpu,
    get_interconnect,
    get_machine,
    gpu_in,
    gpus,
    interconnects,
    machines,
    names_of,
)
from ddlnb.units import GB, gigabits_per_second

ALL_GPUS = list(gpus().values())
NUMBERS = ("tflops", "memory", "memory_bandwidth", "nvlink", "pcie", "port")


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_every_number_of_a_gpu_names_its_source(gpu):
    for number in NUMBERS:
        assert len(gpu.source_of(number)) >= 8, number
    assert set(gpu.sources) <= set(NUMBERS)


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_lower_precision_is_never_slower(gpu):
    order = [
        gpu.flops[name] for name in ("fp64", "fp32", "tf32", "fp16", "fp8") if name in gpu.flops
    ]
    assert order == sorted(order)
    assert gpu.flops.get("bf16", gpu.flops.get("fp16")) == gpu.flops.get("fp16")


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_rates_are_dense_and_of_this_generation(gpu):
    """A rate for sparse matrices is twice as high; no dense one is 34 times that of fp32."""
    half = gpu.flops.get("fp16", gpu.flops["fp32"])
    assert half <= 34 * gpu.flops["fp32"]
    assert 10 <= half / gpu.memory_bandwidth <= 500  # FLOPs per byte: no unit is off by 1000
    if gpu.nvlink:
        assert gpu.pcie_bandwidth < gpu.nvlink.bandwidth < gpu.memory_bandwidth


def test_names_and_aliases_mean_one_thing_and_find_it():
    for listed, get in (
        (gpus(), get_gpu), (interconnects(), get_interconnect), (machines(), get_machine),
    ):  # fmt: skip
        for one in listed.values():
            for name in names_of(one):
                assert get(name) is one
                assert get(name.upper()) is one


def test_an_alias_that_two_share_is_refused(monkeypatch):
    one, other = itertools.islice(gpus().values(), 2)
    with pytest.raises(InputError, match="are both called"):
        catalogue._unique([one, replace(other, aliases=(one.name,))])


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("Tesla K80", "K80"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla V100-SXM3-32GB", "V100-SXM3-32GB"),
        ("Tesla V100S-PCIE-32GB", "V100S-PCIe-32GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A800 80GB PCIe", "A800-PCIe-80GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA TITAN RTX", "TITAN-RTX"),
        ("TITAN X (Pascal)", "TITAN-X-Pascal"),
        ("GeForce GTX TITAN X", "TITAN-X-Maxwell"),
        ("GeForce GTX 1080 Ti", "GTX1080Ti"),
        ("Quadro RTX 6000", "QuadroRTX6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA RTX A6000", "A6000"),
        ("AMD Instinct MI250X / MI250", "MI250X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("rtx2080ti", "RTX2080Ti"),
    ],
)
def test_a_driver_s_name_is_known(said, name):
    assert get_gpu(said).name == name


def test_several_gpus_are_refused_with_the_words_for_them():
    told = r"'8x A100' is several GPUs.*--gpu A100 --gpus-per-node 8"
    with pytest.raises(InputError, match=told):
        get_gpu("8x A100")


@pytest.mark.parametrize(
    ("words", "protocol", "gigabits"),
    [
        ("25 GbE", "TCP", 25),
        ("8x400GbIB", "InfiniBand", 3200),
        ("3200Gb/s EFA", "EFA", 3200),
        ("4 x 100 Gb/s EFA", "EFA", 400),
        ("100GbE RoCE", "RoCE", 100),
        ("56Gb FDR IB", "InfiniBand", 56.25 * 64 / 66),
        ("40 Gb/s InfiniBand", "InfiniBand", 32),
        ("40 Gb/s Ethernet", "TCP", 40),
        ("QDR", "InfiniBand", 32),
        ("HDR100", "InfiniBand", 100),
        ("2x hdr infiniband", "InfiniBand", 400),
        ("4X EDR InfiniBand", "InfiniBand", 100),  # X counts the lanes of a port
        ("4x EDR InfiniBand", "InfiniBand", 400),
        ("10 GigE", "TCP", 10),
        ("100GE", "TCP", 100),
        ("EFAv2 3200 Gbps", "EFA", 3200),
        ("OPA 100Gb/s", "Slingshot", 100),
        ("100 Gb/s IPoIB", "TCP", 100),
        ("100gbps infiniband", "InfiniBand", 100),
        ("100 Mb/s Ethernet", "TCP", 0.1),
        ("3.2 Tb/s EFA", "EFA", 3200),
        ("25 Gb/s ENA", "TCP", 25),
        ("2x HDR", "InfiniBand", 400),
        ("12.5 GB/s TCP", "TCP", 100),
        ("Slingshot 4x200 Gb/s", "Slingshot", 800),
    ],
)
def test_a_network_is_read_from_words(words, protocol, gigabits):
    found = get_interconnect(words)
    assert found.protocol.name == protocol
    assert gigabits_per_second(found.line_rate) == pytest.approx(gigabits)


@pytest.mark.parametrize("words", ["100 Gb/s", "banana", "NVLink", "Slingshot", "0GbE", "", 100])
def test_a_network_that_cannot_be_read_is_refused_with_a_way_out(words):
    with pytest.raises(InputError, match="write rate and protocol"):
        get_interconnect(words)


def test_a_faster_line_is_never_slower():
    for protocol in ("TCP", "RoCE", "IB", "EFA"):
        rates = [1, 10, 25, 40, 100, 200, 400]
        bandwidths = [get_interconnect(f"{rate} Gb/s {protocol}").bandwidth for rate in rates]
        for slow, fast in itertools.pairwise(bandwidths):
            assert slow.value <= fast.value
            assert slow.low <= fast.low
            assert slow.high <= fast.high
            assert fast.low < fast.value < fast.high


def test_one_socket_is_the_limit_of_tcp_on_a_fast_card():
    fast, slow = get_interconnect("100GbE"), get_interconnect("10GbE")
    assert fast.bandwidth.source != fast.protocol.share.source  # software is the limit
    assert slow.bandwidth.source == slow.protocol.share.source
    assert fast.bandwidth.value < 0.3 * fast.line_rate


def test_free_text_finds_the_gpu_it_names():
    assert gpu_in("H100-SXM (Dell XE9680)") is get_gpu("H100")
    assert gpu_in("A100-SXM4-40GB (OCI BM.GPU4.8)") is get_gpu("A100-40GB")
    assert gpu_in("NVIDIA GB200") is get_gpu("GB200")
    assert gpu_in("Accelerator 9000") is None


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *((words, "A100-80GB") for words in ("2xXE9680x8A100-SXM-80GB", "2x8xA100", "8GPUxA100")),
        *((words, "A100-80GB") for words in ("DGXA100", "A100 super-computer", "A100x8", "8A100")),
        *((words, "V100-SXM2-32GB") for words in ("V100-DGXS-32GB", "V100 (Summit)")),
        *((words, "MI300X") for words in ("AMD Instinct MI 300X OAM", "HGXMI300X", "MI300X8GPU")),
        *((words, "RTX3090") for words in ("GeForce RTX 3090", "RTX_3090_24GB")),
        *(
            ("T4 16GB", "T4"),
            ("8x2080Ti", "RTX2080Ti"),
            ("DGXGB200", "GB200"),
            ("L40 server", "L40"),
        ),
        *(("H100SXM5", "H100"), ("A100-PCIE-80GBx16", "A100-PCIe-80GB")),
        ("GTX TITAN X", "TITAN-X-Maxwell"),
    ],
)
def test_free_text_finds_a_gpu_beside_counts_makers_and_machines(words, name):
    assert gpu_in(words) is get_gpu(name)


@pytest.mark.parametrize(
    "words",
    [
        *("NVIDIA RTX A4000", "a1000", "h1000", "NVIDIA T400", "Quadro P4000", "13090"),
        *("RTX 3090 Ti", "RTX_3090_Ti_24GB", "rtx 2080 super", "RTX 4090D", "RTX 3080 Laptop"),
    ],
)
def test_a_name_that_begins_like_a_gpu_s_is_none(words):
    assert gpu_in(words) is None


def test_machines_have_the_network_that_they_are_sold_with():
    dgx = get_machine("DGX A100")
    assert (dgx.gpus, dgx.gpu) == (8, get_gpu("A100-80GB"))
    assert dgx.interconnect.line_rate == pytest.approx(dgx.gpus * dgx.gpu.port)
    assert get_machine("p5").interconnect.line_rate == pytest.approx(400 * GB)


@pytest.mark.parametrize("gpu", ALL_GPUS, ids=repr)
def test_a_generation_is_one_entry_and_most_was_measured_on_a_gpu_of_it(gpu):
    assert gpu.kin.name == gpu.generation
    assert not gpu.kin.usual or get_gpu(gpu.kin.usual).generation == gpu.generation
    assert not gpu.kin.usual or get_gpu(gpu.kin.usual).power > 0


def test_a_generation_that_nobody_knows_is_like_others():
    later = replace(get_gpu("B200"), generation="Rubin")
    assert later.kin.name == "others"


def test_no_rate_is_looked_for_in_very_many_digits():
    """Patterns with repeated digits took the square of their number in steps, and seconds."""
    with pytest.raises(InputError, match=r"names no(ne of the protocols| rate above 0)"):
        get_interconnect("100GbE" + 100_000 * "9")
