"""Builds an emulated network, then becomes its switch. Run as a process of its own.

    python build.py SWITCH FD

FD is of a file that holds {"ports": [[[bandwidth, arriving link], ...] of every node],
"ways": [{node: port, ...} of every node], "links": how many there are, "loses": whether any loses
packets, "text": FD of what the switch reads first, "channel": FD, "own_user": whether to make a
user namespace first}.

Every node is a network namespace without a name, held by a descriptor of this process: when the
process ends, namespaces, links and queues are gone, whatever ended it. A node has interfaces:

    net0    10.77.0.1, .2, ...   the emulated link, to a port of the switch (switch.c); with several
    net1, ...                    cables one for each, on which "ways" says what nodes are reached

Over the channel, a Unix socket, goes a JSON line that says how to enter the nodes. It imports
nothing of ddlnb.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
import threading
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, PACKET_QDISC_BYPASS = 263, 15, 23, 20
ETH_P_ALL = 3
SEGMENT_BYTES = 16_384  # of TCP's segments before the switch: large ones are coarse, small cost CPU
HOST_SHARE = 1.02  # a node's own queue lets pass a little more than the switch, which is exact
MOST_BANDWIDTH = (2**32 - 1) / HOST_SHARE  # bytes per second: such a queue counts in 32 bits

_libc = ctypes.CDLL(None, use_errno=True)


def node_address(node: int) -> str:
    return f"10.77.{(node + 1) // 256}.{(node + 1) % 256}"


def hardware_address(node: int) -> str:
    return f"02:00:00:00:{node // 256:02x}:{node % 256:02x}"


def _call(name: str, *words: int) -> None:
    if getattr(_libc, name)(*words):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _become_root() -> None:
    """Enter a user namespace in which this user may make networks."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _new_namespace() -> int:
    """Return the descriptor of a new network namespace, made by a thread of its own."""
    found: list[int | OSError] = []

    def make() -> None:
        try:
            _call("unshare", CLONE_NEWNET)
            found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _setting(name: str, value: object) -> None:
    with contextlib.suppress(OSError):  # absent or not ours: a difference in timing, not in kind
        Path("/proc/sys/net", name).write_text(str(value))


def _routes():
    from pyroute2 import IPRoute

    return IPRoute()


def _index(routes, name: str) -> int:
    return routes.link_lookup(ifname=name)[0]


def _make_switch_side(nodes: list[int], ports: list[list]) -> None:
    _setting("ipv6/conf/default/disable_ipv6", 1)
    with _routes() as routes:
        routes.link("set", index=_index(routes, "lo"), state="up")
        for node, namespace in enumerate(nodes):
            for port in range(len(ports[node])):
                peer = {"ifname": f"net{port}", "net_ns_fd": namespace}
                peer["address"] = hardware_address(node)  # the switch may deliver at any port
                name = _port_name(node, port)
                routes.link("add", ifname=name, kind="veth", peer=peer)
                routes.link("set", index=_index(routes, name), state="up")


def _make_node(node: int, bandwidths: list[float], ways: dict[str, int], loses: bool) -> None:
    """Make the addresses, neighbours and egress queues of the node this thread has entered."""
    _setting("ipv6/conf/all/disable_ipv6", 1)
    _setting("ipv4/conf/all/rp_filter", 0)  # a packet may come by another cable than the way back
    _setting("ipv4/tcp_slow_start_after_idle", 0)
    _setting("ipv4/tcp_min_tso_segs", 2)
    # With loss every packet of the wire is lost for itself, else segments travel together.
    segments = {"gso_max_segs": 1} if loses else {"gso_max_size": SEGMENT_BYTES}
    with _routes() as routes:
        routes.link("set", index=_index(routes, "lo"), state="up")
        data = [_index(routes, f"net{port}") for port in range(len(bandwidths))]
        routes.addr("add", index=data[0], address=node_address(node), prefixlen=16)
        for port, bandwidth in enumerate(bandwidths):
            _setting(f"ipv4/conf/net{port}/rp_filter", 0)
            routes.link("set", index=data[port], state="up", **segments)
            routes.tc(
                "add",
                "tbf",
                data[port],
                rate=int(bandwidth * HOST_SHARE),
                burst=max(20_000, int(bandwidth * 2e-4)),
                limit=max(200_000, int(bandwidth * 2e-2)),
            )
        for other, port in ways.items():
            address = node_address(int(other))
            if port:
                way = {"dst": f"{address}/32", "oif": data[port], "prefsrc": node_address(node)}
                routes.route("add", scope="link", **way)
            where = {"dst": address, "lladdr": hardware_address(int(other))}
            routes.neigh("add", ifindex=data[port], state=0x80, **where)  # permanent: no requests


def _port_name(node: int, port: int) -> str:
    return f"port{node}.{port}"


def _port(node: int, number: int) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    for option in (PACKET_IGNORE_OUTGOING, PACKET_QDISC_BYPASS):
        port.setsockopt(SOL_PACKET, option, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        port.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
    port.bind((_port_name(node, number), ETH_P_ALL))
    return port


def main(switch: str, request: int) -> None:
    """Build the network, report it to the owner, and become the switch."""
    with open(request) as file:
        asked = json.load(file)
    ports = asked["ports"]
    if asked["own_user"]:
        _become_root()
    _call("unshare", CLONE_NEWNET)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    nodes = [_new_namespace() for _ in ports]
    _make_switch_side(nodes, ports)
    for node, own in enumerate(ports):
        _call("setns", nodes[node], CLONE_NEWNET)
        bandwidths = [bandwidth for bandwidth, _ in own]
        _make_node(node, bandwidths, asked["ways"][node], asked["loses"])
    _call("setns", home, CLONE_NEWNET)
    words = [str(asked["text"]), str(len(nodes)), str(asked["links"])]
    sockets = []  # kept, for their descriptors
    for node, own in enumerate(ports):
        for number, (_, arriving) in enumerate(own):
            sockets.append(_port(node, number))
            words += map(str, (sockets[-1].fileno(), node, arriving))
    for descriptor in (*nodes, *(port.fileno() for port in sockets)):
        os.set_inheritable(descriptor, True)
    channel = socket.socket(fileno=asked["channel"])
    told = {"pid": os.getpid(), "nodes": nodes}
    channel.sendall(json.dumps(told).encode() + b"\n")
    with contextlib.suppress(OSError):  # only root may go before the ranks
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    os.execv(switch, [switch, *words])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
