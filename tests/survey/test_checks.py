"""Checks of a table: nothing in a clean one, and each defect found where it was put."""

import pandas as pd
import pytest

from ddlnb.errors import InputError, ResultsError
from ddlnb.results.rows import NETWORKS, Cell, cell_rates, read_table
from ddlnb.results.schema import KEY, RATE
from ddlnb.survey.checks import (
    NOTE,
    SUSPICIOUS,
    Finding,
    check_table,
    without_suspicious,
)

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


def edited(changes: dict[Cell, float]) -> pd.DataFrame:
    """The clean table with the throughput of these cells changed."""
    rows = table()
    cells = list(cell_rates(rows))
    for changed, value in changes.items():
        rows.loc[cells.index(changed), RATE] = value
    return rows


def as_fast_as(other: Cell, factor: float = 1.0) -> float:
    return cell_rates(table())[other] * factor


def found(rows: pd.DataFrame, rule: str, **options) -> list[Finding]:
    return [finding for finding in check_table(rows, **options) if finding.rule == rule]


def test_a_clean_table_has_no_findings():
    assert check_table(table()) == []
    assert check_table(table(std=1.0, low=0.0, high=1e6)) == []
    assert check_table(table().iloc[:0]) == []


def test_the_order_of_the_rows_does_not_matter_and_checking_changes_none():
    rows = edited({cell(): as_fast_as(cell("10GbE")), cell(gpus=16): 100.0})
    before = rows.copy()
    findings = check_table(rows)
    without_suspicious(rows, findings)
    pd.testing.assert_frame_equal(rows, before)
    assert len(findings) > 1
    assert set(check_table(rows.sample(frac=1.0, random_state=0))) == set(findings)


HALF = {cell(network): 8 * ALONE["small-conv"] * 0.5 for network in NETWORKS}
NODE = {cell(network, gpus=4): 4 * ALONE["small-conv"] * 0.5 for network in NETWORKS}
LARGE = {cell(network, gpus=16): 16 * ALONE["small-conv"] * 0.5 for network in NETWORKS}
STUCK = {method: {cell(method=method): as_fast_as(cell("10GbE", method))} for method in METHODS}
OFF = {cell("10GbE", gpus=4): as_fast_as(cell("10GbE", gpus=4), 0.95)}
DOMINATED, LINEAR, FALLS = "dominated network", "more than linear", "falls with more GPUs"


@pytest.mark.parametrize(
    ("rule", "changes", "cells"),
    [
        (DOMINATED, STUCK["early"], {(cell(),)}),
        (DOMINATED, {cell(): as_fast_as(cell("10GbE"), 1.009)}, {(cell(),)}),
        (DOMINATED, {cell(): as_fast_as(cell("10GbE"), 0.8)}, {(cell(),)}),
        (DOMINATED, {cell(): as_fast_as(cell("10GbE"), 1.02)}, set()),  # a small gain
        (DOMINATED, STUCK["early"] | STUCK["late"], {(cell(),), (cell(method="late"),)}),
        # The other model is the witness where no method of this one gains.
        (
            DOMINATED,
            STUCK["early"] | STUCK["late"] | STUCK["merged"],
            {(cell(method=method),) for method in METHODS},
        ),
        # Bound by computing; bound by something else; bound by the node, as on four GPUs.
        (DOMINATED, {one: 8 * ALONE["small-conv"] * 0.9 for one in HALF}, set()),
        (DOMINATED, HALF, {(cell("100GbE"),), (cell("100GbIB"),)}),
        (DOMINATED, NODE | HALF | LARGE, set()),
        ("replicates differ", OFF, {tuple(cell(network, gpus=4) for network in NETWORKS)}),
        (LINEAR, {cell(gpus=16): as_fast_as(cell(), 2.05)}, {(cell(), cell(gpus=16))}),
        (LINEAR, {cell(gpus=16): as_fast_as(cell(), 2.02)}, set()),
        (FALLS, {cell(gpus=16): as_fast_as(cell(), 0.9)}, {(cell(), cell(gpus=16))}),
        (FALLS, {cell(gpus=16): as_fast_as(cell(), 0.995)}, set()),
    ],
)
def test_a_defect_is_found_where_it_was_put(rule, changes, cells):
    findings = found(edited(changes), rule)
    assert {finding.cells for finding in findings} == cells
    assert {finding.severity for finding in findings} <= {NOTE if rule == FALLS else SUSPICIOUS}


