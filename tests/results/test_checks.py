"""Checks of a table: nothing in a clean one, and each defect found where it was put."""

from __future__ import annotations

import pandas as pd
import pytest

from ddlnb.errors import InputError, ResultsError
from ddlnb.results.checks import (
    NOTE,
    SUSPICIOUS,
    Finding,
    check_table,
    findings_frame,
    without_suspicious,
)
from ddlnb.results.schema import KEY, RATE
from ddlnb.results.tables import NETWORKS, Cell, cell_rates, read_table

# Made-up numbers: samples per second and GPU of one GPU alone, and what is left beyond one node.
ALONE = {"small-conv": 100.0, "small-attention": 40.0}
LEFT = {"10GbE": 0.5, "100GbE": 0.65, "100GbIB": 0.85}
METHODS = ("early", "late", "merged")
BATCH = 16


def table(**changed: list) -> pd.DataFrame:
    """A clean table: faster networks help, more GPUs too, and replicates differ by half a percent.

    ``changed`` columns are added.
    """
    rows = [(model, BATCH, "none", "single", 1, rate) for model, rate in ALONE.items()]
    for model, alone in ALONE.items():
        for number, network in enumerate(NETWORKS):
            for method in METHODS:
                rows.append((model, BATCH, network, method, 4, 3.6 * alone * (1 + 0.0025 * number)))
                for gpus in (8, 16):
                    left = LEFT[network] * (1 if gpus == 8 else 0.95)
                    rows.append((model, BATCH, network, method, gpus, gpus * alone * left))
    return pd.DataFrame(rows, columns=[*KEY, RATE]).assign(**changed)


def cell(network="100GbE", method="early", gpus=8, model="small-conv") -> Cell:
    return Cell(model, BATCH, network, method, gpus)


def edited(changes: dict[Cell, float], column: str = "throughput_samples_per_s") -> pd.DataFrame:
    """The clean table with these cells changed in one column."""
    rows = table()
    if column not in rows:
        rows[column] = 1.0
    cells = list(cell_rates(rows))
    for changed, value in changes.items():
        rows.loc[cells.index(changed), column] = value
    return rows


def as_fast_as(other: Cell, factor: float = 1.0) -> float:
    return cell_rates(table())[other] * factor


def found(rows: pd.DataFrame, rule: str, **options) -> list[Finding]:
    return [finding for finding in check_table(rows, **options) if finding.rule == rule]


def test_a_clean_table_has_no_findings():
    assert check_table(table()) == []
    assert check_table(table(std=1.0, low=0.0, high=1e6)) == []
    assert check_table(table().iloc[:0]) == []


def test_the_order_of_the_rows_does_not_matter():
    rows = edited({cell(): as_fast_as(cell("10GbE")), cell(gpus=16): 100.0})
    shuffled = rows.sample(frac=1.0, random_state=0)
    assert len(check_table(rows)) > 1
    assert set(check_table(shuffled)) == set(check_table(rows))


# Dominated networks


@pytest.mark.parametrize("factor", [1.0, 1.009, 0.8])
def test_a_faster_network_that_gains_nothing_is_suspicious(factor):
    rows = edited({cell(): as_fast_as(cell("10GbE"), factor)})
    [finding] = found(rows, "dominated network")
    assert finding.cells == (cell(),)
    assert finding.severity == SUSPICIOUS
    assert "look whether its traffic took the interface of 10GbE" in finding.message


def test_a_small_gain_is_no_defect():
    rows = edited({cell(): as_fast_as(cell("10GbE"), 1.02)})
    assert found(rows, "dominated network") == []


def test_the_known_defect_is_found_in_two_methods_of_one_model_and_not_in_the_other():
    defect = {
        cell(method=method): as_fast_as(cell("10GbE", method)) for method in ("early", "late")
    }
    findings = found(edited(defect), "dominated network")
    assert {finding.cells for finding in findings} == {(changed,) for changed in defect}


def test_other_models_are_witnesses_when_no_method_of_the_model_gains():
    every = {cell(method=method): as_fast_as(cell("10GbE", method)) for method in METHODS}
    rows = edited(every)
    assert len(found(rows, "dominated network")) == 3
    alone = rows[rows["model"] == "small-conv"]
    assert found(alone, "dominated network") == []


def test_a_different_method_of_a_different_model_is_no_witness():
    rows = edited({cell(): as_fast_as(cell("10GbE"))})
    rows = rows[rows["gpus"] == 8]
    this = (rows["model"] == "small-conv") & (rows["method"] == "early")
    unlike = (rows["model"] != "small-conv") & (rows["method"] != "early")
    assert found(rows[this | unlike], "dominated network") == []
    assert found(rows[this | ~unlike], "dominated network") != []


