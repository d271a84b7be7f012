"""The score of Fig. 4: synthetic published cells whose errors are known, and laws of any score."""

from hashlib import sha256

import pandas as pd
import pytest

from benchmarks.fig4_score import (
    WIDTH,
    main,
    missing_cells,
    regret_table,
    worst_cells,
)
from ddlnb.calibration.validation import TRIVIAL_FORECASTS
from ddlnb.errors import InputError
from ddlnb.files import DATA, ROOT
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.rows import SINGLE, Cell
from ddlnb.results.schema import KEY, RATE
from ddlnb.survey.fig4_forecast import (
    BLIND,
    MORE,
    blind_rows,
    mean_errors,
    read_forecast,
    regret_rows,
    score_rows,
    score_table,
    summary_table,
)
from ddlnb.survey.published import FIG4

KEPT = BLIND[-1]
OURS = "ours"
BEST = list(SURVEYED)


@pytest.fixture(scope="module")
def forecast():
    return read_forecast(KEPT)


def published_like(rows, factor=1.0):
    """Published cells that are this many times the forecast."""
    made = rows[KEY].assign(**{RATE: factor * rows[RATE]}, std=float("nan"), source="published")
    return made[FIG4.names]


def scaled(rows, factor):
    return rows.assign(**{name: factor * rows[name] for name in (RATE, "low", "high")})


def one_panel(by_gpus, alone=None):
    """ResNet-50 over 10GbE: the throughputs of the seven methods by number of GPUs."""
    lines = [
        ("resnet50", 64, "10GbE", method, gpus, rate)
        for gpus, rates in by_gpus.items()
        for method, rate in zip(SURVEYED, rates, strict=True)
    ]
    if alone is not None:
        lines.append(("resnet50", 64, "", SINGLE, 1, alone))
    return pd.DataFrame(lines, columns=[*KEY, RATE])


def with_interval(rows):
    rows = rows[rows["gpus"] > 1]
    return rows.assign(low=0.9 * rows[RATE], high=1.1 * rows[RATE])


def test_a_perfect_forecast_has_no_error_no_regret_and_every_cell_in_its_interval(forecast):
    rows = score_rows(published_like(forecast), {OURS: forecast})
    assert list(rows.columns) == [
        *("forecast", *KEY, "size", "published", "predicted", "relative_error"),
        *("low", "high", "in_interval", "suspicious", "wrong_interface"),
    ]
    assert list(rows["forecast"].unique()) == [OURS, *TRIVIAL_FORECASTS]
    assert not rows["suspicious"].any()
    table = score_table(rows, "size").xs(OURS, level="forecast")
    for kind in ("with", "without"):
        assert table.loc[kind, "cells"].to_dict() == {"4": 63, "8": 63, MORE: 126}
    assert (table[["mean", "median", "bias"]] == 0).all(axis=None)
    assert (table["inside"] == 100).all()
    assert (regret_table(rows).xs(OURS, level="forecast")[["mean", "max"]] == 0).all(axis=None)
    questions = regret_table(rows).xs(OURS, level="forecast")["questions"]
    assert questions.to_dict() == {"4": 9, "8": 9, MORE: 18}


def test_errors_and_intervals_are_those_that_were_made(forecast):
    """16 GPUs a quarter too high, 32 a half too low, and intervals that reach one of the two."""
    factors = forecast["gpus"].map({4: 1.0, 8: 1.0, 16: 1.25, 32: 0.5})
    made = scaled(forecast, factors).assign(
        low=forecast[RATE] * factors.clip(upper=1), high=forecast[RATE] * factors.clip(upper=1.25)
    )
    rows = score_rows(published_like(forecast), {OURS: made})
    tested = rows[rows["size"] == MORE]
    over = score_table(tested).loc[("with", OURS)]
    assert over.to_list() == pytest.approx([126, 37.5, 37.5, -12.5, 50])
    by_gpus = score_table(tested, "gpus").xs((OURS, "without"), level=("forecast", "suspicious"))
    assert by_gpus.loc[16].to_list() == pytest.approx([63, 25, 25, 25, 100])
    assert by_gpus.loc[32].to_list() == pytest.approx([63, 50, 50, -50, 0])
    worst = worst_cells(rows[rows["forecast"] == OURS])
    assert len(worst) == 10
    assert (worst["gpus"] == 32).all()
    assert worst["error"].to_list() == pytest.approx([-50] * 10)