NO_NODE = "gpus in (1, 8) and network != '100GbIB'"
GAINS = {
    cell(network, method): 8 * ALONE["small-conv"] * rate
    for network, rate in {"10GbE": 0.4, "100GbE": 0.5}.items()
    for method in ("late", "merged")
} | {cell(network): 8 * ALONE["small-conv"] * 0.55 for network in ("10GbE", "100GbE")}


@pytest.mark.parametrize(
    ("rule", "changes", "chosen", "options", "count"),
    [
        # Of another method of another model nothing can be told.
        (DOMINATED, STUCK["early"], "(model == 'small-conv') == (method == 'early')", {}, 0),
        (DOMINATED, STUCK["early"], "model == 'small-conv' or method == 'early'", {}, 1),
        (DOMINATED, STUCK["early"], "model == 'small-conv' and method == 'early'", {}, 0),
        # Cells within one node are not compared over networks.
        (DOMINATED, STUCK["early"], "gpus == 8", {"gpus_per_node": 8}, 0),
        # One GPU alone says what is bound by the network where no node was measured.
        (DOMINATED, GAINS, NO_NODE, {}, 1),
        (DOMINATED, GAINS, f"{NO_NODE} and method != 'single'", {}, 0),
        # The order of networks is the caller's; the next one that is there is compared.
        (DOMINATED, STUCK["early"], "gpus > 0", {"networks": ("10GbE", "100GbIB")}, 0),
        (
            DOMINATED,
            {cell("100GbIB"): as_fast_as(cell("10GbE"))},
            "network != '100GbE'",
            {},
            1,
        ),
        ("replicates differ", OFF, "gpus > 0", {"gpus_per_node": 2}, 0),
        ("replicates differ", OFF, "network != '10GbE'", {}, 0),
    ],
)
def test_what_the_rest_of_the_table_says_decides(rule, changes, chosen, options, count):
    assert len(found(edited(changes).query(chosen), rule, **options)) == count


@pytest.mark.parametrize(
    ("rule", "changes", "noise", "count"),
    [
        (DOMINATED, {cell(): as_fast_as(cell("10GbE"), 1.03)}, 0.0001, 0),
        (DOMINATED, {cell(): as_fast_as(cell("10GbE"), 1.03)}, 0.03, 1),
        (DOMINATED, {cell(): as_fast_as(cell("10GbE"), 1.06)}, 0.5, 0),  # half of a clear gain
        (LINEAR, {cell(gpus=16): as_fast_as(cell(), 2.08)}, 0.02, 1),
        (LINEAR, {cell(gpus=16): as_fast_as(cell(), 2.08)}, 0.03, 0),
        (LINEAR, {cell(gpus=16): as_fast_as(cell(), 2.12)}, 0.5, 1),
    ],
)
def test_noise_decides_what_is_the_same_and_more_than_linear_up_to_a_limit(
    rule, changes, noise, count
):
    rows = edited(changes)
    assert len(found(rows.assign(std=noise * rows[RATE]), rule)) == count


