"""The cost of an all-reduce as ranks measure it: a + b M, and the latency that messages share."""

import pytest

from ddlnb.emulation.network import lacking
from ddlnb.engines.bench import Bench
from ddlnb.engines.probes import BURST, COST_SIZES, SMALL, cost_of
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


@pytest.mark.ranks
@pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")
def test_messages_of_our_own_connections_share_the_latency_of_a_long_link():
    settings = DEFAULTS.changed(site=emulated("1Gb/s 10ms"), topology="mesh")
    with Ranks.at(settings.site, 2) as ranks:
        cost = Bench(replayed("small-conv_b64_cpu-1thread"), ranks, settings).measured_cost(5)
    assert cost.latency_seconds > 10e-3
    assert cost.occupied_share < 0.3
