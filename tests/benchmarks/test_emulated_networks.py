"""Patterns of transfers, what a change does, and the kept cells of emulated networks."""

import pandas as pd
import pytest

from benchmarks.emulated_methods import methods_on
from benchmarks.emulated_networks import (
    CASES,
    CLOSE,
    COLLECTIVES,
    KEPT,
    effects,
    errors,
    patterns,
    payload,
    summary,
)
from ddlnb.emulation.verify_links import PAYLOAD_SHARE
from ddlnb.networks.collectives.catalogue import get_algorithm
from ddlnb.networks.fabric import emulated_network

KEYS = ["case", "change", "kind", "what", "bytes"]


def cell(change: str, emulated: float, simulated: float, kind: str = "transfers") -> dict:
    return {
        **{"case": "tree", "change": change, "kind": kind, "what": "one flow", "bytes": 1000},
        **{"emulated_seconds": emulated, "simulated_seconds": simulated},
    }


def test_a_change_is_judged_by_the_factor_it_multiplies_seconds_with():
    rows = pd.DataFrame([cell("", 1.0, 1.1), cell("halved", 2.0, 2.2)])
    assert errors(rows)["error"].tolist() == pytest.approx([0.1, 0.1])
    (effect,) = effects(rows).to_dict("records")
    assert (effect["emulated"], effect["simulated"]) == pytest.approx((2.0, 2.0))
    assert effect["error"] == pytest.approx(0)
    assert "median error 10.0%" in summary(rows)
    assert "effect of a change: median error 0.0%, within 10%: 1 of 1" in summary(rows)


@pytest.mark.parametrize("hosts", [4, 8, 9])
def test_no_pattern_sends_to_itself_or_beyond_the_hosts(hosts):
    for flows in patterns(hosts, 1000).values():
        assert all(source != target for source, target, _ in flows)
        assert {end for flow in flows for end in flow[:2]} <= set(range(hosts))


@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_built_whole_and_changed(name):
    case = CASES[name]
    for change in ("", *case.changes):
        network = case.network(change)
        assert emulated_network(network).apart() == []
        assert payload(network).bandwidths == pytest.approx(PAYLOAD_SHARE * network.bandwidths)


def kept() -> pd.DataFrame:
    return pd.read_csv(KEPT, keep_default_na=False)


def test_every_cell_is_kept_once():
    rows = kept()
    assert not rows.duplicated(KEYS).any()
    assert set(rows["case"]) == set(CASES)
    for name, cells in rows.groupby("case"):
        assert set(cells["change"]) == {"", *CASES[name].changes}
        for _, listed in cells.groupby("change"):
            hosts = int(listed["hosts"].iloc[0])
            fit = {text for text in COLLECTIVES if not get_algorithm(text).refuses(hosts, 1)}
            wanted = {
                "transfers": set(patterns(hosts, 4)),
                "all-reduce": fit,
                "iteration": set(methods_on(hosts)),
            }
            assert listed.groupby("kind")["what"].agg(set).to_dict() == wanted


@pytest.mark.parametrize("kind", ["transfers", "all-reduce", "iteration"])
def test_kept_forecasts_are_close_in_the_median(kind):
    rows = kept()
    assert errors(rows[rows["kind"] == kind])["error"].abs().median() <= CLOSE


@pytest.mark.parametrize("kind", ["transfers", "all-reduce", "iteration"])
def test_a_change_alters_the_forecast_as_it_alters_the_kept_emulation(kind):
    rows = kept()
    assert effects(rows[rows["kind"] == kind])["error"].abs().median() <= CLOSE


def test_the_summary_has_a_line_for_every_kind_of_forecast_and_every_effect_of_a_change():
    lines = summary(kept()).splitlines()
    assert len(lines) == len(set(lines)) == 6
