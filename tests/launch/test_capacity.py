"""Ranks that cannot fit on this machine are refused before any starts."""

import time
from types import SimpleNamespace

import psutil
import pytest

from ddlnb.engines.measure import measure
from ddlnb.errors import InputError
from ddlnb.launch import capacity
from ddlnb.launch.capacity import RANK_BYTES, most_ranks, require_room
from ddlnb.launch.ranks import Ranks

SAYS = r"100,00\d ranks do not fit .* GB of free memory and \d+ cores it has room for \d+ .*'ssh'"


@pytest.fixture
def room_for_ten(monkeypatch):
    memory = SimpleNamespace(available=10 * RANK_BYTES + 5)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_a_hundred_thousand_workers_are_refused_and_nothing_starts():
    before, start = len(psutil.pids()), time.monotonic()
    with pytest.raises(InputError, match=SAYS) as caught:
        measure("small-conv", "BSP-PS", workers=100_000)
    assert "\n" not in str(caught.value)
    assert len(psutil.pids()) < before + 10
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "options", [{}, {"launcher": "emulated", "network": "10GbE"}], ids=["local", "emulated"]
)
def test_ranks_of_every_kind_are_refused(options, monkeypatch):
    monkeypatch.setattr("ddlnb.launch.ranks.check_launcher", lambda name: None)
    with pytest.raises(InputError, match=SAYS):
        Ranks(100_000, **options)


@pytest.mark.parametrize(
    ("launcher", "address", "refused"),
    [
        ("local", "127.0.0.1", True),
        ("mpi", "127.0.0.1", True),
        ("mpi", "10.0.0.1", False),
        ("slurm", "10.0.0.1", False),
        ("ssh", "127.0.0.1", False),
    ],
)
def test_memory_is_the_limit_of_launchers_that_start_ranks_here(
    launcher, address, refused, room_for_ten
):
    assert most_ranks() == 10
    require_room(10, launcher, address)
    if refused:
        with pytest.raises(InputError, match="has room for 10 at about"):
            require_room(11, launcher, address)
    else:
        require_room(11, launcher, address)


def test_so_are_the_limits_on_threads_and_the_memory_of_a_container(monkeypatch, tmp_path):
    for name, value in (("pids.max", 75), ("pids.current", 5), ("memory.max", 3 * RANK_BYTES)):
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(capacity, "_CGROUP", tmp_path)
    assert most_ranks() == 7
    (tmp_path / "memory.stat").write_text("anon 0\nfile 4096000\n")
    assert most_ranks() == 3
