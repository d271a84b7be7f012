"""The survey's one-sentence description of a method, from its choice in each of the six aspects."""

from __future__ import annotations

# How names of the catalogue are spelt in the literature; the others are spelt as they are.
SPOKEN = {
    "local": "local SGD",
    "post-local": "post-local SGD",
    "adaptive-local": "adaptive local SGD",
    "choco": "CHOCO-SGD",
}
IN_CAPITALS = ("bsp", "ssp", "dssp", "asp", "r2sp", "d-psgd", "dcd-psgd", "ecd-psgd")
TOPOLOGY = {"PS": "a star", "A2A": "a ring"}


def spoken(synchronisation: str) -> str:
    """Return the name of a synchronisation as it is said.

    >>> spoken("ssp"), spoken("local"), spoken("new-one")
    ('SSP', 'local SGD', 'new-one')
    """
    if synchronisation.casefold() in IN_CAPITALS:
        return synchronisation.upper()
    return SPOKEN.get(synchronisation, synchronisation)


def sentence(
    synchronisation: str,
    compression: str | None,
    scheduling: str | None,
    architecture: str,
    protocol: str = "TCP/IP",
    topology: str | None = None,
) -> str:
    """Section 3 of the survey in one sentence. A server makes a star, all others make a ring.

    >>> sentence("SSP", "top-k compression", None, "PS")
    'it exploits SSP with top-k compression and no scheduling, running on PS built on TCP/IP and a star'
    """  # noqa: E501
    topology = topology or TOPOLOGY.get(architecture, "a ring")
    return (
        f"it exploits {spoken(synchronisation)} with {compression or 'no compression'} "
        f"and {scheduling or 'no scheduling'}, running on {architecture} "
        f"built on {protocol} and {topology}"
    )
