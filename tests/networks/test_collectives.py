"""Every collective of the catalogue, among 2 to 64 workers: proven, and counted by its formula."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ddlnb
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, UnknownName
from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm, reversed_steps, shares, squarest
from ddlnb.networks.collectives.catalogue import (
    COLLECTIVES,
    get_algorithm,
    get_collective,
    register_collective,
)
from ddlnb.networks.collectives.double_tree import DoubleTree, complementary_trees
from ddlnb.networks.collectives.proof import prove
from ddlnb.networks.collectives.ring import Ring
from ddlnb.networks.collectives.servers import BytePS
from ddlnb.plans.alpha_beta import double_tree_share, tree_levels
from ddlnb.plans.transfers import Collective, Primitive, transfers


def doubling_steps(n: int) -> int:
    """Return log2 n; unless n is a power of two, two more, with a neighbour."""
    return n.bit_length() - 1 + 2 * (n & (n - 1) > 0)


def by_ring(made: Ring, n: int, g: int, primitive: Primitive) -> tuple[int, float]:
    """A worker sends all parts in a phase but those that end with it, or with its successor."""
    own = np.diff(shares(made.parts or n, n))
    scattering, gathering = primitive != "all-gather", primitive != "reduce-scatter"
    phases, kept = scattering + gathering, scattering * own + gathering * np.roll(own, -1)
    return phases * (n - 1), phases - kept.min() / (made.parts or n)


def by_nodes(_: Algorithm, n: int, g: int, __: Primitive) -> tuple[int, float]:
    """Rings inside the nodes, and across them."""
    return 2 * (g - 1) + 2 * (n // g - 1), 2 * (n - 1) / n


def by_trees(made: Algorithm, n: int, g: int, _: Primitive) -> tuple[int, float]:
    """Trees of nodes: their leaders send down the chain, too, and are its last in the other one."""
    m, chain = (n // g, g - 1) if n > g > 1 else (n, 0)
    steps = 2 * (tree_levels(m) - m % 2 + chain) + made.blocks - 1
    along = double_tree_share(m) + 0.5 * (chain > 0)
    return steps, max(along, 2.0 * (chain > 1))


def by_byteps(made: BytePS, n: int, g: int, _: Primitive) -> tuple[int, float]:
    """Published for nodes of one worker; inside, a ring of each node's workers."""
    m, k, inside = n // g, made.servers, 2 * (g - 1) / g
    if m == 1:
        return 2 * (g - 1), inside
    if k >= m:
        return 2 * g, max(inside + 1 / g, m / k)
    across = 2 * m * (m - 1) / (m**2 + k * m - 2 * k)
    return 2 * g, max(inside + across / g, across * (k > 0))


# Of an algorithm among n workers, g of them in a node: steps, and what the rank sends that sends
# most, as a multiple of the message. That of an all-to-all is what all workers send together.
CLOSED_FORMS: dict[str, Callable[[Any, int, int, Primitive], tuple[int, float]]] = {
    "ring": by_ring,
    "tree": lambda a, n, g, p: (tree_levels(n) * (1 + (p == ALL_REDUCE)), tree_levels(n)),
    "recursive-doubling": lambda a, n, g, p: (
        doubling_steps(n),
        n.bit_length() - 1 + (n & (n - 1) > 0),
    ),
    "halving-doubling": lambda a, n, g, p: (
        2 * (n.bit_length() - 1) + 2 * (n & (n - 1) > 0),
        2 * (1 - 0.5 ** (n.bit_length() - 1)) + (n & (n - 1) > 0),
    ),
    "double-tree": by_trees,
    "hierarchical": by_nodes,
    "blueconnect": by_nodes,
    "torus": lambda a, n, g, p: (2 * (sum(squarest(n)) - 2), 2 * (n - 1) / n),
    "swing": lambda a, n, g, p: (2 * (n.bit_length() - 1), 2 * (n - 1) / n),
    "direct": lambda a, n, g, p: (
        (1 + (p == ALL_REDUCE)),
        (1 + (p == ALL_REDUCE)) * (n - 1) / n,
    ),
    "exchange": lambda a, n, g, p: (1, n - 1),
    "recursive-halving": lambda a, n, g, p: (n.bit_length() - 1, (n - 1) / n),
    "scatter-gather": lambda a, n, g, p: (tree_levels(n) + n - 1, 2 * (n - 1) / n),
    "rotating": lambda a, n, g, p: (n - 1, (n - 1) / n**2),
    "pairwise": lambda a, n, g, p: (n - 1, (n - 1) / n**2),
    # The ones in the binary digits of all distances.
    "bruck": lambda a, n, g, p: (tree_levels(n), sum(d.bit_count() for d in range(n)) / n**2),
    "parameter-servers": lambda a, n, g, p: (
        2,
        (n + a.count - 2) / a.count if a.beside else max(1, n / a.count),
    ),
    "byteps": by_byteps,
}