def test_cells_bound_by_computing_are_not_suspicious():
    near_linear = {cell(network): 8 * ALONE["small-conv"] * 0.9 for network in NETWORKS}
    assert check_table(edited(near_linear)) == []
    half = {cell(network): 8 * ALONE["small-conv"] * 0.5 for network in NETWORKS}
    assert len(found(edited(half), "dominated network")) == 2


def test_cells_bound_by_their_node_are_not_suspicious():
    """At half of the speed of one GPU alone, but at that of the method within one node."""
    bound = {cell(network, gpus=4): 4 * ALONE["small-conv"] * 0.5 for network in NETWORKS}
    bound |= {cell(network): 8 * ALONE["small-conv"] * 0.5 for network in NETWORKS}
    bound |= {cell(network, gpus=16): 16 * ALONE["small-conv"] * 0.5 for network in NETWORKS}
    assert check_table(edited(bound)) == []


def test_cells_within_one_node_are_not_compared_over_networks():
    rows = edited(
        {
            cell("10GbE", gpus=4): 200.0,
            cell("100GbE", gpus=4): 200.0,
            cell("10GbE", "late", 4): 200.0,
            cell("100GbE", "late", 4): 300.0,
        }
    )
    assert found(rows, "dominated network", gpus_per_node=4) == []
    rows = table()
    same = rows["gpus"] == 8
    rows.loc[same & (rows["method"] == "early"), "throughput_samples_per_s"] = 200.0
    assert found(rows, "dominated network", gpus_per_node=4) != []
    assert found(rows, "dominated network", gpus_per_node=8) == []


def test_one_gpu_alone_says_what_is_bound_by_the_network_where_no_node_was_measured():
    """The fastest method of the table, at half of one GPU's rate, while the others gain."""
    rates = {"10GbE": 0.4, "100GbE": 0.5}
    same = {cell(network): 8 * ALONE["small-conv"] * 0.55 for network in rates}
    others = {
        cell(network, method): 8 * ALONE["small-conv"] * rate
        for network, rate in rates.items()
        for method in ("late", "merged")
    }
    rows = edited(same | others).query("gpus in (1, 8) and network != '100GbIB'")
    assert [f.cells for f in found(rows, "dominated network")] == [(cell(),)]
    assert found(rows[rows["method"] != "single"], "dominated network") == []


def test_unknown_networks_are_not_compared_and_the_order_is_the_callers():
    rows = edited({cell(): as_fast_as(cell("10GbE"))})
    renamed = rows.replace({"network": {"100GbE": "made-up"}})
    assert found(renamed, "dominated network") == []
    known = ("10GbE", "made-up", "100GbIB")
    [finding] = found(renamed, "dominated network", networks=known)
    assert finding.cells == (cell("made-up"),)
    with pytest.raises(InputError, match="repeats a name"):
        check_table(rows, networks=("10GbE", "10GbE"))


def test_the_next_network_that_is_there_is_compared():
    rows = edited({cell("100GbIB"): as_fast_as(cell("10GbE"))})
    [finding] = found(rows[rows["network"] != "100GbE"], "dominated network")
    assert finding.cells == (cell("100GbIB"),)


def test_noise_decides_what_is_the_same_up_to_half_of_a_clear_gain():
    rows = edited({cell(): as_fast_as(cell("10GbE"), 1.03)})
    assert found(rows.assign(std=0.01), "dominated network") == []
    noisy = rows.assign(std=rows["throughput_samples_per_s"] * 0.03)
    assert [finding.cells for finding in found(noisy, "dominated network")] == [(cell(),)]
    gains = edited({cell(): as_fast_as(cell("10GbE"), 1.06)})
    noisiest = gains.assign(std=gains["throughput_samples_per_s"] * 0.5)
    assert found(noisiest, "dominated network") == []


# Replicates


def test_replicates_that_differ_are_all_suspects():
    rows = edited({cell("10GbE", gpus=4): as_fast_as(cell("10GbE", gpus=4), 0.95)})
    [finding] = found(rows, "replicates differ")
    assert set(finding.cells) == {cell(network, gpus=4) for network in NETWORKS}
    assert "spread by 5.8%" in finding.message


def test_replicates_are_those_within_one_node_of_any_network():
    rows = edited({cell("10GbE", gpus=4): as_fast_as(cell("10GbE", gpus=4), 0.95)})
    assert found(rows, "replicates differ", gpus_per_node=2) == []
    renamed = rows.replace({"network": {"10GbE": "made-up"}})
    assert len(found(renamed, "replicates differ")) == 1


# More GPUs


def test_growth_above_the_number_of_gpus_is_suspicious():
    rows = edited({cell(gpus=16): as_fast_as(cell(), 2.05)})
    [finding] = found(rows, "more than linear")
    assert finding.cells == (cell(), cell(gpus=16))
    assert finding.severity == SUSPICIOUS
    assert found(edited({cell(gpus=16): as_fast_as(cell(), 2.02)}), "more than linear") == []


