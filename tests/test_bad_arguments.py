"""What a caller gets wrong in Python: one DdlnbError that names the value, the rule, the way out.

Where a value has one natural meaning, it works instead.
"""

import math
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import ddlnb
from ddlnb.calibration.collective_logs import Facts
from ddlnb.compression.catalogue import get_compressor
from ddlnb.engines.settings import get_measurement_profile
from ddlnb.engines.targets import targets_of
from ddlnb.errors import NotWritten, RankError, UnknownName
from ddlnb.hardware.catalogue import get_gpu, get_machine
from ddlnb.networks.fabric import emulated_topology
from ddlnb.networks.network import changed
from ddlnb.networks.routes import route
from ddlnb.networks.topologies import get_topology, with_islands
from ddlnb.parallelism.goodput.failures import fit_failure_rate
from ddlnb.plans.methods import OF_TRAINING
from ddlnb.plans.plan_file import plan_from_json
from ddlnb.training.gossip import make_graph
from ddlnb.training.method import SYNCHRONISATIONS
from ddlnb.workloads.roofline import from_throughput
from ddlnb.workloads.workload import Gradient
from tests.toy import TOY

SURVEY = ddlnb.get_cluster("survey-10GbE")


def named_bsp(name):
    return replace(ddlnb.get_method("BSP-A2A"), name=name)


def slowed(factor):
    return ddlnb.iteration_cost(TOY, SURVEY, "MG-WFBP", slower=lambda *_: factor)


