"""Laws of NCCL's cost model, and what words for GPUs, networks and settings mean."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

import ddlnb
from ddlnb.calibration.collective_tables import COLLECTIVES, bus_factor
from ddlnb.calibration.collectives import NAMES, parameters, prior_of
from ddlnb.calibration.nccl import (
    Parameters,
    Setting,
    by_algorithm,
    delivered,
    depth,
    gpu_of,
    hardware_of,
    network_of,
    seconds,
    setting_of,
    slowest,
)
from ddlnb.errors import InputError
from ddlnb.hardware import get_interconnect
from ddlnb.plans.alpha_beta import double_tree_share
from ddlnb.units import GIB, KIB, gigabits_per_second

SIZES = 2.0 ** np.arange(3, 35, 2)
H100 = gpu_of("H100-SXM")
USUAL = parameters(prior_of(H100, network_of("InfiniBand 8x400 Gb/s", H100, 8)).mean[None])
SETTINGS = st.builds(
    Setting,
    st.sampled_from(COLLECTIVES),
    st.sampled_from([1, 2, 3, 4, 7, 16, 64]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(["Volta", "Ampere", "Hopper", "Blackwell"]),
    st.booleans(),
)


def quickest(setting: Setting, sizes: np.ndarray, p: Parameters) -> np.ndarray:
    return np.min(list(by_algorithm(setting, sizes, p).values()), axis=0)


@settings(max_examples=60, deadline=None)
@given(
    SETTINGS,
    st.sampled_from(["inside", "switch", "between"]),
    st.floats(1.0, 20.0),
    st.floats(-2.0, 2.0),
)
def test_more_bandwidth_makes_no_algorithm_slower(setting, name, factor, shift):
    slow = replace(USUAL, between=USUAL.between * np.exp(shift))
    fast = replace(slow, **{name: getattr(slow, name) * factor})
    before, after = (by_algorithm(setting, SIZES, p) for p in (slow, fast))
    for key, time in before.items():
        assert (after[key] <= time * (1 + 1e-12)).all(), key


@settings(max_examples=60, deadline=None)
@given(SETTINGS)
def test_a_larger_message_and_a_longer_latency_never_take_less(setting):
    for time in by_algorithm(setting, SIZES, USUAL).values():
        assert (np.diff(time) >= 0).all()
    for name in ("hop", "flush", "few", "many", "host"):
        longer = replace(USUAL, **{name: getattr(USUAL, name) * 3})
        assert (quickest(setting, SIZES, longer) >= quickest(setting, SIZES, USUAL)).all()


@settings(max_examples=60, deadline=None)
@given(SETTINGS)
def test_nothing_beats_the_bytes_that_have_to_pass(setting):
    """A rank of an all-reduce cannot send less than the bus factor says, but through switches."""
    if setting.has_switch_reduction and setting.collective == "all_reduce":
        return
    rate = np.maximum(USUAL.inside, USUAL.between)
    if setting.collective not in ("all_reduce", "all_gather", "reduce_scatter"):
        return
    bound = SIZES * bus_factor(setting.collective, setting.ranks) / rate
    assert (quickest(setting, SIZES, USUAL) >= bound * (1 - 1e-12)).all()


def test_the_bus_bandwidth_of_a_tree_halves_from_two_nodes_to_four_and_then_stays():
    narrow = replace(USUAL, between=USUAL.between / 100, spread=USUAL.spread * 0)
    size = np.array([256.0 * GIB])
    times = {n: by_algorithm(Setting("all_reduce", n, 8), size, narrow) for n in (2, 4, 64)}
    tree = {n: float(found["Tree", "Simple"][0, 0]) for n, found in times.items()}
    assert tree[4] / tree[2] == pytest.approx(2.0, rel=0.01)
    assert tree[64] / tree[4] == pytest.approx(1.0, rel=0.01)
    ring = {n: float(found["Ring", "Simple"][0, 0]) for n, found in times.items()}
    factors = {n: bus_factor("all_reduce", 8 * n) for n in (2, 64)}
    assert ring[64] / ring[2] == pytest.approx(factors[64] / factors[2], rel=0.01)


def test_what_passes_a_node_of_a_double_tree_is_counted_from_the_trees():
    """Count bytes over the nodes of two mirrored binary trees, each carrying half of the size."""
    for nodes in (2, 4, 8, 16):
        children = [[0] * nodes, [0] * nodes]
        for tree in (0, 1):
            for rank in range(nodes):
                parent = _parent(rank, nodes)
                if parent is not None:
                    children[tree][parent if tree == 0 else nodes - 1 - parent] += 1
        roots = {0: 0, 1: nodes - 1}
        received = [
            sum(children[tree][node] / 2 + (node != roots[tree]) / 2 for tree in (0, 1))
            for node in range(nodes)
        ]
        assert max(received) == double_tree_share(nodes)


def _parent(rank: int, nodes: int) -> int | None:
    """Return a parent in NCCL's binary tree (trees.cc): clear the lowest bit, set the next."""
    bit = 1
    while bit < nodes and not bit & rank:
        bit <<= 1
    if rank == 0:
        return None
    up = (rank ^ bit) | (bit << 1)
    return up if up < nodes else rank ^ bit


