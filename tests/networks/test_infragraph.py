"""A network that is written as InfraGraph reads back, and files of the package's own are read."""

import math
from dataclasses import replace

import networkx as nx
import pytest

import ddlnb
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError
from ddlnb.networks.infragraph import read_infragraph, write_infragraph
from ddlnb.networks.network import changed
from ddlnb.networks.routes import route
from ddlnb.networks.topologies import Star, get_topology, with_islands
from ddlnb.simulator.simulate import simulate
from tests.networks.random_traffic import as_graph

infragraph = pytest.importorskip("infragraph", reason="InfraGraph files need its package")


@pytest.mark.parametrize(
    "text",
    [
        "star(3)",
        "two-tier(2, 2, oversubscription=2.0)",
        "fat-tree(4)",
        "bcube(2, 2)",
        "torus(3, 3)",
        "dragonfly(1, 2, 1)",
        "rail-optimised(2, 4)",
    ],
)
def test_what_is_written_reads_back_as_the_same_graph(tmp_path, text):
    network = get_topology(text).network(1.25e9, 1e-6)
    if "rail" not in text:
        network = with_islands(network, 2, 1e10)
    back = read_infragraph(write_infragraph(network, tmp_path / "network.yaml"))
    assert (back.ranks, back.nodes) == (network.ranks, network.nodes)
    assert nx.is_isomorphic(
        as_graph(network), as_graph(back), edge_match=_alike, node_match=_same_kind
    )


def _alike(one, other):
    return one["bandwidth"] == pytest.approx(other["bandwidth"]) and one["latency"] == (
        pytest.approx(other["latency"])
    )


def _same_kind(one, other):
    return one["kind"] == other["kind"]


def test_machines_that_differ_are_written_apart(tmp_path):
    network = with_islands(get_topology("star(3)").network(1e9), 2, 1e10)
    network = changed(network, ["scale(gpu1_0, host1, 0.5)"])
    back = read_infragraph(write_infragraph(network, tmp_path / "network.yaml"))
    assert sorted(back.bandwidths.tolist()) == sorted(network.bandwidths.tolist())


def test_a_blueprint_of_the_package_is_a_network(tmp_path):
    from infragraph.blueprints.devices.generic.server import Server
    from infragraph.blueprints.fabrics.single_tier_fabric import SingleTierFabric

    path = tmp_path / "fabric.yaml"
    made = SingleTierFabric(Server(), 3)
    path.write_text(made.serialize(encoding=infragraph.Infrastructure.YAML))
    network = read_infragraph(path)
    assert network.nodes == (0, 0, 1, 1, 2, 2)
    found = route(network, network.endpoints[0], network.endpoints[-1])
    finite = [network.bandwidths[link] for link in found.links if network.bandwidths[link] < 1e15]
    assert set(finite) == {100e9 / 8}
    assert math.isinf(max(network.bandwidths))


def test_a_cable_with_unlike_directions_cannot_be_written(tmp_path):
    network = get_topology("star(2)").network(1e9)
    links = (replace(network.links[0], bandwidth=2e9), *network.links[1:])
    with pytest.raises(InputError, match="directions of the cable between host0 and switch0"):
        write_infragraph(network.with_links(links), tmp_path / "network.yaml")


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: 8\n")
    with pytest.raises(InputError, match=r"InfraGraph file .*cluster\.yaml cannot be read"):
        read_infragraph(path)


def test_a_cluster_on_a_file_costs_what_it_costs_on_the_topology_that_was_written(tmp_path):
    cluster = ddlnb.get_cluster("survey-10GbE", workers=16)
    effects = cluster.effects
    hosts = get_topology("star(8)").network(effects.between_bandwidth)
    network = with_islands(hosts, 4, effects.inside_bandwidth)
    path = write_infragraph(network, tmp_path / "fabric.yaml")
    on_file, on_star = (
        replace(cluster, topology=text).all_reduce_seconds[:2]
        for text in (f"infragraph('{path}')", "star(8)")
    )
    assert on_file == pytest.approx(on_star)


def test_a_file_of_other_machines_than_the_cluster_s_is_refused(tmp_path):
    cluster = ddlnb.get_cluster("survey-10GbE")
    path = write_infragraph(get_topology("star(8)").network(1e9), tmp_path / "hosts.yaml")
    with pytest.raises(InputError, match="8 GPUs on 8 machines, and the cluster 4 per node"):
        replace(cluster, topology=f"infragraph('{path}')")
    with pytest.raises(InputError, match="there is no InfraGraph file"):
        replace(cluster, topology="infragraph('nowhere.yaml')")


def test_a_file_that_is_written_again_is_another_network(tmp_path, monkeypatch):
    """In the same process, whose results are kept by the names of topologies."""
    monkeypatch.chdir(tmp_path)
    found = []
    plain = replace(get_cluster("survey-10GbE", 8), gpus_per_node=1, nodes=8)
    for bandwidth in (1e9, 1e8):
        write_infragraph(Star(8).network(bandwidth=bandwidth), tmp_path / "fabric.yaml")
        cluster = replace(plain, topology="infragraph('fabric.yaml')")
        found.append(simulate("resnet50", cluster, "BSP-A2A").iteration_seconds)
    assert found[1] > 2 * found[0]
