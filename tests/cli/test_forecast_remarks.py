"""What a forecast says below its table: what to take, what was left out, assumed, run otherwise."""

from dataclasses import replace

import pandas as pd
import pytest

from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.forecast import forecast, methods_on
from ddlnb.simulator.recommendation import recommended
from tests.command_line import ddlnb
from tests.toy import TOY

SURVEY, NVLINK = get_cluster("survey-10GbE"), get_cluster("v100-nvlink")


def said(model, cluster, methods=None, *, gpus=None, drawn=False):
    methods = methods_on(cluster) if methods is None else [METHODS[name] for name in methods]
    found = forecast(model, cluster, methods, gpus=gpus, draws=20 if drawn else 0)
    return [one for one in found.remarks if "are tuned" not in one]


BARE = replace(NVLINK, fits={}, model_error=0.1)
WITHIN = "On 4 GPUs, within one node, no parameter server takes part, as in BytePS: WFBP-PS "


@pytest.mark.parametrize(
    ("asked", "options", "parts"),
    [
        (
            ("bert-large", NVLINK),
            {},
            [
                "v100-nvlink has no parameter servers (server_place), so that BSP-PS, WFBP-PS and "
                "ByteScheduler-PS are left out."
            ],
        ),
        (("bert-large", NVLINK, ["MG-WFBP"]), {}, []),
        (
            ("bert-large", NVLINK, ["WFBP-PS", "MG-WFBP"]),
            {},
            [f"{WITHIN}reduces gradients inside the node."],
        ),
        ((TOY, SURVEY, ["WFBP-PS"]), {"gpus": 8}, []),
        ((TOY, SURVEY, ["WFBP-PS", "BSP-PS"]), {"gpus": [4, 8]}, ["On 4 GPUs, within one node"]),
        (  # the figure has another number
            ("bert-large", SURVEY),
            {"gpus": 32},
            [
                "as its paper describes it",
                "MG-WFBP, ByteScheduler-PS and ByteScheduler-A2A ran differently",
                "--fig4",
            ],
        ),
        (("bert-large", SURVEY, ["WFBP-PS"]), {"gpus": 32}, []),
        ((TOY, SURVEY), {"gpus": 32}, []),  # no cell of the figure
        (  # intervals that are assumed are named where intervals are shown
            ("bert-large", BARE, ["MG-WFBP"]),
            {"drawn": True},
            [
                "inside_latency within a factor of 4, inside_bandwidth within a factor of 2",
                "model_error of 10%",
            ],
        ),
        (("bert-large", BARE, ["MG-WFBP"]), {}, []),
        (("bert-large", NVLINK, ["MG-WFBP"]), {"drawn": True}, []),
    ],
)
def test_a_remark_is_made_where_it_applies_and_nowhere_else(asked, options, parts):
    remarks = said(*asked, **options)
    assert len(remarks) == bool(parts)
    assert all(part in remarks[0] for part in parts)


