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
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from ddlnb.errors import MissingPart
from ddlnb.launch.emulation.build import node_address
from ddlnb.launch.emulation.links import Link
from ddlnb.launch.emulation.relay import Relay

BUILD_SECONDS = 60.0
CONTROL_HOST = "10.78.0.1"
_FOLDER = Path(__file__).parent
_PRIVILEGES = (
    "an emulated network needs root, or a kernel that lets users make namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)


@dataclass(frozen=True)
class Slot:
    """The node of a rank: its network namespace, and its address there."""

    namespace: str
    address: str
    interface: str = "net0"


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
    """Nodes in namespaces of their own, joined by a switch with these links.

    The network lives in one child process; when that ends, nothing of it remains. Raises
    MissingPart, with the way out, where this machine cannot make one.
    """

    def __init__(self, links: Sequence[Link], environment: dict[str, str] | None = None):
        if lack := lacking():
            raise MissingPart(lack)
        self.links = tuple(links)
        mine, theirs = socket.socketpair()
        asked = {
            "links": [astuple(link) for link in links],
            "channel": theirs.fileno(),
            "own_user": os.geteuid() != 0,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(_FOLDER / "build.py"), str(switch_program()), json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is for the owner
        )
        theirs.close()
        mine.settimeout(BUILD_SECONDS)
        try:
            text, descriptors, _, _ = socket.recv_fds(mine, 1 << 20, 1)
            if not descriptors:
                raise MissingPart(self._why_not_built())
            told = json.loads(text)
            self._relay = Relay(socket.socket(fileno=descriptors[0]))
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

    def forward(self, port: int) -> int:
        """Return a port of CONTROL_HOST that leads from every node to this port of 127.0.0.1."""
        return self._relay.forward(port)

    def statistics(self) -> dict[str, float]:
        """Return packets and bytes carried, packets dropped (full queues) and lost (on purpose).

        ``late`` is the mean number of seconds by which packets left the switch too late, ``worst``
        the largest: what the emulation adds to the asked latency.
        """
        return self._ask("stats")

    def cut(self, node: int) -> None:
        """Lose every packet to and from a node, until it is restored."""
        self._ask(f"cut {node}")

    def restore(self, node: int) -> None:
        """Undo `cut`."""
        self._ask(f"restore {node}")

    def change(self, node: int, link: Link) -> None:
        """Give a node another link. Its own queue keeps the bandwidth it was made for."""
        self._ask(f"link {node} " + " ".join(map(str, astuple(link))))

    def _ask(self, command: str) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        answer = self._line()
        if "error" in answer:
            raise ValueError(f"the switch does not know {command!r}")
        return answer

    def _line(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MissingPart(self._why_not_built())
        return json.loads(line)

    def close(self) -> None:
        """End the switch; the namespaces go when the ranks in them do. Safe to call twice."""
        self._relay.close()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def switch_program() -> Path:
    """Return the compiled switch from the user's cache; it is compiled there on first use."""
    source = _FOLDER / "switch.c"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ddlnb")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    program = cache / f"switch-{digest}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            part = Path(folder, "switch")
            words = ["cc", "-O2", "-o", str(part), str(source)]
            compiled = subprocess.run(words, capture_output=True, text=True, check=False)
            if compiled.returncode:
                raise MissingPart(f"{' '.join(words)} failed: {compiled.stderr.strip()}")
            part.replace(program)
    return program
