"""The load of others is seen, ours is left out, and results say how busy the machine was."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from ddlnb.launch import capacity as module
from ddlnb.launch.capacity import BUSY, Load, LoadWatch, watched_load


def machine_of(monkeypatch, cores=2):
    """Return a made-up machine whose seconds a test sets, seen by the watch."""
    state = SimpleNamespace(clock=0.0, user=0.0, steal=0.0, ours={1: 0.0})
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: state.clock))
    monkeypatch.setattr(module, "_our_seconds", lambda: dict(state.ours))
    monkeypatch.setattr(module.psutil, "cpu_count", lambda: cores)
    monkeypatch.setattr(
        module.psutil,
        "cpu_times",
        lambda: SimpleNamespace(user=state.user, nice=0.0, system=0.0, steal=state.steal),
    )
    return state


def test_work_of_others_is_what_ours_does_not_explain(monkeypatch):
    """On two cores in ten seconds: 12 s of work, 7 of them ours, and 1 s taken by the host."""
    state = machine_of(monkeypatch)
    state.ours = {1: 100.0}
    watch = LoadWatch(0.0)
    state.clock, state.user, state.steal, state.ours = 10.0, 12.0, 1.0, {1: 103.0, 2: 4.0}
    assert watch.load == Load(0.0, during=5 / 20, stolen=1 / 20)


def test_processes_that_ended_between_two_looks_stay_ours(monkeypatch):
    state = machine_of(monkeypatch)
    watch = LoadWatch(0.0)
    state.clock, state.user, state.ours = 5.0, 8.0, {1: 0.0, 7: 8.0}
    watch.look()
    state.clock, state.user, state.ours = 10.0, 10.0, {1: 2.0}
    assert watch.load.during == 0


def test_a_watch_that_ended_stays_as_it_was(monkeypatch):
    state = machine_of(monkeypatch)
    watch = LoadWatch(0.2)
    state.clock, state.user = 10.0, 10.0
    watch.end()
    state.user = 20.0
    assert watch.load == Load(0.2, during=0.5, stolen=0.0)


BURN = "import time\nstop = time.perf_counter() + 60\nwhile time.perf_counter() < stop: pass"


def burn(seconds):
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        pass


def test_what_we_and_our_children_compute_is_not_the_load_of_others():
    """Of a busy machine others may leave us little; what they take is then more, not less."""
    with watched_load() as watch:
        child = subprocess.Popen([sys.executable, "-c", BURN])
        try:
            burn(2.0)
        finally:
            child.kill()
            child.wait()
    work = sum(watch._last.values())
    assert work > 0.2
    assert watch._last.keys() >= {child.pid}
    assert watch.load.during <= 1


@pytest.mark.parametrize(
    ("load", "busy", "said"),
    [
        (
            Load(0.0, 0.03, 0.0),
            False,
            "took 3% of the cores meanwhile, and 0% before: it was",
        ),
        (Load(0.02, 0.45, 0.0), True, "took 45% of the cores meanwhile, and 2% before: times are"),
        (Load(0.6, 0.0, 0.0), True, "and 60% before: times are those of a machine under load."),
        (Load(0.0, 0.0, 0.2), True, "the host took 20%: times are those of a machine under load."),
    ],
)
def test_a_load_says_whether_times_can_be_trusted(load, busy, said):
    assert load.is_busy is busy
    assert said in str(load)
    assert 0 < BUSY < 1


def test_more_load_widens_what_is_timed_and_no_load_does_not():
    spreads = [Load(0.0, during, 0.0).spread for during in (0.0, 0.3, 0.8, 1.0)]
    assert spreads[0] == 0
    assert spreads == sorted(spreads)
    assert Load(0.0, 0.2, 0.1).spread == pytest.approx(spreads[1])
