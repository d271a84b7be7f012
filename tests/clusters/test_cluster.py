"""Clusters: every file loads, and every mistake in one is told once, with the way out."""

import math
from dataclasses import replace

import pytest

from ddlnb.clusters.cluster import SERVER_PLACES, Cluster, describe
from ddlnb.clusters.effects import EFFECTS, Effects
from ddlnb.clusters.file import cluster_names, get_cluster, read_cluster
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.simulate import plan_on, simulate
from ddlnb.workloads.workload import Gradient, Layer, Workload

WORK = Workload("one layer", 1, (Layer("l", 1.0),), (Gradient("w", "l", 1000, 4, 2.0),), "by hand")
LISTED = {
    "inside_latency": "10 us",
    "inside_bandwidth": "4 GB/s",
    "between_latency": "90 us",
    "between_bandwidth": "8 Gb/s",
}
KEYS = {"network": "10GbE", "nodes": "2", "gpus_per_node": "4"}


def text_of(keys, effects):
    lines = [f"{key}: {value}" for key, value in (KEYS | keys).items() if value is not None]
    lines.append("effects:")
    lines += [f"  {name}: {value}" for name, value in (LISTED | effects).items() if value]
    return "\n".join(lines)


@pytest.fixture
def written(tmp_path):
    """A function that writes a cluster file, with these keys and effects or exactly this text."""

    def write(keys=None, effects=None, text=None):
        path = tmp_path / "mine.yaml"
        path.write_text(text_of(keys or {}, effects or {}) if text is None else text)
        return path

    return write


def complaint_of(path):
    """What the one error says that reading this file raises; it names the file."""
    with pytest.raises(InputError) as caught:
        read_cluster(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


# Files that are right.


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_file_loads_and_explains_itself(name):
    cluster = get_cluster(name)
    assert cluster.name == name
    assert cluster.workers == cluster.nodes * cluster.gpus_per_node
    assert cluster.about
    assert name in repr(cluster)
    for effect, fit in cluster.fits.items():
        assert fit.low <= getattr(cluster.effects, effect) <= fit.high
        assert fit.source
    assert {row["effect"] for row in describe(cluster)} <= set(EFFECTS)


@pytest.mark.parametrize("name", cluster_names())
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_every_cluster_file_with_any_workers(name, method):
    cluster = get_cluster(name)
    for workers in {1, 2, cluster.gpus_per_node, cluster.most_workers}:
        used = cluster.with_workers(workers)
        needs_servers = METHODS[method].architecture == "PS" and used.nodes_in_use > 1
        if needs_servers and cluster.server_place is None:
            continue
        seconds = simulate(WORK, name, method, workers=workers).iteration_seconds
        assert seconds >= WORK.compute_seconds * cluster.effects.compute_factor
        assert math.isfinite(seconds)


def test_a_file_becomes_bytes_and_seconds(written):
    fitted = "{value: 90 us, low: 60 us, high: 120 us, from: a fit}"
    cluster = read_cluster(written({}, {"between_latency": fitted, "inside_share": "0.5"}))
    expected = Effects(
        inside_latency=10e-6,
        inside_bandwidth=4e9,
        inside_share=0.5,
        between_latency=90e-6,
        between_bandwidth=1e9,
    )
    assert cluster.effects.there == pytest.approx(expected.there)
    assert (cluster.name, cluster.network, cluster.most_workers) == ("mine", "10GbE", 8)
    fit = cluster.fits["between_latency"]
    assert (fit.low, fit.high) == pytest.approx((60e-6, 120e-6))
    assert fit.source == "a fit"
    row = {"effect": "between_latency", "value": "90 us", "from": "a fit"}
    meaning = "latency of one hop between two nodes"
    assert row | {"90 % interval": "60 us to 120 us", "meaning": meaning} in describe(cluster)


def test_a_cluster_of_one_gpu_needs_no_link(written):
    text = "network: none\nnodes: 1\ngpus_per_node: 1\neffects: {}"
    assert read_cluster(written(text=text)).effects == Effects()


def test_servers_without_a_bandwidth_of_their_own_have_that_of_the_nodes(written):
    def seconds(**effects):
        path = written({"server_place": "extra machines"}, effects)
        return simulate(WORK, str(path), "BSP-PS").iteration_seconds

    assert seconds() == seconds(server_bandwidth="unlimited") == seconds(server_bandwidth="8 Gb/s")
    assert seconds(server_bandwidth="4 Gb/s") > seconds()


def test_a_cluster_is_named_given_as_a_path_or_passed_on(written):
    path = written()
    cluster = get_cluster(path)
    assert get_cluster(cluster) is cluster
    assert get_cluster(str(path)) == get_cluster("mine", folder=path.parent) == cluster
    assert cluster_names(path.parent) == ["mine"]


def test_gradients_are_merged_by_the_planning_cost_of_a_file_and_else_by_the_cluster_s_own(written):
    two = (Gradient("v", "l", 1000, 4, 1.0), *WORK.gradients)
    workload = replace(WORK, gradients=two)
    path = written({"planning": "{latency: 9 s, bandwidth: 1 GB/s}"})
    assert read_cluster(path).planning.seconds(1e9) == pytest.approx(10.0)
    assert len(plan_on(read_cluster(path), workload, "MG-WFBP").messages) == 1
    assert len(plan_on(read_cluster(written()), workload, "MG-WFBP").messages) == 2


# Numbers of workers.


@pytest.mark.parametrize(
    ("workers", "nodes", "per_node"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (8, 2, 4), (16, 4, 4)]
)
def test_workers_fill_nodes_one_after_the_other(workers, nodes, per_node):
    cluster = Cluster("mine", "free", 4, 4, Effects())
    used = cluster.with_workers(workers)
    assert (used.workers, used.nodes_in_use, used.workers_per_node) == (workers, nodes, per_node)
    assert used.default_servers == nodes
    assert used.with_workers(16) == cluster
    assert get_cluster(cluster, workers) == used


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        (17, r"17 workers exceed the 16 GPUs of cluster 'mine' \(4 nodes of 4\); use fewer, or"),
        (6, "6 workers do not fill nodes of 4 GPUs of cluster 'mine'; use a multiple of 4"),
        (0, "workers 0 must be a whole number, at least 1"),
        (-4, "workers -4 must be a whole number"),
        (2.0, "workers 2.0 must be a whole number"),
        ("4", "workers '4' must be a whole number"),
    ],
)
def test_workers_that_a_cluster_does_not_have_are_refused(workers, told):
    cluster = Cluster("mine", "free", 4, 4, Effects())
    with pytest.raises(InputError, match=told):
        cluster.with_workers(workers)
    with pytest.raises(InputError, match=told):
        simulate(WORK, cluster, "BSP-A2A", workers=workers)


