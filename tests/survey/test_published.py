"""The published numbers, complete as data.

The speed-ups that the text quotes, beside those of tidy rows.
"""

from itertools import product

import pytest

from ddlnb.clusters.file import get_cluster
from ddlnb.errors import ResultsError
from ddlnb.plans.methods import SURVEYED
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.checks import NOTE, SUSPICIOUS, check_table, without_suspicious
from ddlnb.survey.items import survey_items
from ddlnb.survey.published import (
    FIG4,
    QUOTED_SPEEDUPS,
    about_fig4_cells,
    beside_quotes,
    fig4_cells,
    quoted,
    quotes,
)
from ddlnb.survey.sec4_2_findings import forecast_nvlink
from ddlnb.survey.testbed import as_run, fig4_workload
from tests.toy_forecasts import forecasts

HEADER = ",".join(FIG4.names)
# Made-up numbers.
QUOTE = "id,section,item,value,unit,tag"
ITEM = "id,section,text,source,missing,decided"
CELL = "small-conv,64,made-up,none,{gpus},{throughput},{std},{source}"


def cell(gpus=4, throughput=100.0, std="", source="published"):
    return CELL.format(gpus=gpus, throughput=throughput, std=std, source=source)


def test_every_quote_has_its_section_unit_and_tag_and_agrees_with_others():
    found = quotes()
    assert set(found) == {
        "A06",
        *(f"A{n}" for n in range(10, 17)),
        *(f"A{n}" for n in range(40, 44)),
    }
    for listed in found.values():
        assert all(quote.tag == f"A s.{quote.section}" and quote.unit for quote in listed)
        assert len({quote.item for quote in listed}) == len(listed)
    size = quoted("A10", "parameters of bert-large") * 4
    assert size / 1e9 == pytest.approx(quoted("A10", "fp32 size of bert-large"), abs=0.005)
    compute = quoted("A11", "time of one bert-large iteration at batch 8 on RTX 2080 Ti")
    transfer = quoted("A12", "all-reduce of bert-large over 4 GPUs on PCIe 3.0")
    speedup = quoted("A12", "speedup of bert-large on 4 GPUs on PCIe 3.0")
    assert 4 * compute / (compute + transfer) == pytest.approx(speedup, abs=0.005)


@pytest.mark.parametrize("network", ["10GbE", "100GbE"])
@pytest.mark.parametrize(
    ("quote", "size", "count"), [("A14", "1 MB", 2**20), ("A15", "16 KB", 2**14)]
)
def test_message_times_and_rates_agree_when_sizes_are_powers_of_two(network, quote, size, count):
    milliseconds = quoted(quote, f"time of a {size} message over {network}")
    gigabits = quoted(quote, f"rate of a {size} message over {network}")
    assert count * 8 / (milliseconds * 1e-3) / 1e9 == pytest.approx(gigabits, rel=0.06)


def test_the_published_cells_are_all_here_and_suspicious_are_those_that_the_data_say():
    """Seven methods, three models and three networks on 4 to 32 GPUs, and three rates of one.

    As data/published/README.md counts them.
    """
    cells = fig4_cells()
    assert cells["gpus"].value_counts().to_dict() == {4: 63, 8: 63, 16: 63, 32: 63, 1: 3}
    alone = cells[cells["method"] == "single"]
    assert alone.set_index("model")["throughput_samples_per_s"].to_dict() == {
        "resnet50": 253.1,
        "bert-base": 212.8,
        "bert-large": 49.0,
    }
    assert set(alone["network"]) == {""}
    assert "63 cells with 32 GPUs, and 3 rates of one GPU" in about_fig4_cells()
    findings = check_table(cells)
    assert len(cells) - len(without_suspicious(cells, findings)) == 23
    beyond = [one for one in findings if one.rule == "more than linear"]
    assert [one.severity for one in beyond] == [SUSPICIOUS] + 14 * [NOTE]
    assert {str(cell) for cell in beyond[0].cells} == {
        f"bert-large/8 100GbE ByteScheduler-PS {gpus} GPUs" for gpus in (8, 16)
    }
    dominated = {one.cells[0] for one in findings if one.rule == "dominated network"}
    slow = {cell[:4] for cell in dominated if cell.network == "100GbE"}
    assert {(model, method) for model, _, _, method in slow} == {
        (model, method) for model in ("resnet50", "bert-large") for method in ("BSP-PS", "WFBP-PS")
    }


def test_cells_are_read_as_they_stand_and_only_one_gpu_needs_no_network(tmp_path):
    file = tmp_path / "fig4.csv"
    alone = "resnet50,64,,single,1,253.1,,published"
    file.write_text("\n".join([HEADER, cell(4), cell(8, 190.5, 1.5), alone]))
    cells = fig4_cells(file)
    assert cells["throughput_samples_per_s"].tolist() == [100.0, 190.5, 253.1]
    assert cells["network"].tolist()[-1] == ""


