"""What an emulated network becomes while a run is on it, and before which iteration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from ddlnb.errors import require, require_whole
from ddlnb.launch.emulation.topology import Link, Wiring
from ddlnb.launch.options import EMULATED, Network, Site
from ddlnb.registry import several

HOW = "write the network and the iteration, such as '100Mb/s 50us from 30'"


@dataclass(frozen=True)
class NetworkChange:
    """Before ``iteration`` a network becomes ``network``: the drift that a run is to see.

    Iterations are counted from 0 and begin with the warm-up, as those of plans that take over. The
    network is one at full speed, as `Site` takes it. Raises InputError for what makes no sense.

    >>> network_change("100Mb/s 50us from 30")
    NetworkChange(network='100Mb/s 50us', iteration=30)
    """

    network: Network
    iteration: int

    def __post_init__(self) -> None:
        require_whole(**{"becomes: iteration": self.iteration})

    @property
    def moment(self) -> str:
        """What owner and ranks call the moment between two iterations at which it happens."""
        return moment_before(self.iteration)

    def site(self, site: Site) -> Site:
        """Return the site with the network that it has from that iteration on."""
        return wired(replace(site, network=self.network))

    @property
    def name(self) -> str:
        """What tables call the network that there is from then on."""
        return Site(EMULATED, network=self.network).network_name

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
        bool(word) and iteration.strip().isdigit(),
        f"becomes={asked!r} cannot be read; {HOW}",
    )
    return NetworkChange(network.strip(), int(iteration))


def network_changes(
    asked: str | NetworkChange | Iterable[str | NetworkChange], site: Site, workers: int, last: int
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
    made = site.wiring(ranks)
    for one in found:
        made.require_can_become(one.site(site).wiring(ranks))
    return tuple(found)


def wired(site: Site) -> Site:
    """Return the site with the network that its text describes, if that names a topology."""
    if not isinstance(site.network, str) or " of " not in site.network:
        return site
    from ddlnb.networks.emulated import wiring_of

    return replace(site, network=wiring_of(site.network))


def moment_before(iteration: int) -> str:
    """Return what the moment before an iteration is called.

    >>> moment_before(30)
    'before iteration 30'
    """
    return f"before iteration {iteration}"


def _ranks(site: Site, workers: int) -> int:
    """Return for how many ranks the network of a site is surely described."""
    if isinstance(site.network, str | Link):
        return workers
    if isinstance(site.network, Wiring):
        return len(site.network.hosts) * site.ranks_per_node
    assert site.network is not None
    return len(site.network) * site.ranks_per_node
