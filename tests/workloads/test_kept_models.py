"""What is kept of models is what building and running them shows."""

import pytest

from ddlnb.errors import UnknownName
from ddlnb.files import PROFILES
from ddlnb.workloads.memory import WITH_PROFILES, footprint, kept_model, seen_on_meta
from ddlnb.workloads.models import TASKS


@pytest.mark.parametrize("name", WITH_PROFILES)
def test_a_kept_model_is_the_model(name):
    kept, seen = kept_model(name), seen_on_meta(TASKS[name])
    assert kept == seen
    assert list(kept.shapes) == list(seen.shapes)  # in this order


def test_a_kept_footprint_is_the_one_that_is_traced():
    kept = kept_model("resnet50")
    for optimizer in ("sgd", "adam"):
        assert kept.footprint(optimizer) == footprint(TASKS["resnet50"], optimizer)
    with pytest.raises(UnknownName, match="adamw"):
        kept.footprint("adamw")


def test_models_with_profiles_of_gpus_are_kept():
    found = {path.stem.partition("_b")[0] for path in PROFILES.glob("*_rtx2080ti.json")}
    assert found == set(WITH_PROFILES)