@pytest.mark.parametrize(
    ("read", "lines", "rule"),
    [
        (quotes, [QUOTE, "A1,1,thing,many,x,A s.1"], "line 2 .*value must be a positive number"),
        (quotes, [QUOTE, "A1,1,thing"], "line 2 has fewer values"),
        (quotes, [QUOTE, "A1,1,thing,1,x,A s.1,more"], "line 2 has more values|cannot be read"),
        (fig4_cells, [HEADER, "resnet50,64,,BSP-PS,4,866.3,,published"], "network is empty"),
        (fig4_cells, [HEADER, cell(throughput="fast")], "must be a positive number"),
        (fig4_cells, [HEADER, cell(throughput=-1)], "must be a positive number"),
        (fig4_cells, [HEADER, cell(gpus=2.5)], "gpus must be a whole number"),
        (fig4_cells, [HEADER, cell(std="small")], "std must be empty"),
        (fig4_cells, [HEADER, cell(std=-1)], "std must be empty"),
        (fig4_cells, [HEADER, cell(source="recalled")], "source must be 'published'"),
        (fig4_cells, [HEADER, cell(4), cell(4)], "twice"),
        (fig4_cells, [HEADER, cell(4) + ",more"], "cannot be read|columns|more values"),
        (fig4_cells, ["gpus,throughput", "1,2"], "write exactly model,"),
        (fig4_cells, [], "cannot be read"),
        (survey_items, [ITEM, 2 * "A01,1,Text.,stated,,\n"], "line 3 .*appears twice"),
        (survey_items, [ITEM, "A44,1,Text.,stated,,"], "line 2 .*id is that of a claim"),
        (survey_items, [ITEM, "B01,1,Text.,stated,,"], "line 2 .*id must be one such as A07"),
        (
            survey_items,
            [ITEM, "A01,1,Text.,heard,,"],
            "source must begin with stated, primary, derived, known",
        ),
        (survey_items, [ITEM, "A01,1,,stated,,"], "text is empty"),
        (survey_items, [ITEM, "A01,1,Text.,stated,"], "line 2 has fewer values"),
        (survey_items, [ITEM, "A01,1,Text.,stated,,luck"], "decided must be '' or 'arithmetic'"),
        (survey_items, [ITEM, "A01,1,Text.,stated,,,"], "line 2 has more values|cannot be read"),
    ],
)
def test_what_is_damaged_is_refused_with_its_line_and_rule(tmp_path, read, lines, rule):
    file = tmp_path / "rows.csv"
    file.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ResultsError, match=rule):
        read(file)


def test_quoted_speed_ups_are_there_once_beside_the_best_method_of_their_cells():
    printed = {(q.id, q.item) for key in ("A40", "A41", "A42", "A43") for q in quotes()[key]}
    assert {(quote.id, quote.item) for quote in QUOTED_SPEEDUPS} == printed
    assert len(QUOTED_SPEEDUPS) == len(printed)
    assert all(quote.value > 1 for quote in QUOTED_SPEEDUPS)
    rows = forecasts()
    table = beside_quotes(rows)
    assert list(table.index) == ["A40", "A40", "A41", "A41", "A42"]
    first = table.iloc[0]
    assert (first["best method"], first["published"]) == ("BSP-PS", 4.0)
    assert first["simulated"] == pytest.approx(0.95 * 4)
    assert first["difference (%)"] == pytest.approx(-5)
    assert set(table["the fit"]) == {"saw its cells"}
    panel = rows[(rows["model"] == "resnet50") & (rows["network"] == "10GbE")]
    assert beside_quotes(panel)["GPUs"].tolist() == [4]
    assert beside_quotes(panel.iloc[:0]).empty


@pytest.mark.item("A40", "A41", "A42", how="simulated")
def test_forecasts_are_within_a_tenth_of_the_quoted_speed_ups():
    methods = [as_run(method) for method in SURVEYED]
    clusters = [get_cluster("survey-100GbIB", gpus) for gpus in (4, 32)]
    models = [fig4_workload(model) for model in ("resnet50", "bert-base", "bert-large")]
    cells = [Cell(*one) for one in product(models, clusters, methods)]
    table = beside_quotes(forecast_cells(cells, draws=0))
    assert list(table.index) == ["A40", "A40", "A41", "A41", "A42"]
    assert table["difference (%)"].abs().max() < 10


@pytest.mark.item("A43", how="simulated")
def test_the_forecast_for_nvlink_is_within_a_tenth_of_the_quoted_speed_up():
    table = beside_quotes(forecast_nvlink())
    assert list(table.index) == ["A43"]
    assert table.loc["A43", "the fit"] == "has not seen it"
    assert table["difference (%)"].abs().max() < 10
