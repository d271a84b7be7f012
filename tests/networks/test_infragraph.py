"""A network that is written as InfraGraph reads back, and files of the package's own are read."""

import math
from dataclasses import replace

import networkx as nx
import pytest

from ddlnb.errors import InputError
from ddlnb.networks.changes import changed
from ddlnb.networks.infragraph import read_infragraph, write_infragraph
from ddlnb.networks.islands import with_islands
from ddlnb.networks.routes import route
from ddlnb.networks.topologies import get_topology

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
    assert nx.is_isomorphic(network.graph, back.graph, edge_match=_alike, node_match=_same_kind)


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
    with pytest.raises(InputError, match=r"cluster\.yaml cannot be read as an InfraGraph file"):
        read_infragraph(path)
