"""Where something is measured: processes of this machine, or nodes of a network emulated on it."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.launch.emulation.links import get_link
from ddlnb.launch.launchers import EMULATED
from ddlnb.launch.ranks import Ranks


@dataclass(frozen=True)
class Setting:
    """A network between ranks, by its name in tables; slowed to ``scale`` if it is emulated."""

    network: str = "loopback"
    emulated: bool = False
    scale: float = 1.0

    @property
    def name(self) -> str:
        """A name for files and clusters: ``here``, or one made from the network's."""
        words = ["emulated", *self.network.split()] if self.emulated else ["here"]
        return "-".join(words).replace("/", "p")

    @property
    def bandwidth(self) -> float:
        """Bytes per second of an emulated link; infinite otherwise."""
        return get_link(self.network).bandwidth if self.emulated else float("inf")

    @property
    def latency(self) -> float:
        """Seconds that an emulated link delays a message; zero otherwise."""
        return get_link(self.network).latency if self.emulated else 0.0

    def ranks(self, count: int) -> Ranks:
        """So many ranks, a node for each where the network is emulated."""
        if not self.emulated:
            return Ranks(count)
        return Ranks(count, launcher=EMULATED, network=self.network, scale=self.scale)


HERE = Setting()


def emulated(network: str, scale: float = 1.0) -> Setting:
    """The setting of an emulated network. Raises InputError for a network that makes no sense."""
    get_link(network)
    return Setting(network, True, scale)
