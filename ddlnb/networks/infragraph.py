"""Networks as InfraGraph files, the format that simulators and testers of clusters share.

Needs the package ``infragraph``. An InfraGraph file has no routing, and one bandwidth for both
directions of a cable. Machines become instances of devices with GPUs (``xpu``), NICs and a host
(``cpu``); everything else becomes a switch.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddlnb.errors import InputError, MissingPart, require
from ddlnb.files import write_atomically
from ddlnb.networks.network import Device, Kind, Link, Network
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

    try:
        infrastructure = package.Infrastructure()
        infrastructure.deserialize(Path(path).read_text())
        service = InfraGraphService()
        service.set_graph(infrastructure)
        graph = service.get_networkx_graph()
    except OSError:
        raise
    except Exception as error:  # of many classes, of YAML, of its checks and of its service
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise InputError(f"{path} cannot be read as an InfraGraph file: {reason[0]}") from error
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
    name = str(infrastructure.name or Path(path).stem)
    return Network(name, tuple(devices), tuple(links), routing)


def _devices(graph: Any) -> Iterator[Device]:
    """Yield a device for every node of the graph; machines are instances that hold a GPU or CPU."""
    machines: dict[tuple[str, int], int] = {}
    for _, about in graph.nodes(data=True):
        if about["type"] in ("xpu", "nic"):
            machines.setdefault((about["instance"], about["instance_idx"]), len(machines))
    if not machines:  # hosts alone
        for _, about in graph.nodes(data=True):
            if about["type"] == "cpu":
                machines.setdefault((about["instance"], about["instance_idx"]), len(machines))
    for name, about in graph.nodes(data=True):
        node = machines.get((about["instance"], about["instance_idx"]))
        kind = KINDS.get(about["type"], "switch")
        yield Device(name, "switch" if kind == "host" and node is None else kind, node)


def _value(path: str | Path, text: str | None, units: dict[str, float], default: float) -> float:
    if text is None:
        return default
    number, _, unit = str(text).partition(" ")
    if unit not in units:
        raise InputError(
            f"{path}: {text!r} is in none of {', '.join(units)}; write it in one of these"
        )
    return float(number) * units[unit]


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
        for one, other in zip(self._network.links[::2], self._network.links[1::2], strict=True):
            ends = (self._network.devices[one.start].name, self._network.devices[one.end].name)
            require(
                (one.bandwidth, one.latency) == (other.bandwidth, other.latency),
                f"the directions of the cable between {ends[0]} and {ends[1]} differ, and an "
                f"InfraGraph file has one bandwidth for both",
            )
        self._add_machines()
        self._add_switches()
        for link in self._network.links[::2]:
            if self._is_inside(link):
                continue
            edge = self._made.edges.add(
                scheme=self._package.InfrastructureEdge.ONE2ONE,
                link=self._link(self._made, link),
            )
            for end, at in ((edge.ep1, link.start), (edge.ep2, link.end)):
                end.instance, end.component = self._where[at]
        return str(self._made.serialize(encoding=self._package.Infrastructure.YAML))

    def _is_inside(self, link: Link) -> bool:
        nodes = [self._network.devices[end].node for end in (link.start, link.end)]
        return nodes[0] is not None and nodes[0] == nodes[1]

    def _add_machines(self) -> None:
        """Add a device for every kind of machine, and an instance for each run of equal ones."""
        parts: dict[int, list[int]] = defaultdict(list)
        for number, device in enumerate(self._network.devices):
            if device.node is not None:
                parts[device.node].append(number)
        inside: dict[int, list[Link]] = defaultdict(list)
        for link in self._network.links[::2]:
            node = self._network.devices[link.start].node
            if self._is_inside(link) and node is not None:
                inside[node].append(link)
        before, instance = None, None
        for node in sorted(parts):
            components = self._components(parts[node])
            signature = (
                tuple(components[number] for number in parts[node]),
                tuple(
                    (components[link.start], components[link.end], link.bandwidth, link.latency)
                    for link in inside[node]
                ),
            )
            if signature != before or instance is None:
                name = f"node{node}"
                self._made.devices.append(self._machine(name, components, inside[node]))
                instance = self._made.instances.add(name=name, device=name, count=0)
                before = signature
            for number in parts[node]:
                self._where[number] = (f"{instance.name}[{instance.count}]", components[number])
            instance.count += 1

    def _components(self, parts: list[int]) -> dict[int, str]:
        """Return the component of every device of a machine, such as ``xpu[3]``."""
        counts: dict[str, int] = defaultdict(int)
        found = {}
        for number in parts:
            choice = CHOICES[self._network.devices[number].kind]
            found[number] = f"{choice}[{counts[choice]}]"
            counts[choice] += 1
        return found

    def _machine(self, name: str, components: dict[int, str], links: list[Link]) -> Any:
        device = self._package.Device(name=name)
        counts: dict[str, int] = defaultdict(int)
        for component in components.values():
            counts[component.partition("[")[0]] += 1
        for choice, count in counts.items():
            made = device.components.add(name=choice, count=count)
            made.choice = choice
        for link in links:
            edge = device.edges.add(
                scheme=self._package.DeviceEdge.ONE2ONE, link=self._link(device, link)
            )
            edge.ep1.component = components[link.start]
            edge.ep2.component = components[link.end]
        return self._complete(device)

    def _add_switches(self) -> None:
        for number, device in enumerate(self._network.devices):
            if device.node is not None:
                continue
            name = re.sub(r"\W", "_", device.name)
            made = self._package.Device(name=f"{name}_device")
            made.components.add(name="switch", count=1).choice = "switch"
            self._made.devices.append(self._complete(made))
            self._made.instances.add(name=name, device=made.name, count=1)
            self._where[number] = (f"{name}[0]", "switch[0]")

    def _complete(self, device: Any) -> Any:
        """Return the device with a link and an edge, which the format wants of every device."""
        if not len(device.edges):
            first = device.components[0].name
            device.links.add(name="none")
            edge = device.edges.add(scheme=self._package.DeviceEdge.ONE2ONE, link="none")
            edge.ep1.component = edge.ep2.component = f"{first}[0]"
        return device

    def _link(self, owner: Any, link: Link) -> str:
        """Return the name of a link of these properties; it is added where the owner lacks it."""
        key = (link.bandwidth, link.latency)
        name = self._links.setdefault(key, f"link{len(self._links)}")
        if name not in {known.name for known in owner.links}:
            made = owner.links.add(name=name)
            if math.isfinite(link.bandwidth):
                made.physical.bandwidth.gigabytes_per_second = link.bandwidth / GB
            if link.latency:
                made.physical.latency.us = link.latency / US
        return name


def _package() -> Any:
    try:
        import infragraph
    except ImportError:
        raise MissingPart(
            "InfraGraph files need the package infragraph: pip install infragraph"
        ) from None
    return infragraph
