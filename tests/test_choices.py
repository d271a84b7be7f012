"""Choices as text: what is written reads back as it was, and what is read has the right types."""

import contextlib
import dataclasses
import itertools
import types
import typing

import pytest
from hypothesis import given, settings, strategies as st

from ddlnb.compression.catalogue import COMPRESSORS, FOR_ONE_MODEL
from ddlnb.errors import InputError
from ddlnb.registry import abridged, parsed, parts_of, shown
from ddlnb.training.executors.clock import STRAGGLERS
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.training.optimizers import OPTIMIZERS, SCHEDULES
from ddlnb.training.tasks.task import SPLITS

CATALOGUES: dict[str, dict] = {
    "synchronisation": SYNCHRONISATIONS,
    "compression": COMPRESSORS,
    "schedule": SCHEDULES,
    "split": SPLITS,
    "straggler": STRAGGLERS,
    "optimizer": OPTIMIZERS,
}
CHOICES = [(what, name) for what, catalogue in CATALOGUES.items() for name in catalogue]
WORDS = ("ring", "torus", "complete", "rare", "frequent", "none", "cosine")
OF_TYPE = {
    bool: st.booleans(),
    int: st.integers(0, 10**9),
    float: st.floats(0, 1) | st.floats(0, 1e300),
    str: st.sampled_from(WORDS),
    types.NoneType: st.none(),
}


def values(hint: object) -> st.SearchStrategy:
    if isinstance(hint, types.UnionType):
        return st.one_of(*map(values, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return st.tuples(*map(values, typing.get_args(hint)))
    return OF_TYPE[hint]  # type: ignore[index]


@st.composite
def choices(draw: st.DrawFn, kind: type) -> object:
    """One of this kind; what is drawn for a parameter is left out if it is refused."""
    hints = typing.get_type_hints(kind)
    choice = kind()
    for field in dataclasses.fields(kind):
        with contextlib.suppress(InputError):
            choice = dataclasses.replace(choice, **{field.name: draw(values(hints[field.name]))})
    return choice


@pytest.mark.parametrize(("what", "name"), CHOICES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_reads_back(what, name, data):
    choice = data.draw(choices(CATALOGUES[what][name]))
    for brief in (False, True):
        assert parsed(what, shown(name, choice, brief), CATALOGUES[what]) == choice
    assert parsed(what, abridged(name, choice), CATALOGUES[what]) == choice


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_methods_read_back(data):
    synchronisation, compressor = (
        data.draw(choices(data.draw(st.sampled_from(list(catalogue.values())))))
        for catalogue in (SYNCHRONISATIONS, COMPRESSORS)
    )
    where = data.draw(st.sampled_from(synchronisation.architectures))
    method = TrainingMethod(synchronisation, architecture=where)
    for flags in itertools.product((False, True), repeat=2):
        with contextlib.suppress(InputError):
            method = TrainingMethod(synchronisation, compressor, *flags, where)
        assert training_method(str(method)) == method


@given(densities=st.lists(st.floats(0, 1, exclude_min=True), min_size=1))
def test_tuples_read_back(densities):
    choice = FOR_ONE_MODEL["layer-top-k"](tuple(densities))
    assert parsed("compression", str(choice), FOR_ONE_MODEL) == choice


def test_neighbouring_floats_are_different_methods():
    texts = ["bsp + top-k(0.123456789)", "bsp + top-k(0.123456788)", "bsp + signsgd(2e16)"]
    methods = [training_method(text) for text in texts]
    assert len({str(method) for method in methods}) == len(texts)
    assert [training_method(str(method)) for method in methods] == methods


@pytest.mark.parametrize(
    ("text", "expected"),
    [("random-k(0.1, false)", False), ("random-k(0.1, True)", True), ("random-k(1)", False)],
)
def test_truth_is_read(text, expected):
    assert parsed("compression", text, COMPRESSORS).unbiased is expected


def test_whole_numbers_do_for_floats_and_none_has_two_spellings():
    density = parsed("compression", "top-k(1)", COMPRESSORS).density
    assert density == 1
    assert type(density) is float
    assert parsed("compression", "qsgd(7, none)", COMPRESSORS).bucket is None
    assert parsed("compression", "qsgd(7, None)", COMPRESSORS).bucket is None


@pytest.mark.parametrize(
    ("what", "text", "told"),
    [
        ("compression", "random-k(0.1, maybe)", "unbiased maybe must be true or false"),
        ("compression", "random-k(0.1, 1)", "unbiased 1 must be true or false"),
        ("compression", "powersgd(2, perhaps)", "fold perhaps must be true or false"),
        ("compression", "powersgd(2.5)", "rank 2.5 must be a whole number"),
        ("compression", "top-k(True)", "density True must be a finite number"),
        ("compression", "top-k(1e999)", "density inf must be a finite number"),
        ("compression", f"top-k(1{'0' * 400})", "must be a finite number"),
        ("compression", "qsgd(7, some)", "bucket some must be a whole number or None"),
        ("synchronisation", "choco(3)", "graph 3 must be a word"),
        ("synchronisation", "local(None)", "period None must be a whole number"),
        ("split", "non-iid(skewed)", "alpha skewed must be a finite number"),
        ("compression", "top-k(0.1)(0.2)", r"is written top-k\(density=0.01\)"),
        ("compression", "top-k(0.1) if 1 else (2)", r"is written top-k\(density=0.01\)"),
        ("compression", "top-k(density=1, density=0.5)", r"is written top-k\(density=0.01\)"),
        ("compression", "top-k(*[1])", r"is written top-k\(density=0.01\)"),
    ],
)
def test_parameters_of_another_type_are_refused(what, text, told):
    with pytest.raises(InputError, match=told):
        parsed(what, text, CATALOGUES[what])


@pytest.mark.parametrize("flag", ["feedback", "whole-model"])
def test_repeated_flags_are_refused(flag):
    with pytest.raises(InputError, match="repeats one of"):
        training_method(f"bsp + top-k + {flag} + {flag}")


def test_texts_are_cut_outside_brackets_only():
    assert parts_of(" a(1, b(+)) + c +d", "+") == ["a(1, b(+))", "c", "d"]
