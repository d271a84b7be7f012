"""Layouts: their text, their refusals, their groups."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.errors import InputError
from ddlnb.parallelism.layout import (
    AXES,
    CONTEXTS,
    GROUPS,
    RECOMPUTATIONS,
    SCHEDULES,
    Layout,
    group_size,
    groups,
    position,
    ranks_per_node,
    spans_nodes,
)

DEGREES = st.integers(1, 4)


@st.composite
def layouts(draw):
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    dp, tp, pp = draw(DEGREES), draw(DEGREES), draw(DEGREES)
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=draw(DEGREES),
        ep=draw(st.sampled_from([one for one in range(1, dp + 1) if dp % one == 0])),
        vpp=draw(st.integers(2, 3)) if schedule == "interleaved" else 1,
        zero=draw(st.integers(0, 3)),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        gather_again=draw(st.booleans()),
        recomputation=draw(st.sampled_from(RECOMPUTATIONS)),
        schedule=schedule,
        context=draw(st.sampled_from(CONTEXTS)),
        micro_batch=draw(DEGREES),
        micro_batches=pp * draw(DEGREES),
        order=tuple(draw(st.permutations(AXES))),
    )


@given(layouts())
def test_a_layout_is_read_back_from_its_text(layout):
    assert Layout.parse(str(layout)) == layout


@given(layouts(), st.sampled_from(GROUPS))
def test_every_rank_is_in_one_group_with_ranks_that_differ_along_the_axis_only(layout, axis):
    every = groups(layout, axis)
    members = [rank for group in every for rank in group]
    assert {len(group) for group in every} == {group_size(layout, axis)}
    assert len(members) == len(set(members))
    if axis != "ends":
        assert sorted(members) == list(range(layout.ranks))
    along = {"ep": ("dp",), "data": ("dp", "cp"), "expert-data": ("dp", "cp"), "ends": ("pp",)}
    for group in every:
        where = [position(layout, rank) for rank in group]
        for other in set(AXES) - set(along.get(axis, (axis,))):
            assert len({one[other] for one in where}) == 1


@given(layouts())
def test_experts_are_shared_within_replicas_and_repeated_between_them(layout):
    for shared in groups(layout, "ep"):
        for repeated in groups(layout, "expert-data"):
            assert len(set(shared) & set(repeated)) <= 1


@given(layouts(), st.sampled_from(GROUPS), st.integers(1, 9))
def test_whether_groups_span_nodes_is_what_counting_says(layout, axis, gpus):
    nodes = [[rank // gpus for rank in group] for group in groups(layout, axis)]
    assert spans_nodes(layout, axis, gpus) == any(len(set(one)) > 1 for one in nodes)
    fewest = min(one.count(node) for one in nodes for node in one)
    assert ranks_per_node(layout, axis, gpus) == fewest


def test_tensor_ranks_are_neighbours_unless_the_order_says_otherwise():
    assert groups(Layout(dp=2, tp=2), "tp") == ((0, 1), (2, 3))
    assert groups(Layout(dp=2, tp=2, order=("dp", "cp", "tp", "pp")), "tp") == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp8 tq2", "unknown word in a layout: 'tq2'; choose one of dpN, tpN"),
        ("dp8 dp4", "layout 'dp8 dp4' gives dp twice"),
        ("dp0", "dp 0 must be a whole number, at least 1"),
        ("dp6 ep4", "ep 4 does not divide dp 6; use one of 1, 2, 3, 6"),
        ("zero4", "zero 4 must be 0, 1, 2 or 3"),
        ("sp", "sequence parallelism (sp) splits what tensor parallelism repeats: give tp above 1"),
        ("interleaved", "the interleaved schedule needs vpp of 2 or more, not 1"),
        ("vpp2 1f1b", "vpp 2 needs the interleaved schedule, not '1f1b'"),
        ("pp4 vpp2 acc6", "micro_batches that are a multiple of pp 4, not 6; the next one is 8"),
        ("order=tp-pp", "order 'tp-pp' must name each of tp, cp, dp, pp once"),
    ],
)
def test_a_bad_layout_is_refused_with_what_would_do(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Layout.parse(text)
