"""Where ranks run: on this machine, on named hosts, in a queue, or on an emulated network.

An emulated network may become another one while a run is on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from pydantic import SkipValidation

from ddlnb.errors import require, require_whole
from ddlnb.launch.topology import EmulatedTopology, Link, get_link, links_of, star
from ddlnb.questions import WORDS, Asked, Whole, question
from ddlnb.registry import several, supplied

EMULATED = "emulated"  # the launcher of local processes on nodes of an emulated network
Network = str | Link | Sequence[str | Link] | EmulatedTopology


@question
class LaunchOptions:
    """A launcher, and what it has to know of machines and the network between them."""

    launcher: Annotated[str, Asked("local, emulated, mpi, slurm, ssh, or an IPython profile.")] = (
        "local"
    )
    host: Annotated[str, Asked("This machine's address for ranks on other machines.")] = "127.0.0.1"
    hosts: Annotated[
        SkipValidation[tuple[str, ...]],
        Asked(
            "A machine to start ranks on, with launcher ssh; repeatable. Names are those of "
            "~/.ssh/config, or of the file that DDLNB_SSH_CONFIG names.",
            "--on",
            WORDS,
        ),
    ] = ()
    network: Annotated[
        SkipValidation[Network | None],
        Asked(
            "What tables call the network, such as 10GbE; with launcher emulated the network to "
            "emulate, also '1Gb/s 50us', once for every node if they differ, or "
            "'two-tier(2, 2, 2) of 1Gb/s 50us': every cable of a topology.",
            kind=WORDS,
        ),
    ] = None
    scale: Annotated[float, Asked("Slows an emulated network and replayed computation: 0.01.")] = (
        1.0
    )
    ranks_per_node: Annotated[Whole, Asked("Ranks that share the link of an emulated node.")] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(self.hosts))
        if self.network is not None and not isinstance(self.network, str | Link | EmulatedTopology):
            object.__setattr__(self, "network", tuple(self.network))
        require(
            (self.launcher == "ssh") == bool(self.hosts),
            f"launcher {self.launcher!r} with hosts={self.hosts!r}: give hosts=['name', ...], or "
            f"--on NAME, with launcher 'ssh', and only with it",
        )
        require(
            0 < self.scale <= 1,
            f"scale={self.scale!r} must be above 0 and at most 1, such as 1/100",
        )
        require(
            not self.is_emulated or self.network is not None,
            f"launcher {EMULATED!r} emulates a network; give network='10GbE' or the like",
        )

    @property
    def is_emulated(self) -> bool:
        """Whether the network between the ranks is an emulated one."""
        return self.launcher == EMULATED

    @property
    def source(self) -> str:
        """What a time taken here is: "measured", or "emulated"."""
        return "emulated" if self.is_emulated else "measured"

    @property
    def network_name(self) -> str:
        """What a table calls the network between the ranks."""
        if self.network is None:
            return "loopback" if self.launcher == "local" else self.launcher
        if isinstance(self.network, EmulatedTopology):
            return self.network.name
        if isinstance(self.network, str | Link):
            return str(self.network)
        return " | ".join(map(str, self.network))

    @property
    def name(self) -> str:
        """A name for files and clusters: ``here``, or one made from the emulated network's."""
        words = ["emulated", *self.network_name.split()] if self.is_emulated else ["here"]
        return "-".join(words).replace("/", "p").replace(",", "")

    @property
    def link(self) -> Link:
        """The link of the emulated nodes, which must be the same for all."""
        require(
            self.is_emulated and isinstance(self.network, str | Link),
            f"launcher {self.launcher!r} with network={self.network!r} has no one emulated link",
        )
        return get_link(self.network)  # type: ignore[arg-type]

    def topology(self, ranks: int) -> EmulatedTopology:
        """Return the network to emulate at full speed, for so many ranks.

        Raises InputError if it has another number of hosts than the ranks need.
        """
        hosts = -(-ranks // self.ranks_per_node)
        network = self.network
        if not isinstance(network, EmulatedTopology):
            return star(links_of(network, hosts), self.network_name)  # type: ignore[arg-type]
        require(
            len(network.hosts) >= hosts,
            f"network {network.name!r} has {len(network.hosts)} hosts and {ranks} ranks need "
            f"{hosts}; take a larger one, or more ranks_per_node",
        )
        require(
            not (apart := network.why_apart()),
            f"network {network.name!r}: {apart}; cut cables while it is up",
        )
        return network


HERE = LaunchOptions()


def is_here(launcher: str, address: str) -> bool:
    """Return whether all ranks are on this machine: those of MPI, if they meet at a loopback."""
    return launcher in ("local", EMULATED) or (launcher == "mpi" and address.startswith("127."))


def emulated(network: str | Link | EmulatedTopology, scale: float = 1.0) -> LaunchOptions:
    """Return the site of an emulated network, a node for each rank, slowed to the scale.

    Raises InputError for a network that makes no sense.
    """
    if not isinstance(network, EmulatedTopology):
        get_link(network)
    return LaunchOptions(EMULATED, network=network, scale=scale)


HOW = "write the network and the iteration, such as '100Mb/s 50us from 30'"


@dataclass(frozen=True)
class NetworkChange:
    """Before ``iteration`` a network becomes ``network``: the drift that a run is to see.

    Iterations are counted from 0 and begin with the warm-up, as those of plans that take over. The
    network is one at full speed, as `LaunchOptions` takes it. Raises InputError for what makes no
    sense.

    >>> network_change("100Mb/s 50us from 30")
    NetworkChange(network='100Mb/s 50us', iteration=30)
    """

    network: Network
    iteration: int

    def __post_init__(self) -> None:
        require_whole(**{"becomes: iteration": self.iteration})

    @property
    def barrier(self) -> str:
        """What owner and ranks call the barrier between two iterations at which it happens."""
        return barrier_before(self.iteration)

    def site(self, site: LaunchOptions) -> LaunchOptions:
        """Return the site with the network that it has from that iteration on."""
        return wired(replace(site, network=self.network))

    @property
    def name(self) -> str:
        """What tables call the network that there is from then on."""
        return LaunchOptions(EMULATED, network=self.network).network_name

    @property
    def word(self) -> str:
        """The change in one word, for the column ``settings``.

        >>> network_change("100Mb/s 50us from 30").word
        '100Mb/s-50us@30'
        """
        return f"{self.name.replace(', ', ',').replace(' ', '-')}@{self.iteration}"

    def __str__(self) -> str:
        return f"{self.name} from {self.iteration}"


def network_change(asked: str | NetworkChange) -> NetworkChange:
    """Return the change that a text describes. Raises InputError."""
    if isinstance(asked, NetworkChange):
        return asked
    network, word, iteration = str(asked).rpartition(" from ")
    require(
        bool(word) and re.fullmatch(r"\s*[0-9]{1,9}\s*", iteration) is not None,
        f"becomes={asked!r} cannot be read; {HOW}",
    )
    return NetworkChange(network.strip(), int(iteration))


def network_changes(
    asked: str | NetworkChange | Iterable[str | NetworkChange],
    site: LaunchOptions,
    workers: int,
    last: int,
) -> tuple[NetworkChange, ...]:
    """Return the changes that are asked for, in the order of their iterations.

    ``last`` is how many iterations a run has. Raises InputError for those that the network of the
    site cannot undergo, or that no run would see.
    """
    found = sorted(map(network_change, several(asked)), key=lambda one: one.iteration)
    if not found:
        return ()
    require(
        site.is_emulated,
        f"becomes={str(found[0])!r} changes an emulated network; take launcher {EMULATED!r}, or "
        f"leave becomes out",
    )
    for before, after in pairwise(found):
        require(
            before.iteration < after.iteration,
            f"the network becomes {before.name!r} and {after.name!r} before iteration "
            f"{after.iteration}; give each an iteration of its own",
        )
    require(
        found[-1].iteration < last,
        f"becomes={str(found[-1])!r}: a run has iterations 0 to {last - 1}, warm-up included; take "
        f"an earlier one, or time more iterations",
    )
    ranks = _ranks(site, workers)
    made = site.topology(ranks)
    for one in found:
        made.require_can_become(one.site(site).topology(ranks))
    return tuple(found)


def wired(site: LaunchOptions) -> LaunchOptions:
    """Return the site with the network that its text describes, if that names a topology."""
    if not isinstance(site.network, str) or " of " not in site.network:
        return site
    return replace(site, network=supplied("emulated topology")(site.network))


def barrier_before(iteration: int) -> str:
    """Return what the barrier before an iteration is called.

    >>> barrier_before(30)
    'before iteration 30'
    """
    return f"before iteration {iteration}"


def _ranks(site: LaunchOptions, workers: int) -> int:
    """Return for how many ranks the network of a site is surely described."""
    if isinstance(site.network, str | Link):
        return workers
    if isinstance(site.network, EmulatedTopology):
        return len(site.network.hosts) * site.ranks_per_node
    assert site.network is not None
    return len(site.network) * site.ranks_per_node
