"""Claims of section 4: each holds where it is made to, fails where it is broken, or says why not.

All numbers are made up; the table below is built so that every claim holds.
"""

import math
from itertools import product

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.plans.methods import SURVEYED
from ddlnb.survey.claims import (
    CLAIMS,
    OPEN,
    Rate,
    Strength,
    evaluate_claims,
)

GPUS = (4, 8, 16, 32)
BATCHES = {"resnet50": (64, 32), "bert-base": (64,), "bert-large": (8,)}
RATE = "throughput_samples_per_s"
# Throughput relative to WFBP-PS on each kind of network.
ON_TCP = {
    "BSP-PS": 0.80,
    "BSP-A2A": 0.84,
    "WFBP-PS": 1.00,
    "WFBP-A2A": 0.87,
    "MG-WFBP": 1.15,
    "ByteScheduler-PS": 1.03,
    "ByteScheduler-A2A": 0.85,
}
ON_IB = {**ON_TCP, "WFBP-A2A": 0.96, "MG-WFBP": 1.06, "ByteScheduler-A2A": 0.95}


# How much slower a network is than IB, for resnet50 and for BERT.
SLOWER = {"10GbE": (1.46, 2.6), "100GbE": (1.12, 2.0), "100GbIB": (1.0, 1.0)}


def rate(model: str, batch: int, network: str, method: str, gpus: int) -> float:
    """The made-up law: half of a linear speedup, times a factor for each thing a claim is about."""
    on_ib, beyond = network == "100GbIB", gpus > 4
    doublings = math.log2(gpus / 4)
    share = 0.5 * (ON_IB if on_ib or not beyond else ON_TCP)[method]
    share *= (0.94 if batch == 32 else 0.97) ** doublings
    share /= SLOWER[network][model.startswith("bert")] if beyond else 1
    share *= 0.99**doublings if on_ib and method.endswith("-PS") else 1
    if beyond and (model, network, method) == ("bert-large", "10GbE", "ByteScheduler-PS"):
        share *= 1.2  # the one place where MG-WFBP loses
    return 100.0 * gpus * share


def table() -> pd.DataFrame:
    """The cells of the figure, resnet50 at a second batch, and one GPU alone for every model."""
    columns = ["model", "local_batch", "network", "method", "gpus", RATE]
    cells = [(model, batch) for model, batches in BATCHES.items() for batch in batches]
    figure = product(cells, ("10GbE", "100GbE", "100GbIB"), SURVEYED, GPUS)
    rows = [(*cell, *one, rate(*cell, *one)) for cell, *one in figure]
    rows += [(*cell, "none", "single", 1, 100.0) for cell in cells]
    return pd.DataFrame(rows, columns=columns)


def survey_cells() -> pd.DataFrame:
    """The 252 cells alone."""
    return table().query("local_batch != 32 and method != 'single'").copy()


def scaled(factor: float, **where) -> pd.DataFrame:
    """The table with the throughput of some rows changed by a factor."""
    rows = table()
    chosen = rows[list(where)].isin(where).all(axis=1)
    assert chosen.any()
    rows.loc[chosen, RATE] *= factor
    return rows


def judged(rows: pd.DataFrame, claim: str) -> dict:
    return evaluate_claims(rows).set_index("claim").loc[claim].to_dict()


def test_what_decides_a_claim_agrees_with_its_verdict():
    """So that no verdict stands beside a share that says otherwise."""
    failing = scaled(0.5, method=["WFBP-PS"], network=["10GbE"])
    found = pd.concat(map(evaluate_claims, (table(), failing, table().query("gpus <= 8"))))
    lines = [line for line in found.itertuples() if line.holds is not None]
    assert {line.holds for line in lines} == {True, False}
    for line in lines:
        needed = Strength(line.needed)
        assert needed.is_met(line.deciding_support, line.deciding_cells) is line.holds
        share = line.deciding_support / line.deciding_cells
        assert (share == 1 if needed.share == 1 else share > needed.share) is line.holds


