"""Model parallelism and data parallelism end with the parameters of one worker."""

from __future__ import annotations

import pytest
import torch

from ddlnb.errors import InputError
from ddlnb.studies.sec1_parallelism import compare_parallelism, mlp, stages_of


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stages_in_a_row_are_the_model(count):
    model = mlp()
    pixels = torch.rand(3, 256, generator=torch.Generator().manual_seed(1))
    found = pixels
    for stage in stages_of(model, count):
        found = stage(found)
    assert torch.equal(found, model(pixels))


@pytest.mark.item("A04", how="measured")
@pytest.mark.ranks
def test_both_ways_of_sharing_train_what_one_worker_trains():
    rows = compare_parallelism(workers=2, batch=64, steps=4)
    assert (rows["difference"] <= 1e-5).all()
    assert (rows["last_loss"] < rows["first_loss"]).all()
    assert rows.loc["model parallelism", "parameters"] < rows.loc["one worker", "parameters"]
    assert rows["samples"].tolist() == [64, 64, 32]
    assert rows.loc["one worker", "bytes_sent"] == 0


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(InputError, match="workers 5 must be 2 to 4"):
        compare_parallelism(workers=5)
    with pytest.raises(InputError, match="batch 63 must divide evenly among 2 workers"):
        compare_parallelism(batch=63)