# Files that are wrong: keys, effects, and what the error must say besides the file's name.

WRONG_EFFECTS = [
    ({"between_bandwidth": "-8 Gb/s"}, ["'-8 Gb/s'", "of 0 or more", "like '9.1 Gb/s'"]),
    ({"between_bandwidth": "0 Gb/s"}, ["'0 Gb/s'", "must be positive", "leave it out"]),
    ({"between_bandwidth": "8"}, ["8", "units kB/s, MB/s, GB/s, kb/s, Mb/s, Gb/s", "'9.1 Gb/s'"]),
    ({"between_bandwidth": "8 ms"}, ["'8 ms'", "one of the units", "'9.1 Gb/s'"]),
    ({"inside_latency": "0.001"}, ["0.001", "units s, ms, us, ns", "'95.6 us'"]),
    ({"inside_latency": "11 s"}, ["'11 s'", "from 0 to 10"]),
    ({"inside_latency": "[1 us]"}, ["['1 us']", "valid string"]),
    ({"inside_share": "1.5"}, ["1.5", "from 0.01 to 1"]),
    ({"compute_share": "0"}, ["0", "from 0.01 to 1"]),
    ({"inside_share": "half"}, ["'half'", "from 0.01 to 1"]),
    ({"inside_share": ".nan"}, ["nan", "from 0.01 to 1"]),
    ({"compute_factor": "1000"}, ["1000", "from 0.01 to 100"]),
    ({"betwen_latency": "1 us"}, ["unknown effect", "did you mean 'between_latency'?"]),
    (
        {"inside_latency": "{value: 1 us, low: 0 us, high: 2 us, form: a fit}"},
        ["unknown key 'form'", "remove it"],
    ),
    (
        {"inside_latency": "{value: 1 us, low: 0 us, high: 2 us}"},
        ["must have all of value, low, high and from"],
    ),
    (
        {"inside_latency": "{value: 1 us, low: 2 us, high: 3 us, from: a fit}"},
        ["inside_latency 1 us", "between its low 2 us and its high 3 us"],
    ),
    (
        {"inside_share": "{value: 0.5, low: 0.1, high: 0.4, from: a fit}"},
        ["inside_share 0.5", "between its low 0.1 and its high 0.4"],
    ),
    (
        {"inside_latency": "{value: 1 us, low: 7, high: 3 us, from: a fit}"},
        ["7", "units s, ms, us, ns", "'95.6 us'"],
    ),
    ({"between_bandwidth": ""}, ["several nodes", "add it, with a unit or as 'unlimited'"]),
    ({"inside_bandwidth": ""}, ["several GPUs", "add it, with a unit or as 'unlimited'"]),
]


