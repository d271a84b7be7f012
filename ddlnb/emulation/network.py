"""An emulated network as its owner uses it: started, entered, disturbed, counted, ended."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from ddlnb.emulation.build import MOST_BANDWIDTH, node_address
from ddlnb.errors import MissingPart, require
from ddlnb.launch.rank import Slot
from ddlnb.launch.topology import EmulatedTopology, Link, Routes

BUILD_SECONDS = 60.0
_FOLDER = Path(__file__).parent
_PRIVILEGES = (
    "an emulated network needs root, or a kernel that lets users make namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)


def lacking() -> str:
    """Return what this machine visibly lacks to emulate networks; "" if nothing."""
    if not sys.platform.startswith("linux"):
        return f"emulated networks are made of Linux namespaces; this is {sys.platform}"
    if shutil.which("cc") is None:
        return "emulated networks need a C compiler for their switch: apt-get install gcc"
    try:
        import pyroute2  # noqa: F401
    except ImportError:
        return "emulated networks need the package pyroute2: pip install pyroute2"
    if os.geteuid() != 0:
        for name, wanted in (
            ("kernel/unprivileged_userns_clone", "1"),
            ("kernel/apparmor_restrict_unprivileged_userns", "0"),
        ):
            switch = Path("/proc/sys", name)
            if switch.exists() and switch.read_text().strip() != wanted:
                return _PRIVILEGES
    return ""


class EmulatedNetwork:
    """Nodes in namespaces of their own, joined by wires inside one switch process.

    The network lives in that child process; when it ends, nothing remains. ``topology`` is what it
    is made of. Raises MissingPart, with the way out, where this machine cannot make one, InputError
    for a link that is too fast.
    """

    lacking = staticmethod(lacking)

    def __init__(self, topology: EmulatedTopology, environment: dict[str, str] | None = None):
        rate = max(wire.link.bandwidth for wire in topology.wires)
        require(
            rate <= MOST_BANDWIDTH,
            f"an emulated link of {8e-9 * rate:g} Gb/s is more than Linux can shape, "
            f"{8e-9 * MOST_BANDWIDTH:.4g} Gb/s; slow the network, for example with --scale 1/100 "
            f"(scale=1/100)",
        )
        if lack := lacking():
            raise MissingPart(lack)
        self.topology = topology
        self._cut: set[int] = set()
        mine, theirs = socket.socketpair()
        lines = [_link_line(number, wire.link) for number, wire in enumerate(topology.wires)]
        description = _descriptor_of("\n".join([*lines, *_route_lines(topology.routes), ""]))
        asked = {
            "ports": [_ports(topology, node) for node in range(len(topology.hosts))],
            "ways": [_ways(topology, node) for node in range(len(topology.hosts))],
            "links": len(topology.wires),
            "loses": any(wire.link.loss for wire in topology.wires),
            "text": description,
            "channel": theirs.fileno(),
            "own_user": os.geteuid() != 0,
        }
        request = _descriptor_of(json.dumps(asked))
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_FOLDER / "build.py"), str(switch_program()), str(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=[theirs.fileno(), description, request],
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is for the owner
        )
        theirs.close()
        for descriptor in (description, request):
            os.close(descriptor)
        mine.settimeout(BUILD_SECONDS)
        try:
            if not (text := mine.recv(1 << 20)):
                raise MissingPart(self._why_not_built())
            told = json.loads(text)
            self._line()  # the switch is up
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            mine.close()
        self.pid, self.own_user = int(told["pid"]), asked["own_user"]
        self._nodes = [int(descriptor) for descriptor in told["nodes"]]

    def _why_not_built(self) -> str:
        _, said = self._process.communicate(timeout=BUILD_SECONDS)
        last = said.strip().splitlines()[-1:] or [f"status {self._process.returncode}"]
        way_out = "" if os.geteuid() == 0 else f"; {_PRIVILEGES}"
        return f"the emulated network was not built: {last[0]}{way_out}"

    @property
    def enter_user(self) -> list[str]:
        """The words in front of a command that has to enter nodes; none for root."""
        if not self.own_user:
            return []
        return ["nsenter", "--preserve-credentials", f"--user=/proc/{self.pid}/ns/user", "--"]

    def slot(self, node: int) -> Slot:
        """Return where a rank on that node is."""
        return Slot(f"/proc/{self.pid}/fd/{self._nodes[node]}", node_address(node))

    def statistics(self) -> dict[str, float]:
        """Return packets and bytes carried, packets dropped (full queues) and lost (on purpose).

        ``late`` is the mean number of seconds by which packets left the switch too late, ``worst``
        the largest: what the emulation adds to the asked latency.
        """
        return self._ask("stats")

    def carried(self) -> dict[str, int]:
        """Return the bytes that have entered every wire so far, headers and framing included."""
        return dict(zip(map(str, self.topology.wires), self._ask("carried"), strict=True))

    def cut(self, *ends: int | str) -> None:
        """Lose every packet on the cables of a node, or on the one between two named devices.

        Where others lead there, connections take the routes that are left.
        """
        self._set_cut(self._wires(*ends), True)

    def restore(self, *ends: int | str) -> None:
        """Undo `cut`."""
        self._set_cut(self._wires(*ends), False)

    def _wires(self, end: Any, *other: Any) -> tuple[int, ...]:
        return (
            self.topology.cable(end, *other)
            if other
            else self.topology.at(self.topology.hosts[end])
        )

    def _set_cut(self, wires: tuple[int, ...], cut: bool) -> None:
        for number in wires:
            self._ask(f"{'cut' if cut else 'restore'} {number}")
        self._cut = self._cut | set(wires) if cut else self._cut - set(wires)

    def change(self, node: int, link: Link) -> None:
        """Give a node of a star another link. Its own queue keeps the bandwidth it was made for."""
        half = replace(link, latency=link.latency / 2, jitter=link.jitter / 2)
        for number in self.topology.at(self.topology.hosts[node]):
            self._ask(_link_line(number, half))

    def become(self, topology: EmulatedTopology) -> None:
        """Turn into another network of the same hosts that has no cable which this one lacks.

        Wires take the links of that network, those that it does not have are cut, and routes are
        its own. The queues of the hosts keep the bandwidth they were made for, so that those of a
        slower network form in the switch. Raises InputError for what
        `EmulatedTopology.require_can_become` refuses.
        """
        self.topology.require_can_become(topology)
        old, new = (
            {str(wire): n for n, wire in enumerate(f.wires)} for f in (self.topology, topology)
        )
        number_of = {number: old[name] for name, number in new.items()}
        for name, number in old.items():
            if name in new:
                self._ask(_link_line(number, topology.wires[new[name]].link))
        self._set_cut(tuple(number_of.values()), False)
        self._set_cut(tuple(set(old.values()) - set(number_of.values())), True)
        self.route(
            {
                pair: tuple(tuple(number_of[number] for number in way) for way in ways)
                for pair, ways in topology.routes.items()
            }
        )

    def route(self, routes: Routes) -> None:
        """Lead packets along other routes over the same wires, from now on."""
        self.topology = replace(self.topology, routes=routes)
        self._ask("forget")
        for line in _route_lines(routes):
            self._ask(line)

    def why_apart(self) -> str:
        """Return a sentence on the hosts that cut cables keep from each other; "" if none."""
        return self.topology.why_apart(self._cut)

    def _ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        answer = self._line()
        if "error" in answer:
            raise ValueError(f"the switch does not know {command!r}")
        return answer

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MissingPart(self._why_not_built())
        return json.loads(line)

    def close(self) -> None:
        """End the switch; the namespaces go when the ranks in them do. Safe to call twice."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _ports(topology: EmulatedTopology, node: int) -> list[tuple[float, int]]:
    """Return the bandwidth of each cable of a node, and the wire that arrives there."""
    return [
        (topology.wires[leaving].link.bandwidth, arriving)
        for leaving, arriving in topology.ports(node)
    ]


