"""Arithmetic without values gives what torch's meta device gives."""

from __future__ import annotations

import pytest
import torch

from ddlnb.training.executors.dry_run import size_only

LEFT = torch.empty(6, device="meta")
OTHERS = {
    "a tensor": torch.empty(6, device="meta"),
    "a number": 3,
    "one that broadcasts": torch.empty(2, 6, device="meta"),
    "another type": torch.empty(6, dtype=torch.float64, device="meta"),
}
OPERATIONS = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "b - a": lambda a, b: b - a,
    "b * a": lambda a, b: b * a,
    "a / b": lambda a, b: a / b,
    "add": lambda a, b: torch.add(a, b),
    "clone": lambda a, b: a.clone(),
    "cat": lambda a, b: torch.cat([a, a]),
    "view": lambda a, b: a.view(2, 3),
    "split": lambda a, b: a.split([2, 4])[1],
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_result_has_the_size_and_the_type_that_torch_says(operation, other):
    expected = OPERATIONS[operation](LEFT, OTHERS[other])
    found = OPERATIONS[operation](size_only(LEFT), OTHERS[other])
    assert (found.shape, found.dtype, found.nbytes) == (
        expected.shape,
        expected.dtype,
        expected.nbytes,
    )


def test_an_operand_stands_for_sums_and_quotients_of_one_size():
    tensor = size_only(LEFT)
    assert tensor + tensor / 2 - 1 is tensor