@pytest.mark.parametrize(
    ("noise", "holds", "least", "most"), [(0.02, True, 4, 4), (0.06, None, 3, 4)]
)
def test_a_verdict_that_noise_may_turn_is_undecided(noise, holds, least, most):
    """One cell of four is 4 % above the bound; it takes noise of both cells to reach it."""
    rows = survey_cells().query("model == 'resnet50' and network == '10GbE'")
    rows = rows.assign(std=noise / math.sqrt(2) * rows[RATE])
    bound = rows.query("method == 'WFBP-PS'").set_index("gpus")[RATE] * 0.98
    near = (rows["method"] == "MG-WFBP") & (rows["gpus"] == 8)
    rows.loc[near, RATE] = 1.04 * bound[8]
    line = judged(rows, "A46")
    assert line["holds"] is holds
    assert (line["deciding_support"], line["deciding_cells"]) == (4, 4)
    assert (line["support_at_least"], line["support_at_most"]) == (least, most)
    assert line["reason"] == ("" if holds else OPEN)
    assert judged(rows.drop(columns="std"), "A46")["holds"] is True


def test_missing_cells_may_turn_a_verdict_or_not():
    rows = survey_cells().query("model == 'resnet50' and network == '10GbE'")
    left = rows[(rows["method"] != "MG-WFBP") | (rows["gpus"] != 8)]
    slow = left[RATE].mask((left["method"] == "MG-WFBP") & (left["gpus"] == 4), left[RATE] / 2)
    less = left.assign(**{RATE: slow})
    for part, holds, most in ((left, None, 4), (less, False, 3)):
        found = evaluate_claims(part, whole=rows).set_index("claim").loc["A46"]
        assert found["holds"] is holds
        between = found[["support_at_least", "support_at_most", "missing"]].tolist()
        assert between == [most - 1, most, 1]


def test_a_ratio_has_the_noise_of_both():
    ratio = Rate(6.0, 0.03) / Rate(3.0, 0.04)
    assert (ratio, ratio.noise) == (2.0, pytest.approx(0.05))
    assert (Rate(6.0, 0.03) / 2).noise == 0.03


def test_every_claim_holds_in_a_table_made_for_it_and_is_broken_in_these_tests():
    found = evaluate_claims(table())
    assert list(found["claim"]) == list(CLAIMS)
    assert [line.claim for line in found.itertuples() if line.holds is not True] == []
    assert (found["cells"] > 0).all()
    assert (found["share"] > 0).all()
    assert (found["reason"] == "").all()
    assert found.set_index("claim").loc["A56", "failures"] == ""  # to lose once is enough
    assert {claim for claim, _ in BROKEN} == set(CLAIMS)


TCP = ["10GbE", "100GbE"]
BROKEN = [
    ("A44", scaled(1.2, method=["BSP-PS"])),
    ("A45", scaled(0.9, method=["WFBP-PS"], network=TCP)),
    ("A45", scaled(1.5, method=["WFBP-PS"], network=["100GbIB"])),
    ("A46", scaled(0.9, method=["MG-WFBP"], network=["100GbIB"], gpus=[8], model=["resnet50"])),
    ("A47", scaled(0.7, method=["WFBP-PS", "ByteScheduler-PS"], network=TCP)),
    ("A47", scaled(1.1, method=["BSP-PS", "WFBP-PS"], network=["100GbIB"], gpus=[32])),
    ("A48", scaled(0.7, method=["WFBP-A2A"], network=["10GbE"], gpus=[16], model=["bert-base"])),
    ("A48", scaled(0.7, method=["WFBP-PS"], network=["10GbE"], gpus=[16], model=["bert-base"])),
    ("A49", scaled(0.75, method=["MG-WFBP"])),
    ("A49", scaled(1.5, method=["MG-WFBP"], network=["100GbIB"])),
    ("A50", scaled(1.2, method=["ByteScheduler-A2A"], network=["10GbE"], gpus=[8])),
    ("A51", scaled(0.9, method=["ByteScheduler-PS"], network=["100GbE"], gpus=[16])),
    ("A52", scaled(0.75, network=["100GbE"])),
    ("A52", scaled(1.5, network=["100GbE"])),
    ("A53", scaled(1.3, model=["resnet50"], network=["100GbIB"])),
    ("A53", scaled(0.9, model=["resnet50"], network=["100GbIB"])),
    ("A54", scaled(0.7, method=["MG-WFBP"], network=["100GbIB"])),
    ("A54", scaled(1.3, method=["MG-WFBP"], network=["100GbIB"])),
    ("A55", scaled(1.8, model=["bert-base", "bert-large"], gpus=[8, 16, 32])),
    ("A55", scaled(1.8, model=["bert-base", "bert-large"], gpus=[4])),
    ("A56", scaled(2.0, method=["MG-WFBP"])),
    ("A57", scaled(0.5, local_batch=[64], gpus=GPUS)),
    ("A58", scaled(0.8, method=["MG-WFBP"])),
    ("A58", scaled(0.8, method=["ByteScheduler-PS"])),
]


