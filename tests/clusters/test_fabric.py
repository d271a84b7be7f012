"""A cluster on a topology: equal links cost what the formula says, others what their flows do."""

from dataclasses import replace

import numpy as np
import pytest

import ddlnb
from ddlnb.clusters.file import read_cluster, write_cluster
from ddlnb.errors import InputError, UnknownName
from ddlnb.networks.routes import NoRoute
from ddlnb.simulator.draws import draw_clusters

MESSAGE = 100e6


def on(cluster, topology, **fields):
    return replace(cluster, topology=topology, **fields)


@pytest.fixture
def cluster():
    """Eight nodes of one GPU whose links alone cost time."""
    return ddlnb.Cluster(
        name="eight",
        network="toy",
        nodes=8,
        gpus_per_node=1,
        effects=ddlnb.get_cluster("survey-10GbE").effects,
        server_place="extra machines",
    )


@pytest.mark.parametrize("name", ["ring", "tree"])
def test_on_a_star_an_all_reduce_takes_as_long_as_by_its_formula(cluster, name):
    formula, played = (
        replace(cluster, topology=topology, all_reduce=name).cost.seconds(MESSAGE)
        for topology in ("", "star(8)")
    )
    assert played == pytest.approx(formula, rel=1e-3)


def test_a_double_tree_in_many_blocks_comes_near_its_formula(cluster):
    """The formula leaves out that the pipeline has to fill: two levels of blocks each way."""
    formula = replace(cluster, all_reduce="double-tree").cost.seconds_per_byte
    few, many = (
        on(cluster, "star(8)", all_reduce=f"double-tree({blocks})").cost.seconds_per_byte
        for blocks in (8, 64)
    )
    assert formula < many < few
    assert many == pytest.approx(formula, rel=0.15)


def test_a_change_of_nothing_moves_a_cluster_by_name_little():
    """Its formula is of a tree in many parts, and so is what is played of a large message."""
    sizes = np.array([1e5, 1e7, 1e9])
    plain = ddlnb.cluster_of("V100", nodes=16, gpus_per_node=4, network="25GbE")
    (latency, work, _), (hops, played, _) = (
        one.all_reduce_work(sizes) for one in (plain, on(plain, "star(16)"))
    )
    assert (hops + played)[1:] == pytest.approx((latency + work)[1:], rel=0.15)
    few, _, _ = on(plain, "star(16)", all_reduce="double-tree(32)").all_reduce_work(sizes)
    assert hops < few  # in many parts a small one waits for all of them


@pytest.mark.parametrize(
    ("gpu", "topology", "all_reduce", "off"),
    [
        ("A100", "star(4)", "nccl-tree", 0.3),  # of the spread of draws, that links differ in
        ("A100", "two-tier(2, 2)", "ring", 0.5),
        ("T4", "star(4)", "auto", 1e-3),  # links of one kind: a sum of two costs
    ],
)
def test_draws_on_a_graph_are_near_what_is_played_of_each(gpu, topology, all_reduce, off):
    sizes = np.array([1e4, 1e6, 1e8])
    each = 8 if gpu == "A100" else 1
    expected = on(
        ddlnb.cluster_of(gpu, nodes=4, gpus_per_node=each), topology, all_reduce=all_reduce
    )

    def seconds(one):
        latency, work, _ = one.all_reduce_work(sizes)
        return latency + work

    drawn = draw_clusters(expected, 24)
    near = np.log([seconds(one) for one in drawn])
    played = np.log([seconds(replace(one, drawn_around=None)) for one in drawn])
    assert ((near - played).std(axis=0) < off * played.std(axis=0)).all()
    assert seconds(replace(expected, drawn_around=expected.effects)) == pytest.approx(
        seconds(expected)
    )


def test_a_star_changes_nothing_for_parameter_servers(cluster):
    rows = [
        ddlnb.forecast("resnet50", on(named(cluster), topology), "WFBP-PS", draws=0)
        for topology in ("", "star(16)")
    ]
    assert rows[0]["iteration_seconds"].item() == pytest.approx(rows[1]["iteration_seconds"].item())


def named(cluster):
    return replace(cluster, hardware="rtx2080ti")


@pytest.mark.parametrize("method", ["MG-WFBP", "WFBP-PS"])
def test_oversubscription_slows_what_crosses_between_leaves(cluster, method):
    seconds = [
        ddlnb.forecast(
            "bert-base",
            on(named(cluster), f"two-tier(4, 4, oversubscription={ratio})"),
            method,
            draws=0,
        )["iteration_seconds"].item()
        for ratio in (1.0, 2.0, 8.0)
    ]
    assert seconds[0] <= seconds[1] * (1 + 1e-9)
    assert seconds[1] < seconds[2]


def test_auto_takes_the_best_algorithm_for_every_size(cluster):
    sizes = np.array([0.0, 1e3, 1e5, 1e7])
    names = ["ring", "tree", "recursive-doubling", "halving-doubling"]
    each = []
    for name in names:
        latency, work, _ = replace(cluster, topology="star(8)", all_reduce=name).all_reduce_work(
            sizes
        )
        each.append(latency + work)
    latency, work, _ = replace(cluster, topology="star(8)", all_reduce="auto").all_reduce_work(
        sizes
    )
    assert (latency + work <= np.min(each, axis=0) * (1 + 5e-3)).all()


