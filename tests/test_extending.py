"""What a user registers from outside the package works wherever the package names its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import ddlnb
from ddlnb.cli.app import app
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.base import Codec, Memory, Round, as_bytes
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.literature import QUANTISATION
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.studies.fig2_taxonomy import combinations, taxonomy
from ddlnb.training.cost.iteration import lossy_cost
from ddlnb.training.method import training_method
from ddlnb.training.runs.train import train
from ddlnb.workloads.workload import read_profile


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


def test_a_compressor_from_outside_has_a_cost(rounded):
    workload, cluster = read_profile("resnet50_b64_rtx2080ti"), get_cluster("survey-10GbE", 8)
    for method in ("bsp + rounded", "bsp + rounded on PS", "choco + rounded"):
        cost = lossy_cost(workload, cluster, method, "free")
        assert cost.bytes_sent > 0
        assert cost.iteration_seconds > 0


@pytest.mark.parametrize("method", [METHOD, f"{METHOD} on PS", "choco(gamma=0.5) + rounded"])
def test_a_compressor_from_outside_learns(rounded, method):
    curve = train("digits", method, workers=2, steps=20, evaluate_every=20)
    assert curve["test_loss"].iloc[-1] < curve["test_loss"].iloc[0]


@pytest.mark.ranks
def test_a_compressor_from_outside_trains_on_real_ranks(rounded, four_ranks):
    options = {"workers": 2, "steps": 5, "evaluate_every": 5}
    real = train("digits", METHOD, executor="distributed", ranks=four_ranks, **options)
    lockstep = train("digits", METHOD, **options)
    assert real["test_loss"].tolist() == pytest.approx(lockstep["test_loss"].tolist(), rel=1e-4)


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
        (Impostor, "has the name 'top-k' of TopK"),
    ],
)
def test_a_compressor_that_cannot_be_registered_is_refused_with_the_reason(kind, reason):
    known = dict(COMPRESSORS)
    with pytest.raises(InputError, match=reason):
        ddlnb.register_compressor(kind)
    assert known == COMPRESSORS


def test_a_compressor_may_be_registered_anew(rounded):
    ddlnb.register_compressor(Rounded)
    assert COMPRESSORS["rounded"] is Rounded
