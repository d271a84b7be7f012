"""The tree holds everything registered, once; sentences and refusals are those of the code."""

from collections import Counter
from dataclasses import dataclass

from ddlnb.compression.base import SPARSIFICATION
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.top_k import TopK
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
from ddlnb.training.method import SYNCHRONISATIONS, training_method

TREE = taxonomy()
TRIED = combinations()


def test_everything_registered_is_in_the_tree_exactly_once_by_its_own_name():
    in_tree = Counter(
        where for aspect in TREE for leaf in aspect.leaves for where in leaf.registered
    )
    known = {(registry, name) for registry, names in registries().items() for name in names}
    assert set(in_tree) == known
    assert set(in_tree.values()) == {1}
    assert {*SPOKEN, *IN_CAPITALS} <= set(SYNCHRONISATIONS)


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
    table = sentences("choco(torus)", None, "RoCE")
    assert list(table["method"]) == ["choco(torus)", *METHODS]


def test_refusals_count_every_refused_combination_once_with_the_reason_of_the_code():
    table = refusals(TRIED).set_index("why")
    fitting = sum(one.method is not None for one in TRIED)
    assert f"{fitting} of {len(TRIED)} combinations can be run" in combination_findings(TRIED)
    assert table["combinations"].sum() == len(TRIED) - fitting
    assert not table.index.str.contains(r"qsgd|dgc|ssp\(").any()
    needs_all = table[table.index.str.contains("average over all workers")]
    assert needs_all.iloc[0][[*CHOICES]].tolist() == ["bsp", ANY, ANY, "gossip"]


def test_a_compressed_message_can_follow_the_schedules_that_cut_nothing():
    why = scheduling_refusals().set_index("messages as")["why"]
    assert set(why.index) == set(METHODS)
    assert set(why.index[why == ""]) == {"BSP-A2A", "WFBP-A2A", "MG-WFBP"}
    assert why["ByteScheduler-A2A"].count("cuts tensors") == 1


def test_the_picture_names_every_leaf():
    figure = taxonomy_tree(TREE)
    shown = Counter(text.get_text() for text in figure.axes[0].texts)
    assert shown["top-k"] == shown["SSP"] == shown["fat-tree"] == 1
    named = sum(len(aspect.leaves) + len(aspect.branches) + 1 for aspect in TREE)
    assert shown.total() == named + len(LEVELS) + 1
