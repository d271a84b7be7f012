"""The first notebook's sentences on errors: the numbers of the tables that they are from."""

from ddlnb.calibration.validation import TRIVIAL_FORECASTS
from ddlnb.files import ROOT
from ddlnb.survey.calibration import ablation_table, forecast_errors, residual_rows
from ddlnb.survey.fig4_forecast import BLIND, blind_rows, score_table


def test_the_errors_of_today_come_with_their_commands_and_the_readme_quotes_them():
    blind, fit = forecast_errors().splitlines()
    ours = score_table(blind_rows(), "gpus").loc["without"].xs(BLIND[-1].name, level="forecast")
    mean = ours["mean"]
    assert f"off by {mean[16]:.1f} % with 16 GPUs and {mean[32]:.1f} % with 32 GPUs on" in blind
    assert f"{ours['inside'][32]:.0f} % with 32 GPUs were within" in blind
    assert blind.endswith("(`python -m benchmarks.fig4_score`).")
    rows = residual_rows()
    mean_of_eight = 100 * rows.loc[rows["gpus"] == 8, "relative_error"].abs().mean()
    assert f"{mean_of_eight:.1f} % with 8 GPUs" in fit
    assert fit.endswith("(`ddlnb cluster fit survey`).")

    means = score_table(blind_rows(), "gpus").loc["without", "mean"].unstack("forecast")
    last, trivial = means[BLIND[-1].name], means[list(TRIVIAL_FORECASTS)].min(axis=1)
    both = (last.loc[[16, 32]], trivial.loc[[16, 32]])
    said, best = (" and ".join(f"{error:.1f} %" for error in one) for one in both)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"16 and 32 GPUs have mean errors of {said} (the best trivial forecast: {best})" in text
    networks = score_table(blind_rows(), "network").loc["without"]
    one, two, three = networks.xs(BLIND[-1].name, level="forecast")["mean"].items()
    of = "{1:.1f} % ({0})".format
    assert f"by network, {of(*one)}, {of(*two)} and {of(*three)}." in text
    cells = networks.xs(BLIND[-1].name, level="forecast")["cells"].sum()
    assert f"[{126 - cells} suspicious cells]" in text


def test_an_effect_explains_the_cells_that_meet_it():
    most = ablation_table()["most of it"]
    for effect in ("duplex_bandwidth", "sum_bandwidth", "server_latency", "connection_bandwidth"):
        assert most[effect].split(",")[0].endswith("-PS")
    for effect in ("stream_bandwidth", "level_latency", "rank_latency", "doubling_share"):
        assert not most[effect].split(",")[0].endswith("-PS")
    assert most["scheduler_latency"].startswith("ByteScheduler-A2A, ")
    assert most["closed_ring_share"].endswith(", one node")
