"""A plain training script under torchrun, with DistributedModel in place of torch's DDP."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ddlnb.engines.distributed_model import DistributedModel, _plans_of
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import get_method
from ddlnb.plans.plan_file import write_plan
from ddlnb.workloads.workload import read_profile
from tests.asked import asked
from tests.engines.plain_script import STEPS, planned

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]
METHODS = "BSP-A2A", "WFBP-A2A", "MG-WFBP", "ByteScheduler-A2A", "DeAR", "searched"
SECONDS = 300


def torchrun(ranks, *words, cwd=ROOT):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, f"--nproc-per-node={ranks}", *map(str, words)],
        cwd=cwd, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory, request):
    """Return the lines of rank 0 of a script that trains by methods, and by a kept plan."""
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    write_plan(planned("ByteScheduler-A2A"), file)
    names = [name for name in asked(request, "name") if name in METHODS]
    names = dict.fromkeys(["WFBP-A2A", *names])
    found = torchrun(4, "-m", "tests.engines.plain_script", *names, file)
    assert found.returncode == 0, found.stderr
    rows = [line.split() for line in found.stdout.splitlines() if line.startswith("by ")]
    return {Path(name).name: (far, same, count) for _, name, far, same, count in rows}


@pytest.mark.thorough(but=("BSP-A2A", "searched", "plan.json"))
@pytest.mark.parametrize("name", [*METHODS, "plan.json"])
def test_ranks_end_with_the_same_bits_and_where_ddp_ends(said, name):
    far, same, messages = said[name]
    assert same == "True"
    assert float(far) < 1e-5
    assert int(messages) >= 1


def test_a_plan_of_small_messages_is_executed_as_it_is_kept(said):
    assert int(said["plan.json"][2]) == len(planned("ByteScheduler-A2A").messages)
    assert int(said["plan.json"][2]) > int(said["WFBP-A2A"][2])


@pytest.mark.parametrize("name", ["accumulated", "clipped", "scheduled"])
def test_accumulation_clipping_and_schedules_of_rates_are_those_of_ddp(said, name):
    far, same, _ = said[name]
    assert same == "True"
    assert float(far) < 1e-5


@pytest.mark.thorough
def test_the_script_of_the_page_runs_as_it_stands(tmp_path):
    page = (ROOT / "docs" / "train_with_it.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "train.py").write_text(script)
    found = torchrun(2, "train.py", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert sorted(re.findall(r"rank (\d): \d", found.stdout)) == ["0", "1"]  # lines may meet


@pytest.mark.thorough
def test_ranks_with_different_plans_all_say_so(tmp_path):
    found = torchrun(2, "-m", "tests.engines.plain_script", "other on rank 1")
    assert found.returncode != 0
    assert "ranks have different plans" in found.stderr


def test_beside_a_searched_plan_those_of_methods_are_tried_whole_and_in_halves():
    settings = MeasurementSettings(workers=4)
    workload = read_profile("small-conv_b64_cpu-1thread")
    plans = _plans_of(get_method("searched"), workload, AlphaBeta(1e-3, 1e-9), settings)
    tried = {plan.method: plan for plan in plans}
    assert {"searched", "DDP", "DDP in halves", "MG-WFBP", "MG-WFBP in halves"} == set(tried)
    for name in ("DDP", "MG-WFBP"):
        whole, halves = tried[name], tried[f"{name} in halves"]
        assert halves.messages == whole.messages
        assert halves.is_split
        assert not whole.is_split
    [alone] = _plans_of(get_method("MG-WFBP"), workload, AlphaBeta(1e-3, 1e-9), settings)
    assert alone.messages == tried["MG-WFBP"].messages


def test_without_a_process_group_it_says_what_is_missing():
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(InputError, match="torchrun"):
        DistributedModel(module, optimizer, "MG-WFBP")


def test_the_script_takes_enough_steps_for_momentum_to_matter():
    assert STEPS >= 5