def test_latencies_of_many_nodes_grow_with_the_depth_of_a_tree_but_linearly_in_a_ring():
    few, many = (by_algorithm(Setting("all_reduce", n, 8), np.array([8.0]), USUAL) for n in (4, 64))
    tree = many["Tree", "LL"][0, 0] / few["Tree", "LL"][0, 0]
    ring = many["Ring", "LL"][0, 0] / few["Ring", "LL"][0, 0]
    assert depth(64) / depth(4) == 3
    assert tree < 3 < 15 < ring


def test_settings_restrict_the_choice_and_what_does_not_exist_is_left_to_nccl():
    forced = Setting("all_reduce", 4, 8, algorithms=frozenset({"Ring"}))
    assert {name for name, _ in by_algorithm(forced, SIZES, USUAL)} == {"Ring"}
    assert (seconds(forced, SIZES, USUAL) > 0).all()
    odd = Setting("all_gather", 4, 8, algorithms=frozenset({"NVLSTree"}))
    assert {name for name, _ in by_algorithm(odd, SIZES, USUAL)} == {"Ring"}


def test_ll128_is_not_chosen_between_nodes_that_it_does_not_work_between():
    without = replace(USUAL, fine=USUAL.fine * 0 + 0.5)
    times = by_algorithm(Setting("all_reduce", 4, 8), SIZES, without)
    assert np.isinf(times["Tree", "LL128"]).all()
    assert np.isfinite(seconds(Setting("all_reduce", 4, 8), SIZES, without)).all()
    assert np.isfinite(
        by_algorithm(Setting("all_reduce", 1, 8), SIZES, without)["Ring", "LL128"]
    ).all()


@pytest.mark.parametrize("settings", ["", "LL128", "NVLS", "CollNet", "Tree", "LL"])
@pytest.mark.parametrize(("gpu", "network"), [("V100", "10GbE"), ("H100", "8x400GbIB")])
@pytest.mark.parametrize(("nodes", "each"), [(1, 8), (2, 1), (8, 8)])
def test_every_collective_takes_seconds_with_every_setting(settings, gpu, network, nodes, each):
    """Within one node no hop between nodes counts, and who asks for LL128 gets it anywhere.

    A setting that the GPUs have no hardware for leaves NCCL what it had, and nothing more.
    """
    rows = pd.DataFrame(
        {"collective": name, "nodes": nodes, "gpus_per_node": each, "size_bytes": size,
         "gpu": gpu, "network": network, "settings": settings and f"NCCL_ALGO={settings}"}
        for name in COLLECTIVES
        for size in (KIB, GIB)
    )  # fmt: skip
    if settings.startswith("LL"):
        rows["settings"] = f"NCCL_PROTO={settings}"
    found = ddlnb.collectives(rows, draws=20)
    assert np.isfinite(found[["time_us", "low", "high"]]).all(axis=None)
    if settings == "NVLS" and gpu == "V100":
        free = ddlnb.collectives(rows.assign(settings=""), draws=20)
        assert np.allclose(found["time_us"], free["time_us"])


