"""Parameters: effects whose value is not known, and what clusters become when they have one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import UNITS, Effects
from ddlnb.errors import InputError, UnknownName, require

MOST_PARAMETERS = 30  # of one fit; more than that no set of observations here can tell apart
NO_EFFECT = Effects()


@dataclass(frozen=True)
class Parameter:
    """An effect to be fitted, what it belongs to, and what is known of it beforehand.

    ``of`` are names of networks, clusters or models; a parameter that names one beats one that
    names none. ``low`` and ``high`` are bounds from physics. The prior is log-normal around
    ``prior``, by default the geometric mean of the bounds; ``prior_spread`` is the standard
    deviation of its logarithm, None for a flat one.

    >>> Parameter("between_latency", ("10GbE",), low=1e-5, high=1e-3).name
    'between_latency@10GbE'
    """

    effect: str
    of: tuple[str, ...] = ()
    low: float = field(kw_only=True)
    high: float = field(kw_only=True)
    prior: float = field(kw_only=True, default=math.nan)
    prior_spread: float | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        if self.effect not in UNITS:
            raise UnknownName("effect", self.effect, UNITS)
        if isinstance(self.of, str):
            object.__setattr__(self, "of", (self.of,))
        unit = UNITS[self.effect]
        require(
            0 < self.low < self.high < math.inf and unit.least <= self.low <= unit.most,
            f"{self.name}: low {self.low} and high {self.high} must be positive and finite, low "
            f"below high",
        )
        require(
            self.high <= unit.most,
            f"{self.name}: high {self.high} must be {unit.name}, at most {unit.most:g}",
        )
        if math.isnan(self.prior):
            object.__setattr__(self, "prior", math.sqrt(self.low * self.high))
        require(
            self.low <= self.prior <= self.high,
            f"{self.name}: prior {self.prior} must lie between low {self.low} and high {self.high}",
        )
        require(
            self.prior_spread is None or 0 < self.prior_spread < math.inf,
            f"{self.name}: prior_spread {self.prior_spread} must be positive, or None if flat",
        )

    @property
    def name(self) -> str:
        """Return the effect, and after @ what it belongs to."""
        return self.effect + ("@" + "+".join(self.of) if self.of else "")

    @property
    def spread(self) -> float:
        """Return the standard deviation of its logarithm; that between the bounds if flat."""
        if self.prior_spread is not None:
            return self.prior_spread
        return math.log(self.high / self.low) / math.sqrt(12)

    def applies(self, names: Sequence[str | None]) -> bool:
        """Return whether it belongs to one of these networks, clusters or models."""
        return not self.of or any(name in self.of for name in names)


@dataclass(frozen=True)
class ParameterValues:
    """Values of parameters, which take the place of effects of clusters.

    ``without`` are effects that are taken away. Without parameters, clusters are what they say
    they are.
    """

    parameters: tuple[Parameter, ...] = ()
    values: tuple[float, ...] = ()
    without: tuple[str, ...] = ()
    _clusters: dict[tuple[Cluster, str | None], Cluster] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def on(self, cluster: Cluster, model: str | None = None) -> Cluster:
        """Return the cluster with these values while it trains the model."""
        key = (cluster, model)
        if key not in self._clusters:
            chosen = self.chosen(cluster, model)
            values = {effect: value for effect, (_, value) in chosen.items()}
            values |= {effect: getattr(NO_EFFECT, effect) for effect in self.without}
            self._clusters[key] = cluster.with_effects(**values)
        return self._clusters[key]

    def chosen(
        self, cluster: Cluster, model: str | None = None
    ) -> dict[str, tuple[Parameter, float]]:
        """Return the parameter, and its value, that stands for each effect of the cluster.

        Raises InputError when two parameters claim the same effect.
        """
        names = (cluster.network, cluster.name, model)
        found: dict[str, tuple[Parameter, float]] = {}
        for parameter, value in zip(self.parameters, self.values, strict=True):
            if not parameter.applies(names):
                continue
            other = found.get(parameter.effect, (None, 0.0))[0]
            if other is not None and bool(other.of) == bool(parameter.of):
                raise InputError(
                    f"parameters {other.name!r} and {parameter.name!r} both stand for "
                    f"{parameter.effect} of cluster {cluster.name!r}, model {model!r}; keep one"
                )
            if other is None or parameter.of:
                found[parameter.effect] = (parameter, value)
        return found


NOMINAL = ParameterValues()  # clusters with the effects that they have


def require_parameters(parameters: Sequence[Parameter]) -> None:
    """Raise InputError for no parameters, for too many, and for two of the same name."""
    require(bool(parameters), "parameters is empty; give at least one")
    require(
        len(parameters) <= MOST_PARAMETERS,
        f"{len(parameters)} parameters are more than {MOST_PARAMETERS}, which no observations can "
        f"tell apart; share some between clusters, or keep some at their given value",
    )
    names = [parameter.name for parameter in parameters]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"parameters must have different names; twice: {twice}")


def log_bounds(parameters: Sequence[Parameter]) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of the lowest and of the highest values."""
    low = np.log([parameter.low for parameter in parameters])
    return low, np.log([parameter.high for parameter in parameters])
