"""Networks as InfraGraph files, the format that simulators and testers of clusters share.

Needs the package ``infragraph``. An InfraGraph file has no routing, and one bandwidth for both
directions of a cable. Machines become instances of devices with GPUs (``xpu``), NICs and a host
(``cpu``); everything else becomes a switch.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any

from ddlnb.errors import MissingPart, require
from ddlnb.files import write_atomically
from ddlnb.networks.network import Device, Kind, Link, Network
from ddlnb.reading import read_text, reading, yaml_of
from ddlnb.units import BITS_PER_BYTE, GB, MS, US

CHOICES: dict[Kind, str] = {"gpu": "xpu", "nic": "nic", "host": "cpu", "switch": "switch"}
KINDS = {choice: kind for kind, choice in CHOICES.items()}
BANDWIDTHS = {"Gbps": GB / BITS_PER_BYTE, "GBps": float(GB)}
LATENCIES = {"ms": MS, "us": US, "ns": 1e-9}


def write_infragraph(network: Network, path: str | Path) -> Path:
    """Write the network as an InfraGraph file in YAML, and return the path.

    Raises InputError for a cable whose directions differ, MissingPart without the package.
    """
    return write_atomically(path, _Writer(network).text())


def read_infragraph(path: str | Path, routing: str = "ecmp") -> Network:
    """Return the network of an InfraGraph file, in YAML or JSON.

    A link without a bandwidth has no limit, one without a latency none. Ranks are numbered as the
    file lists machines and their GPUs. Raises InputError for a file that is no InfraGraph, or that
    gives a bandwidth in transfers per second, MissingPart without the package.
    """
    package = _package()
    from infragraph.infragraph_service import InfraGraphService

    with reading(f"InfraGraph file {path}"):
        infrastructure = package.Infrastructure()
        infrastructure.deserialize(yaml_of(read_text(path), path))
        service = InfraGraphService()
        service.set_graph(infrastructure)
        graph = service.get_networkx_graph()
        return _network(graph, infrastructure.name or Path(path).stem, path, routing)


def _network(graph: Any, name: str, path: str | Path, routing: str) -> Network:
    devices = _devices(graph)
    number = {name: i for i, name in enumerate(graph)}
    links = []
    for one, other, about in graph.edges(data=True):
        if one == other:
            continue
        bandwidth = _value(path, about.get("bandwidth"), BANDWIDTHS, math.inf)
        latency = _value(path, about.get("latency"), LATENCIES, 0.0)
        links.append(Link(number[one], number[other], bandwidth, latency))
        links.append(Link(number[other], number[one], bandwidth, latency))
    return Network(str(name), tuple(devices), tuple(links), routing)


def _devices(graph: Any) -> Iterator[Device]:
    """Yield a device for every node of the graph; machines are instances that hold a GPU or CPU."""
    about = dict(graph.nodes(data=True))
    place = {name: (one["instance"], one["instance_idx"]) for name, one in about.items()}
    has_cards = any(one["type"] in ("xpu", "nic") for one in about.values())
    inside = ("xpu", "nic") if has_cards else ("cpu",)  # hosts alone
    machines = dict.fromkeys(place[name] for name, one in about.items() if one["type"] in inside)
    numbers = {machine: number for number, machine in enumerate(machines)}
    for name, one in about.items():
        node = numbers.get(place[name])
        kind = KINDS.get(one["type"], "switch")
        yield Device(name, "switch" if kind == "host" and node is None else kind, node)


def _value(path: str | Path, text: str | None, units: dict[str, float], default: float) -> float:
    if text is None:
        return default
    number, _, unit = str(text).partition(" ")
    require(
        unit in units,
        f"{path}: {text!r} is in none of {', '.join(units)}; write it in one of these",
    )
    return float(number) * units[unit]


Joint = tuple[str, str, float, float]  # components at both ends, bandwidth, latency


class _Writer:
    """An Infrastructure in the making."""

    def __init__(self, network: Network):
        self._package = _package()
        self._network = network
        name = re.sub(r"[^\sa-zA-Z0-9_()<>\[\]-]", "_", network.name)  # what the format allows
        self._made = self._package.Infrastructure(name=name, description=network.about)
        self._links: dict[tuple[float, float], str] = {}
        self._where: dict[int, tuple[str, str]] = {}  # instance and component of a device

    def text(self) -> str:
        """Return the file's text."""
        devices, links = self._network.devices, self._network.links
        for one, other in zip(links[::2], links[1::2], strict=True):
            require(
                (one.bandwidth, one.latency) == (other.bandwidth, other.latency),
                f"the directions of the cable between {devices[one.start].name} and "
                f"{devices[one.end].name} differ, and an InfraGraph file has one bandwidth for "
                f"both",
            )
        inside: dict[int, list[Link]] = defaultdict(list)
        outside = []
        for link in links[::2]:
            node = devices[link.start].node
            if node is not None and node == devices[link.end].node:
                inside[node].append(link)
            else:
                outside.append(link)
        self._add_machines(inside)
        for number, device in enumerate(devices):
            if device.node is None:
                name = re.sub(r"\W", "_", device.name)
                self._add(f"{name}_device", ("switch[0]",), ())
                self._made.instances.add(name=name, device=f"{name}_device", count=1)
                self._where[number] = (f"{name}[0]", "switch[0]")
        for link in outside:
            edge = self._made.edges.add(
                scheme=self._package.InfrastructureEdge.ONE2ONE,
                link=self._link(self._made, link.bandwidth, link.latency),
            )
            for end, at in ((edge.ep1, link.start), (edge.ep2, link.end)):
                end.instance, end.component = self._where[at]
        return str(self._made.serialize(encoding=self._package.Infrastructure.YAML))

    def _add_machines(self, inside: Mapping[int, Sequence[Link]]) -> None:
        """Add a device for every kind of machine, and an instance for each run of equal ones."""
        parts: dict[int, dict[int, str]] = defaultdict(dict)  # components of the devices, by node
        numbers: dict[tuple[int, str], count[int]] = defaultdict(count)
        for number, device in enumerate(self._network.devices):
            if device.node is not None:
                choice = CHOICES[device.kind]
                parts[device.node][number] = f"{choice}[{next(numbers[device.node, choice])}]"

        def kind(node: int) -> tuple[tuple[str, ...], tuple[Joint, ...]]:
            named = parts[node]
            return tuple(named.values()), tuple(
                (named[link.start], named[link.end], link.bandwidth, link.latency)
                for link in inside.get(node, ())
            )

        for (components, joints), alike in groupby(sorted(parts), kind):
            nodes = list(alike)
            name = f"node{nodes[0]}"
            self._add(name, components, joints)
            self._made.instances.add(name=name, device=name, count=len(nodes))
            for index, node in enumerate(nodes):
                for number, component in parts[node].items():
                    self._where[number] = (f"{name}[{index}]", component)

    def _add(self, name: str, components: Sequence[str], joints: Sequence[Joint]) -> None:
        """Add a device; the format wants a link and an edge of every one."""
        device = self._package.Device(name=name)
        for choice, number in Counter(part.partition("[")[0] for part in components).items():
            device.components.add(name=choice, count=number).choice = choice
        edges = [(one, other, self._link(device, *link)) for one, other, *link in joints]
        if not edges:
            device.links.add(name="none")
            edges = [(components[0], components[0], "none")]
        for one, other, link in edges:
            edge = device.edges.add(scheme=self._package.DeviceEdge.ONE2ONE, link=link)
            edge.ep1.component, edge.ep2.component = one, other
        self._made.devices.append(device)

    def _link(self, owner: Any, bandwidth: float, latency: float) -> str:
        """Return the name of a link of these properties; it is added where the owner lacks it."""
        name = self._links.setdefault((bandwidth, latency), f"link{len(self._links)}")
        if name not in {known.name for known in owner.links}:
            made = owner.links.add(name=name)
            if math.isfinite(bandwidth):
                made.physical.bandwidth.gigabytes_per_second = bandwidth / GB
            if latency:
                made.physical.latency.us = latency / US
        return name


def _package() -> Any:
    try:
        import infragraph
    except ImportError:
        raise MissingPart(
            "InfraGraph files need the package infragraph: pip install infragraph"
        ) from None
    return infragraph