def test_settings_that_switch_hardware_off_leave_what_is_slower():
    row = {"collective": "all_reduce", "nodes": 4, "gpus_per_node": 8, "gpu": "H100"}
    row |= {"network": "8x400 Gb/s InfiniBand", "settings": ""}
    gpu, network = hardware_of(row)
    _, sockets = hardware_of(row | {"settings": "NCCL_IB_DISABLE=1 NCCL_DEBUG=INFO"})
    assert (network.kind, sockets.kind) == ("InfiniBand", "TCP")
    assert sockets == replace(network, kind="TCP")
    apart, same = hardware_of(row | {"settings": "NCCL_P2P_DISABLE=1"})
    assert apart.inside < gpu.inside / 5
    assert not apart.has_switch_reduction
    assert same == network
    assert hardware_of(row | {"settings": "NCCL_IB_DISABLE=0, NCCL_P2P_DISABLE=0"}) == (
        gpu,
        network,
    )


def test_the_slowest_of_more_nodes_is_slower():
    assert slowest(1) == 0.0
    assert slowest(2) < slowest(4) < slowest(64)
    shaky = replace(USUAL, spread=USUAL.spread * 0 + 0.2)
    factor = seconds(Setting("all_reduce", 64, 8), SIZES, shaky) / seconds(
        Setting("all_reduce", 64, 8), SIZES, replace(USUAL, spread=USUAL.spread * 0)
    )
    assert factor == pytest.approx(np.exp(0.2 * (slowest(64) - slowest(2))), rel=0.2)


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
        ("A100", "200GbIB", "InfiniBand", 200, True),
        ("A100", "100GbE-RoCE", "RoCE", 100, True),
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
        ("NCCL_PROTO=simple", set(), {"Simple"}),
        ('NCCL_ALGO="^Tree", a ring of 8 rails', {"NVLS", "NVLSTree", "PAT", "Ring"}, set()),
        ("NCCL_ALGO=^NVLSTree,Ring NCCL_PROTO=^LL", {"NVLS", "PAT", "Tree"}, {"LL128", "Simple"}),
    ],
)
def test_settings_force_what_they_name(settings, algorithms, protocols):
    found = setting_of({**ROW, "settings": settings})
    assert (set(found.algorithms), set(found.protocols)) == (algorithms, protocols)


def test_a_setting_that_names_nothing_is_refused():
    with pytest.raises(
        InputError, match="NCCL_ALGO=Rings, which is unknown; write one of NVLSTree"
    ):
        setting_of({**ROW, "settings": "NCCL_ALGO=Rings"})


def test_words_say_what_is_slower_shared_copied_and_switched_off():
    pcie, sxm = gpu_of("H100 PCIe"), gpu_of("H100 SXM")
    assert not gpu_of("Accelerator 9000").is_known
    assert pcie.inside < sxm.inside / 10
    assert not pcie.has_switch_reduction
    for library, said in (
        ("NCCL via PyTorch, in a shared production cluster", True),
        ("NCCL", False),
    ):
        _, network = hardware_of({**ROW, "network": "EFA 3200 Gb/s", "library": library})
        assert (network.is_shared, network.is_copied) == (said, said)
    off = setting_of({**ROW, "settings": "NCCL_NVLS_ENABLE=0"})
    assert not off.has_switch_reduction
    assert not off.algorithms


RACK = {**ROW, "gpu": "GB200", "gpus_per_node": 4, "network": "InfiniBand 4x400 Gb/s"}


@pytest.mark.parametrize(
    ("words", "machines", "nodes", "per_node"),
    [
        ({}, 2, 1, 8),
        ({}, 18, 1, 72),
        ({}, 36, 2, 72),
        ({"gpu": "GB200 NVL36"}, 36, 4, 36),
        ({"network": "NVL36, InfiniBand 4x400 Gb/s"}, 18, 2, 36),
        ({"gpu": "H100-SXM", "network": "multi-node NVLink"}, 2, 1, 8),
        ({"nvlink_domain": 4}, 18, 18, 4),
        ({"nvlink_domain": "8.0"}, 18, 9, 8),
        ({"nvlink_domain": ""}, 18, 1, 72),
        ({"gpu": "H100-SXM"}, 18, 18, 4),
    ],
)
def test_a_node_is_what_nvlink_joins(words, machines, nodes, per_node):
    found = setting_of({**RACK, **words, "nodes": machines})
    assert (found.nodes, found.per_node) == (nodes, per_node)
    assert found.joined * found.nodes == machines


