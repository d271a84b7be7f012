"""What is said of runs on a network that drifts: phases, gains, and rows that are kept."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.drift_emulated import forecasts, gains, judged, main, phases
from benchmarks.drift_runs import (
    ANEW,
    CHANGE,
    CONTENDERS,
    DRIFTS,
    ITERATIONS,
    NOTICED,
    ORACLE,
    RUN,
    STAYS,
    WARMUP,
)
from ddlnb.errors import UnknownName

LATER = {STAYS: 0.3, ANEW: 0.15, ORACLE: 0.1}


def iteration(contender, number, takeover):
    if number < CHANGE:
        return 0.05
    return LATER[contender] if contender == ORACLE or number >= takeover else LATER[STAYS]


@pytest.fixture
def folder(tmp_path):
    """Two repetitions of a drift that the first run notices at once and the second never."""
    runs, iterations = [], []
    for repetition, takeover in enumerate([NOTICED, None]):
        for contender in CONTENDERS:
            where = dict(zip(RUN, ("latency", repetition, contender), strict=True))
            took = takeover if contender == ANEW else None
            until = WARMUP + ITERATIONS if took is None and contender == ANEW else NOTICED
            runs.append(
                {
                    **where,
                    **{"messages": 12, "takeover": took, "then_messages": took and 2},
                    **{"takeovers": int(took is not None), "quiet_meetings": 1},
                    **{"planning_meetings": int(took is not None), "quiet_seconds": 0.002},
                    "planning_seconds": 3.0 if took else 0.0,
                    **{"during": 0.5, "stolen": 0.0},
                }
            )
            iterations += [
                {**where, "iteration": number, "seconds": iteration(contender, number, until)}
                for number in range(WARMUP + ITERATIONS)
            ]
    pd.DataFrame(runs).to_csv(tmp_path / "runs.csv", index=False)
    pd.DataFrame(iterations).to_csv(tmp_path / "iterations.csv", index=False)
    costs = {
        "drift": "latency",
        "latency_seconds": [1e-3, 2e-2],
        "seconds_per_byte": 8e-9,
        "occupied_share": 1.0,
    }
    pd.DataFrame(costs).to_csv(tmp_path / "costs.csv", index=False)
    return tmp_path


def test_iterations_belong_to_the_phase_of_their_repetition(folder):
    runs, iterations = (pd.read_csv(folder / f"{name}.csv") for name in ("runs", "iterations"))
    found = phases(iterations, runs).set_index(["repetition", "contender"])
    assert found.loc[(0, ANEW)].tolist()[1:] == [0.05, 0.3, 0.15]
    assert found.loc[(1, ANEW)].tolist()[1:] == [0.05, 0.3, 0.3]  # nobody took over
    assert found.loc[(1, ORACLE)].tolist()[1:] == [0.05, 0.1, 0.1]


def test_a_takeover_that_gains_says_how_much_and_when_it_is_paid_back(folder):
    said = gains("latency", folder)
    assert f"took over in 1 of 2 runs, before iterations {NOTICED} (1)" in said
    assert "takes 1.414 (" in said  # sqrt(2 * 1): one of the runs has gained a factor of two
    assert "3.00 s of the clock" in said
    rows = judged("latency", folder).set_index("plan")
    assert rows.loc[ANEW, "messages"] == "12, then 2"
    assert rows.loc[STAYS, "messages"] == "12"
    assert rows.loc[ANEW, "load"] == 0.5


def test_where_no_plan_took_over_nothing_is_paid_back(folder):
    runs = pd.read_csv(folder / "runs.csv")
    runs.assign(takeover=float("nan"), then_messages=float("nan")).to_csv(
        folder / "runs.csv", index=False
    )
    said = gains("latency", folder)
    assert "took over in 0 of 2 runs (the network" in said
    assert "of the plan that stayed takes" in said
    assert "paid back by no iterations" in said
    assert "from then on" not in said


def test_a_gain_that_no_rank_takes_is_not_forecast(folder, monkeypatch):
    monkeypatch.setattr("benchmarks.drift_emulated.LEAST_GAIN", 1e3)
    found = forecasts("latency", folder)
    assert found[ANEW, "later"] == found[STAYS, "later"]


def test_the_plan_of_the_second_network_is_forecast_to_be_quicker_there(folder):
    found = forecasts("latency", folder)
    assert found[ORACLE, "later"] < found[STAYS, "later"]
    assert found[ORACLE, "before"] >= found[STAYS, "before"]
    assert found[ANEW, "later"] == found[ORACLE, "later"]


def test_networks_only_become_slower_and_contenders_see_the_same_one():
    for drift in DRIFTS.values():
        (change,) = drift.settings().changes
        assert change.iteration == CHANGE


def test_an_unknown_drift_is_refused_and_an_empty_folder_says_so(tmp_path, capsys):
    with pytest.raises(UnknownName, match="unknown drift 'loss'"):
        main(drifts=["loss"])
    main(kept=True, out=tmp_path)
    assert "has none of these drifts" in capsys.readouterr().out
