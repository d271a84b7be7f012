"""What is left when owner and reaper are killed is found and removed; what lives is not touched."""

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from ddlnb.cli import doctor
from ddlnb.cli.app import app
from ddlnb.files import OWNER as CLAIM
from ddlnb.launch import leftovers, reaper
from ddlnb.launch.ranks import Ranks
from tests.launch.owner import Owner

OWNER = """
import time
from ddlnb.launch.ranks import Ranks
ranks = Ranks(1)
print(ranks._processes.token, ranks._processes._reaper.pid, flush=True)
time.sleep(60)
"""


WORKER = """
import time
from ddlnb.survey.execution import Worker
worker = Worker()
print(worker._process.pid, flush=True)
time.sleep(60)
"""
FOLDER = """
import signal, time
from ddlnb.files import temporary_folder
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has its children ignore it
with temporary_folder() as folder:
    print(folder, "made", flush=True)
    time.sleep(60)
"""


def next_command(owner):
    """Return what the next command says on stderr."""
    words = [sys.executable, "-m", "ddlnb", "--version"]
    variables = os.environ | {"TMPDIR": str(owner.temporary)}
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stderr


def of_session(found, token):
    return [leftover for leftover in found if leftover.session == token[:12]]


@pytest.mark.ranks
def test_what_a_killed_owner_and_its_killed_reaper_leave_is_removed_by_the_next_command(tmp_path):
    owner = Owner(tmp_path, OWNER)
    token, reaper_pid = owner.process.stdout.readline().split()
    assert not of_session(leftovers.find(owner.temporary), token)
    os.kill(int(reaper_pid), signal.SIGKILL)
    owner.process.kill()
    owner.process.communicate()
    time.sleep(0.5)
    found = of_session(leftovers.find(owner.temporary), token)
    assert {leftover.kind for leftover in found} == {"process", "folder"}
    assert all(leftover.process in reaper.carriers(token) for leftover in found if leftover.process)
    said = next_command(owner)
    assert all(str(leftover) in said for leftover in found)
    assert not reaper.carriers(token)
    assert not owner.left()
    assert not of_session(leftovers.find(owner.temporary), token)


@pytest.mark.ranks
def test_a_notebook_s_worker_that_stands_still_when_its_owner_is_killed_is_removed(tmp_path):
    """It ends by itself with its owner, unless it was stopped."""
    owner = Owner(tmp_path, WORKER)
    worker = psutil.Process(int(owner.process.stdout.readline()))
    worker.suspend()
    owner.process.kill()
    owner.process.communicate()
    assert not reaper.has_ended(worker)
    assert f"process {worker.pid} " in next_command(owner)
    assert reaper.has_ended(worker)
    assert not owner.left()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_the_next_command_removes_the_folder_of_a_process_that_was_ended(tmp_path, name):
    owner = Owner(tmp_path, FOLDER)
    owner.read_until("made")
    assert not next_command(owner)
    assert owner.left()
    owner.process.send_signal(signal.Signals[name])
    owner.process.communicate()
    assert "had left: folder" in next_command(owner)
    assert not owner.left()


@pytest.mark.ranks
def test_a_living_session_is_not_touched_even_without_its_reaper():
    with Ranks(1) as ranks:
        token = ranks._processes.token
        assert not of_session(leftovers.find(), token)
        psutil.Process(ranks._processes._reaper.pid).kill()
        time.sleep(0.2)
        assert not of_session(leftovers.find(), token)
        assert ranks.run(lambda context: context.rank) == [0]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A temporary folder and one for shared memory."""
    places = tmp_path / "tmp", tmp_path / "shm"
    for context in places:
        context.mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", places[1])
    return places


def a_folder(parent: Path, owner: str | None) -> Path:
    folder = parent / "ddlnb-0123456789ab"
    folder.mkdir()
    if owner:
        (folder / CLAIM).write_text(owner)
    return folder


@pytest.mark.parametrize(
    ("owner", "is_left"), [(platform.node(), True), ("another", False), (None, False)]
)
def test_a_folder_that_another_machine_or_a_start_may_use_stays(folders, owner, is_left):
    folder = a_folder(folders[0], owner)
    found = leftovers.find(folders[0])
    assert [leftover.path for leftover in of_session(found, "0123456789ab")] == [folder] * is_left


def test_shared_memory_of_no_session_is_removed_and_that_of_others_is_not(folders):
    ours, other = folders[1] / "BytePS_ddlnb-0123456789ab_7", folders[1] / "BytePS_7"
    ours.write_bytes(b"1")
    other.write_bytes(b"1")
    found = of_session(leftovers.find(folders[0]), "0123456789ab")
    assert [str(leftover) for leftover in found] == [f"shared memory {ours}"]
    assert leftovers.remove(found) == found
    assert list(folders[1].iterdir()) == [other]


def test_the_doctor_mentions_leftovers_and_cleans_them_when_asked(folders, monkeypatch):
    folder = a_folder(folders[0], platform.node())
    find = leftovers.find
    monkeypatch.setattr(
        leftovers, "find", lambda: [one for one in find(folders[0]) if one.path == folder]
    )
    (said,) = [one for one in doctor.examine() if one.part == "no leftovers"]
    assert not said.found
    assert said.detail == "of crashed sessions: 1 folder"
    assert said.fix == "ddlnb doctor --clean"
    result = CliRunner().invoke(app, ["doctor", "--clean", "--csv"])
    assert f"removed folder {folder}" in result.output
    assert "no leftovers,yes" in result.output
    assert not folder.exists()
