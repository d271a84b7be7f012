"""What is kept of models is what building and running them shows."""

from dataclasses import replace

import pytest
import torch

from ddlnb.errors import UnknownName
from ddlnb.files import PROFILES
from ddlnb.workloads.kept_traces import kept_trace
from ddlnb.workloads.memory import WITH_PROFILES, footprint, kept_model, seen_on_meta
from ddlnb.workloads.models import TASKS
from ddlnb.workloads.tracing import trace


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", WITH_PROFILES)
def test_a_kept_model_is_the_model(name):
    kept, seen = kept_model(name), seen_on_meta(TASKS[name])
    assert replace(kept, half_bytes_per_sample=None) == seen
    half = seen_on_meta(TASKS[name], torch.bfloat16)  # counts parameters as they are built
    assert replace(kept, bytes_per_sample=kept.half_bytes_per_sample) == half
    assert list(kept.shapes) == list(seen.shapes)  # in this order


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", WITH_PROFILES)
def test_a_kept_trace_is_the_trace_at_any_batch(name):
    for samples in (2, 5, TASKS[name].local_batch):
        assert kept_trace(name, samples) == trace(name, samples)
    assert kept_trace(name) == trace(name, TASKS[name].local_batch)
    assert kept_trace(name, 1) is None  # where not all of a batch's operations are needed


def test_a_kept_footprint_is_the_one_that_is_traced():
    kept = kept_model("resnet50")
    for optimizer in ("sgd", "adam"):
        assert kept.footprint(optimizer) == footprint(TASKS["resnet50"], optimizer)
    half, whole = (kept.footprint(precision=one) for one in ("bf16", "fp32"))
    assert half == footprint(TASKS["resnet50"], precision="bf16")
    assert half.fixed == whole.fixed  # autocast keeps parameters, gradients and Adam in fp32
    assert half.per_sample == pytest.approx(whole.per_sample / 2, rel=0.05)
    with pytest.raises(UnknownName, match="adamw"):
        kept.footprint("adamw")


def test_models_with_profiles_of_gpus_are_kept():
    found = {path.stem.partition("_b")[0] for path in PROFILES.glob("*_rtx2080ti.json")}
    assert found == set(WITH_PROFILES)