def test_the_order_of_rows_changes_nothing(forecast):
    noisy = published_like(forecast, 1 + 0.2 * (forecast.index.to_series() % 7) / 7)
    rows = score_rows(noisy, {OURS: forecast})
    shuffled = score_rows(
        noisy.sample(frac=1, random_state=1), {OURS: forecast.sample(frac=1, random_state=2)}
    )
    pd.testing.assert_frame_equal(rows, shuffled, check_exact=True)
    pd.testing.assert_frame_equal(regret_table(rows), regret_table(shuffled), check_exact=True)


def test_trivial_forecasts_are_formulas_that_never_see_more_than_eight_gpus(forecast):
    """One GPU needs 0.32 s for 64 samples, eight need 0.4 s: 0.08 s of communication."""
    cells = one_panel({8: [1280.0] * 7, 16: [2000.0] * 7, 32: [3000.0] * 7}, alone=200.0)
    rows = score_rows(published_like(cells), {})
    predicted = rows.groupby(["forecast", "gpus"], observed=True)["predicted"].first()
    assert predicted["linear scaling"].loc[[16, 32]].to_list() == pytest.approx([2560, 5120])
    ring = [gpus * 64 / (0.32 + 0.08 * (1 - 1 / gpus) / (7 / 8)) for gpus in (16, 32)]
    assert predicted["ring scaling"].loc[[16, 32]].to_list() == pytest.approx(ring)
    assert rows["in_interval"].isna().all()
    assert score_table(rows)["inside"].isna().all()
    moved = forecast["gpus"].map({4: 1.0, 8: 1.0, 16: 0.9, 32: 0.7})
    one, other = (
        score_rows(published_like(forecast, factor), {}).set_index(["forecast", *KEY])["predicted"]
        for factor in (1.0, moved)
    )
    assert one.to_numpy() == pytest.approx(other.to_numpy(), rel=1e-12, nan_ok=True)
    assert one.loc["linear scaling"].xs(32, level="gpus").notna().all()


def test_regret_is_what_the_advised_method_loses_and_a_tie_loses_its_mean():
    published = one_panel(
        {8: [100, 90, 80, 70, 60, 50, 40], 16: [200, 150, 140, 130, 120, 100, 80]}
    )
    third_first = one_panel({8: [1, 2, 3, 1, 1, 1, 1], 16: [4, 4, 1, 1, 1, 1, 1]})
    rows = score_rows(published_like(published), {OURS: with_interval(third_first)})
    found = regret_rows(rows).set_index(["forecast", "gpus"])["regret"]
    assert found[OURS].to_dict() == pytest.approx({8: 0.2, 16: (0 + 0.25) / 2})
    assert found["linear scaling"].to_dict() == pytest.approx({16: 0.0})
    ties = 1 - (200 + 150 + 140 + 130 + 120 + 100 + 80) / 7 / 200
    assert found["textbook ring"].to_dict() == pytest.approx({8: 0.3, 16: ties})
    table = regret_table(rows)
    assert table.loc[("8", OURS)].to_list() == pytest.approx([1, 20, 20, 0])
    assert table.loc[(MORE, "linear scaling")].to_list() == pytest.approx([1, 0, 0, 1])


def test_what_is_no_choice_has_no_regret():
    """Linear scaling to four GPUs knows only the method that one GPU stands for."""
    published = published_like(one_panel({4: [70, 60, 50, 40, 30, 20, 10]}, alone=200.0))
    rows = score_rows(published, {OURS: with_interval(one_panel({4: [7, 6, 5, 4, 3, 2, 1]}))})
    known = score_table(rows)["cells"].loc["with"]
    assert known.to_dict() == {OURS: 7, "textbook ring": 7, "linear scaling": 1, "ring scaling": 0}
    assert regret_rows(rows)["forecast"].to_list() == [OURS, "textbook ring"]
    assert regret_rows(rows[rows["method"] == BEST[1]]).empty


