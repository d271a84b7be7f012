"""Section 3.2: the formulas, and what is measured where links can be emulated and where not."""

import pandas as pd
import pytest

from ddlnb.emulation.network import lacking
from ddlnb.plans.alpha_beta import AlphaBeta, push_pull, ring_all_reduce
from ddlnb.survey import sec3_2_architectures as study

NETWORK = "20Mb/s 5ms"
LINK = AlphaBeta(1e-3, 1e-7)
needs_emulation = pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")


@pytest.fixture(scope="module")
def nodes():
    ranks = study.emulated_ranks(4, NETWORK, study.__name__)
    assert ranks is not None
    with ranks:
        yield ranks


@pytest.mark.item("A17", "A29")
@pytest.mark.parametrize(
    ("workers", "servers", "seconds"),
    [(8, 1, 8e-7), (8, 4, 2e-7), (2, 8, 1e-7)],  # the last is a worker's own link
)
def test_one_server_carries_what_all_workers_send_and_k_servers_a_kth_of_it(
    workers, servers, seconds
):
    assert push_pull(LINK, workers, servers).seconds_per_byte == pytest.approx(seconds)


def test_a_workload_whose_messages_hide_takes_as_long_as_its_computation_and_the_last_message():
    workload = study.made_up_workload(4, 1000)
    cost = AlphaBeta(1e-5, 0)
    seconds = study.wait_free(workload, cost)
    assert seconds == pytest.approx(workload.compute_seconds + 1e-5)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_many_messages_cost_what_the_bandwidth_term_says(servers):
    workload = study.made_up_workload(400, 4000, forward_seconds=0, backward_seconds=0)
    link = AlphaBeta(0, 1e-6)
    seconds = study.wait_free_push_pull(workload, link, 4, servers)
    ideal = push_pull(link, 4, servers).seconds(workload.gradient_bytes)
    assert ideal < seconds < 1.02 * ideal


def test_without_emulation_the_study_has_formulas_and_a_reason(monkeypatch):
    monkeypatch.setattr(study, "lacking", lambda: "no compiler")
    found = study.measure_network(
        NETWORK, [2, 4], [1, 2], [1024], iterations=1, repetitions=1, rounds=1
    )
    assert found.links == "no compiler"
    assert found.iterations.empty
    assert found.all_reduces.empty
    assert found.fitted == found.asked
    assert set(found.formulas["source"]) == {"formula"}
    busy = found.formulas.set_index(["architecture", "workers", "servers"])["link_seconds"]
    assert list(busy.index) == [
        ("PS", 2, 1), ("A2A", 2, 0), ("PS", 4, 1), ("A2A", 4, 0), ("PS", 4, 2)
    ]  # fmt: skip
    assert busy["PS", 4, 1] > busy["A2A", 4, 0]
    assert busy["PS", 4, 2] <= busy["PS", 4, 1]
    table = study.architecture_table(found.iterations, found.formulas)
    assert table["median (ms)"].isna().all()
    assert (table["iteration, formula (ms)"] > 60).all()
    assert study.own_fits(found.all_reduces) == {}


def made_of(link: AlphaBeta, workers: int = 8):
    lines = study.by_formula(link, workers)
    return pd.DataFrame(
        [
            {"algorithm": name, "workers": workers, "bytes": size, "seconds": line.seconds(size)}
            for name, line in lines.items()
            for size in study.SIZES
        ]
    )


def test_the_common_fit_finds_its_link_and_ring_and_tree_cross_where_both_take_as_long():
    rows = made_of(LINK)
    found = study.fit_link(rows)
    assert found is not None
    assert found.latency_seconds == pytest.approx(LINK.latency_seconds)
    assert found.seconds_per_byte == pytest.approx(LINK.seconds_per_byte)
    assert study.topology_table(rows, found, 8)["error of the formula (%)"].max() < 1e-6
    lines = study.by_formula(LINK, 8)
    table = study.crossings({"formula": lines, "own": {}})
    size = study.crossing_bytes(lines["ring"], lines["tree"])
    assert lines["ring"].seconds(size) == pytest.approx(lines["tree"].seconds(size))
    assert table.loc["tree", "formula"] == f"above {size / 1024:,.0f}"
    assert table.loc["direct", "formula"] == "none"
    assert list(table.columns) == ["formula"]


@pytest.mark.item("A30", "A31")
def test_the_answer_is_computed_from_the_lists_and_the_rows():
    formulas = study.all_reduce_answer(study.measure_topologies(None), 32)
    assert "halving-doubling takes 10 latencies where a ring takes 62, and 1.94 M" in formulas
    assert "a double tree in blocks takes 17 latencies and 2.81 M." in formulas
    assert "Fastest" not in formulas
    rows = made_of(LINK)
    rows.loc[(rows["algorithm"] == "tree") & (rows["bytes"] == 4096), "seconds"] = 1e-9
    said = study.all_reduce_answer(rows, 8)
    assert "Fastest here, by the median: direct at 1 KiB, tree at 4 KiB" in said


@pytest.mark.item("A29", how="emulated")
@needs_emulation
@pytest.mark.ranks
def test_emulated_rows_are_labelled_and_the_server_is_slower(nodes):
    workload = study.made_up_workload(2, 80_000, forward_seconds=0.002)
    rows = study.measure_architectures(workload, [3], [1], nodes, iterations=2, repetitions=1)
    assert set(rows["source"]) == {"emulated"}
    assert set(rows["network"]) == {NETWORK}
    seconds = rows.set_index("architecture")["iteration_seconds"]
    link = study.asked_link(NETWORK)
    assert seconds["PS"] > push_pull(link, 3).seconds_per_byte * workload.gradient_bytes
    assert seconds["A2A"] > ring_all_reduce(link, 3).seconds_per_byte * workload.gradient_bytes


@needs_emulation
@pytest.mark.ranks
def test_no_algorithm_beats_the_link(nodes):
    rows = study.measure_topologies(nodes, [40_000], repetitions=2)
    assert set(rows["source"]) == {"emulated"}
    least = 0.9 * 1.5 * 40_000 * study.asked_link(NETWORK).seconds_per_byte
    assert (rows["seconds"] > least).all()
