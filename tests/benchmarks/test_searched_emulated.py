"""Cells, pairs of runs, and what is said of them."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.searched_cells import CELLS
from benchmarks.searched_emulated import folder_of, main, paired_seconds, ratio, summary
from ddlnb.errors import UnknownName
from ddlnb.launch.topology import get_link


def test_there_are_sixteen_cells_of_the_earlier_benchmark_and_four_new_ones(tmp_path):
    assert len(CELLS) == 20
    assert sum(bool(cell.change) for cell in CELLS.values()) == 4
    assert len({folder_of(cell, tmp_path) for cell in CELLS.values()}) == 20


@pytest.mark.parametrize("workers", [4, 8])
def test_changed_networks_have_one_slow_link_or_lose_packets(workers):
    slow = CELLS[f"1Gb/s 50us unlike small-conv {workers}"].site(2 * workers)
    links = [get_link(link) for link in slow.network]
    assert links[0] == replace(links[1], bandwidth=links[1].bandwidth / 2)
    assert set(links[1:]) == {get_link("1Gb/s 50us")}
    lossy = CELLS[f"1Gb/s 50us loss small-conv {workers}"].site(workers)
    assert lossy.link.loss == 0.01
    assert slow.scale == lossy.scale == 0.2


def test_a_ratio_is_of_pairs_of_runs():
    """The second repetition is twice as slow for all, which is no difference between them."""
    found = ratio(pd.Series([1.2, 2.4, 1.26]), pd.Series([1.0, 2.0, 1.05]))
    assert found.estimate == pytest.approx(1.2)
    assert found.low == pytest.approx(found.high)


def test_a_repetition_that_lacks_a_contender_is_left_out():
    runs = pd.DataFrame(
        {
            "repetition": [0, 0, 1],
            "method": ["searched", "DDP", "searched"],
            "iteration_seconds": [1.0, 2.0, 3.0],
        }
    )
    assert paired_seconds(runs).to_dict("list") == {"searched": [1.0], "DDP": [2.0]}


def test_the_summary_counts_what_is_beyond_noise():
    rows = pd.DataFrame(
        {
            "plan": ["searched", "MG-WFBP"],
            "best method": ["MG-WFBP", "WFBP-A2A"],
            "searched ms": [10.0, 10.0],
            "forecast ms": [11.0, 12.1],
            **{"over best": [1.2, 0.9], "best low": [1.1, 0.8], "best high": [1.3, 0.95]},
            **{"over DDP": [1.5, 1.5], "DDP low": [0.9, 1.4], "DDP high": [2.0, 1.6]},
            **{"most over best": [1.21, 1.21], "most over DDP": [1.6, 1.6]},
        }
    )
    best, ddp, off = summary(rows).splitlines()
    assert "geometric mean 1.039" in best
    assert "quicker in 1, slower in 1" in best
    assert "geometric mean 1.500" in ddp
    assert "quicker in 1, slower in 0" in ddp
    assert "in 2 cells without servers 1.039, where the bound allows 1.210" in best
    assert "the bound allows 1.600" in ddp
    assert "won by a plan that was found in 1 cell, by a method in 1;" in off
    assert "1.154 of the measured seconds" in off
    assert "15.5% off" in off


@pytest.mark.parametrize("column", ["plan", "best method"])
def test_the_bound_says_nothing_of_cells_with_servers(column):
    ratios = ["over best", "over DDP", "most over best", "most over DDP"]
    ends = ["best low", "best high", "DDP low", "DDP high"]
    rows = pd.DataFrame({name: [1.2, 2.0] for name in [*ratios, *ends]}).assign(
        **{"plan": "searched", "best method": "MG-WFBP", "searched ms": 1.0, "forecast ms": 1.0}
    )
    rows.loc[1, column] = "ByteScheduler-PS"
    assert "in 1 cell without servers 1.200, where the bound allows 1.200" in summary(rows)


def test_an_unknown_cell_is_refused():
    with pytest.raises(UnknownName, match="cell 'tokenring'"):
        main(cells=["tokenring"])