def test_suspicious_cells_are_scored_apart_and_never_advised():
    """The first method's row on one of three networks is off, so that its three are suspects."""
    rates = [100.0, 90, 80, 70, 60, 50, 40]
    cells = pd.concat(
        one_panel({4: rates}).assign(network=network) for network in ("10GbE", "100GbE", "100GbIB")
    ).reset_index(drop=True)
    published = published_like(cells)
    published.loc[0, RATE] = 200.0
    rows = score_rows(published, {OURS: with_interval(cells)})
    assert rows.loc[rows["suspicious"], "method"].unique().tolist() == [BEST[0]]
    table = score_table(rows).xs(OURS, level="forecast")
    assert table.loc["with"].to_list() == pytest.approx([21, 50 / 21, 0, -50 / 21, 100 * 20 / 21])
    assert table.loc["without"].to_list() == pytest.approx([18, 0, 0, 0, 100])
    assert regret_table(rows).loc[("4", OURS)].to_list() == pytest.approx([3, 0, 0, 3])
    only_trusted = regret_rows(rows[~rows["suspicious"]]).set_index(["forecast", "network"])[
        "regret"
    ]
    by_chance = 1 - (90 + 80 + 70 + 60 + 50 + 40) / 6 / 90
    assert only_trusted["textbook ring"].to_list() == pytest.approx([by_chance] * 3)


def test_cells_as_fast_as_over_the_slower_network_are_on_the_wrong_interface():
    """Over 100GbE the servers' first method is as fast as over 10GbE; no other cell is."""
    rates = {4: [500.0] * 7, 8: [500.0, 490, 480, 470, 460, 450, 440]}
    faster = one_panel({4: rates[4], 8: [1.5 * rate for rate in rates[8]]})
    stuck = faster["method"].eq("BSP-PS") & faster["gpus"].eq(8)
    cells = one_panel(rates)
    faster[RATE] = faster[RATE].where(~stuck, 1.005 * cells[RATE])
    cells = pd.concat([cells, faster.assign(network="100GbE")], ignore_index=True)
    off = scaled(with_interval(cells), 1.1)
    off.loc[off["method"].eq("BSP-PS") & off["gpus"].eq(8), RATE] *= 1.2
    off["high"] *= 2
    rows = score_rows(published_like(cells), {OURS: off})
    wrong = rows[rows["wrong_interface"] & rows["forecast"].eq(OURS)]
    assert wrong[["network", "method", "gpus"]].to_numpy().tolist() == [["100GbE", "BSP-PS", 8]]
    table = summary_table(rows).xs(OURS, level="forecast")
    assert table["cells"].to_dict() == {"none": 28, "suspicious": 27, "wrong interface": 27}
    assert table.loc["none", "mean"] == pytest.approx(10 + 2 * 22 / 28)
    assert table.loc["wrong interface", "mean"] == pytest.approx(10 + 22 / 27)


