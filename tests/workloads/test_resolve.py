"""What a user may call a model, as one types it, and one error for each way to get it wrong."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import cloudpickle
import pytest
from torch import nn

from ddlnb.errors import DdlnbError, ModelError
from ddlnb.workloads.resolve import resolve, run_file
from ddlnb.workloads.task import Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload, read_profile

MINE = """
import torch
import ddlnb
from beside import WIDTH

def draw(count, seed):
    return (torch.randn(count, WIDTH),)

def loss(module, batch):
    return module(batch[0]).square().mean()

task = ddlnb.task(torch.nn.Linear(WIDTH, 2), batch=draw, loss=loss, name="mine", local_batch=8)
module = torch.nn.Linear(WIDTH, 2)
words = "hello"

def made():
    return task

def wordy():
    return words

def broken():
    raise KeyError("lost")

def ends():
    raise SystemExit("no data")

def takes(width):
    return task

def wrong():
    return ddlnb.task(torch.nn.Linear(WIDTH + 1, 2), batch=draw, loss=loss, name="wrong")
"""
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}

WHISPER = "WhisperForConditionalGeneration"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return an empty working folder with my.py and what it imports."""
    (tmp_path / "my.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("WIDTH = 5\n")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    (tmp_path / "ending.py").write_text("raise SystemExit(2)  # as argparse does\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my", "beside", "ending"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["my.py:task", "my.py:made", "my:task", "my:made"])
def test_a_task_in_a_file_or_a_module_is_found_by_its_name(here, name):
    workload = trace(resolve(name), 4)
    assert (workload.model, workload.parameters) == ("mine", 12)


BESIDE = "from layers import WIDTH\n"


def test_a_file_takes_the_modules_beside_it_as_they_are(here):
    """Of its own folder, though another file has imported one of the same name; and edited ones."""
    for folder, width in (("one", 3), ("two", 5)):
        (here / folder).mkdir()
        (here / folder / "my.py").write_text(BESIDE)
        (here / folder / "layers.py").write_text(f"WIDTH = {width}\n")

    def width(folder: str) -> int:
        return run_file(here / folder / "my.py").WIDTH

    assert (width("one"), width("two"), width("one")) == (3, 5, 3)
    module = run_file(here / "one" / "my.py")
    assert run_file(here / "one" / "my.py") is module
    (here / "one" / "layers.py").write_text("WIDTH = 4096\n")
    assert width("one") == 4096
    (here / "one" / "your.py").write_text(BESIDE)
    (here / "one" / "layers.py").write_text("WIDTH = 77\n")
    assert run_file(here / "one" / "your.py").WIDTH == 77  # edited since my.py took it
    (here / "one" / "layers.py").write_text("WIDTH = 8\nraise ValueError('half edited')\n")
    with pytest.raises(ModelError, match="half edited"):
        width("one")
    (here / "one" / "layers.py").write_text("WIDTH = 88\n")
    assert width("one") == 88
    whole = (here / "one" / "my.py").read_text()
    (here / "one" / "my.py").write_text(whole + "1 / 0\n")
    for _ in range(2):  # a file that failed is no module
        with pytest.raises(ModelError, match="ZeroDivisionError"):
            run_file(here / "one" / "my.py")


def test_a_file_takes_the_package_beside_it_as_it_is(here):
    for folder, width in (("one", 3), ("two", 5)):
        (here / folder / "pkg").mkdir(parents=True)
        (here / folder / "pkg" / "__init__.py").write_text("")
        (here / folder / "pkg" / "layers.py").write_text(f"WIDTH = {width}\n")
        (here / folder / "my.py").write_text("from pkg.layers import WIDTH\n")
    found = [run_file(here / folder / "my.py").WIDTH for folder in ("one", "two")]
    (here / "two" / "pkg" / "layers.py").write_text("WIDTH = 222\n")
    assert [*found, run_file(here / "two" / "my.py").WIDTH] == [3, 5, 222]


def test_a_file_has_the_same_name_in_every_process(here):
    """Kept runs know classes by the names of their modules."""
    (here / "own.py").write_text("VALUE = 1\n")
    text = (
        "from pathlib import Path; from ddlnb.workloads.resolve import run_file; "
        "print(run_file(Path('own.py')).__name__)"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(names) == 1


def test_a_file_is_found_by_its_path(here):
    assert resolve(f"{here}/my.py:task").local_batch == 8


@pytest.mark.parametrize("name", ["my.py:task", "my:task"])
def test_a_task_of_a_file_travels_to_a_process_that_does_not_have_it(here, name):
    packed = cloudpickle.dumps(resolve(name))
    code = f"import cloudpickle; print(cloudpickle.loads({packed!r}).batch(3, 0)[0].shape)"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout == "torch.Size([3, 5])\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my.py", "names a file and nothing in it; give a task as FILE.py:NAME"),
        ("other.py:task", "file 'other.py' does not exist"),
        ("other.module:task", "module 'other.module' cannot be imported"),
        ("my.py:tusk", r"unknown name in my.py 'tusk'; .*did you mean 'task'"),
        ("my.py:wordy", "'my.py:wordy' gives 'hello': it is neither a task nor"),
        ("my.py:words", "'my.py:words' gives 'hello'"),
        ("my.py:module", "Linear comes without data; wrap it with"),
        ("my.py:broken", r"broken\(\) raised KeyError: 'lost'"),
        ("my.py:takes", r"takes\(\) raised TypeError: .*called without arguments"),
        ("failing.py:task", "'failing.py' cannot be run: ZeroDivisionError"),
        ("ending.py:task", r"'ending.py' ended Python \(2\) before a task was made; put"),
        ("ending:task", r"module 'ending' ended Python \(2\)"),
        ("my.py:ends", r"ends\(\) ended Python \(no data\)"),
        ("missing.json", "file 'missing.json' does not exist"),
        ("resnet5O", "did you mean 'resnet50'"),
        (None, "unknown model None: it is neither a task nor"),
        (7, "unknown model 7: it is neither"),
        (nn.Linear(2, 2), "Linear comes without data"),
    ],
)
def test_a_name_that_is_none_gets_one_error(here, name, said):
    with pytest.raises(DdlnbError, match=said) as raised:
        resolve(name)
    assert "\n" not in str(raised.value)


