"""Sparsifiers and low rank: what is kept, what is lost, what travels, and that nothing vanishes."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from ddlnb.compression import sparse as selection
from ddlnb.compression.base import Round, Traffic
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.dgc import UNSENT, VELOCITY, DeepGradientCompression
from ddlnb.compression.gtop_k import GTopK
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.random_k import RandomK, drawn
from ddlnb.compression.sparse import kept, largest
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.plans.requests import AllReduce, Messages, lockstep
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.synchronisation import BulkSynchronousParallel
from tests.toy_exchange import averages, normal, recorded
from tests.toy_training import Trained, make_workers


def gradients(workers: int, *shape: int, seed: int = 0) -> list[torch.Tensor]:
    return [normal(*shape, seed=100 * seed + rank) for rank in range(workers)]


# Selection.


def with_ties(elements: int) -> torch.Tensor:
    return normal(elements).mul(2).round()


def in_one_place(elements: int) -> torch.Tensor:
    """Large entries next to one another, which a regular sample may miss or meet too often."""
    flat = normal(elements)
    flat[elements // 3 : elements // 3 + elements // 100] *= 1000
    return flat


def every_hundredth(elements: int) -> torch.Tensor:
    flat = normal(elements)
    flat[::100] *= 1000
    return flat


TENSORS = {
    "normal": normal,
    "with ties": with_ties,
    "all equal": torch.ones,
    "all zero": torch.zeros,
    "almost all zero": lambda elements: normal(elements) * (normal(elements, seed=1) > 3.5),
    "fewer than are chosen": lambda elements: normal(elements) * (normal(elements, seed=1) > 4.0),
    "heavy tails": lambda elements: normal(elements) / normal(elements, seed=1).abs() ** 3,
    "in one place": in_one_place,
    "every hundredth": every_hundredth,
    "tiny magnitudes": lambda elements: normal(elements) * 1e-42,
}


@pytest.mark.parametrize("elements", [1, 2, 7, 1000, selection.FEWEST - 1, 3 * 10**5])
@pytest.mark.parametrize("name", TENSORS)
def test_the_largest_are_those_of_torch(name, elements):
    flat = TENSORS[name](elements)
    for count in {1, kept(0.001, elements), kept(0.01, elements), kept(0.5, elements), elements}:
        chosen = largest(flat, count)
        assert (chosen.diff() > 0).all()
        assert len(chosen) == count
        magnitudes = flat.abs()
        expected = magnitudes.topk(count).values
        assert torch.equal(magnitudes[chosen].sort(descending=True).values, expected)
        is_chosen = torch.zeros(elements, dtype=torch.bool).index_fill_(0, chosen, True)
        equal = is_chosen[magnitudes == expected[-1]]  # the first of them and no others
        assert torch.equal(equal, equal.sort(descending=True, stable=True).values)


def test_the_largest_of_many_are_found_by_a_threshold(monkeypatch):
    sizes = []
    among = selection._largest_of
    monkeypatch.setattr(
        selection, "_largest_of", lambda bits, k: sizes.append(len(bits)) or among(bits, k)
    )
    for seed in range(5):
        largest(normal(10**6, seed=seed), 1000)
    assert all(1000 <= size < 3000 for size in sizes)


def test_threads_find_the_same(monkeypatch):
    flat = normal(300_001)
    alone = largest(flat, 300)
    monkeypatch.setattr(selection, "ENTRIES_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(largest(flat, 300), alone)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -math.nan])
@pytest.mark.parametrize("elements", [10, 300_000])
@pytest.mark.parametrize("how_many", [1, 9, 10**6])
def test_what_is_not_finite_is_refused(bad, elements, how_many):
    flat = normal(elements)
    flat[:how_many] = bad
    with pytest.raises(InputError, match="infinite or not a number"):
        largest(flat, 2)


def test_what_cannot_be_chosen_from_is_refused():
    with pytest.raises(InputError, match="count 4"):
        largest(torch.ones(3), 4)
    with pytest.raises(InputError, match="count 0"):
        largest(torch.ones(3), 0)
    with pytest.raises(InputError, match="float64"):
        largest(torch.ones(3, dtype=torch.float64), 1)
    with pytest.raises(InputError, match="shape"):
        largest(torch.ones(3, 3), 1)


# What all of them promise.


@pytest.mark.parametrize("text", ["top-k(2)", "gtop-k(0.0)", "random-k(-1)", "dgc(nan)"])
def test_a_density_is_a_share(text):
    with pytest.raises(InputError, match="density"):
        get_compressor(text)


# Top-k.


# gTop-k.


def along_the_tree(tensors, count):
    """The tree of the paper on dense vectors: at distance d, worker w gets w + d."""
    sums = dict(enumerate(top(tensor, count) for tensor in tensors))
    distance = 1
    while distance < len(tensors):
        for rank in range(0, len(tensors), 2 * distance):
            if rank + distance in sums:
                sums[rank] = top(sums[rank] + sums.pop(rank + distance), count)
        distance *= 2
    assert list(sums) == [0]
    return sums[0] / len(tensors)


def top(tensor, count):
    order = np.lexsort((np.arange(len(tensor)), -np.abs(tensor.numpy())))[:count]
    indices = torch.from_numpy(order.copy())
    return torch.zeros_like(tensor).index_copy_(0, indices, tensor[indices])


@pytest.mark.parametrize("workers", range(1, 10))
@pytest.mark.parametrize("density", [0.02, 0.2])
def test_gtop_k_is_the_tree(workers, density):
    tensors = gradients(workers, 200)
    found = averages(GTopK(density), tensors)
    for averaged in found:
        assert torch.equal(averaged.average, along_the_tree(tensors, kept(density, 200)))
        assert averaged.average.count_nonzero() == kept(density, 200)
    traffic = GTopK(density).traffic((200,), workers)
    steps = 2 * math.ceil(math.log2(workers))
    assert traffic == [Traffic(Messages, 8 * kept(density, 200))] * steps


@pytest.mark.parametrize("workers", range(2, 10))
def test_gtop_k_loses_nothing_that_was_dropped_on_the_way(workers):
    tensors = gradients(workers, 30)
    found = averages(GTopK(0.2), tensors)
    own = [top(tensor, 6) for tensor in tensors]
    survived = found[0].average != 0
    torch.testing.assert_close(sum(one.sent for one in found) / workers, found[0].average)
    papers = sum(one * survived for one in own) / workers  # own values at surviving indices
    is_whole = torch.isclose(papers, found[0].average).all()
    assert is_whole == all(
        torch.allclose(one.sent, mine * survived) for one, mine in zip(found, own, strict=True)
    )
    if workers >= 5:  # with these gradients; the paper's rule would forget some of them
        assert not is_whole


# Random-k.


@pytest.mark.parametrize(("count", "elements"), [(1, 1), (3, 5), (2, 40), (9, 40), (10, 40)])
def test_every_entry_is_drawn_as_often(count, elements):
    """Six standard errors of a binomial count: one failure in 1e7 seeds."""
    draws = 3000
    generator = torch.Generator().manual_seed(1)
    hits = torch.zeros(elements)
    for _ in range(draws):
        indices = drawn(count, elements, generator)
        assert len(indices) == count
        assert (indices.diff() > 0).all()
        hits[indices] += 1
    share = count / elements
    assert ((hits - draws * share).abs() <= 6 * math.sqrt(draws * share * (1 - share))).all()


def test_workers_draw_alike_for_an_all_reduce_and_on_their_own_for_payloads():
    codec, tensor = RandomK(0.1), torch.ones(200)
    together = [averages(codec, [tensor] * 2)[rank].sent for rank in range(2)]
    assert torch.equal(*together)
    payloads = [codec.encode(tensor, Round(rank, 2, 0), {}) for rank in range(2)]
    alone = [codec.decode(payload, 200) for payload in payloads]
    assert [int(entries.count_nonzero()) for entries in alone] == [20, 20]
    assert not torch.equal(*alone)
    assert {len(payload) for payload in payloads} == {8 + 4 * 20}


@pytest.mark.parametrize(("unbiased", "scale"), [(False, 1.0), (True, 10.0)])
def test_a_payload_of_random_entries_says_by_itself_which_they_are(unbiased, scale):
    """Another process reads it with nothing but the number of elements."""
    codec, tensor = RandomK(0.1, unbiased), normal(200)
    payload = codec.encode(tensor, Round(3, 8, 5, piece=2, seed=7), {})
    read = RandomK(0.1, unbiased).decode(torch.tensor(payload.tolist(), dtype=torch.uint8), 200)
    found = read.nonzero().flatten()
    assert len(found) == 20
    assert torch.equal(read[found], tensor[found] * scale)


def test_scaled_entries_are_not_fed_back():
    assert training_method("bsp + random-k(0.1) + feedback").feedback
    with pytest.raises(InputError, match="no contraction"):
        training_method("bsp + random-k(0.1, True) + feedback")


# DGC.


def trained(method: str | TrainingMethod, momentum: float = 0.0, **options) -> torch.Tensor:
    optimizer = partial(torch.optim.SGD, lr=0.05, momentum=momentum)
    return Trained(method, 10, optimizer=optimizer, **options).parameters[0]


@pytest.mark.parametrize(
    "text",
    [
        "top-k(1.0)",
        "top-k(1.0) + feedback",
        "gtop-k(1.0) + feedback",
        "random-k(1.0) + feedback",
        "random-k(1.0, True) + whole-model",
    ],
)
@pytest.mark.parametrize("count", [3, 4])
def test_training_that_keeps_everything_is_bsp(text, count):
    lossy, lossless = (trained(f"bsp{more}", count=count) for more in (f" + {text}", ""))
    torch.testing.assert_close(lossy, lossless)


def test_dgc_that_keeps_everything_is_momentum_sgd_or_with_masking_plain_sgd():
    unmasked = trained("bsp + dgc(1.0, 0.9, None, 0, False)")
    torch.testing.assert_close(unmasked, trained("bsp", momentum=0.9))
    masked = trained("bsp + dgc(1.0, 0.9)")
    torch.testing.assert_close(masked, trained("bsp"))
    assert not torch.allclose(masked, unmasked, atol=1e-3)


@pytest.mark.parametrize("masking", [True, False])
def test_dgc_loses_no_velocity(masking):
    """Sent and unsent are at every step what was unsent and the velocity."""
    dgc = DeepGradientCompression(0.1, 0.7, masking=masking)
    memory: dict = {VELOCITY: torch.zeros(50), UNSENT: torch.zeros(50)}
    for step in range(10):
        tensor = normal(50, seed=step)
        velocity = 0.7 * memory[VELOCITY] + tensor
        expected = memory[UNSENT] + velocity
        [averaged] = averages(dgc, [tensor], [memory], step)
        torch.testing.assert_close(averaged.sent + memory[UNSENT], expected)
        is_sent = averaged.sent != 0
        assert is_sent.sum() == 5
        assert (memory[VELOCITY][is_sent] == 0).all() == masking
        assert torch.equal(memory[VELOCITY][~is_sent], velocity[~is_sent])


def test_dgc_without_momentum_is_top_k_with_feedback():
    own: list = [{}, {}]
    fed_back: list = [{}, {}]
    for step in range(6):
        tensors = gradients(2, 60, seed=step)
        ours = averages(DeepGradientCompression(0.1, 0.0), tensors, own, step)
        theirs = averages(TopK(0.1), tensors, fed_back, step, feedback=True)
        assert torch.equal(ours[0].average, theirs[0].average)


def test_dgc_clips_so_that_the_average_is_bounded_as_without_compression():
    dgc = DeepGradientCompression(1.0, 0.0, clip=2.0)
    found = averages(dgc, [100 * tensor for tensor in gradients(4, 5000)])
    for averaged in found:
        assert averaged.sent.norm() == pytest.approx(2.0 * math.sqrt(4), rel=1e-5)
        assert averaged.average.norm() == pytest.approx(2.0, rel=0.05)  # of independent ones
    assert torch.equal(averages(dgc, [torch.full((4,), 0.5)] * 4)[0].average, torch.full((4,), 0.5))


def test_a_sum_beyond_the_largest_number_leaves_nobody_waiting_in_the_tree():
    """Each gradient is finite, and what the tree makes of two of them is not."""
    found = averages(GTopK(0.5), [torch.full((4,), 3e38)] * 4)
    assert all(torch.equal(one.average, found[0].average) for one in found)
    assert found[0].average.isfinite().all()


@pytest.mark.parametrize(("synchronisation", "period"), [("bsp", 1), ("local(3)", 3)])
def test_dgc_warms_up_over_its_own_rounds(synchronisation, period):
    text = f"{synchronisation} + dgc(0.025, 0.9, None, 4) + whole-model"
    workers = make_workers(text, 2)
    elements = len(workers[0].parameters)
    sent: list[float] = []
    run = Lockstep(
        workers,
        training_method(text).synchronisation.loop,
        6 * period,
        on_step=lambda rank, done, now: sent.append(run.bytes_sent[0]) if rank == 0 else None,
    )
    run.run()
    per_round = [after - before for before, after in pairwise([0, *sent[period - 1 :: period]])]
    densities = [0.25 * 0.1 ** (min(rounds, 4) / 4) for rounds in range(6)]
    assert per_round == [8 * round(density * elements) for density in densities]
    assert per_round[0] == 8 * 10


def test_dgc_has_its_own_residuals_and_its_options_are_checked():
    with pytest.raises(InputError, match="keeps what was not sent itself"):
        training_method("bsp + dgc(0.01) + feedback")
    for text, message in [
        ("dgc(0.01, 1.0)", "momentum 1.0"),
        ("dgc(0.01, 0.9, 0)", "clip 0"),
        ("dgc(0.01, 0.9, None, -1)", "warm_up -1"),
    ]:
        with pytest.raises(InputError, match=message):
            get_compressor(text)


# PowerSGD.


@dataclass(frozen=True)
class Factored(PowerSGD):
    """PowerSGD that factors where it saves nothing, too: at full rank it never saves."""

    def factored(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        return self.sides(shape)


FULL_RANK = [((6, 40), 6), ((40, 6), 6), ((6, 2, 20), 6), ((1, 7), 1), ((7,), 3), ((1,), 1)]


@pytest.mark.parametrize(("shape", "rank"), FULL_RANK)
def test_powersgd_of_full_rank_is_the_average(shape, rank):
    compressor = Factored(rank, fold=True)
    requests: list = []
    tensors = gradients(3, *shape)
    flows = [compressor.average(one, Round(at, 3, 0), {}) for at, one in enumerate(tensors)]
    for averaged in lockstep([recorded(flows[0], requests), *flows[1:]]):
        torch.testing.assert_close(averaged.average, sum(tensors) / 3)
    assert [request.bytes for request in requests] == [
        4 * rank * side for side in compressor.sides(shape)
    ]


@pytest.mark.parametrize(("shape", "rank"), FULL_RANK)
def test_powersgd_factors_only_what_that_makes_smaller(shape, rank):
    for fold in (False, True):
        [sent] = PowerSGD(rank, fold).traffic(shape, 3)
        assert sent.bytes == 4 * math.prod(shape)


@pytest.mark.parametrize("whole_model", [False, True])
def test_training_with_powersgd_of_full_rank_is_bsp(whole_model):
    method = TrainingMethod(BulkSynchronousParallel(), Factored(7), True, whole_model)
    torch.testing.assert_close(trained(method), trained("bsp"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (20, 5, 6)])
@pytest.mark.parametrize("step", [0, 5])
def test_powersgd_finds_averages_of_its_rank(shape, step):
    columns = math.prod(shape[1:])
    tensors = [
        (normal(shape[0], 1, seed=1) @ normal(1, columns, seed=rank)).view(shape)
        + (normal(shape[0], 1, seed=2) @ normal(1, columns, seed=10 + rank)).view(shape)
        for rank in range(4)
    ]
    averaged = averages(PowerSGD(2), tensors, step=step)[0].average
    torch.testing.assert_close(averaged, sum(tensors) / 4, rtol=1e-4, atol=1e-5)
    averaged = averages(PowerSGD(1), tensors, step=step)[0].average
    assert not torch.allclose(averaged, sum(tensors) / 4, atol=1e-2)


def test_a_warm_start_approaches_the_best_approximation():
    matrix = normal(60, 50) @ torch.diag(0.9 ** torch.arange(50)) @ normal(50, 40, seed=1)
    tensors = [2 * matrix, torch.zeros_like(matrix)]
    best = torch.linalg.svdvals(matrix)[3:].norm()

    def errors(warm_start: bool) -> list[float]:
        memories: list = [{}, {}]
        return [
            (averages(PowerSGD(3, False, warm_start), tensors, memories, step)[0].average - matrix)
            .norm()
            .div(best)
            .item()
            for step in range(40)
        ]

    warm, cold = errors(True), errors(False)
    assert warm[0] == cold[0]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(warm))
    assert 1 <= warm[-1] < 1.001
    assert min(cold) > 1.01


def test_powersgd_recovers_from_a_gradient_of_zeros():
    memories: list = [{}, {}]
    matrix = normal(20, 1) @ normal(1, 30, seed=1)
    averages(PowerSGD(1), [torch.zeros(20, 30)] * 2, memories)
    averages(PowerSGD(1), [matrix] * 2, memories, 1)
    averaged = averages(PowerSGD(1), [matrix] * 2, memories, 2)[0].average
    torch.testing.assert_close(averaged, matrix, rtol=1e-4, atol=1e-5)


def test_powersgd_folds_a_whole_model():
    method = training_method("bsp + powersgd(2) + feedback + whole-model")
    assert method.compressor == PowerSGD(2, fold=True)
    assert training_method(str(method)) == method
    assert method.compressor.traffic((1000,), 4) == [Traffic(AllReduce, 4 * 2 * 32)] * 2
    assert PowerSGD(2).traffic((1000,), 4) == [Traffic(AllReduce, 4000)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(
            (method.format(name), reason)
            for method in ("bsp + {} on PS", "choco + {}")
            for name, reason in (
                ("gtop-k", "merge entries pairwise along a tree"),
                ("powersgd", "depends on the sum of the first"),
                ("dgc", "are longer while it warms up"),
            )
        ),
        ("choco + signsgd", "votes are counted"),
    ],
)
def test_what_has_no_message_of_its_own_says_why(text, reason):
    with pytest.raises(InputError, match=f"no message that a server.*{reason}"):
        training_method(text)