def test_mean_errors_stand_by_column_and_pages_have_the_score_that_is_printed():
    """docs/forecast.md for each choice of cells, the forecasts' page for the trusted ones."""
    rows = blind_rows()
    table = mean_errors(rows, ["gpus", "network"])
    assert list(table.index) == [
        *(("gpus", gpus) for gpus in (16, 32)),
        *(("network", name) for name in ("10GbE", "100GbE", "100GbIB")),
    ]
    trusted = rows[~rows["suspicious"] & rows["gpus"].eq(32) & rows["forecast"].eq(KEPT.name)]
    expected = 100 * trusted["relative_error"].abs().mean()
    assert table.loc[("gpus", 32), KEPT.name] == pytest.approx(expected)

    table = summary_table(rows)
    counts = table["cells"].groupby("left_out").first().to_dict()
    assert counts == {"none": 126, "suspicious": 114, "wrong interface": 118}
    docs = (ROOT / "docs" / "forecast.md").read_text()
    for name, of_all in table.groupby("forecast", observed=True):
        shown = [name if name in TRIVIAL_FORECASTS else f"`{name}`"]
        for one in of_all.itertuples():
            inside = "-" if pd.isna(one.inside) else f"{one.inside:.0f}"
            shown.append(f"{one.mean:.1f} / {one.median:.1f} / {inside} / {one.regret:.1f}")
        assert f"| {' | '.join(shown)} |" in docs
    page = (DATA / "forecasts" / "README.md").read_text()
    for path in BLIND:
        one = table.loc[("suspicious", path.name)]
        said = f"{one['mean']:.1f} % | {one['median']:.1f} % | {one['inside']:.0f} %"
        assert f"{said} | {one['regret']:.1f} % |" in page


def test_cells_that_are_missing_are_named(forecast):
    lost = Cell("bert-base", 64, "100GbE", "MG-WFBP", 16)
    there = (forecast[KEY] != pd.Series(lost._asdict())).any(axis=1)
    assert missing_cells(published_like(forecast)) == []
    assert missing_cells(published_like(forecast[there])) == [lost]
    score_rows(published_like(forecast[there]), {OURS: forecast})
    with pytest.raises(InputError, match=rf"ours lacks 1 of 252 .* first is {lost}; forecast ev"):
        score_rows(published_like(forecast), {OURS: forecast[there]})


@pytest.mark.parametrize(
    ("of_published", "of_ours", "said"),
    [
        (
            lambda cells: cells,
            lambda rows: rows.drop(columns="high"),
            "forecast ours: the table lacks the columns high; a t",
        ),
        (
            lambda cells: cells,
            lambda rows: rows.assign(low=rows["high"]),
            r"forecast ours: row 0 .* between low and high",
        ),
        (lambda cells: cells.drop(columns="std"), lambda rows: rows, "write exactly model,"),
        (
            lambda cells: cells.replace("BSP-PS", "DeAR"),
            lambda rows: rows,
            r"unknown method of Fig\. 4 'DeAR'",
        ),
        (
            lambda cells: cells.iloc[:0],
            lambda rows: rows,
            "no published cell has several GPUs",
        ),
    ],
)
def test_what_is_no_table_of_the_figure_is_refused(forecast, of_published, of_ours, said):
    with pytest.raises(InputError, match=said):
        score_rows(of_published(published_like(forecast)), {OURS: of_ours(forecast)})


def test_the_command_prints_tables_of_a_terminal_s_width_and_writes_the_rows(
    forecast, tmp_path, capsys
):
    cells, rows = tmp_path / "cells.csv", tmp_path / "rows.csv"
    published_like(forecast, 1 / 1.25).to_csv(cells, index=False)
    main(cells=cells, forecast=[KEPT], csv=rows)
    said = capsys.readouterr().out
    words = " ".join(said.split())
    assert "252 published cells: 63 with 4 GPUs, 63 with 8 GPUs, 63 with 16 GPUs, 63 with" in words
    assert sha256(KEPT.read_bytes()).hexdigest() in said
    assert "Errors in % of cells with more than 8 GPUs, by method" in said
    assert f"The worst of cells with more than 8 GPUs by {KEPT.name}" in said
    assert "0 of them are suspicious, as said at the end. Missing of these sizes: none." in words
    assert "Why cells are suspicious\nNone is.\n" in said
    paths = (str(tmp_path), str(KEPT))
    assert all(len(line) <= WIDTH for line in said.splitlines() if not line.startswith(paths))
    read = pd.read_csv(rows)
    assert len(read) == 252 * (1 + len(TRIVIAL_FORECASTS))
    ours = read[read["forecast"] == KEPT.name]
    assert ours["relative_error"].to_numpy() == pytest.approx(0.25, rel=1e-5)
    with pytest.raises(InputError, match="several forecasts have one name"):
        main(cells=cells, forecast=[KEPT, KEPT])