WORKERS = range(2, 65)
VARIANTS = [
    *("ring(3)", "ring(64)", "double-tree(1)", "double-tree(3)", "swing(2)", "swing(4)"),
    *("parameter-servers(3)", "parameter-servers(2, True)", "byteps(1)", "byteps(2)", "byteps(5)"),
]
every_collective = pytest.mark.parametrize("name", [*COLLECTIVES, *VARIANTS])


def cases(name: str) -> Iterator[tuple[int, int, Primitive]]:
    """Every number of workers, workers per node and primitive that it runs with."""
    algorithm = get_algorithm(name)
    for workers in WORKERS[:22] if name in VARIANTS else WORKERS:
        for per_node in (1, 2, 4, 8) if algorithm.knows_nodes else (1,):
            if workers % per_node == 0 and not algorithm.refuses(workers, per_node):
                for primitive in algorithm.primitives:
                    yield workers, per_node, primitive


@every_collective
def test_every_rank_ends_with_every_part_summed_once(name):
    sizes = set()
    for workers, per_node, primitive in cases(name):
        prove(get_collective(name, workers, per_node=per_node, primitive=primitive))
        sizes.add(workers)
    assert {8, 16} <= sizes
    assert name in VARIANTS or {2, 4, 32, 64} <= sizes


@every_collective
def test_steps_and_bytes_are_those_of_the_formula(name):
    algorithm = get_algorithm(name)
    for workers, per_node, primitive in cases(name):
        made = algorithm.collective(workers, per_node, primitive)
        sent = float(made.bytes_sent(1.0).max())
        expected = CLOSED_FORMS[algorithm.name](algorithm, workers, per_node, primitive)
        assert (made.steps, pytest.approx(sent)) == expected, (workers, per_node, primitive)


@every_collective
def test_a_worker_alone_sends_nothing_to_itself(name):
    algorithm = get_algorithm(name)
    if algorithm.refuses(1):
        return
    for primitive in algorithm.primitives:
        alone = get_collective(name, 1, primitive=primitive)
        prove(alone)
        assert not (alone.transfers["source"] == alone.transfers["target"]).any()


@every_collective
def test_a_text_reads_back(name):
    assert str(get_algorithm(name)) == name
    assert get_algorithm(get_algorithm(name)) == get_algorithm(name)


@pytest.mark.item("A36")
def test_a_torus_takes_20_steps_where_a_ring_takes_62():
    ring, torus = get_collective("ring", 32), get_collective("torus(4, 8)", 32)
    assert (ring.steps, torus.steps) == (62, 20)
    assert torus.bytes_sent(1.0) == pytest.approx(ring.bytes_sent(1.0))


@pytest.mark.item("A36")
def test_a_torus_sends_as_much_along_rows_as_along_columns():
    """So that each link of a square carries half of what all would put on it in one direction."""
    made = get_collective("torus(4, 4)", 16)
    rows = made.transfers
    along_row = rows["source"] // 4 == rows["target"] // 4
    parts = rows["stop"] - rows["first"]
    assert (along_row | (rows["source"] % 4 == rows["target"] % 4)).all()
    for step in range(made.steps):
        now = rows["step"] == step
        assert parts[now & along_row].sum() == parts[now & ~along_row].sum() > 0


