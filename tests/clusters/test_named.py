"""Clusters from the names of their hardware: what is chosen, its intervals, and laws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.clusters.file import get_cluster, write_cluster
from ddlnb.clusters.named import cluster_of, usual_network
from ddlnb.errors import InputError, UnknownName
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
    assert cluster.all_reduce == ("double-tree" if gpu.nvlink else "ring")


@pytest.mark.parametrize("name", [*machines()])
def test_a_machine_is_its_gpu_its_size_and_its_network(name):
    machine = machines()[name]
    cluster = cluster_of(machine=name, nodes=2)
    assert cluster.gpus_per_node == machine.gpus
    assert cluster.network == machine.interconnect.name
    assert cluster.hardware == machine.gpu.word
    assert cluster.fits["between_bandwidth"].high <= machine.interconnect.line_rate


def test_what_is_given_beside_a_machine_counts():
    cluster = cluster_of(machine="DGX-A100", nodes=2, gpus_per_node=4, network="25GbE")
    assert (cluster.gpus_per_node, cluster.network) == (4, "25GbE")
    assert cluster.facts["network"] == "not that of DGX-A100, 8x200GbIB: 25GbE"


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


def test_what_was_not_given_is_said():
    cluster = cluster_of("A100", nodes=2)
    assert cluster.network == "8x200GbIB"
    assert "not given: 8x200GbIB" in cluster.facts["network"]
    assert "not given: 8" in cluster.facts["GPUs per node"]


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


def test_a_rack_that_nvlink_joins_is_told_of():
    cluster = cluster_of("GB200", nodes=18)
    assert cluster.gpus_per_node == 4
    assert "one node of 72 here" in cluster.facts["NVLink between nodes"]
    assert "NVLink between nodes" not in cluster_of("GB200", 1, 72).facts
    assert "NVLink between nodes" not in cluster_of("H100", 2).facts


def test_a_single_node_needs_no_network():
    cluster = cluster_of("A100", gpus_per_node=8)
    assert cluster.network == "no network"
    assert cluster.server_place is None
    assert cluster.effects.between_bandwidth == Effects().between_bandwidth


def test_a_network_that_joins_nothing_is_said():
    cluster = cluster_of("A100", network="25GbE")
    assert cluster.network == "no network"
    assert cluster.facts["network"] == "not used: 25GbE, as there is one node"


def test_more_bandwidth_is_never_slower():
    workload = read_profile("resnet50_b64_rtx2080ti")
    networks = [f"{rate} Gb/s {protocol}" for protocol in ("RoCE",) for rate in (1, 10, 40, 100)]
    for method in ("BSP-A2A", "WFBP-A2A", "MG-WFBP", "WFBP-PS"):
        seconds = [
            simulate(workload, cluster_of("rtx2080ti", 4, 4, network), method).iteration_seconds
            for network in networks
        ]
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


def test_more_bandwidth_is_never_slower_where_gpus_copy():
    """What copies leave of a network grows with it, though its share falls."""
    workload = replace(read_profile("resnet50_b64_rtx2080ti"), hardware="")
    for method in ("WFBP-A2A", "MG-WFBP"):
        seconds = [
            simulate(workload, cluster_of("A100", 4, 8, f"{rate} Gb/s RoCE"), method)
            for rate in (10, 25, 100, 200, 400, 800, 1600, 3200)
        ]
        for slow, fast in itertools.pairwise(one.iteration_seconds for one in seconds):
            assert fast <= slow * (1 + 1e-9), (method, slow, fast)


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
    ],
)
def test_what_cannot_be_is_refused(arguments, rule):
    with pytest.raises(InputError, match=rule):
        cluster_of(**arguments)


def test_unknown_hardware_suggests_the_nearest():
    with pytest.raises(UnknownName, match="did you mean"):
        cluster_of("A1000")
    with pytest.raises(UnknownName, match="did you mean 'DGX-A100'"):
        cluster_of(machine="DGXA1000")