def test_a_task_that_does_not_run_says_why(here):
    with pytest.raises(DdlnbError, match=r"'wrong' does not run on a batch of 2: RuntimeError"):
        trace(resolve("my.py:wrong"), 2)


def test_a_profile_is_found_by_name_and_by_file(here):
    kept = read_profile("small-conv_b64_cpu-1thread")
    assert resolve("small-conv_b64_cpu-1thread") == kept
    (here / "mine.json").write_text(replace(kept, model="mine").to_json())
    found = resolve("mine.json")
    assert isinstance(found, Workload)
    assert found.model == "mine"
    with pytest.raises(DdlnbError, match="leave out the sequence"):
        resolve("mine.json", sequence=8)


def written(folder, **changes):
    """Write a config.json with these changes, and return its path."""
    fields = {name: value for name, value in {**BERT, **changes}.items() if value is not None}
    path = folder / "tiny" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fields))
    return path


def test_a_configuration_is_a_task_from_its_file_or_folder(here):
    path = written(here)
    task = resolve(str(path))
    assert isinstance(task, Task)
    assert task.name == "tiny"
    by_hand = 100 * 32 + 512 * 32 + 2 * 32 + 2 * 32  # embeddings and their normalisation
    by_hand += 2 * (4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32)  # layers
    by_hand += 32 * 32 + 32 + 2 * 32 + 100  # the head, whose matrix is the embedding's
    assert trace(task).parameters == by_hand
    assert trace(resolve("tiny")).structure == trace(task).structure


def test_a_configuration_takes_another_sequence(here):
    short = trace(resolve(str(written(here)), sequence=16))
    assert short.flops < trace(resolve("tiny", sequence=32)).flops


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "berd"}, r"'berd' is none that .* \(did you mean 'bert'"),
        ({"model_type": None}, "has no model_type"),
        ({"architectures": ["BertForNothing"]}, "architecture 'BertForNothing' is none"),
        ({"model_type": "whisper", "architectures": [WHISPER]}, "takes input_features"),
        ({"hidden_size": "many"}, r"a configuration of bert, .*'hidden_size'.*many.*; correct it"),
    ],
)
def test_a_configuration_that_is_none_gets_one_error(here, changes, said):
    path = written(here, **changes)
    with pytest.raises(DdlnbError, match=said) as raised:
        resolve(str(path))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_json_gets_one_error(here):
    (here / "bad.json").write_text("{")
    with pytest.raises(DdlnbError, match=r"bad.json is not JSON"):
        resolve("bad.json")


def test_an_architecture_has_the_sizes_of_transformers():
    assert trace(resolve("GPT2LMHeadModel")).parameters == 124_439_808
    assert resolve("gpt2").about != resolve("GPT2LMHeadModel").about  # ours, and theirs


def test_a_module_of_transformers_needs_no_data():
    import transformers

    small = transformers.BertConfig(**{k: v for k, v in BERT.items() if k != "architectures"})
    workload = trace(resolve(transformers.BertForMaskedLM(small)))
    assert workload.source == "traced on the meta device"


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
import ddlnb
from ddlnb.workloads.memory import kept_model
from ddlnb.workloads.resolve import resolve
print(resolve("resnet50_b64_rtx2080ti").local_batch, kept_model("resnet50").frozen_bytes)
"""


def test_profiles_and_kept_models_are_there_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert done.stdout.split() == ["64", "0"], done.stderr