def _ways(topology: EmulatedTopology, node: int) -> dict[int, int]:
    """Return at which of its ports a node sends to each other one."""
    port_of = {leaving: port for port, (leaving, _) in enumerate(topology.ports(node))}
    return {
        target: port_of[ways[0][0]]
        for (source, target), ways in topology.routes.items()
        if source == node and ways
    }


def _link_line(number: int, link: Link) -> str:
    return f"link {number} " + " ".join(map(str, astuple(link)))


def _route_lines(routes: Routes) -> Iterator[str]:
    for pair, ways in routes.items():
        for way in ways:
            yield " ".join(map(str, ("route", *pair, *way)))


def _descriptor_of(text: str) -> int:
    """Return the descriptor of a file in memory that holds the text."""
    descriptor = os.memfd_create("network", 0)
    with open(descriptor, "w", closefd=False) as file:
        file.write(text)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def switch_program() -> Path:
    """Return the compiled switch from the user's cache; it is compiled there on first use."""
    source = _FOLDER / "switch.c"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ddlnb")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    program = cache / f"switch-{digest}"
    if not program.exists() or not program.stat().st_size:  # a crash may leave it empty
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            part = Path(folder, "switch")
            words = ["cc", "-O2", "-o", str(part), str(source)]
            compiled = subprocess.run(words, capture_output=True, text=True, check=False)
            if compiled.returncode:
                raise MissingPart(f"{' '.join(words)} failed: {compiled.stderr.strip()}")
            with part.open("rb") as stream:
                os.fsync(stream.fileno())
            part.replace(program)
    return program