@pytest.mark.item("A31")
@pytest.mark.parametrize("workers", range(2, 66))
def test_no_rank_is_an_inner_node_of_both_trees(workers):
    first, second = complementary_trees(workers)
    for parents in (first, second):
        assert (parents < 0).sum() == 1
        assert np.bincount(parents[parents >= 0]).max() <= 2
    assert not set(first[first >= 0]) & set(second[second >= 0])


@pytest.mark.parametrize("name", ["swing", "swing(4)"])
def test_partners_of_swing_are_nearer_than_those_of_halving_doubling(name):
    """On a ring of 16, and in each dimension of a torus of 4 x 4; weighted with their bytes."""
    crossed = {}
    for other in (name, "halving-doubling"):
        made = get_collective(other, 16)
        rows = made.transfers
        columns = 4 if name == "swing(4)" else 16
        along = [
            (np.abs(rows["source"] // by % m - rows["target"] // by % m), m)
            for by, m in ((1, columns), (columns, 16 // columns))
        ]
        hops = sum(np.minimum(apart, m - apart) for apart, m in along)
        crossed[other] = (hops * (rows["stop"] - rows["first"])).sum() / made.parts
    assert crossed[name] < crossed["halving-doubling"]


@pytest.mark.parametrize(
    ("name", "workers", "options", "reason"),
    [
        ("rings", 4, {}, "unknown collective 'rings'.*did you mean 'ring'"),
        ("torus(3, 3)", 8, {}, "torus has 3 x 3 = 9 places for 8 workers; give lengths"),
        ("torus(0, 8)", 8, {}, "torus has 0 x 8 = 0 places"),
        ("torus(2, 2, 2)", 8, {}, r"written torus\(rows=None, columns=None\)"),
        ("ring", 0, {}, "workers 0 must be a whole number"),
        ("byteps", 6, {"per_node": 4}, "6 workers do not fill nodes of 4; take a multiple of 4"),
        ("ring(0)", 4, {}, "give at least 1"),
        ("double-tree(-1)", 4, {}, "give at least 1"),
        ("ring", 4, {"primitive": "broadcast"}, "does not carry out 'broadcast'; take tree"),
        ("hierarchical(3)", 8, {}, "8 workers are no multiple of 3"),
        ("blueconnect((2, 3))", 8, {}, "blueconnect has 2 x 3 = 6 places for 8 workers"),
        ("swing", 12, {}, "needs a power of two of workers, and 12 is none; take 8 or 16 workers"),
        ("swing(3)", 8, {}, "swing has 3 x 2 = 6 places"),
        ("parameter-servers(0)", 4, {}, "at least 1 server"),
        ("parameter-servers(5, true)", 4, {}, "puts 5 servers beside 4 workers; give at most 4"),
        ("byteps(-1)", 4, {}, "give 0 or more"),
        ("pairwise", 6, {"primitive": "all-to-all"}, "take 4 or 8 workers, or rotating"),
        (
            "recursive-halving",
            6,
            {"primitive": "reduce-scatter"},
            "needs a power of two of workers, and 6 is none; take 4 or 8 workers, or ring",
        ),
    ],
)
def test_what_does_not_fit_is_one_error(name, workers, options, reason):
    with pytest.raises(InputError, match=reason):
        get_collective(name, workers, **options)


@dataclass(frozen=True)
class Star(Algorithm):
    """All send to worker 0, which sends all the sum."""

    name = "star"

    def collective(self, workers, per_node=1, primitive=ALL_REDUCE) -> Collective:
        others = np.arange(1, workers)
        there = transfers(0, others, 0 * others, 0, 1, True)
        return self.made(primitive, workers, 1, there, reversed_steps(there, 2))


@pytest.fixture
def star(monkeypatch) -> Iterator[str]:
    register_collective(Star)
    monkeypatch.setitem(CLOSED_FORMS, Star.name, lambda a, n, g, p: (2, n - 1))
    yield Star.name
    del COLLECTIVES[Star.name]


def test_a_collective_from_outside_passes_the_same_tests(star):
    test_every_rank_ends_with_every_part_summed_once(star)
    test_steps_and_bytes_are_those_of_the_formula(star)
    test_a_worker_alone_sends_nothing_to_itself(star)
    test_a_text_reads_back(star)


def test_a_collective_from_outside_is_named_where_others_are(star):
    with pytest.raises(UnknownName, match="star"):
        get_collective("nobody", 2)


def test_what_is_no_collective_is_refused():
    with pytest.raises(InputError, match="inherits from Algorithm"):
        register_collective(dict)


def _raises(made: Ring, workers: int, primitive: Primitive) -> Any:
    return {}["of mine"]


def _misses(made: Ring, workers: int, primitive: Primitive) -> Any:
    return (lambda: None)(workers)


def _nothing(made: Ring, workers: int, primitive: Primitive) -> Any:
    return None


def _one_more(made: Ring, workers: int, primitive: Primitive) -> Any:
    return get_collective("ring", workers + 1)


def _of_fewer(made: Ring, workers: int, primitive: Primitive) -> Any:
    """Return the right one among four, and among five the same, which leaves one of them out."""
    return made.made(primitive, workers, 4, get_collective("ring", 4).transfers)


def _half_way(made: Ring, workers: int, primitive: Primitive) -> Any:
    rows = get_collective("ring", workers).transfers
    return made.made(primitive, workers, workers, rows[rows["step"] < workers - 1])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (_nothing, "collective 'mistaken' makes a NoneType in place of a Collective"),
        (_one_more, "is asked for all-reduce among 4 workers, and makes all-reduce among 5"),
        (_raises, r"'mistaken' among 4 workers raises KeyError: 'of mine' \(.*line \d+\)"),
        (_misses, r"'mistaken' among 4 workers raises TypeError: .*line \d+\)"),
        (_half_way, "'mistaken' among 4 workers is no all-reduce: part . of rank 0 is wrong"),
    ],
)
def test_a_collective_from_outside_that_does_not_add_up_is_refused(wrong, said):
    @dataclass(frozen=True)
    class Mistaken(Algorithm):
        name = "mistaken"

        def collective(self, workers, per_node=1, primitive=ALL_REDUCE):
            return wrong(self, workers, primitive)

    register_collective(Mistaken)
    try:
        with pytest.raises(InputError, match=said):
            get_collective("mistaken", 4)
        cluster = get_cluster("survey-10GbE", 4)
        with pytest.raises(InputError, match="mistaken"):
            ddlnb.simulate("resnet50", replace(cluster, all_reduce="mistaken"), "BSP-A2A")
        with pytest.raises(InputError, match="mistaken"):  # "auto" does not pass over it
            ddlnb.simulate("resnet50", replace(cluster, all_reduce="auto"), "BSP-A2A")
    finally:
        del COLLECTIVES["mistaken"]


def test_a_collective_that_is_defined_anew_is_played_anew():
    def chain(pieces: int) -> type[Algorithm]:
        @dataclass(frozen=True)
        class Chain(DoubleTree):
            blocks: int = pieces
            name = "chain"

        return Chain

    taken = []
    try:
        for pieces in (64, 1):  # as in a notebook, whose cell is edited and runs again
            register_collective(chain(pieces))
            cluster = replace(get_cluster("survey-10GbE", 16), all_reduce="chain")
            taken.append(ddlnb.simulate("resnet50", cluster, "BSP-A2A").iteration_seconds)
    finally:
        del COLLECTIVES["chain"]
    assert taken[0] < 0.9 * taken[1]


def test_what_was_proven_among_some_workers_is_not_taken_as_proven_among_more():
    @dataclass(frozen=True)
    class Fixed(Algorithm):
        name = "fixed"

        def collective(self, workers, per_node=1, primitive=ALL_REDUCE):
            return _of_fewer(self, workers, primitive)

    assert get_collective(Fixed(), 4).steps == 6
    with pytest.raises(InputError, match="'fixed' among 5 workers is no all-reduce"):
        get_collective(Fixed(), 5)
