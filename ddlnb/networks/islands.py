"""GPUs behind the hosts of any network: an island of PCIe or NVLink in every machine."""

from __future__ import annotations

from dataclasses import replace

from ddlnb.errors import require, require_whole
from ddlnb.networks.network import Device, Link, Network


def with_islands(
    network: Network, gpus_per_node: int, bandwidth: float, latency: float = 0.0
) -> Network:
    """Return the network with this many GPUs on each host, which is the switch between them.

    ``bandwidth`` is that of a GPU's link in each direction, in bytes per second. Ranks go node by
    node. With one GPU per node the host is its GPU, and the network is returned as it is.
    Raises InputError for a network that has GPUs already.

    >>> from ddlnb.networks.topologies import Star
    >>> with_islands(Star(2).network(1.25e9), 4, bandwidth=12e9)
    Network('star(2)', ranks=8, switches=1, cables=10)
    """
    require_whole(gpus_per_node=gpus_per_node)
    hosts = [i for i, device in enumerate(network.devices) if device.kind == "host"]
    require(
        not any(device.kind == "gpu" for device in network.devices),
        f"network {network.name!r} has GPUs already; leave its islands as they are",
    )
    if gpus_per_node == 1:
        return network
    devices, links = list(network.devices), list(network.links)
    for host in hosts:
        node = network.devices[host].node
        for gpu in range(gpus_per_node):
            place = (*network.devices[host].position, gpu)
            devices.append(Device(f"gpu{node}_{gpu}", "gpu", node, place))
            one = len(devices) - 1
            links.append(Link(one, host, bandwidth, latency))
            links.append(Link(host, one, bandwidth, latency))
    return replace(network, devices=tuple(devices), links=tuple(links))