def test_a_halved_cable_doubles_the_time_of_a_large_ring(cluster):
    whole = on(cluster, "star(8)").all_reduce_seconds[1]
    half = on(cluster, "star(8)", changes=("scale(host3, switch0, 0.5)",)).all_reduce_seconds[1]
    assert half == pytest.approx(2 * whole, rel=1e-3)
    without_topology = replace(cluster, changes=("scale(host3, switch0, 0.5)",))
    assert without_topology.all_reduce_seconds[1] == pytest.approx(half)


def test_hosts_that_lost_each_other_are_named(cluster):
    cut = on(cluster, "star(8)", changes=("cut(host3, switch0)",))
    with pytest.raises(NoRoute, match=r"host3.*have lost each other|have lost each other.*host3"):
        _ = cut.cost


def test_a_cut_that_has_a_way_round_costs_bandwidth_only(cluster):
    whole = on(cluster, "two-tier(2, 4, spines=2)")
    left = replace(whole, changes=("cut(leaf0, spine0)",))
    assert left.cost.seconds(MESSAGE) >= whole.cost.seconds(MESSAGE)


def test_gathers_are_slower_where_the_network_is(cluster):
    size = np.array([MESSAGE])
    even, narrow = (
        on(cluster, f"two-tier(2, 4, oversubscription={ratio})").gather_work(size)[1]
        for ratio in (1.0, 8.0)
    )
    assert narrow > 1.5 * even
    assert even == pytest.approx(cluster.gather_work(size)[1], rel=1e-3)


def test_a_topology_is_written_and_read_back(cluster, tmp_path):
    one = on(
        cluster,
        "two-tier(2, 4, oversubscription=2.0)",
        routing="ecmp hash",
        changes=("scale(host0, leaf0, 0.5)",),
        all_reduce="halving-doubling",
    )
    back = read_cluster(write_cluster(one, tmp_path / "eight.yaml"))
    assert (back.topology, back.routing, back.changes) == (one.topology, one.routing, one.changes)
    assert back.all_reduce == one.all_reduce


@pytest.mark.parametrize(
    ("fields", "error", "told"),
    [
        ({"topology": "fat-tree(3)"}, InputError, "ports 3 of a fat-tree's switches must be even"),
        ({"topology": "fat-tree(2)"}, InputError, r"fat-tree\(2\) has 2 hosts for 8 nodes"),
        ({"topology": "clos(8)"}, UnknownName, "unknown topology 'clos'"),
        ({"topology": "star(8)", "routing": "fast"}, UnknownName, "unknown routing 'fast'"),
        ({"changes": ("cut(host99, host1)",)}, UnknownName, "unknown device"),
        ({"all_reduce": "rings"}, UnknownName, "unknown all-reduce 'rings'.*did you mean 'ring'"),
        ({"topology": "rail-optimised(8, 4)"}, InputError, "4 rails for 1 GPUs per node"),
        *(
            ({"topology": one, "routing": way}, InputError, f"'{way}' is not for topology")
            for one, way in (
                ("star(8)", "dimension order"),
                ("fat-tree(4)", "bcube"),
                ("rail-optimised(8, 1)", "bcube"),
            )
        ),
        ({"routing": "ecmp"}, InputError, "routing 'ecmp' changes nothing without a topology"),
    ],
)
def test_what_does_not_fit_is_refused(cluster, fields, error, told):
    with pytest.raises(error, match=told):
        replace(cluster, **fields)


def test_servers_need_hosts_of_their_own(cluster):
    with pytest.raises(InputError, match=r"star\(9\) has 1 hosts left for 8 servers"):
        ddlnb.forecast("resnet50", on(named(cluster), "star(9)"), "WFBP-PS", draws=0)


def test_an_algorithm_that_does_not_run_among_the_workers_is_refused_with_the_reason(cluster):
    twelve = replace(cluster, nodes=12, workers=12, all_reduce="torus(4, 4)")
    with pytest.raises(InputError, match="12"):
        _ = twelve.cost


def test_methods_with_servers_are_left_out_where_a_topology_has_no_room_for_them(cluster):
    rows = ddlnb.forecast("resnet50", on(named(cluster), "star(8)"), draws=0)
    assert not rows["method"].str.endswith("-PS").any()
    assert set(rows["machine"]) == {"eight, on star(8)"}


def test_a_server_with_several_cables_receives_on_all_of_them(cluster):
    seconds = [
        ddlnb.forecast("bert-large", on(named(cluster), text), "BSP-PS", servers=1, draws=0)[
            "iteration_seconds"
        ].item()
        for text in ("star(9)", "bcube(3, 2)", "torus(3, 3)")
    ]
    assert seconds[1] < 0.9 * seconds[0]
    assert seconds[2] < seconds[1]


def test_unlimited_links_inside_are_no_bottleneck_on_rails():
    one = ddlnb.get_cluster("survey-10GbE", workers=4)
    on_rails = replace(one, topology="rail-optimised(8, 4)")
    fast, unlimited = (
        on_rails.with_effects(inside_bandwidth=bandwidth).cost.bytes_per_second
        for bandwidth in (1e12, float("inf"))
    )
    assert unlimited >= fast


def test_gossip_and_asynchronous_servers_are_not_priced_on_a_topology(cluster):
    with pytest.raises(InputError, match="not known on 'eight, on star"):
        ddlnb.iteration_cost(
            ddlnb.read_profile("resnet50_b64_rtx2080ti"), on(named(cluster), "star(16)"), "d-psgd"
        )