@pytest.mark.parametrize(("claim", "rows"), BROKEN, ids=[claim for claim, _ in BROKEN])
def test_a_claim_fails_where_it_is_broken_and_lists_the_cells(claim, rows):
    line = judged(rows, claim)
    assert line["holds"] is False
    assert line["share"] < 1
    assert "GPUs is " in line["failures"]


def test_half_of_the_cells_are_not_most_and_the_worst_failure_comes_first():
    rows = survey_cells()
    slow = rows["gpus"].isin([4, 8]) & (rows["method"] == "BSP-A2A")
    rows.loc[slow, RATE] *= 0.9
    line = judged(rows, "A44")
    assert (line["cells"], line["share"], line["holds"]) == (36, 0.5, False)
    assert line["failures"].count("times BSP-PS") == 5
    assert line["failures"].endswith("and 13 more")
    rows = survey_cells()
    place = rows.eval("method == 'MG-WFBP' and gpus == 16 and model == 'resnet50'")
    slower = rows["network"].map({"10GbE": 0.8, "100GbE": 0.6, "100GbIB": 1.0})
    rows.loc[place, RATE] *= slower[place]
    assert judged(rows, "A46")["failures"] == (
        "resnet50/64 100GbE MG-WFBP 16 GPUs is 0.690 times WFBP-PS; "
        "resnet50/64 10GbE MG-WFBP 16 GPUs is 0.920 times WFBP-PS"
    )


def test_claims_about_a_network_leave_out_the_cells_that_do_not_use_it():
    rows = survey_cells()
    cells = evaluate_claims(rows).set_index("claim")["cells"]
    expected = {
        "A44": 3 * 3 * 4,
        "A45": 3 * (2 * 3 + 1) + 3 * 2 * 2,
        "A47": 3 * 3 * 2 * 3 + 3 * 3,
        "A51": 3,
        "A52": 3 * 7 * 3,
        "A53": 2 * 3,
        "A54": 2 * 3,
    }
    assert cells[list(expected)].to_dict() == expected
    within = rows[rows["gpus"] == 4]
    inside = evaluate_claims(within).set_index("claim")["holds"]
    assert set(inside[["A45", "A47", "A49", "A51", "A52", "A53", "A54", "A55"]]) == {None}
    more = evaluate_claims(rows, gpus_per_node=2).set_index("claim")
    assert more.loc["A52", "cells"] == 3 * 7 * 4


def test_a_table_is_judged_by_what_it_has():
    rows = survey_cells()
    found = evaluate_claims(rows[rows["gpus"] <= 8]).set_index("claim")
    unknown = found[[holds is None for holds in found["holds"]]]
    assert list(unknown.index) == ["A55", "A57"]
    assert "single-GPU rows (method 'single', gpus 1)" in unknown.loc["A55", "reason"]
    assert "second local_batch of a model" in unknown.loc["A57", "reason"]
    assert unknown["share"].isna().all()
    assert found.loc["A44", "cells"] == 18
    found = evaluate_claims(table().iloc[:0])
    assert all(holds is None for holds in found["holds"])
    assert (found["cells"] == 0).all()
    assert found["reason"].str.startswith("the table has no ").all()


def test_batches_are_compared_without_single_rows_too():
    rows = table()
    shared = rows[rows["method"] != "single"]
    assert judged(shared, "A57")["holds"] is True
    assert judged(shared, "A57")["cells"] == 3 * 7 * 3  # the fewest GPUs are the reference
    assert judged(rows, "A57")["cells"] == 3 * 7 * 4


def test_efficiency_is_relative_to_the_single_gpu_of_the_same_model_and_batch():
    whole = judged(table(), "A55")
    assert judged(scaled(0.01, method=["single"], model=["resnet50"]), "A55") == whole
    one = scaled(1.8, model=["bert-base"], gpus=[4])
    assert judged(one, "A55")["share"] == 0.75  # three of six cells in one of two parts
    assert judged(with_copy("bert-base", 2, 200.0), "A55") == whole  # nothing lost yet


