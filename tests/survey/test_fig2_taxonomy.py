"""The tree holds everything registered, once; sentences and refusals are those of the code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from ddlnb.compression.base import SPARSIFICATION
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.figures import taxonomy_tree
from ddlnb.plans.methods import IN_CAPITALS, METHODS, SPOKEN
from ddlnb.survey.fig2_taxonomy import (
    ANY,
    CHOICES,
    LEVELS,
    combination_findings,
    combinations,
    refusals,
    registries,
    scheduling_refusals,
    sentences,
    taxonomy,
    taxonomy_table,
)
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod, training_method

TREE = taxonomy()
TRIED = combinations()


def test_everything_registered_is_in_the_tree_exactly_once():
    in_tree = Counter(
        where for aspect in TREE for leaf in aspect.leaves for where in leaf.registered
    )
    known = {(registry, name) for registry, names in registries().items() for name in names}
    assert set(in_tree) == known
    assert set(in_tree.values()) == {1}


def test_there_are_six_aspects_on_three_levels_in_order():
    assert [aspect.level for aspect in TREE] == [1, 1, 1, 2, 3, 3]
    assert len({aspect.name for aspect in TREE}) == 6
    assert set(taxonomy_table(TREE)["level"]) == set(LEVELS)
    assert all(branch.leaves for aspect in TREE for branch in aspect.branches)


def test_a_new_method_appears_by_itself(monkeypatch):
    @dataclass(frozen=True)
    class Half(TopK):
        name = "newly-made"

    monkeypatch.setitem(COMPRESSORS, "newly-made", Half)
    compression = taxonomy()[1]
    [sparse] = [branch for branch in compression.branches if branch.name == SPARSIFICATION]
    assert "newly-made" in [leaf.name for leaf in sparse.leaves]
    assert "newly-made" in {one.compression for one in combinations()}


def test_every_combination_is_described_or_refused_with_a_reason():
    assert len(TRIED) == len(SYNCHRONISATIONS) * (len(COMPRESSORS) + 1) * 2 * 3
    for one in TRIED:
        assert (one.method is None) == bool(one.refusal)
        if one.method is not None:
            said = one.method.sentence()
            assert said.startswith("it exploits ")
            assert f"running on {one.architecture} built on TCP/IP" in said
            assert one.compression in said or one.compression == "none"


def test_different_combinations_have_different_sentences():
    said = Counter(one.method.sentence() for one in TRIED if one.method is not None)
    assert set(said.values()) == {1}


def test_sentences_name_the_choices_in_the_survey_s_words():
    method = training_method("ssp(3) + top-k(0.01) + feedback on PS")
    assert method.sentence() == (
        "it exploits SSP with top-k compression, error feedback and no scheduling, "
        "running on PS built on TCP/IP and a star"
    )
    assert training_method("choco(torus)").sentence(protocol="RoCE").endswith("RoCE and a torus")
    for lossless in METHODS.values():
        text = f"bsp on {lossless.architecture}"
        assert training_method(text).sentence(lossless.scheduling) == lossless.sentence()


def test_sentences_begin_with_the_chosen_method():
    table = sentences("choco(torus)", None, "RoCE").set_index("method")["in one sentence"]
    assert list(table.index) == ["choco(torus)", *METHODS]
    assert table["choco(torus)"].endswith("RoCE and a torus")


def test_findings_count_what_was_tried():
    fitting = sum(one.method is not None for one in TRIED)
    assert f"{fitting} of {len(TRIED)} combinations can be run" in combination_findings(TRIED)


def test_only_registered_names_have_a_spelling_of_their_own():
    assert {*SPOKEN, *IN_CAPITALS} <= set(SYNCHRONISATIONS)


def test_refusals_count_every_refused_combination_once():
    table = refusals(TRIED)
    refused = [one for one in TRIED if one.refusal]
    assert table["combinations"].sum() == len(refused)
    assert table["why"].is_unique
    assert not table["why"].str.contains(r"qsgd|dgc|ssp\(", regex=True).any()


def test_a_reason_in_the_table_is_the_one_that_the_code_gives():
    table = refusals(TRIED).set_index("why")
    with pytest.raises(InputError) as caught:
        TrainingMethod(SYNCHRONISATIONS["bsp"](), architecture="gossip")
    [row] = [row for why, row in table.iterrows() if "average over all workers" in why][:1]
    assert "it needs the average over all workers" in str(caught.value)
    assert row["synchronisation"] == "bsp"
    assert [row[name] for name in CHOICES] == ["bsp", ANY, ANY, "gossip"]


def test_a_compressed_message_can_follow_the_schedules_that_cut_nothing():
    table = scheduling_refusals().set_index("messages as")
    assert set(table.index) == set(METHODS)
    yes = set(table.index[table["with compression"] == "yes"])
    assert yes == {"BSP-A2A", "WFBP-A2A", "MG-WFBP"}
    assert table.loc["ByteScheduler-A2A", "why"].count("cuts tensors") == 1
    assert (table["why"] != "").sum() == len(METHODS) - len(yes)


def test_the_picture_names_every_leaf():
    figure = taxonomy_tree(TREE)
    shown = Counter(text.get_text() for text in figure.axes[0].texts)
    assert shown["top-k"] == shown["SSP"] == shown["fat-tree"] == 1
    leaves = sum(len(aspect.leaves) for aspect in TREE)
    branches = sum(len(aspect.branches) for aspect in TREE)
    assert shown.total() == leaves + branches + len(TREE) + len(LEVELS) + 1
    with pytest.raises(InputError, match="no rows"):
        taxonomy_tree([])