def test_more_than_one_gpu_times_their_number_is_suspicious():
    single = Cell("small-conv", BATCH, "none", "single", 1)
    rows = edited({single: 80.0})
    findings = found(rows, "more than linear")
    assert all(finding.cells[0] == single for finding in findings)
    above = {c for c, rate in cell_rates(rows).items() if rate > 1.02 * c.gpus * 80.0}
    assert {finding.cells[1] for finding in findings} == {c for c in above if c[0] == "small-conv"}
    assert found(rows[rows["method"] != "single"], "more than linear") == []


def test_a_throughput_that_falls_is_only_a_note():
    few, many = cell("10GbE"), cell("10GbE", gpus=16)
    [finding] = check_table(edited({many: as_fast_as(few, 0.9)}))
    assert (finding.rule, finding.severity) == ("falls with more GPUs", NOTE)
    assert finding.cells == (few, many)
    assert check_table(edited({many: as_fast_as(few, 0.995)})) == []


# Noise and ranges


def noisy(share: float, usual: float = 0.004) -> pd.DataFrame:
    rows = table()
    rows["std"] = rows["throughput_samples_per_s"] * usual
    rows.loc[5, "std"] = rows.loc[5, "throughput_samples_per_s"] * share
    return rows


def test_noise_far_above_the_usual_is_suspicious():
    [finding] = check_table(noisy(0.05))
    assert finding.rule == "noise out of line"
    assert finding.cells == (list(cell_rates(table()))[5],)
    assert "5.0% of its throughput, the median of the table is 0.4%" in finding.message


@pytest.mark.parametrize(
    ("share", "usual"),
    [(0.009, 0.001), (0.019, 0.01), (0.0, 0.01)],
    ids=["harmless", "less than twice the usual", "none"],
)
def test_other_noise_is_not_suspicious(share, usual):
    assert check_table(noisy(share, usual)) == []


def test_noise_is_judged_by_how_much_noises_differ():
    rows = noisy(0.05, 0.01)
    assert len(found(rows, "noise out of line")) == 1
    rows["std"] *= [0.25 if number % 2 else 4.0 for number in range(len(rows))]
    assert found(rows, "noise out of line") == []


def test_noise_is_out_of_line_beyond_three_and_a_half_robust_deviations():
    rows = noisy(0.1, 0.01)
    factors = [1.2 if number % 2 else 1 / 1.2 for number in range(len(rows))]
    rows["std"] *= factors
    assert len(found(rows, "noise out of line")) == 1
    rows.loc[5, "std"] = rows.loc[5, "throughput_samples_per_s"] * 0.01 * 1.2**4
    assert found(rows, "noise out of line") == []


def test_few_noises_have_no_usual_one():
    rows = noisy(0.2)
    few = rows.iloc[[0, 1, 4, 5]]
    assert found(few, "noise out of line") == []
    rows.loc[~rows.index.isin(few.index), "std"] = float("nan")
    assert found(rows, "noise out of line") == []


@pytest.mark.parametrize(("column", "value"), [("low", 1e5), ("high", 1.0)])
def test_values_outside_their_range_are_suspicious(column, value):
    rows = table(low=0.0, high=1e4)
    rows.loc[3, column] = value
    [finding] = check_table(rows)
    assert finding.rule == "outside its range"
    assert finding.cells == (list(cell_rates(rows))[3],)
    rows.loc[3, column] = float("nan")
    assert check_table(rows) == []
    assert len(found(table(**{column: value}), "outside its range")) == len(rows)


# What becomes of findings


def test_suspicious_cells_are_dropped_and_notes_are_not():
    rows = edited({cell(gpus=16): 200.0, cell("10GbE", "late", 16): 300.0})
    findings = check_table(rows)
    assert [f.severity for f in findings] == [SUSPICIOUS, NOTE, NOTE]
    rows.index = rows.index[::-1]
    kept = without_suspicious(rows, findings)
    assert set(cell_rates(rows)) - set(cell_rates(kept)) == {cell(gpus=16)}
    pd.testing.assert_frame_equal(kept, rows.loc[kept.index])
    assert [f.cells[1].method for f in check_table(kept)] == ["late"]


def test_suspicious_findings_come_first():
    rows = edited({cell("10GbE", gpus=16): 200.0}).assign(high=1e4)
    rows.loc[0, "high"] = 1.0
    assert [f.severity for f in check_table(rows)] == [SUSPICIOUS, NOTE]


def test_dropping_nothing_changes_nothing():
    pd.testing.assert_frame_equal(without_suspicious(table(), []), table())