def test_a_file_without_intervals_gives_wide_ones(tmp_path):
    """It was 1551 to 1551, and 100 % of the draws."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "network: 25GbE\nnodes: 8\ngpus_per_node: 4\neffects:\n  inside_bandwidth: 20 GB/s\n"
        "  between_bandwidth: 23 Gb/s\n  between_latency: 30 us\n"
    )
    words = ["--model", "small-conv", "--throughput", "1e4", "--gpus", "4"]
    done = ddlnb("forecast", *words, "--cluster", str(mine), "--draws", "40", check=True)
    (row,) = (line for line in done.stdout.splitlines() if "│ MG-WFBP" in line)
    low, high = (float(number) for number in row.split("│")[5].split(" to "))
    assert high > 1.2 * low
    assert "100% of draws" not in done.stdout
    assert "Intervals are wide where mine gives none" in done.stdout


def rows_of(**rates):
    """Return rows of 8 GPUs; methods with parameter servers have two."""
    best = max(rates.values())
    rows = [
        (name, 8, 2 * name.endswith("PS"), rate, rate / 100, float(rate == best))
        for name, rate in rates.items()
    ]
    columns = ["method", "gpus", "servers", "throughput_samples_per_s", "speedup", "chance_best"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            {"MG_WFBP": 400.0, "WFBP_A2A": 200.0, "WFBP_PS": 600.0, "BSP_PS": 300.0},
            "On 8 GPUs of survey-10GbE without further machines take MG_WFBP: speed-up 4.00 (50% "
            "of linear); WFBP_A2A is 50% behind. With 2 more machines as servers, WFBP_PS is 50% "
            "faster (speed-up 6.00).",
        ),
        (
            {"MG_WFBP": 600.0, "WFBP_A2A": 597.0, "WFBP_PS": 300.0},
            "On 8 GPUs of survey-10GbE without further machines take MG_WFBP: speed-up 6.00 (75% "
            "of linear); WFBP_A2A ties with it. With 2 more machines as servers, WFBP_PS is 50% "
            "slower: they gain nothing.",
        ),
        (
            {"MG_WFBP": 600.0, "WFBP_PS": 603.0},
            "On 8 GPUs of survey-10GbE without further machines take MG_WFBP: speed-up 6.00 (75% "
            "of linear). With 2 more machines as servers, WFBP_PS ties with it: they gain nothing.",
        ),
        (
            {"WFBP_PS": 600.0, "BSP_PS": 300.0},
            "On 8 GPUs of survey-10GbE with 2 more machines as servers take WFBP_PS: speed-up 6.00 "
            "(75% of linear); BSP_PS is 50% behind.",
        ),
        (
            {"MG_WFBP": 600.0},
            "On 8 GPUs of survey-10GbE take MG_WFBP: speed-up 6.00 (75% of linear).",
        ),
        (
            {"MG_WFBP": 240.0, "WFBP_PS": 160.0},
            "But do not train like this: even so, 8 GPUs do the work of 2.4, and 6 are wasted. "
            "Rather use fewer GPUs, a larger",
        ),
        (
            {"MG_WFBP": 90.0, "WFBP_PS": 80.0},
            "But do not train like this: even so, 8 GPUs are no faster than one. Rather use",
        ),
        (
            {"MG_WFBP": 60.0, "WFBP_PS": 80.0},
            "With 2 more machines as servers, WFBP_PS is 33% faster (speed-up 0.80). But do not",
        ),
    ],
)
def test_advice_says_what_further_machines_gain_and_when_one_should_not(rates, said):
    text = recommended(rows_of(**rates), SURVEY)
    assert said in text
    assert text == said or "do not train" in text


def test_what_is_uneven_is_named_where_the_network_alone_is_too_slow_already():
    """Worker 0 takes twice as long, and without it 8 GPUs would still do the work of few."""
    uneven = SURVEY.with_heterogeneity({0: 2.0, 5: 1.5})
    text = recommended(rows_of(MG_WFBP=90.0), uneven)
    assert text.endswith(f"Mend first what is uneven: {uneven.heterogeneity}.")
    assert "worker 5" in text
    assert "uneven" not in recommended(rows_of(MG_WFBP=90.0), SURVEY)


@pytest.mark.parametrize(("rate", "waits"), [(295.0, True), (230.0, False)])
def test_a_slow_worker_is_blamed_only_if_half_of_linear_can_be_had_without_it(rate, waits):
    """8 GPUs do the work of 2.95 or 2.3: with that of an iteration back, of 4.67 or 3.2 at most."""
    text = recommended(rows_of(MG_WFBP=rate), SURVEY.with_heterogeneity({0: 2.0}))
    assert ("all wait for worker 0" in text) == waits
    assert ("a faster network" in text) == (not waits)


def test_all_are_blamed_whose_absence_it_takes():
    """Without worker 0 alone 8 GPUs do the work of 2.67, as worker 1 takes 3 times as long."""
    text = recommended(rows_of(MG_WFBP=200.0), SURVEY.with_heterogeneity({0: 4.0, 1: 3.0, 2: 1.5}))
    assert "all wait for workers 0, 1, which compute up to 4 times as long: replace them" in text


def test_advice_knows_a_smaller_number_and_tells_what_wins_some_draws_from_ties():
    few, many = rows_of(MG_WFBP=240.0), rows_of(MG_WFBP=242.0)
    text = recommended(pd.concat([few.assign(gpus=4), many]), SURVEY)
    assert "Rather use 4 (speed-up 2.40 by MG_WFBP), a larger batch" in text
    rows = rows_of(MG_WFBP=600.0, WFBP_A2A=599.0, BSP_A2A=598.0, ByteScheduler_A2A=450.0)
    rows["chance_best"] = [0.6, 0.1, 0.1, 0.2]
    text = recommended(rows, SURVEY)
    assert "WFBP_A2A, BSP_A2A tie with it; ByteScheduler_A2A is the fastest in 20% of the" in text


@pytest.mark.parametrize(
    ("with_servers", "said"),
    [
        (780.0, "WFBP_PS is 30% faster (speed-up 7.80), though MG_WFBP is the fastest in 12%"),
        (540.0, "WFBP_PS is 10% slower, though the fastest in 12% of the draws."),
    ],
)
def test_what_is_much_slower_ties_with_nothing_though_it_wins_some_draws(with_servers, said):
    rows = rows_of(MG_WFBP=600.0, WFBP_PS=with_servers)
    rows["chance_best"] = [0.88, 0.12] if with_servers < 600 else [0.12, 0.88]
    assert said in recommended(rows, SURVEY)
