"""The cost of an all-reduce as ranks measure it: a + b M, and the latency that messages share."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ddlnb.emulation.network import lacking
from ddlnb.engines import probes
from ddlnb.engines.bench import Bench
from ddlnb.engines.probes import BURST, COST_SIZES, FEWEST, SMALL, Probe, cost_of
from ddlnb.engines.settings import DEFAULTS
from ddlnb.errors import InputError
from ddlnb.launch.options import emulated
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.workloads.replay import replayed

LATENCY, PER_BYTE = 2e-3, 1e-9


@pytest.mark.parametrize(
    ("gap", "share"), [(LATENCY, 1.0), (LATENCY / 4, 0.25), (2 * LATENCY, 1.0), (0.0, 0.0)]
)
def test_the_occupied_share_is_what_one_more_message_adds_to_a_burst(gap, share):
    one = LATENCY + SMALL * PER_BYTE
    together = one + (BURST - 1) * (gap + SMALL * PER_BYTE)
    cost = cost_of([*(LATENCY + size * PER_BYTE for size in COST_SIZES), one, together])
    assert cost.latency_seconds == pytest.approx(LATENCY)
    assert cost.occupied_share == pytest.approx(share, abs=1e-6)


def test_a_share_is_a_share_and_every_probe_has_seconds():
    with pytest.raises(InputError, match=r"occupied_share 1.5 must be between 0 and 1"):
        AlphaBeta(LATENCY, PER_BYTE, 1.5)
    with pytest.raises(InputError, match="3 seconds for 5"):
        cost_of([1e-3, 1e-3, 1e-3])


@pytest.fixture
def alone(monkeypatch):
    """A process group of this process, whose all-reduces last as told; what was started."""
    started = []

    def start(number, request):
        started.append(request)
        return SimpleNamespace(wait=lambda: time.sleep(0.01))

    transport = SimpleNamespace(start=start, close=lambda: None)
    monkeypatch.setattr(probes, "reducing", lambda *_: transport)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield started
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("asked", "most_seconds", "least", "most"), [(9, 60.0, 9, 9), (90, 0.1, 6, 11), (90, 0.0, 5, 5)]
)
def test_a_probe_ends_after_its_repetitions_or_its_seconds(
    alone, monkeypatch, asked, most_seconds, least, most
):
    monkeypatch.setattr(probes, "MOST_SECONDS", most_seconds)
    (seconds,) = probes.timed_all_reduces(None, [Probe(4)], asked, torch.device("cpu"))
    assert seconds == pytest.approx(0.01, rel=0.5)
    assert least <= len(alone) - 1 <= most  # beside the first, which does not count
    assert len(alone) - 1 >= FEWEST


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")
def test_messages_of_our_own_connections_share_the_latency_of_a_long_link():
    settings = DEFAULTS.changed(site=emulated("1Gb/s 10ms"), topology="mesh")
    with Ranks.at(settings.site, 2) as ranks:
        cost = Bench(replayed("small-conv_b64_cpu-1thread"), ranks, settings).measured_cost(5)
    assert cost.latency_seconds > 10e-3
    assert cost.occupied_share < 0.3