WORKLOAD = "it is neither a task nor the name of one"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ddlnb.forecast(TOY, SURVEY, methods=5), "unknown method 5; choose one of"),
        (lambda: ddlnb.forecast(TOY, SURVEY, gpus=8.5), "workers 8.5 must be a whole number"),
        (lambda: ddlnb.forecast(TOY, SURVEY, gpus="8"), "workers '8' must be a whole number"),
        (lambda: ddlnb.forecast(5, SURVEY), WORKLOAD),
        (lambda: ddlnb.forecast(TOY, None), "unknown cluster None; choose one of"),
        (lambda: ddlnb.forecast("bert-larg", SURVEY), "did you mean 'bert-large'"),
        (lambda: ddlnb.forecast("gpt-7", SURVEY), "see docs/own_model.md"),
        (lambda: ddlnb.simulate(None, SURVEY, "MG-WFBP"), WORKLOAD),
        (lambda: ddlnb.simulate("bert-larg", SURVEY, "MG-WFBP"), "did you mean 'bert-large'"),
        (lambda: ddlnb.simulate(TOY, SURVEY, None), "unknown method None; choose one of"),
        (lambda: ddlnb.iteration_cost(5, SURVEY, "MG-WFBP"), WORKLOAD),
        (lambda: ddlnb.iteration_cost(TOY, SURVEY, 5), "unknown method 5; choose one of"),
        (lambda: ddlnb.time_to_target(None, 0.2, TOY, SURVEY), "rows None must be a pandas"),
        (lambda: ddlnb.estimate("resnet50", "A100"), r"is none; give .* ddlnb.trace\('resnet50'\)"),
        (lambda: SURVEY.with_effects(between_bandwidth="10 Gb"), "units kB/s, .* '9.1 Gb/s'"),
        (lambda: SURVEY.with_effects(between_bandwidth=None), "bandwidth None must be bytes per"),
        (lambda: SURVEY.with_effects(between_share="a half"), "'a half' must be a share, from"),
        (lambda: ddlnb.speedups(pd.DataFrame()), "lacks the columns method, throughput_samples"),
        (lambda: ddlnb.speedups(None), "rows None must be a pandas DataFrame, such as"),
        (lambda: ddlnb.results.check(None), "rows None must be a pandas DataFrame, such as"),
        (lambda: ddlnb.results.check(pd.DataFrame()), "lacks the columns model, local_batch"),
        (lambda: ddlnb.throughput_table(None), "rows None must be a pandas DataFrame"),
        (lambda: ddlnb.register_method(named_bsp("bsp")), "a name that is taken, or no word"),
        (lambda: ddlnb.register_method(named_bsp("local(8)")), "a name that is taken, or no word"),
        (lambda: ddlnb.register_method(named_bsp("a,b")), "a name that is taken, or no word"),
        (lambda: slowed(math.nan), "slower must return finite factors above 0"),
        (lambda: slowed(-1.0), "slower must return finite factors above 0"),
        (lambda: SURVEY.with_heterogeneity(compute=[]), "0 factors for 32 workers"),
        (lambda: SURVEY.with_heterogeneity(delay=0.02), "delay 0.02 is no Delay; give one"),
        (lambda: fit_failure_rate([]), "0 sources of failures are too few"),
        (lambda: ddlnb.goodput(ddlnb.parallelism.Job(gpus=64), seed=-1), "seed -1 must be a whole"),
        (lambda: ddlnb.Prices(True), "price of a GPU per hour, True, must be a number"),
        (lambda: ddlnb.advise_layouts("llama3-8b", nodes=2, within_days=3), "say how many tokens"),
        (lambda: ddlnb.read_profile("x", "data/profiles"), "unknown profile 'x'; choose one of"),
        (lambda: ddlnb.throughput_table(pd.DataFrame()), "lacks the columns gpus, method"),
        (lambda: ddlnb.survey.evaluate_claims(None), "rows None must be a pandas DataFrame"),
        (
            lambda: ddlnb.trace("bert-large", 10**9),
            "batch 1,000,000,000 on 1 worker needs about .* at most",
        ),
        (lambda: ddlnb.trace("bert-large", "4"), "local_batch '4' must be a whole number"),
        (lambda: ddlnb.trace(None), "unknown model None: it is neither a task nor"),
        (lambda: from_throughput(TOY, math.inf, ""), "samples_per_second inf must be a finite"),
        (lambda: from_throughput(TOY, math.nan, ""), "samples_per_second nan must be a finite"),
        (lambda: from_throughput(TOY, 0, ""), "samples_per_second 0 must be a finite number above"),
        (lambda: from_throughput(TOY, "5", ""), "samples_per_second '5' must be a finite"),
        (lambda: ddlnb.measure("small-conv", 5), "unknown method 5; choose one of"),
        (lambda: ddlnb.measure("small-conv", []), r"methods \[\] name none"),
        (
            lambda: ddlnb.measure("small-conv", local_batch=10**8, workers=2),
            "batch 100,000,000 on 2 workers needs about .* at most",
        ),
        (
            lambda: ddlnb.measure("bert-large", workers=40),
            "on 40 workers needs .* take fewer workers or a smaller model|40 ranks do not fit",
        ),
        (lambda: ddlnb.measure(None), "unknown model None: it is neither a task nor"),
        (lambda: ddlnb.measure_scaling("small-conv", workers="2"), r"workers\[0\] '2' must be"),
        (lambda: ddlnb.train("digits", 5), "unknown training method 5; choose one of"),
        (lambda: ddlnb.compare("digits", 5), "unknown training method 5; choose one of"),
        (lambda: ddlnb.get_method(None), "unknown method None; choose one of"),
        (lambda: ddlnb.get_cluster("survey-10gb"), "did you mean 'survey-10GbE'"),
        (lambda: ddlnb.read_profile("resnet50_b64"), "did you mean 'resnet50_b"),
        (lambda: ddlnb.Prices(gpu_hour=-1), "price of a GPU per hour, -1"),
        (lambda: ddlnb.advise("resnet50", "survey-10GbE", optimizer="adamw8bit"), "adam"),
        (lambda: Facts("allreduce"), "did you mean 'all_reduce'"),
        (lambda: get_compressor("tern-grad"), "did you mean 'terngrad'"),
        (lambda: get_compressor("qsgd(bits=3)"), r"written qsgd\(levels=127, bucket=None\)"),
        (lambda: targets_of("DDP"), "'DDP' is a baseline"),
        (lambda: get_measurement_profile("papre"), "did you mean 'paper'"),
        (
            lambda: ddlnb.measure("small-conv", iteration=3),
            r"unknown option 'iteration'.*did you mean 'iterations'",
        ),
        (
            lambda: ddlnb.measure_scaling("small-conv", workers=[8, 4], collective="torus(2, 4)"),
            "8 places for 4 workers",
        ),
        (lambda: get_gpu("RTX2080T"), "did you mean 'RTX2080Ti'"),
        (lambda: get_gpu("A100 40G"), "did you mean 'A100-40GB'"),
        (lambda: get_machine("p5en.48large"), r"did you mean 'p5en.48xlarge'"),
        (
            lambda: ddlnb.Ranks(2, launcher="locla"),
            r"unknown launcher 'locla'.*did you mean 'local'",
        ),
        (
            lambda: get_topology("fat-tree(1000000)").network(1e9),
            r"fat-tree\(1000000\) has 250,000,000,000,000,000 hosts",
        ),
        (lambda: get_topology("fattree(4)"), "did you mean 'fat-tree'"),
        (
            lambda: changed(get_topology("star(2)").network(1e9), ["chop(host0, host1)"]),
            "unknown change 'chop'",
        ),
        (
            lambda: route(replace(get_topology("star(2)").network(1e9), routing="random"), 0, 1),
            "unknown routing 'random'",
        ),
        (
            lambda: changed(get_topology("star(2)").network(1e9), ["cut(host0, host1)"]),
            r"no cable joins 'host0' and 'host1'.*is joined to switch0",
        ),
        (
            lambda: with_islands(get_topology("rail-optimised(2, 2)").network(1e9), 2, 1e9),
            "has GPUs already",
        ),
        (
            lambda: emulated_topology("two-tier(2, 1, 1.0, 65)", "1GbE"),
            r"more than 64 routes.*'ecmp hash'",
        ),
        (lambda: ddlnb.get_method("bytescheduler-ps"), "did you mean 'ByteScheduler-PS'"),
        (lambda: plan_from_json("gASVCw"), "is not JSON"),
        (
            lambda: ddlnb.training_method("top-k(0.01)"),
            r"say first how workers synchronise: bsp \+ top-k\(0.01\)",
        ),
        (lambda: ddlnb.training_method("bsp + top-k(0.01) + fedback"), "did you mean 'feedback'"),
        (lambda: ddlnb.training_method("bsp + top-k(0.01) + qsgd"), "more than one compression"),
        (lambda: make_graph("rings", 4), r"'rings'.*did you mean 'ring'"),
        (lambda: make_graph("ring", 0), "workers 0"),
        (
            lambda: Gradient("w", "l", 5, shape=(2, 3)),
            r"'w' of shape \(2, 3\) cannot have 5 elements",
        ),
        (
            lambda: ddlnb.measure("small-conv", launcher="emulated", network="10GbE", scale=0.1),
            "really computes",
        ),
    ],
)
def test_a_wrong_argument_is_one_clear_error(call, said):
    with pytest.raises(ddlnb.DdlnbError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


ERRORS = [UnknownName("method", "MGWFBP", ["MG-WFBP"]), NotWritten("no room"), RankError("a\nb")]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_passes_from_one_process_to_another(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_the_name_of_a_model_is_simulated_as_it_is_forecast():
    named = ddlnb.simulate("resnet50", "survey-10GbE", "MG-WFBP", workers=8)
    given = ddlnb.simulate(
        ddlnb.read_profile("resnet50_b64_rtx2080ti"), "survey-10GbE", "MG-WFBP", workers=8
    )
    assert named.iteration_seconds == given.iteration_seconds


def test_effects_of_a_cluster_are_given_with_units():
    texts = SURVEY.with_effects(between_bandwidth="10 Gb/s", between_share="0.5")
    numbers = SURVEY.with_effects(between_bandwidth=1.25e9, between_share=0.5)
    assert texts == numbers


def test_one_method_and_one_number_need_no_list():
    one = ddlnb.compare("quadratic", "bsp", seeds=1, workers=2, steps=2, jobs=1).curves
    listed = ddlnb.compare("quadratic", ["bsp"], seeds=1, workers=[2], steps=2, jobs=1).curves
    pd.testing.assert_frame_equal(one, listed)


def test_numbers_and_lists_of_numpy_and_pandas_are_as_good_as_others():
    for made in (
        TOY.at_batch(np.int64(3)),
        TOY.accumulated(np.int64(2)),
        TOY.scaled(np.float32(2), ""),
    ):
        assert ddlnb.Workload.from_json(made.to_json()) == made
    assert ddlnb.several(np.array(3)) == [3]
    twice = SURVEY.with_heterogeneity(compute=[2.0] * 32)
    assert SURVEY.with_heterogeneity(compute=pd.Series([2.0] * 32)) == twice
    assert SURVEY.with_heterogeneity(compute=2 * np.ones(32)) == twice
    assert ddlnb.Prices(np.float32(2.5)).are_given
    asked = (n for n in (8, 16))
    assert ddlnb.forecast(TOY, SURVEY, "DDP", gpus=asked, draws=0).rows["gpus"].tolist() == [8, 16]
    assert TOY.accumulated(2).accumulated(2).local_batch == 4 * TOY.local_batch
    assert ddlnb.get_cluster("survey-10GbE", folder="data/clusters") == SURVEY
    found = ddlnb.iteration_cost(TOY, SURVEY, "searched", workers=8).iteration_seconds
    assert found <= ddlnb.iteration_cost(TOY, SURVEY, "MG-WFBP", workers=8).iteration_seconds


def test_speed_ups_and_tables_compare_what_is_alike():
    rows = ddlnb.forecast(TOY, SURVEY, ["DDP", "MG-WFBP"], gpus=[4, 8], draws=0).rows
    over = ddlnb.speedups(rows, "DDP").set_index(["gpus", "method"])["speedup"]
    assert over[4, "DDP"] == over[8, "DDP"] == 1.0
    two = pd.concat([rows, rows.assign(local_batch=2 * TOY.local_batch)])
    assert ddlnb.throughput_table(two).index.is_unique
    assert ddlnb.throughput_table(pd.concat([rows, rows.assign(source="measured")])).index.is_unique


def test_first_words_of_training_methods_are_those_of_synchronisations():
    """`register_method` refuses them, and would load torch to ask."""
    assert set(OF_TRAINING) == set(SYNCHRONISATIONS)
