"""Routes that share what is known of other routes are those that are found from scratch."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from ddlnb.networks.network import Device, Link, Network
from ddlnb.networks.routes import NoRoute, _Router, _split_among_many, route
from tests.networks.random_traffic import networks


@given(networks())
@settings(max_examples=25)
def test_split_routes_are_the_same_without_shortcuts(network):
    router = _Router(replace(network, routing="ecmp"))
    for source in network.endpoints:
        for target in network.endpoints:
            found = router.between(source, target)
            whole = _split_among_many(router, source, target)
            shares = dict(zip(whole.links, whole.shares, strict=True))
            assert dict(zip(found.links, found.shares, strict=True)) == shares
            assert found.latency == pytest.approx(whole.latency)


@pytest.mark.parametrize("pair", [(0, 2), (2, 0), (1, 2)])
def test_hosts_apart_are_named_also_where_one_cable_leads_away(pair):
    devices = tuple(Device(f"host{i}", "host", i) for i in range(3))
    torn = Network("torn", devices, (Link(0, 1, 1e9), Link(1, 0, 1e9)))
    with pytest.raises(NoRoute, match=f"^host{pair[0]} and host{pair[1]} have lost each other"):
        route(torn, *pair)
