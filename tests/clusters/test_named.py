"""Clusters from the names of their hardware: what is chosen, its intervals, and laws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.clusters.file import get_cluster, write_cluster
from ddlnb.clusters.named import cluster_of, usual_network
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_gpu, get_interconnect, gpus, machines
from ddlnb.hardware.machine import node_costs
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.simulate import simulate
from ddlnb.workloads.workload import read_profile


@pytest.mark.parametrize("name", [*gpus()])
def test_every_gpu_makes_a_cluster_whose_effects_have_intervals_and_sources(name):
    cluster = cluster_of(name, nodes=4)
    assert cluster.assumed == ()
    for effect, fit in cluster.fits.items():
        assert fit.low < getattr(cluster.effects, effect) < fit.high, effect
        assert len(fit.source) > 20
    gpu = gpus()[name]
    assert cluster.fits["inside_bandwidth"].high <= gpu.inside_bandwidth
    several = cluster.nodes > 1 or cluster.gpus_per_node > 8  # NVLink makes one node of GB200
    assert cluster.all_reduce == ("nccl-tree" if gpu.nvlink and several else "nccl")


@pytest.mark.parametrize(
    ("gpu", "nodes", "per_node", "workers"),
    [
        *(("A100", (1, 4), 8, 2), ("A100", (1, 4), 8, 8), ("T4", (1, 4), 4, 4)),
        *(("GB200", (18, 36), 4, 72), ("GB200", (1, 18), 4, 4), ("V100-SXM3-32GB", (1, 2), 16, 16)),
    ],
)
def test_a_node_answers_alike_alone_and_as_one_of_several(gpu, nodes, per_node, workers):
    alone, several = (cluster_of(gpu, count, per_node).with_workers(workers) for count in nodes)
    assert alone.all_reduce_seconds == several.all_reduce_seconds


def test_a_rack_of_nvlink_has_no_more_latency_than_a_rack_and_a_tray():
    rack, more = (cluster_of("GB200", trays, 4).all_reduce_seconds for trays in (18, 19))
    assert rack[0] < more[0]
    assert rack[1] <= more[1]


def test_small_messages_take_few_hops_on_many_nodes_without_nvlink():
    """A ring of 1,024 GPUs has 2,046 hops; NCCL sends small messages along double trees."""
    large, small = (cluster_of("T4", nodes, 4, "25GbE") for nodes in (256, 2))
    ring = replace(large, all_reduce="ring")
    latencies = [one.all_reduce_seconds[0] for one in (ring, large, small)]
    assert latencies[0] > 10 * latencies[1]
    assert latencies[1] < 8 * latencies[2]


@pytest.mark.parametrize("name", [*machines()])
def test_a_machine_is_its_gpu_its_size_and_its_network(name):
    machine = machines()[name]
    cluster = cluster_of(machine=name, nodes=2)
    assert cluster.gpus_per_node == machine.gpus
    assert cluster.network == machine.interconnect.name
    assert cluster.hardware == machine.gpu.word
    assert cluster.fits["between_bandwidth"].high <= machine.interconnect.line_rate


@pytest.mark.parametrize("gpu", ["A100", "NVIDIA A100", "A100-40GB", get_gpu("A100-40GB")])
def test_a_gpu_beside_a_machine_is_the_one_that_it_has(gpu):
    cluster = cluster_of(gpu, machine="p4d", nodes=2, network="EFA-400")
    assert cluster == cluster_of(machine="p4d", nodes=2)


@pytest.mark.parametrize(
    ("gpu", "rule"),
    [
        ("A100-80GB", r"A100-SXM4-80GB is not that of machine p4d.24xlarge, A100-SXM4-40GB; leave"),
        ("H100", r"or name a machine that has it \(it is in .*p5.48xlarge"),
    ],
)
def test_another_gpu_than_the_machine_has_is_refused(gpu, rule):
    with pytest.raises(InputError, match=rule):
        cluster_of(gpu, machine="p4d")


def test_a_gpu_with_more_than_a_port_of_its_year_has_several():
    gpu = replace(get_gpu("H100"), port=200e9)
    assert usual_network(gpu, 8) == "16x800GbIB"


@pytest.mark.parametrize(
    ("gpu", "per_node", "network"),
    [
        ("V100", 8, "4x100GbIB"),
        ("V100", 3, "2x100GbIB"),
        ("V100-PCIe", 4, "100GbIB"),
        ("A100-PCIe", 4, "200GbIB"),
        ("L40S", 8, "400GbIB"),
        ("H100-PCIe", 4, "400GbIB"),
        ("H100", 2, "2x400GbIB"),
        ("B300", 8, "8x800GbIB"),
        ("K80", 4, "40GbE"),
    ],
)
def test_the_usual_network_has_ports_that_are_sold(gpu, per_node, network):
    cluster = cluster_of(gpu, 2, per_node)
    assert cluster.network == network
    assert get_interconnect(network).line_rate >= per_node * get_gpu(gpu).port


@pytest.mark.parametrize(
    ("nodes", "alike", "in_each"),
    [(18, 1, 72), (2, 1, 8), (64, 4, 64), (36, 2, 72)],
)
def test_gpus_that_nvlink_joins_between_nodes_are_of_one_node(nodes, alike, in_each):
    cluster = cluster_of("GB200", nodes, 4, "4x400GbIB")
    assert (cluster.nodes, cluster.gpus_per_node) == (alike, in_each)
    assert f"count as {alike} of {in_each}" in cluster.facts["NVLink between nodes"]
    line = in_each / 4 * 4 * 400e9 / 8  # ports of all machines that are one node
    known = cluster.fits.get("between_bandwidth")
    assert known is None if alike == 1 else 0.5 * line < known.low < known.high <= line


def test_nvlink_that_ends_at_the_node_joins_no_others():
    for cluster in (cluster_of("GB200", 1, 72), cluster_of("H100", 2)):
        assert "NVLink between nodes" not in cluster.facts


@pytest.mark.parametrize(
    ("arguments", "network", "fact", "said"),
    [
        (
            {"machine": "DGX-A100", "nodes": 2, "gpus_per_node": 4, "network": "25GbE"},
            "25GbE",
            "network",
            "not that of DGX-A100, 8x200GbIB: 25GbE",
        ),
        ({"gpu": "A100", "nodes": 2}, "8x200GbIB", "network", "not given: 8x200GbIB"),
        ({"gpu": "A100", "nodes": 2}, "8x200GbIB", "GPUs per node", "not given: 8"),
        (
            {"gpu": "A100", "network": "25GbE"},
            "no network",
            "network",
            "not used: 25GbE, as there is one node",
        ),
        ({"gpu": "A100", "gpus_per_node": 8}, "no network", "inside", "NVLink"),
    ],
)
def test_what_was_chosen_and_what_counts_for_nothing_is_said(arguments, network, fact, said):
    cluster = cluster_of(**arguments)
    assert cluster.network == network
    assert said in cluster.facts[fact]
    is_alone = cluster.nodes == 1
    assert (cluster.server_place is None) == is_alone
    assert (cluster.effects.between_bandwidth == Effects().between_bandwidth) == is_alone


@pytest.mark.parametrize(
    ("gpu", "per_node", "rates"),
    [("rtx2080ti", 4, (1, 10, 40, 100)), ("A100", 8, (10, 25, 100, 200, 400, 800, 1600, 3200))],
)
def test_more_bandwidth_is_never_slower(gpu, per_node, rates):
    """Not where GPUs copy either: what that leaves of a network grows, though its share falls."""
    workload = replace(read_profile("resnet50_b64_rtx2080ti"), hardware="")
    clusters = [cluster_of(gpu, 4, per_node, f"{rate} Gb/s RoCE") for rate in rates]
    for method in ("BSP-A2A", "WFBP-A2A", "MG-WFBP", "WFBP-PS"):
        seconds = [simulate(workload, one, method).iteration_seconds for one in clusters]
        for slow, fast in itertools.pairwise(seconds):
            assert fast <= slow * (1 + 1e-9), (method, seconds)


@pytest.mark.parametrize("network", ["10GbE", "100GbIB"])
@pytest.mark.parametrize(("without", "name"), [("V100-PCIe", "V100"), ("A100-PCIe", "A100")])
def test_a_gpu_with_nvlink_loses_but_processors_to_the_same_without(without, name, network):
    """And its double tree up to 4 % to a ring: its bytes are those of a ring of very many."""
    processors = 1 / node_costs().busy["compute"].value
    workload = replace(read_profile("resnet50_b64_rtx2080ti"), hardware="")
    for method in ("BSP-A2A", "MG-WFBP"):
        slow, fast = (
            simulate(workload, cluster_of(gpu, 4, 4, network), method).iteration_seconds
            for gpu in (without, name)
        )
        assert fast <= max(1.04, processors) * slow, (method, slow, fast)


def test_copies_hardly_limit_a_slow_network():
    named = [cluster_of("H100", 4, 8, name) for name in ("10GbE", "100GbIB", "EFA-3200")]
    shares = [cluster.effects.between_share for cluster in named]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.995
    assert shares[-1] == pytest.approx(node_costs().busy["between"].value)


def test_it_is_forecast_with_intervals_and_written_to_a_file(tmp_path):
    cluster = cluster_of("rtx2080ti", 2, 4, "10GbE")
    rows = forecast(read_profile("resnet50_b64_rtx2080ti"), cluster, "MG-WFBP", draws=40)
    assert rows["low"].lt(rows["throughput_samples_per_s"]).all()
    assert rows["high"].gt(rows["throughput_samples_per_s"]).all()
    again: Cluster = get_cluster(write_cluster(cluster, tmp_path / f"{cluster.name}.yaml"))
    assert again.facts == cluster.facts
    assert again.fits.keys() == cluster.fits.keys()
    assert again.effects.between_bandwidth == pytest.approx(cluster.effects.between_bandwidth)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({}, "give the GPU of the cluster"),
        ({"gpu": "A100", "nodes": 0}, "nodes 0 must be a whole number"),
        ({"gpu": "A100", "nodes": 10**6}, "are more than 100,000"),
        ({"gpu": "A100", "gpus_per_node": -1}, "gpus_per_node -1 must be"),
        ({"gpu": "A100", "nodes": 2, "network": "fast"}, "names none of the protocols"),
        ({"gpu": "A1000"}, "did you mean"),
        ({"machine": "DGXA1000"}, "did you mean 'DGX-A100'"),
    ],
)
def test_what_cannot_be_is_refused(arguments, rule):
    with pytest.raises(InputError, match=rule):
        cluster_of(**arguments)


@pytest.mark.parametrize(
    ("network", "nominal"), [("1.0GbE", 1.0), ("2.5GbE", 2.5), ("10GbE", 10.0), ("25GbE", 25.0)]
)
def test_a_rate_that_is_written_is_the_rate_that_is_meant(network, nominal):
    found = cluster_of("A100", nodes=2, network=network).effects.between_bandwidth
    assert 0.8 * nominal < 8 * found / 1e9 <= nominal
