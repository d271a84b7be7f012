"""A compressor or a synchronisation of one's own: one class, and its name works everywhere."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import ddlnb
from ddlnb.cli.app import app
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.base import QUANTISATION, Codec, Memory, OnGpu, Passes, Round, as_bytes
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.plans.requests import Flow
from ddlnb.plans.server_rules import Rule
from ddlnb.survey.fig2_taxonomy import combinations, taxonomy
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.method import SYNCHRONISATIONS, register_synchronisation, training_method
from ddlnb.training.runs import runner
from ddlnb.training.runs.runner import key
from ddlnb.training.runs.train import train
from ddlnb.training.server_rules import BoundedStaleness
from ddlnb.training.settings import training_settings
from ddlnb.training.synchronisation import BulkSynchronousParallel, Synchronisation
from ddlnb.training.worker import NextGradient, StepDone, Worker
from ddlnb.workloads.workload import read_profile
from tests import toy_training

# A compressor: entries rounded to multiples.


@dataclass(frozen=True)
class Rounded(Codec):
    """Entries rounded to the nearest multiple of ``step``, in one byte each."""

    step: float = 0.01

    name = "rounded"
    family = QUANTISATION
    feedback = "optional"

    def payload_bytes(self, elements: int) -> int:
        return elements

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        codes = (tensor.detach().flatten() / self.step).round().clamp(-127, 127)
        return as_bytes(codes.to(torch.int8))

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return payload.view(torch.int8).float() * self.step


@pytest.fixture
def rounded() -> Iterator[None]:
    ddlnb.register_compressor(Rounded)
    yield
    del COMPRESSORS["rounded"]


METHOD = "bsp + rounded(0.02) + feedback"


def test_a_compressor_from_outside_is_named_wherever_compressors_are(rounded):
    assert get_compressor("rounded(0.02)") == Rounded(0.02)
    assert str(training_method(METHOD)) == f"{METHOD} on A2A"
    [branch] = [one for one in taxonomy()[1].branches if one.name == QUANTISATION]
    assert "rounded" in [leaf.name for leaf in branch.leaves]
    assert "rounded" in {one.compression for one in combinations() if one.method}
    listed = CliRunner().invoke(app, ["train", "--list", "--csv"])
    assert "rounded(step=0.01)" in listed.stdout


@pytest.mark.thorough
def test_a_compressor_from_outside_has_a_cost(rounded):
    workload, cluster = read_profile("resnet50_b64_rtx2080ti"), get_cluster("survey-10GbE", 8)
    for method in ("bsp + rounded", "bsp + rounded on PS", "choco + rounded"):
        with pytest.raises(InputError, match="declare on_gpu"):
            iteration_cost(workload, cluster, method)
        cost = iteration_cost(workload, cluster, method, compression="free")
        assert cost.bytes_sent > 0
        assert cost.iteration_seconds > 0


@pytest.mark.parametrize("method", [METHOD, f"{METHOD} on PS", "choco(gamma=0.5) + rounded"])
def test_a_compressor_from_outside_learns(rounded, method):
    curve = train("digits", method, workers=2, steps=20, evaluate_every=20)
    assert curve["test_loss"].iloc[-1] < curve["test_loss"].iloc[0]


@pytest.mark.thorough
def test_a_compressor_from_outside_reaches_processes_that_did_not_register_it(rounded):
    """Kept runs are made in new processes, which get the settings by pickle."""
    settings = training_settings("quadratic", METHOD, workers=2, steps=3)
    code = "import pickle, sys; from ddlnb.training.runs.train import run; "
    code += "print(run(pickle.load(sys.stdin.buffer))['test_loss'].iloc[-1])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(settings),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert (
        float(done.stdout) == train("quadratic", METHOD, workers=2, steps=3)["test_loss"].iloc[-1]
    )


def test_a_kept_run_knows_the_source_of_a_compressor_from_outside(rounded, monkeypatch):
    before = [key(training_settings("quadratic", method)) for method in ("bsp", METHOD)]
    monkeypatch.setattr(runner, "fingerprint", lambda thing: "another source")
    after = [key(training_settings("quadratic", method)) for method in ("bsp", METHOD)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]


@pytest.mark.ranks
def test_a_compressor_from_outside_trains_on_real_ranks(rounded, six_ranks):
    options = {"workers": 2, "steps": 5, "evaluate_every": 5}
    real = train("digits", METHOD, executor="distributed", ranks=six_ranks, **options)
    lockstep = train("digits", METHOD, **options)
    assert real["test_loss"].tolist() == pytest.approx(lockstep["test_loss"].tolist(), rel=1e-4)
    assert (real["averaging_seconds"] == 0).all()
    apart = train("digits", "choco", executor="distributed", ranks=six_ranks, **options)
    assert apart["averaging_seconds"].iloc[-1] > 0


@dataclass(frozen=True)
class OfItsOwn(Rounded):
    """Every worker gets another average, such as with a seed of its own."""

    name = "of-its-own"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        found = yield from super().average(tensor, round_, memory)
        return found._replace(average=found.average * (1 + 0.01 * round_.rank))


@pytest.mark.parametrize("method", ["bsp + qsgd(4)", "choco"])
def test_numbers_of_other_types_are_refused_where_what_travels_is_float32(method, monkeypatch):
    monkeypatch.setattr(toy_training, "model", lambda: torch.nn.Linear(6, 1).double())
    toy_training.make_workers("bsp")
    with pytest.raises(InputError, match=r"parameters are torch.float64, and what is compressed"):
        toy_training.make_workers(method)


def test_averages_that_differ_between_workers_are_refused_where_models_would_be_one(monkeypatch):
    monkeypatch.setitem(COMPRESSORS, OfItsOwn.name, OfItsOwn)
    with pytest.raises(InputError, match="models differ after step 2 of bsp"):
        train("quadratic", "bsp + of-its-own", workers=2, steps=4, evaluate_every=2)
    train("quadratic", "local(2) + of-its-own", workers=2, steps=4, evaluate_every=2)


@dataclass(frozen=True)
class Nameless(TopK):
    name = "Top K"


@dataclass(frozen=True)
class Stateless(Rounded):
    name = "stateless"
    family = ""


@dataclass(frozen=True)
class Demanding(Rounded):
    step: float = field()
    name = "demanding"


@dataclass(frozen=True)
class Unfinished(Codec):
    name = "unfinished"
    family = QUANTISATION


@dataclass(frozen=True)
class Profitable(Rounded):
    name = "profitable"
    on_gpu = OnGpu(Passes(2, -8), Passes(1, 4))


@dataclass(frozen=True)
class Impostor(TopK):
    """Has the name of another."""


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (int, "must be a frozen dataclass"),
        (Nameless, "small letters"),
        (Stateless, "declares the family ''; choose one of quantisation"),
        (Demanding, "needs a default for each parameter"),
        (Unfinished, "does not define decode, encode, feedback, payload_bytes"),
        (Rounded(), "must be a frozen dataclass that inherits from Compressor"),
        (Profitable, r"declares \[2, -8, 1, 4\] as kernels and bytes .* finite numbers"),
        (Impostor, "has the name 'top-k' of TopK"),
    ],
)
def test_a_compressor_that_cannot_be_registered_is_refused_with_the_reason(kind, reason):
    known = dict(COMPRESSORS)
    with pytest.raises(InputError, match=reason):
        ddlnb.register_compressor(kind)
    assert known == COMPRESSORS


@pytest.mark.parametrize("method", ["bsp + counted", "bsp + counted on PS", "choco + counted"])
@pytest.mark.parametrize("declared", [lambda n: n / 8 + 4, lambda n: -n, lambda n: None])
def test_a_compressor_that_declares_no_number_of_bytes_is_refused(method, declared):
    """Neither a forecast nor a run takes a float, the usual slip with codes of one bit."""

    @dataclass(frozen=True)
    class Counted(Rounded):
        name = "counted"

        def payload_bytes(self, elements):
            return declared(elements)

    ddlnb.register_compressor(Counted)
    try:
        with pytest.raises(InputError, match=r"'counted' declares .* let payload_bytes return"):
            iteration_cost("resnet50", "survey-10GbE", method, compression="free")
        with pytest.raises(InputError, match=r"'counted' declares .* let payload_bytes return"):
            train("quadratic", method, workers=2, steps=2, evaluate_every=2)
    finally:
        del COMPRESSORS["counted"]


@dataclass(frozen=True)
class Slip(Rounded):
    """Does one thing wrong."""

    of: str = ""

    name = "slip"

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        if self.of == "writes":
            tensor.mul_(0.5)
        return super().encode(tensor, round_, memory)

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        found = yield from super().average(tensor, round_, memory)
        wrong = {"nothing": None, "flat": found._replace(sent=found.sent.reshape(-1))}
        wrong["double"] = found._replace(average=found.average.double())
        return wrong.get(self.of, found)

    def for_pieces(self, pieces: int) -> tuple[Any, ...]:
        return super().for_pieces(pieces - (self.of == "few"))

    def traffic(self, shape: tuple[int, ...], workers: int) -> Any:
        told = super().traffic(shape, workers)
        wrong = {"negative": [one._replace(bytes=-1) for one in told], "none": None}
        return wrong.get(self.of, told)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("writes", r"writes to the tensor that it encodes.*tensor.clone\(\)"),
        ("nothing", "to None, which is no tensor; return Averaged"),
        ("flat", "both of its shape and type"),
        ("double", "both of its shape and type"),
        ("few", "for_pieces return a compressor for each"),
    ],
)
@pytest.mark.parametrize("feedback", ["", " + feedback"])
def test_a_slip_of_a_compressor_is_named_in_training(of, said, feedback):
    ddlnb.register_compressor(Slip)
    try:
        with pytest.raises(InputError, match=f"'slip' .*{said}"):
            train("digits", f"bsp + slip(of={of}){feedback}", workers=2, steps=2, evaluate_every=2)
    finally:
        del COMPRESSORS["slip"]


@pytest.mark.parametrize("of", ["negative", "none"])
@pytest.mark.parametrize("overlap", [False, True])
def test_traffic_that_is_none_is_not_priced(of, overlap):
    ddlnb.register_compressor(Slip)
    options = {"compression": "free", "overlap": overlap}
    try:
        with pytest.raises(InputError, match=r"'slip' declares the traffic .*bytes from 0 on"):
            iteration_cost("resnet50", "survey-10GbE", f"bsp + slip(of={of})", **options)
    finally:
        del COMPRESSORS["slip"]


def test_a_compressor_may_be_registered_anew(rounded):
    ddlnb.register_compressor(Rounded)
    assert COMPRESSORS["rounded"] is Rounded


@dataclass(frozen=True)
class Damped(BulkSynchronousParallel):
    """BSP whose average gradients are multiplied by ``factor``."""

    factor: float = 0.5

    name = "damped"

    def loop(self, worker: Worker) -> Flow:
        while True:
            gradient = yield NextGradient()
            average = yield from worker.averaged(gradient)
            worker.apply(self.factor * average)
            yield StepDone()


@pytest.fixture
def damped() -> Iterator[None]:
    ddlnb.register_synchronisation(Damped)
    yield
    del SYNCHRONISATIONS["damped"]


def _nothing(self: Damped, worker: Worker) -> None:
    return None


def _once(self: Damped, worker: Worker) -> Flow:
    gradient = yield NextGradient()
    worker.apply(gradient)
    yield StepDone()


def _half(self: Damped, worker: Worker) -> Flow:
    gradient = yield NextGradient()
    worker.apply(gradient[::2])
    yield StepDone()


def _endless(self: Damped, worker: Worker) -> Flow:
    while True:
        worker.apply((yield NextGradient()))


def _twice(self: Damped, worker: Worker) -> Flow:
    while True:
        worker.apply((yield NextGradient()))
        yield StepDone()
        yield StepDone()


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (_endless, "_endless took 1,000 gradients and no step; yield StepDone once for each"),
        (_twice, "_twice yields StepDone without a gradient"),
        (_half, r"a loop applies torch.Size\(\[.*; give the flat gradient of"),
        (_nothing, "_nothing returned None; it has to yield"),
        (_once, "_once ended; .* `while True`"),
    ],
)
def test_a_loop_that_does_not_train_is_told_so(damped, monkeypatch, loop, said):
    monkeypatch.setattr(Damped, "loop", loop)
    with pytest.raises(InputError, match=said):
        train("digits", "damped(0.5)", workers=2, steps=4, evaluate_every=4, lr=0.1)


@pytest.mark.parametrize("is_mixed_in", [False, True])
@pytest.mark.parametrize("base", [Synchronisation, BulkSynchronousParallel])
def test_a_loop_from_outside_costs_what_it_sends_whatever_it_inherits(base, is_mixed_in):
    """It averages every second gradient: half the bytes of bsp."""

    class Loop:
        def loop(self, worker: Worker) -> Flow:
            while True:
                worker.apply((yield NextGradient()))
                yield StepDone()
                gradient = yield NextGradient()
                worker.apply((yield from worker.averaged(gradient)))
                yield StepDone()

    @dataclass(frozen=True)
    class Second(*((Loop, base) if is_mixed_in else (base,))):
        name = "second"
        architectures = ("A2A",)
        if not is_mixed_in:
            loop = Loop.loop

        def cycle(self) -> int:
            return 2

    register_synchronisation(Second)
    try:
        own, usual = (
            iteration_cost("resnet50", "survey-10GbE", method).bytes_sent
            for method in ("second", "bsp")
        )
    finally:
        del SYNCHRONISATIONS["second"]
    assert own == pytest.approx(usual / 2, rel=1e-6)


def test_a_rule_from_outside_is_played_whatever_its_loop_inherits():
    """Bulk-synchronous loops whose server waits for nobody cost what SSP does."""

    @dataclass(frozen=True)
    class Unbound(BulkSynchronousParallel):
        name = "unbound"

        def rule(self, workers: int) -> Rule:
            return BoundedStaleness(workers, 3)

    register_synchronisation(Unbound)
    try:
        own, ssp, together, bsp = (
            iteration_cost("resnet50", "survey-10GbE", one)
            for one in ("unbound on PS", "ssp(3)", "unbound on A2A", "bsp on A2A")
        )
    finally:
        del SYNCHRONISATIONS["unbound"]
    assert own.method == "unbound on PS"
    assert together.iteration_seconds == pytest.approx(bsp.iteration_seconds)  # without a server
    assert own.iteration_seconds == pytest.approx(ssp.iteration_seconds)


def test_a_synchronisation_from_outside_trains_and_is_in_the_taxonomy(damped):
    options = {"workers": 2, "steps": 4, "evaluate_every": 4}
    ours = train("digits", "damped(0.5) + top-k(0.1) on PS", lr=0.2, **options)
    bsp = train("digits", "bsp + top-k(0.1) on PS", lr=0.1, **options)
    assert ours["test_loss"].tolist() == pytest.approx(bsp["test_loss"].tolist())
    leaves = [leaf.name for leaf in taxonomy()[0].leaves]
    assert "damped" in leaves
    with pytest.raises(InputError, match="inherits from Synchronisation"):
        ddlnb.register_synchronisation(Rounded)
