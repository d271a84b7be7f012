"""A density for every layer: as a compressor, as a choice for a cluster, and in the study."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import ddlnb
from ddlnb.compression.base import Payloads, Round, Traffic, Uncompressed
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.profile import CompressionProfile, CompressorSeconds, Line
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.plans.methods import get_method
from ddlnb.plans.requests import AllReduce
from ddlnb.survey.sec5_3_compression_level import alike, by_layer, hidden_table
from ddlnb.survey.time_to_target import made_up_cluster, made_up_digits
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.cost.layer_densities import HIDDEN, LEAST, density_table, layer_densities
from ddlnb.training.method import training_method
from ddlnb.training.settings import training_settings
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.replay import run_in_lockstep
from tests.toy_exchange import averages, normal

RESNET = ddlnb.read_profile("resnet50_b64_rtx2080ti")
DIGITS = made_up_digits(1e4)
NETWORKS = ["survey-10GbE", "survey-100GbE", "survey-100GbIB"]
SPEEDS = ("10 Mb/s", "100 Mb/s", "1 Gb/s")
DENSITIES = (0.1, 0.02, 1.0, 0.5, 0.001, 0.01)  # one for every tensor of digits


# The compressor.


def test_its_text_is_read_back_and_one_piece_is_top_k_or_an_all_reduce():
    compressor = LayerTopK((1 / 3, 1e-05, 1.0))
    assert get_compressor(str(compressor)) == compressor
    method = training_method(by_layer(compressor))
    assert training_method(str(method)) == method
    alone, tensor = LayerTopK((0.1,)), normal(50)
    payload = alone.encode(tensor, Round(0, 1, 0), {})
    assert torch.equal(payload, TopK(0.1).encode(tensor, Round(0, 1, 0), {}))
    assert alone.traffic((50,), 4) == TopK(0.1).traffic((50,), 4)
    assert training_method("bsp + layer-top-k((0.1,)) + whole-model").compressor == TopK(0.1)
    assert LayerTopK((1.0,)).traffic((50,), 4) == [Traffic(AllReduce, 200)]


TWO = "bsp + layer-top-k((0.1, 0.2))"


def test_what_is_not_compressed_loses_nothing_and_is_not_written_to():
    tensors = [normal(3, 4, seed=rank) for rank in range(3)]
    before = [tensor.clone() for tensor in tensors]
    found = averages(Uncompressed(), tensors)
    for averaged, tensor, old in zip(found, tensors, before, strict=True):
        torch.testing.assert_close(averaged.average, sum(before) / 3)
        assert torch.equal(averaged.sent, old)
        assert torch.equal(tensor, old)
    payload = Uncompressed().encode(tensors[0], Round(0, 3, 0), {})
    assert len(payload) == Uncompressed().payload_bytes(12)
    assert torch.equal(Uncompressed().decode(payload, 12), tensors[0].flatten())


def trained(method: str, steps: int = 5) -> torch.Tensor:
    return run_in_lockstep(
        training_settings("digits", method, workers=3, steps=steps).job()
    ).workers[0]


@pytest.mark.parametrize("where", ["bsp + {} + feedback on A2A", "ssp(1) + {} + feedback on PS"])
def test_equal_densities_are_top_k(where):
    layered = trained(where.format(LayerTopK((0.05,) * 6)))
    fixed = trained(where.format("top-k(0.05)"))
    assert torch.equal(layered.parameters, fixed.parameters)
    assert layered.bytes_sent == fixed.bytes_sent


def test_every_piece_keeps_its_own_share_of_entries():
    job = training_settings("digits", by_layer(LayerTopK(DENSITIES)), workers=2, steps=1).job()
    start, end = job.worker(0).parameters, run_in_lockstep(job).workers[0].parameters
    for (a, b, _), density in zip(job.worker(0).pieces, DENSITIES, strict=True):
        changed = int((end[a:b] != start[a:b]).sum())
        assert changed <= 2 * max(1, round(density * (b - a)))


# The choice for a cluster.


@pytest.mark.parametrize("base", ["WFBP-A2A", "MG-WFBP"])
@pytest.mark.parametrize("workers", [8, 32])
@pytest.mark.parametrize("network", NETWORKS)
def test_an_iteration_takes_hardly_longer_than_with_the_least_density(network, workers, base):
    here = ddlnb.get_cluster(network, workers)
    for longer in (HIDDEN, 0.1):
        chosen = layer_densities(RESNET, here, base=base, longer=longer)
        layered, least = (
            iteration_cost(RESNET, here, by_layer(one), base=base)
            for one in (chosen, alike(LEAST, chosen))
        )
        allowed = least.iteration_seconds + longer * layered.compute_seconds
        assert layered.iteration_seconds <= allowed + 1e-9


@pytest.mark.parametrize(
    ("profile", "nodes", "each", "bandwidth", "latency"),
    [
        ("bert-base_b64_rtx2080ti", 16, 1, 3.02e8, 8.5e-5),
        ("resnet50_b64_rtx2080ti", 8, 4, 3.136e9, 1.39e-4),
    ],
)
def test_the_choice_holds_on_the_messages_that_are_played(profile, nodes, each, bandwidth, latency):
    """Merged by what is sent, an iteration may have other messages than the densities' own."""
    workload = ddlnb.read_profile(profile)
    effects = ddlnb.get_cluster("survey-10GbE").effects.but(
        between_bandwidth=bandwidth, between_latency=latency
    )
    here = ddlnb.Cluster("x", "x", nodes=nodes, gpus_per_node=each, effects=effects)
    chosen = layer_densities(workload, here)
    found, least = (
        iteration_cost(workload, here, by_layer(one), compression="free")
        for one in (chosen, alike(LEAST, chosen))
    )
    assert (
        found.iteration_seconds <= least.iteration_seconds + HIDDEN * least.compute_seconds + 1e-9
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_no_layer_sends_less_than_the_largest_fixed_density_that_takes_no_longer(network):
    table = pd.concat(
        [
            hidden_table(RESNET, [network], 32),
            hidden_table(
                DIGITS, [made_up_cluster(speed, "5 us").with_workers(8) for speed in SPEEDS]
            ),
        ]
    )
    assert (table["least"] >= table["fixed"]).all()
    assert (table["sent"] >= table["fixed"]).all()
    assert (table["seconds"] >= table["computing"]).all()


@pytest.mark.parametrize("longer", [0.0, HIDDEN, 0.2])
def test_what_is_ready_earlier_sends_no_less(longer):
    """Also where gathering many entries costs more than reducing all of them."""
    for bandwidth in ("10 Mb/s", "100 Mb/s", "1 Gb/s", "10 Gb/s"):
        here = made_up_cluster(bandwidth, "5 us").with_workers(8)
        table = density_table(DIGITS, layer_densities(DIGITS, here, longer=longer))
        assert (table["density"].diff().dropna() <= 0).all()


def test_more_traffic_or_a_slower_network_takes_smaller_densities():
    fast, slow = (made_up_cluster(speed, "0 us") for speed in ("100000 Gb/s", "10 kb/s"))
    assert set(layer_densities(DIGITS, fast).densities) == {1.0}
    hopeless = density_table(DIGITS, layer_densities(DIGITS, slow, longer=0))
    assert set(hopeless.loc[hopeless["elements"] > 1000, "density"]) == {LEAST}
    # All ten of a bias, summed, are fewer bytes than one of them and its place from every worker.
    assert set(hopeless.loc[hopeless["elements"] == 10, "density"]) == {1.0}
    few, many = (layer_densities(RESNET, "survey-10GbE", workers=n) for n in (8, 32))
    assert min(many.densities) < min(few.densities)
    elements, sent = density_table(RESNET, few)["elements"], []
    for chosen in (few, many):
        sent.append(np.average(density_table(RESNET, chosen)["density"], weights=elements))
    assert sent[1] < sent[0]


def test_densities_stand_in_the_order_of_the_workers_pieces():
    """The linear layer, the last parameters, is the first to be ready."""
    here = made_up_cluster("100 Mb/s", "5 us").with_workers(8)
    chosen = layer_densities(DIGITS, here)
    assert chosen.densities[-1] == max(chosen.densities) > min(chosen.densities)
    assert chosen.densities[0] == min(chosen.densities)
    assert set(density_table(DIGITS, chosen)["tensor"][:2]) == {"5.weight", "5.bias"}


SLOW = CompressionProfile(
    "made up",
    {f"top-k({one})": CompressorSeconds(Line(1e-4, 0.0)) for one in (0.001, 0.01, 0.1)},
)


def test_selection_that_takes_time_leaves_less_to_hide():
    here = made_up_cluster("1 Gb/s", "5 us").with_workers(8)
    options = {"candidates": (0.001, 0.01, 0.1), "feedback": False}
    free, paid = (
        np.array(layer_densities(DIGITS, here, profile, **options).densities)
        for profile in ("free", SLOW)
    )
    assert (paid <= free).all()


UNKNOWN = Workload("mine", 1, (Layer("l"),), (Gradient("w", "l", 10),), "by hand")
HERE = made_up_cluster("1 Gb/s", "1 us")
OTHER_PIECES = r"layer-top-k has 2 densities, and the model has 6 pieces.*give one for each"
IN_PARTS = get_method("ByteScheduler-A2A").tuned(partition=1_000_000)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        *(
            (partial(get_compressor, text), "densities")
            for text in ("layer-top-k", "layer-top-k(0.1)", "layer-top-k(())")
        ),
        (
            lambda: get_compressor("layer-top-k((0.1, 2.0))"),
            r"density 2.0 must be above 0 and at most 1",
        ),
        (lambda: training_settings("digits", TWO, workers=2).job().worker(0), OTHER_PIECES),
        (lambda: Payloads(LayerTopK((0.1, 0.2)), (3,) * 6).payload_bytes, OTHER_PIECES),
        (lambda: iteration_cost(DIGITS, HERE, TWO, compression="free"), OTHER_PIECES),
        (lambda: layer_densities(UNKNOWN, "survey-10GbE"), "of no built-in model"),
        (lambda: layer_densities(DIGITS, HERE, SLOW), r"no seconds for top-k\(0.002\)"),
        *(
            (partial(layer_densities, RESNET, "survey-10GbE", **options), reason)
            for options, reason in [
                ({"base": IN_PARTS}, "cuts tensors"),
                ({"base": "WFBP-PS"}, "goes through servers"),
                (
                    {"candidates": (0.1, 2.0)},
                    r"candidates \[0.1, 2.0\] must be densities from 0.001 to 1",
                ),
                ({"candidates": ()}, "candidates"),
                ({"longer": -0.1}, "longer -0.1 must be a share"),
            ]
        ),
    ],
)
def test_what_makes_no_sense_is_refused(ask, reason):
    with pytest.raises(InputError, match=reason):
        ask()
