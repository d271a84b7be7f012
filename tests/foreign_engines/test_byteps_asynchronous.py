"""Training methods on BytePS's servers: those that it has the rule for, and the reasons else."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks.byteps_stress import busy, stress
from ddlnb.engines.catalogue import ENGINES, get_engine
from ddlnb.errors import InputError, MissingPart, UnknownName
from ddlnb.training.executors.distributed import all_servers, require_trains, train_on_ranks
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.training.runs.train import train
from ddlnb.training.settings import EXECUTORS
from tests.replay import run_in_lockstep
from tests.toy_training import FEATURES, WORKERS, job_of, model, square_error, straggler

LACK = get_engine("byteps").missing()
needs_byteps = [pytest.mark.ranks, pytest.mark.skipif(bool(LACK), reason=LACK)]
SLOW = partial(torch.optim.SGD, lr=0.02)


def error_of(parameters: torch.Tensor) -> float:
    """The mean square error on samples that nobody trains on."""
    module = model()
    torch.nn.utils.vector_to_parameters(parameters, module.parameters())
    inputs = torch.randn(2000, FEATURES, generator=torch.Generator().manual_seed(9))
    return square_error(module, (inputs, inputs.sum(1, keepdim=True))).item()


class TestOnRanks:
    pytestmark = needs_byteps

    @pytest.mark.thorough
    def test_every_asynchronous_answer_is_right_when_everybody_is_late(self, six_ranks):
        """Patch 14: upstream, large answers are mixtures of two sums."""
        with busy(2):
            counts = six_ranks.run(stress, 4, 2, 40, 0, True, timeout_seconds=120)
        seen = [count for count in counts if count is not None]
        assert [(count.sums, count.wrong) for count in seen] == [(41 * 7, 0)] * 4

    def test_asp_of_one_worker_equals_lockstep(self, six_ranks):
        """Alone nothing depends on who comes first."""
        job = job_of("asp", workers=1, steps=20)
        (real,) = train_on_ranks(six_ranks, job, 60, "byteps").workers
        (expected,) = run_in_lockstep(job).workers
        for mine, other in zip(real.observed, expected.observed, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)
        assert real.losses == expected.losses
        assert real.bytes_sent == expected.bytes_sent  # BytePS's headers are not counted

    @pytest.mark.parametrize("executor", all_servers())
    def test_asp_learns_a_small_regression_as_in_lockstep(self, six_ranks, executor):
        """The error of the worker that was answered last, as it has seen every update."""
        job = job_of("asp", steps=150, make_optimizer=SLOW, observe=None)
        run, expected = train_on_ranks(six_ranks, job, 100, executor), run_in_lockstep(job)
        least, aim = (min(error_of(w.parameters) for w in one.workers) for one in (run, expected))
        assert least == pytest.approx(aim, rel=0.1)
        assert least < 0.05 * error_of(job.worker(0).parameters)

    @pytest.mark.parametrize(
        "method", ["bsp on PS", "local(2) on PS", "post-local(2, 4) on PS", "adaptive-local on PS"]
    )
    def test_what_waits_for_everybody_equals_lockstep(self, six_ranks, method):
        """Shares are added as they come: 1e-5 leaves some 80 roundings of float32 for it."""
        job = job_of(method, steps=20)
        run, expected = train_on_ranks(six_ranks, job, 60, "byteps"), run_in_lockstep(job)
        for ours, theirs in zip(run.workers, expected.workers, strict=True):
            for mine, other in zip(ours.observed, theirs.observed, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
            assert ours.bytes_sent == theirs.bytes_sent

    def test_nobody_waits_for_a_straggler_in_asp(self, six_ranks):
        job = job_of("asp", delay=straggler, steps=20)
        workers = train_on_ranks(six_ranks, job, 60, "byteps").workers
        assert workers[1].seconds >= 0.1 * job.steps
        assert all(
            worker.seconds < workers[1].seconds / 2 for worker in workers if worker.rank != 1
        )

    def test_train_takes_it_by_name(self, six_ranks):
        settings = {"workers": WORKERS, "steps": 6, "evaluate_every": 3}
        real = train("quadratic", "bsp on PS", executor="byteps", ranks=six_ranks, **settings)
        expected = train("quadratic", "bsp on PS", **settings)
        assert real["executor"].unique().tolist() == ["byteps"]
        assert real["test_loss"].tolist() == pytest.approx(expected["test_loss"], rel=1e-5)
        assert real["seconds"].iloc[-1] > 0


def test_it_runs_what_waits_for_everybody_or_for_nobody():
    on_servers = [
        TrainingMethod(kind(), architecture="PS")
        for kind in SYNCHRONISATIONS.values()
        if "PS" in kind.architectures
    ]
    able = {
        method.synchronisation.name
        for method in on_servers
        if not all_servers()["byteps"].refuses(method)
    }
    assert able == {"bsp", "local", "post-local", "adaptive-local", "asp"}
    assert not any(all_servers()["distributed"].refuses(method) for method in on_servers)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("ssp(3)", r"or at once, as asp does, and ssp\(3\) wants neither"),
        ("dssp", "wants neither"),
        ("r2sp", "wants neither"),
        ("bsp + top-k(0.1) on PS", r"cannot decode top-k\(0.1\)"),
        ("asp + fp16", "cannot decode fp16"),
        ("bsp", "the method runs on A2A"),
        ("d-psgd", "the method runs on gossip"),
    ],
)
def test_what_it_cannot_run_is_refused_with_the_reason(method, reason):
    with pytest.raises(InputError, match=reason) as caught:
        train("quadratic", method, executor="byteps")
    assert "executors that can: lockstep, distributed" in str(caught.value)


def test_a_machine_without_byteps_is_told_so(monkeypatch):
    lacking = replace(ENGINES["byteps"], missing=lambda: "BytePS is not installed; build it")
    monkeypatch.setitem(ENGINES, "byteps", lacking)
    with pytest.raises(MissingPart, match="'byteps' cannot run here: BytePS is not installed"):
        train("quadratic", "asp", executor="byteps")


def test_an_executor_is_known_by_its_name():
    assert ("lockstep", *all_servers()) == EXECUTORS
    with pytest.raises(UnknownName, match="did you mean 'byteps'"):
        require_trains("bytesp", training_method("asp"))
