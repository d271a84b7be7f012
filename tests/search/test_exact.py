"""The solver's optimum against all merges counted out, and the search against the solver."""

from dataclasses import replace
from itertools import combinations

import pandas as pd
import pytest

from benchmarks.search_regret import OUT, instance, regret
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Gate
from ddlnb.search.search import search_plan
from ddlnb.search.space import Candidate, Space
from ddlnb.simulator.events import play
from ddlnb.simulator.program import lower
from tests.search.exact import GAP, MOST_GRADIENTS, proven_best


@pytest.mark.parametrize("gate", Gate)
@pytest.mark.parametrize("seed", [2, 5])
def test_the_solver_finds_the_best_of_all_merges(seed, gate):
    workload, cluster = instance(seed, most=7)
    count = len(workload.gradients)
    seconds = {}
    for inner in range(count):
        for cuts in combinations(range(1, count), inner):
            ends = (*cuts, count)
            plan = Candidate(ends, gate).plan(workload, cluster, ())
            seconds[ends] = play(lower(workload, cluster, plan)).iteration_seconds
    latency, per_byte, _ = cluster.all_reduce_seconds
    best = proven_best(workload, AlphaBeta(latency, per_byte), gate)
    assert len(seconds) == 2 ** (count - 1)
    least = min(seconds.values())
    assert best.proven_seconds * (1 - 1e-6) <= least <= seconds[best.ends]
    assert seconds[best.ends] <= least * (1 + GAP)


@pytest.mark.parametrize("gate", Gate)
@pytest.mark.parametrize("seed", [3, 11])
def test_the_search_is_within_two_percent_of_the_proven_optimum(seed, gate):
    row = regret(seed, gate, most=14)
    assert -1e-6 <= row["regret"] <= 0.02
    assert row["bound_seconds"] <= row["best_seconds"] * (1 + 1e-6)


def test_the_kept_rows_are_within_two_percent_and_one_is_found_again():
    rows = pd.read_csv(OUT)
    assert len(rows) == 16
    assert rows["gradients"].max() <= MOST_GRADIENTS
    assert rows["regret"].max() <= 0.02
    assert (rows["bound_seconds"] <= rows["best_seconds"] * (1 + GAP)).all()
    kept = rows.iloc[0]
    workload, cluster = instance(int(kept["seed"]))
    plain = Space(partition=False, orders=("ready",), split=False, collectives=(), servers=False)
    plain = replace(plain, gates=(Gate(kept["gate"]),), methods=False)
    found = search_plan(workload, cluster, space=plain)
    assert found.iteration_seconds == pytest.approx(kept["searched_seconds"], rel=1e-9)
