"""A results file that somebody measures into is refused to others, and says who it is."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

import ddlnb
from ddlnb.errors import ResultsError
from ddlnb.files import held, lock_path

HOLDING = """
import sys, time
from ddlnb.files import held
with held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that measures into rows.csv."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path / "rows.csv")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_measurement_is_told_who_holds_the_file(tmp_path, holder):
    said = rf"rows\.csv is being written by process {holder.pid} on {socket.gethostname()} since 2"
    with pytest.raises(ResultsError, match=said):
        ddlnb.measure("small-conv", "MG-WFBP", out=tmp_path / "rows.csv")
    with pytest.raises(ResultsError, match=said):
        ddlnb.measure_scaling("small-conv", "MG-WFBP", out=tmp_path / "rows.csv")
    assert not (tmp_path / "rows.csv").exists()
    with held(tmp_path / "others.csv"):
        pass


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_dead_process_held_is_taken_over(tmp_path, holder, end):
    holder.send_signal(end)
    holder.wait()
    assert lock_path(tmp_path / "rows.csv").exists()  # nobody was left to remove it
    with held(tmp_path / "rows.csv"):
        assert f"process {os.getpid()} " in lock_path(tmp_path / "rows.csv").read_text()


def test_a_lock_leaves_nothing_behind_and_can_be_taken_again(tmp_path):
    for _ in range(2):
        with held(tmp_path / "rows.csv"):
            pass
    with pytest.raises(ZeroDivisionError), held(tmp_path / "rows.csv"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with held(None):
        pass


def test_of_many_that_come_at_once_one_at_a_time_is_in(tmp_path):
    inside, most, refused = [], [], []

    def come() -> None:
        for _ in range(200):
            try:
                with held(tmp_path / "rows.csv"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except ResultsError:
                refused.append(1)

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) + len(refused) == 800


def test_a_file_system_without_locks_is_told(monkeypatch, tmp_path):
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.warns(UserWarning, match="start no second measurement into rows.csv"),
        held(tmp_path / "rows.csv"),
    ):
        pass