@pytest.mark.parametrize(("effects", "told"), WRONG_EFFECTS)
def test_a_wrong_effect_is_told_with_its_key_its_value_and_the_way_out(written, effects, told):
    complaint = complaint_of(written({}, effects))
    assert [words for words in [*effects, *told] if words not in complaint] == []


WRONG_KEYS = [
    ({"gpu_per_node": "4"}, ["unknown key 'gpu_per_node'", "did you mean 'gpus_per_node'?"]),
    ({"workers": "4"}, ["unknown key 'workers'", "choose one of"]),
    ({"nodes": None}, ["lacks the key 'nodes'", "add it"]),
    ({"nodes": "0"}, ["nodes 0", "whole number, at least 1"]),
    ({"nodes": "two"}, ["nodes 'two'", "whole number"]),
    ({"gpus_per_node": "0.5"}, ["gpus_per_node 0.5", "whole number"]),
    ({"all_reduce": "doubletree"}, ["all-reduce 'doubletree'", "did you mean 'double-tree'?"]),
    ({"server_place": "extra"}, ["servers 'extra'", "extra machines, workers' nodes"]),
    ({"server_place": "no"}, ["server_place False", "string"]),
    ({"placement": "hash"}, ["placement of keys 'hash'", "did you mean 'hashed'?"]),
    ({"facts": "RTX"}, ["facts 'RTX'", "dictionary"]),
    ({"planning": "1 ms"}, ["planning '1 ms'", "dictionary"]),
    ({"planning": "{latency: 1 ms}"}, ["planning lacks the key 'bandwidth'", "add it"]),
    (
        {"planning": "{latency: 7, bandwidth: 1 GB/s}"},
        ["7", "units s, ms, us, ns", "'95.6 us'"],
    ),
    (
        {"planning": "{latency: 7 us, bandwidth: -1 GB/s}"},
        ["bandwidth '-1 GB/s'", "'9.1 Gb/s'"],
    ),
]


@pytest.mark.parametrize(("keys", "told"), WRONG_KEYS)
def test_a_wrong_key_is_told_with_its_value_and_the_way_out(written, keys, told):
    complaint = complaint_of(written(keys))
    assert [words for words in told if words not in complaint] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: [1", "is not YAML"),
        ("", "is empty; write one key and its value a line, such as network: ..., nodes: ..."),
        ("- nodes\n- effects", "holds no keys; write one key and its value a line"),
        ("nodes", "holds no keys; write one key"),
        ("network: x\nnodes: 1\ngpus_per_node: 1\neffects:", "effects None"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_in_one_line(written, text, told):
    complaint = complaint_of(written(text=text))
    assert told in complaint
    assert "\n" not in complaint


@pytest.mark.parametrize("tag", ["object/apply:pathlib.Path.touch", "object/apply:os.system"])
def test_a_file_cannot_run_code(written, tmp_path, tag):
    bait = tmp_path / "executed"
    argument = f"!!python/object/apply:pathlib.Path [{bait}]" if "touch" in tag else f"touch {bait}"
    complaint = complaint_of(written(text=f"nodes: !!python/{tag} [{argument}]"))
    assert "is not YAML" in complaint
    assert "python/object/apply" in complaint
    assert not bait.exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path, content):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    assert "cannot be read" in complaint_of(path)


# Mistakes in calls.


@pytest.mark.parametrize("method", [name for name in METHODS if name.endswith("-PS")])
def test_a_method_with_servers_needs_a_cluster_that_places_them(method):
    cluster = Cluster("mine", "free", 2, 4, Effects())
    told = rf"method '{method}' needs parameter servers, and cluster 'mine' has none; add"
    with pytest.raises(InputError, match=told) as caught:
        simulate(WORK, cluster, method)
    assert "server_place" in str(caught.value)
    assert "or choose an all-to-all method" in str(caught.value)
    simulate(WORK, cluster, method, workers=4)  # within one node nobody needs a server
    for place in SERVER_PLACES:
        simulate(WORK, replace(cluster, server_place=place), method)


@pytest.mark.parametrize(
    ("effect", "value", "told"),
    [
        ("inside_latency", -1e-6, "from .* to"),
        ("inside_latency", math.nan, "from .* to"),
        ("between_bandwidth", 0.0, "from .* to"),
        ("between_share", 1.01, "from .* to"),
        ("compute_factor", math.inf, "from .* to"),
        ("inside_shar", 0.5, "did you mean 'inside_share'"),
    ],
)
def test_effects_that_cannot_be_are_refused(effect, value, told):
    cluster = Cluster("mine", "free", 2, 4, Effects())
    with pytest.raises(InputError, match=f"{effect}.*{told}"):
        cluster.with_effects(**{effect: value})
