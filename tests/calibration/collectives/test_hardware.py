"""What words for GPUs, networks and settings mean."""

from __future__ import annotations

import pytest

from ddlnb.calibration.collectives.hardware import gpu_of, hardware_of, network_of, setting_of
from ddlnb.units import gigabits_per_second

ROW = {"collective": "all_reduce", "nodes": 2, "gpus_per_node": 8, "gpu": "H100-SXM"}


@pytest.mark.parametrize(
    ("words", "name", "generation"),
    [
        ("H100-SXM (Dell XE9680)", "H100", "Hopper"),
        ("NVIDIA A100-SXM4-40GB", "A100", "Ampere"),
        ("NVIDIA GB200", "GB200", "Blackwell"),
        ("Tesla V100-SXM2-16GB", "V100", "Volta"),
        ("NVIDIA H20", "H20", "Hopper"),
        ("AMD Instinct MI300X", "MI300X", "Hopper"),
    ],
)
def test_a_gpu_is_known_by_its_words(words, name, generation):
    assert (gpu_of(words).name, gpu_of(words).generation) == (name, generation)


def test_an_unknown_gpu_is_less_certain_and_pcie_is_slower():
    assert not gpu_of("Accelerator 9000").is_known
    assert gpu_of("H100 PCIe").inside < gpu_of("H100 SXM").inside / 10
    assert not gpu_of("H100 PCIe").has_switch_reduction


@pytest.mark.parametrize(
    ("gpu", "words", "kind", "gigabits", "known"),
    [
        ("H100", "InfiniBand NDR 8x400 Gb/s (CX-7)", "InfiniBand", 3200, True),
        ("A100", "RoCE 8x200 Gb/s", "RoCE", 1600, True),
        ("H100", "AWS EFA 3200 Gb/s per node", "EFA", 3200, True),
        ("A100", "4x 100 Gb/s EFA", "EFA", 400, True),
        ("A100", "8 x HDR", "InfiniBand", 1600, True),
        ("H100", "InfiniBand NDR 400 Gb/s", "InfiniBand", 3200, False),
        ("H100", "8x ConnectX-7 400G", "unknown", 3200, True),
        ("H100", "100 GbE", "TCP", 100, True),
        ("V100", "25 Gb/s", "unknown", 25, True),
        ("H100", "12.5 GB/s TCP", "TCP", 100, True),
        ("H100", "not stated", "unknown", 3200, False),
        ("A100", "", "unknown", 1600, False),
    ],
)
def test_a_network_is_known_by_its_words(gpu, words, kind, gigabits, known):
    network = network_of(words, gpu_of(gpu), 8)
    assert network.kind == kind
    assert gigabits_per_second(network.node_rate) == pytest.approx(gigabits)
    assert network.rate_is_known is known


def test_how_it_was_measured_is_known_from_the_library():
    library = "NCCL via PyTorch, in a shared production cluster"
    _, network = hardware_of({**ROW, "network": "EFA 3200 Gb/s", "library": library})
    assert network.is_shared
    assert network.is_copied
    _, plain = hardware_of({**ROW, "network": "EFA 3200 Gb/s", "library": "NCCL"})
    assert not plain.is_shared
    assert not plain.is_copied


@pytest.mark.parametrize(
    ("settings", "algorithms", "protocols"),
    [
        ("default (NVLSTree)", set(), set()),
        ("", set(), set()),
        (None, set(), set()),
        ("NCCL_ALGO=Ring NCCL_PROTO=LL128", {"Ring"}, {"LL128"}),
        ("NVLS", {"NVLS"}, set()),
        ("NCCL_ALGO=NVLSTree", {"NVLSTree"}, set()),
        ("Tree, Simple", {"Tree"}, {"Simple"}),
        ("SHARP", {"CollNet"}, set()),
    ],
)
def test_settings_force_what_they_name(settings, algorithms, protocols):
    found = setting_of({**ROW, "settings": settings})
    assert (set(found.algorithms), set(found.protocols)) == (algorithms, protocols)


def test_reduction_in_switches_can_be_switched_off():
    found = setting_of({**ROW, "settings": "NCCL_NVLS_ENABLE=0"})
    assert not found.has_switch_reduction
    assert not found.algorithms


def test_nodes_of_one_nvlink_domain_are_one():
    found = setting_of({**ROW, "gpu": "GB200", "gpus_per_node": 4, "network": "NVL72"})
    assert (found.nodes, found.per_node) == (1, 8)
