"""What is said of runs on a network that drifts: phases, gains, and rows that are kept."""

from itertools import product

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
    for repetition, contender in product(range(2), CONTENDERS):
        where = dict(zip(RUN, ("latency", repetition, contender), strict=True))
        took = repetition == 0 and contender == ANEW
        until = WARMUP + ITERATIONS if repetition and contender == ANEW else NOTICED
        said = {"takeover": NOTICED, "then_messages": 2, "planning_seconds": 3.0}
        runs.append(
            where
            | {"messages": 12, "takeovers": int(took), "planning_meetings": int(took)}
            | {"quiet_meetings": 1, "quiet_seconds": 0.002, "during": 0.5, "stolen": 0.0}
            | (said if took else {"planning_seconds": 0.0})
        )
        iterations += [
            {**where, "iteration": number, "seconds": iteration(contender, number, until)}
            for number in range(WARMUP + ITERATIONS)
        ]
    costs = {"drift": "latency", "latency_seconds": [1e-3, 2e-2]}
    costs |= {"seconds_per_byte": 8e-9, "occupied_share": 1.0}
    for name, rows in {"runs": runs, "iterations": iterations, "costs": costs}.items():
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
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


def test_a_plan_takes_over_in_the_forecast_where_it_gains_enough(folder, monkeypatch):
    found = forecasts("latency", folder)
    assert found[ORACLE, "later"] < found[STAYS, "later"]
    assert found[ORACLE, "before"] >= found[STAYS, "before"]
    assert found[ANEW, "later"] == found[ORACLE, "later"]
    monkeypatch.setattr("benchmarks.drift_emulated.LEAST_GAIN", 1e3)
    found = forecasts("latency", folder)
    assert found[ANEW, "later"] == found[STAYS, "later"]


def test_networks_only_become_slower_and_contenders_see_the_same_one():
    for drift in DRIFTS.values():
        (change,) = drift.settings().changes
        assert change.iteration == CHANGE


def test_an_unknown_drift_is_refused_and_an_empty_folder_says_so(tmp_path, capsys):
    with pytest.raises(UnknownName, match="unknown drift 'loss'"):
        main(drifts=["loss"])
    main(kept=True, out=tmp_path)
    assert "has none of these drifts" in capsys.readouterr().out