@pytest.mark.parametrize(
    ("method", "gpus", "times", "severities", "said"),
    [
        (
            "WFBP-PS",
            16,
            2.3,
            [NOTE],
            "fell to 54% of what it was: 2 times the servers explain 50% or more",
        ),
        (
            "WFBP-PS",
            16,
            2.4,
            [SUSPICIOUS],
            "to 41% of what it was: 2 times the servers explain no such fall",
        ),
        ("WFBP-A2A", 16, 2.3, [SUSPICIOUS], "is 15.0% above 2 times"),
        # Within one node there are no servers, so that there is nothing to have twice.
        ("WFBP-PS", 8, 2.1, [SUSPICIOUS], "is 5.0% above 2 times"),
    ],
)
def test_more_servers_explain_more_than_linear_down_to_their_share(
    method, gpus, times, severities, said
):
    """A GPU has 65 samples/s over 100GbE and 90.45 within its node; half the wait leaves 75.6."""
    rows = edited({cell(gpus=gpus): as_fast_as(cell(gpus=gpus // 2), times)})
    findings = found(rows.replace("early", method), LINEAR)
    pair = (cell(method=method, gpus=gpus // 2), cell(method=method, gpus=gpus))
    judged = [finding for finding in findings if finding.cells == pair]
    assert [finding.severity for finding in judged] == severities
    assert said in judged[0].message


def test_more_than_one_gpu_times_their_number_is_suspicious():
    single = Cell("small-conv", BATCH, "none", "single", 1)
    rows = edited({single: 80.0})
    findings = found(rows, LINEAR)
    assert all(finding.cells[0] == single for finding in findings)
    above = {c for c, rate in cell_rates(rows).items() if rate > 1.02 * c.gpus * 80.0}
    assert {finding.cells[1] for finding in findings} == {c for c in above if c[0] == "small-conv"}
    assert found(rows[rows["method"] != "single"], LINEAR) == []


# Noise and ranges


def noisy(share: float, usual: float = 0.004) -> pd.DataFrame:
    rows = table()
    rows["std"] = rows["throughput_samples_per_s"] * usual
    rows.loc[5, "std"] = rows.loc[5, "throughput_samples_per_s"] * share
    return rows


@pytest.mark.parametrize(
    ("share", "usual", "factor", "count"),
    [
        (0.009, 0.001, 1.0, 0),  # harmless
        (0.019, 0.01, 1.0, 0),  # less than twice the usual
        (0.0, 0.01, 1.0, 0),
        (0.05, 0.01, 1.0, 1),
        (0.05, 0.01, 4.0, 0),  # where noises differ by as much
        (0.1, 0.01, 1.2, 1),
        (0.01 * 1.2**5, 0.01, 1.2, 0),  # within three and a half robust deviations
    ],
)
def test_noise_is_judged_by_how_much_noises_differ(share, usual, factor, count):
    rows = noisy(share, usual)
    rows["std"] *= [1 / factor if number % 2 else factor for number in range(len(rows))]
    assert len(found(rows, "noise out of line")) == count


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
    ("text", "said"),
    [
        (None, "there is no table"),
        ("", "cannot be read"),
        (
            HEADER.replace("network", "net").replace("gpus", "n") + "\n",
            "lacks the columns network, gpus; a table needs model",
        ),
        (f"{HEADER}\n{line()},1\n", "more values than"),
        *(
            (f"{HEADER}\n{line(gpus=8)}\n{row}\n", rf"table\.csv line 3 \(.*\): {rule}")
            for row, rule in [
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
            ]
        ),
    ],
)
def test_files_and_lines_that_are_no_tables_are_refused_with_number_and_rule(tmp_path, text, said):
    path = tmp_path / "absent.csv" if text is None else write(tmp_path, text)
    with pytest.raises(ResultsError, match=said):
        read_table(path)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (pd.concat([table(), table()]), {}, "the same cell appears twice; keep one"),
        (table().drop(columns="method"), {}, "lacks the columns method"),
        (
            table(network=["none", None] * (len(table()) // 2)),
            {},
            r"row 3 of the table \(.*nan.*\): network is empty",
        ),
        (table(), {"gpus_per_node": 0}, "gpus_per_node 0 must be a whole number"),
        (table(), {"networks": ("10GbE", "10GbE")}, "repeats a name"),
    ],
)
def test_frames_that_are_no_tables_are_refused(rows, options, said):
    with pytest.raises(InputError, match=said):
        check_table(rows, **options)