def test_a_domain_of_nvlink_that_is_no_number_is_refused():
    with pytest.raises(InputError, match=r"nvlink_domain '7\.5' must be a whole number"):
        setting_of({**RACK, "nvlink_domain": 7.5})


def test_more_racks_cost_more_than_one_and_ports_of_a_rack_work_together():
    gpu, network = hardware_of(RACK)
    usual = parameters(prior_of(gpu, network).mean[None])
    one, two, twenty, alone = (
        float(seconds(setting_of({**RACK, **more}), np.array([2.0**30]), usual)[0, 0])
        for more in (
            {"nodes": 18},
            {"nodes": 36},
            {"nodes": 360},
            {"nodes": 36, "nvlink_domain": 4},
        )
    )
    assert one < two < twenty < alone / 2


def test_few_gpus_of_a_cube_mesh_have_few_of_its_links():
    times = {
        n: setting_of({**ROW, "gpu": "V100-SXM2", "nodes": 1, "gpus_per_node": n}).linked
        for n in (2, 4, 8, 16)
    }
    assert times == {2: 1 / 6, 4: 4 / 6, 8: 1.0, 16: 1.0}
    switched = setting_of({**ROW, "gpu": "V100-SXM3-32GB", "nodes": 1, "gpus_per_node": 2})
    assert switched.linked == 1.0


@pytest.mark.parametrize("gigabits", [1, 10, 25, 100, 400])
def test_what_tcp_delivers_is_said_in_one_place(gigabits):
    words = f"{gigabits} GbE"
    network = network_of(words, gpu_of("V100"), 8)
    assert delivered(network)[0] == pytest.approx(get_interconnect(words).bandwidth.value)


def test_small_messages_over_efa_pay_for_the_protocol_simple():
    """Its latency was seen to be about 160 us where LL's would be 50, on few nodes."""
    row = {**ROW, "gpu": "A100", "network": "EFA 4x100 Gb/s"}
    gpu, network = hardware_of(row)
    usual = parameters(prior_of(gpu, network).mean[None])
    assert "LL" not in setting_of(row).protocols
    assert setting_of({**row, "settings": "NCCL_PROTO=LL"}).protocols == {"LL"}
    two = float(seconds(setting_of(row), np.array([8.0]), usual)[0, 0])
    assert 120e-6 < two < 200e-6


def test_latency_with_ll_grows_only_until_all_channels_are_at_work():
    sizes = np.array([8.0, 16 * KIB, 32 * KIB])
    times = by_algorithm(Setting("all_reduce", 4, 8), sizes, USUAL)["Tree", "LL"][0]
    assert times[1] > 1.2 * times[0]
    assert times[2] - times[1] < 0.05 * times[1]  # bytes alone


def test_a_gpu_that_is_one_of_two_is_between_them_and_less_certain():
    one, other, either = (gpu_of(words) for words in ("H100", "A100", "H100 or A100 (not stated)"))
    assert other.port < either.port < one.port
    assert other.inside < either.inside < one.inside
    assert not either.is_known
    assert gpu_of("one or other").name == "one or other"


def test_a_call_from_python_takes_longer_and_other_libraries_are_less_certain():
    script = setting_of({**ROW, "settings": "all_reduce_bench.py"})
    assert script.outside > setting_of(ROW).outside
    words = {**ROW, "network": "TCP 10 Gb/s per node"}
    mpi, nccl = (prior_of(*hardware_of({**words, "library": name})) for name in ("MPI", "NCCL"))
    between = NAMES.index("between")
    assert mpi.spread[between] > 2 * nccl.spread[between]