def with_copy(model: str, gpus: int, rate: float) -> pd.DataFrame:
    """The table with BERT cells at four GPUs repeated at another number."""
    copied = table().query("model == @model and gpus == 4").assign(gpus=gpus, **{RATE: rate})
    return pd.concat([table(), copied], ignore_index=True)


def test_who_never_loses_by_more_than_noise_wins_everywhere_that_all_methods_are():
    rows = table()
    best = rows.groupby(["model", "local_batch", "network", "gpus"])[RATE].transform("max")
    rows.loc[rows["method"] == "MG-WFBP", RATE] = 0.99 * best
    line = judged(rows, "A56")
    assert line["holds"] is False
    assert "MG-WFBP" in line["failures"]
    incomplete = survey_cells().query("method != 'ByteScheduler-PS' or gpus == 8")
    assert judged(incomplete, "A56")["cells"] == 9


def noisy(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    return rows.assign(std=share * rows[RATE])


WITHOUT_IB = "network != '100GbIB'"
SLOW_CELL = {"network": ["100GbIB"], "gpus": [8], "model": ["resnet50"]}
ONE_CONFIGURATION = "model == 'resnet50' and network == '10GbE' and gpus == 8"
TIED = survey_cells().assign(**{RATE: 100.0})


@pytest.mark.parametrize(
    ("claim", "rows", "holds", "reason"),
    [
        # Without the cells of one part the other can refute, and confirms nothing.
        ("A45", scaled(0.9, method=["WFBP-PS"], network=TCP).query(WITHOUT_IB), False, "100GbIB"),
        ("A49", table().query(WITHOUT_IB), None, "100GbIB"),
        # Noise excuses no cell that is clearly out of range, and refutes no order of all cells.
        ("A46", noisy(scaled(0.5, method=["MG-WFBP"], **SLOW_CELL), 0.06), False, ""),
        ("A46", scaled(0.99 / ON_IB["MG-WFBP"], method=["MG-WFBP"], gpus=[4]), True, ""),
        # A tie is no win, but "not slower" includes it.
        ("A44", TIED, False, ""),
        ("A58", TIED, True, ""),
        # Growth takes two numbers of GPUs, and who wins everywhere two methods in two places.
        ("A47", table().query("gpus == 8"), None, "two numbers of GPUs on 100GbIB"),
        ("A57", table().query("gpus == 8 and method != 'single'"), None, ""),
        ("A56", survey_cells().query("method == 'MG-WFBP'"), None, ""),
        ("A56", survey_cells().query(ONE_CONFIGURATION), None, ""),
        # Efficiency is that of the single GPU, and one GPU is no node.
        ("A55", scaled(0.5, method=["single"]), False, ""),
        (
            "A55",
            with_copy("bert-large", 1, 100.0).query("gpus != 4 and model == 'bert-large'"),
            None,
            "cells of BERT within one node",
        ),
    ],
)
def test_a_verdict_says_no_more_than_the_cells_can_bear(claim, rows, holds, reason):
    line = judged(rows, claim)
    assert line["holds"] is holds
    assert reason in line["reason"]
    assert reason or holds is None or line["reason"] == ""


def test_neither_baselines_nor_the_order_of_rows_matter():
    rows = table()
    ddp = rows[rows["method"] == "MG-WFBP"].assign(method="DDP", **{RATE: 1e9})
    both = pd.concat([rows, ddp], ignore_index=True)
    pd.testing.assert_frame_equal(evaluate_claims(both), evaluate_claims(rows))
    shuffled = evaluate_claims(rows.sample(frac=1.0, random_state=0))
    columns = ["claim", "holds", "cells", "share"]
    pd.testing.assert_frame_equal(shuffled[columns], evaluate_claims(rows)[columns])


@pytest.mark.parametrize(
    ("rows", "gpus_per_node", "said"),
    [
        (table().drop(columns="gpus"), 4, "lacks the columns gpus"),
        (table(), 0, "gpus_per_node 0 must be a whole number"),
    ],
)
def test_rows_that_are_no_table_are_refused(rows, gpus_per_node, said):
    with pytest.raises(InputError, match=said):
        evaluate_claims(rows, gpus_per_node=gpus_per_node)