def test_findings_are_shown_one_a_row():
    assert list(findings_frame([]).columns) == ["severity", "rule", "cells", "message"]
    rows = edited({cell("10GbE", gpus=16): as_fast_as(cell("10GbE"), 0.9)})
    [line] = findings_frame(check_table(rows)).to_dict("records")
    assert line["cells"] == "small-conv/16 10GbE early 8 GPUs; small-conv/16 10GbE early 16 GPUs"
    assert line["message"].endswith("16 GPUs is 10.0% below small-conv/16 10GbE early 8 GPUs")


# Reading


def write(path, text: str):
    file = path / "table.csv"
    file.write_text(text)
    return file


HEADER = ",".join([*KEY, RATE, "std", "low", "high"])
LINE = "{model},{local_batch},{network},{method},{gpus},{throughput},{std},{low},{high}"


def line(**values) -> str:
    usual = {"model": "small-conv", "local_batch": 16, "network": "10GbE", "method": "early"}
    empty = {"std": "", "low": "", "high": ""}
    return LINE.format(**{**usual, "gpus": 4, "throughput": 100.0, **empty, **values})


def test_a_table_is_read_as_it_was_written(tmp_path):
    rows = table(std=1.0, source="made up")
    rows.loc[2, "std"] = float("nan")
    rows.to_csv(tmp_path / "table.csv", index=False)
    read = read_table(tmp_path / "table.csv")
    pd.testing.assert_frame_equal(read, rows, check_dtype=False)
    assert check_table(read) == check_table(rows) == []


def test_names_that_look_like_nothing_stay_names(tmp_path):
    text = f"{HEADER}\n{line(network='None', method='NA')}\n".replace(",", ", ")
    file = write(tmp_path, f"\ufeff{text}")  # with the mark that spreadsheets put in front
    assert cell_rates(read_table(file)) == {Cell("small-conv", 16, "None", "NA", 4): 100.0}


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (line(throughput="fast"), "throughput_samples_per_s must be a positive number"),
        (line(throughput=0), "throughput_samples_per_s must be a positive number"),
        (line(throughput=-1), "throughput_samples_per_s must be a positive number"),
        (line(throughput="inf"), "throughput_samples_per_s must be a positive number"),
        (line(throughput=""), "throughput_samples_per_s must be a positive number"),
        (line(gpus="many"), "gpus must be a positive number"),
        (line(gpus=2.5), "gpus must be a whole number"),
        (line(local_batch=0), "local_batch must be a positive number"),
        (line(model=""), "model is empty; write a name"),
        (line(network=" "), "network is empty; only a row of one GPU"),
        (line(std=-1), "std must be empty or a number that is not negative"),
        (line(low="some"), "low must be empty or a number that is not negative"),
        (line(high="inf"), "high must be empty or a number that is not negative"),
        (line(gpus="8.0"), "the same cell appears twice"),
    ],
)
def test_lines_that_are_no_cells_are_refused_with_their_number_and_rule(tmp_path, row, rule):
    file = write(tmp_path, "\n".join([HEADER, line(gpus=8), row]) + "\n")
    with pytest.raises(ResultsError, match=rf"table\.csv line 3 \(.*\): {rule}"):
        read_table(file)


def test_files_that_are_no_tables_are_refused(tmp_path):
    with pytest.raises(ResultsError, match="there is no table"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(ResultsError, match="cannot be read as a table"):
        read_table(tmp_path)
    with pytest.raises(ResultsError, match="cannot be read as a table"):
        read_table(write(tmp_path, ""))
    with pytest.raises(ResultsError, match="lacks the columns network, gpus; a table needs model"):
        read_table(write(tmp_path, HEADER.replace("network", "net").replace("gpus", "n") + "\n"))
    with pytest.raises(ResultsError, match="more values than"):
        read_table(write(tmp_path, f"{HEADER}\n{line()},1\n"))


def test_frames_that_are_no_tables_are_refused_everywhere():
    twice = pd.concat([table(), table()])
    for function in (check_table, cell_rates):
        with pytest.raises(InputError, match="the same cell appears twice; keep one"):
            function(twice)
        with pytest.raises(InputError, match="lacks the columns method"):
            function(table().drop(columns="method"))
    with pytest.raises(InputError, match="twice"):
        without_suspicious(twice, [])
    with pytest.raises(InputError, match=r"row 3 of the table \(.*nan.*\): network is empty"):
        check_table(table(network=["none", None] * (len(table()) // 2)))
    with pytest.raises(InputError, match="gpus_per_node 0 must be a whole number"):
        check_table(table(), gpus_per_node=0)


def test_checking_changes_no_row():
    rows = edited({cell(): as_fast_as(cell("10GbE"))})
    before = rows.copy()
    without_suspicious(rows, check_table(rows))
    pd.testing.assert_frame_equal(rows, before)
