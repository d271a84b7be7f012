"""Parameters: effects whose value is not known, and what clusters become when they have one."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ddlnb.calibration.fit import Prior
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import EFFECTS, SHARE, Effects
from ddlnb.errors import InputError, require, require_known
from ddlnb.simulator.tasks import Identity

MOST_PARAMETERS = 40  # of one fit; more than that no set of observations here can tell apart
NO_EFFECT = Effects()
PRIOR_SPREAD = 0.7  # of a value that somebody wrote into a cluster file: a factor of two or so
WITHIN = 30  # times the written value, and its inverse, are the bounds


@dataclass(frozen=True)
class Parameter:
    """An effect to be fitted, what it belongs to, and what is known of it beforehand.

    ``of`` are names of networks, clusters or models, ``methods`` those of methods; a parameter that
    names more kinds of things beats one that names fewer. ``low`` and ``high`` are bounds from
    physics. The prior is log-normal around ``prior``, by default the geometric mean of the bounds;
    ``prior_spread`` is the standard deviation of its logarithm, None for a flat one.

    >>> Parameter("between_latency", ("10GbE",), low=1e-5, high=1e-3).name
    'between_latency@10GbE'
    """

    effect: str
    of: tuple[str, ...] = ()
    methods: tuple[str, ...] = field(kw_only=True, default=())
    low: float = field(kw_only=True)
    high: float = field(kw_only=True)
    prior: float = field(kw_only=True, default=math.nan)
    prior_spread: float | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        require_known("effect", self.effect, EFFECTS)
        if isinstance(self.of, str):
            object.__setattr__(self, "of", (self.of,))
        unit = EFFECTS[self.effect].unit
        require(
            0 < self.low < self.high < math.inf,
            f"{self.name}: low {self.low} and high {self.high} must be positive and finite, low "
            f"below high",
        )
        require(
            unit.least <= self.low and self.high <= unit.most,
            f"{self.name}: low {self.low} and high {self.high} must be {unit.name}, at "
            f"least {unit.least:g} and at most {unit.most:g}",
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
        parts = ("+".join(self.of), "+".join(self.methods))
        return "@".join([self.effect, *(part for part in parts if part)])

    @property
    def kinds(self) -> int:
        """Return how many kinds of things it names."""
        return bool(self.of) + bool(self.methods)

    @property
    def spread(self) -> float:
        """Return the standard deviation of its logarithm; that between the bounds if flat."""
        if self.prior_spread is not None:
            return self.prior_spread
        return math.log(self.high / self.low) / math.sqrt(12)

    def applies(self, names: Sequence[str | None], method: str | None = None) -> bool:
        """Return whether it belongs to one of these names, and to the method."""
        is_of_these = not self.of or any(name in self.of for name in names)
        return is_of_these and (not self.methods or method in self.methods)


Names = tuple[str, str, str | None, str | None]  # of a network, a cluster, a model and a method
Choice = tuple[tuple[str, int], ...]  # effects, and the positions of the parameters they have
Chosen = tuple[tuple[str, float], ...]  # effects and their values


@dataclass(frozen=True)
class ParameterValues:
    """Values of parameters, which take the place of effects of clusters.

    ``without`` are effects that are taken away. Without parameters, clusters are what they say
    they are. Methods plan for the values ``planned_with``, by default these.
    """

    parameters: tuple[Parameter, ...] = ()
    values: tuple[float, ...] = ()
    without: tuple[str, ...] = ()
    planned_with: ParameterValues | None = None
    _clusters: dict[tuple[Identity, Chosen], Cluster] = field(
        default_factory=dict, repr=False, compare=False
    )
    _choices: dict[Names, Choice] = field(default_factory=dict, repr=False, compare=False)

    def at(
        self, values: Sequence[float], planned_with: ParameterValues | None = None
    ) -> ParameterValues:
        """Return other values of the same parameters; clusters that are alike are made once."""
        return replace(self, values=tuple(values), planned_with=planned_with)

    def anew(self) -> ParameterValues:
        """Return the same values without the clusters that were made of them and of others."""
        return replace(self, _clusters={})

    def on(self, cluster: Cluster, model: str | None = None, method: str | None = None) -> Cluster:
        """Return the cluster with these values while it trains the model by the method."""
        values = {effect: self.values[i] for effect, i in self._choice(cluster, model, method)}
        values |= {effect: getattr(NO_EFFECT, effect) for effect in self.without}
        key = (
            Identity((cluster,)),
            tuple(values.items()),
        )  # models and methods often have the same
        if key not in self._clusters:
            self._clusters[key] = cluster.with_effects(**values)
        return self._clusters[key]

    def used(
        self, cluster: Cluster, model: str | None, method: str | None, idle: Container[str]
    ) -> tuple[object, ...]:
        """Return what `on` changes of effects that are not ``idle``."""
        chosen = self._choice(cluster, model, method)
        return (
            *[(effect, self.values[i]) for effect, i in chosen if effect not in idle],
            *self.without,
        )

    def chosen(
        self, cluster: Cluster, model: str | None = None, method: str | None = None
    ) -> dict[str, tuple[Parameter, float]]:
        """Return the parameter, and its value, that stands for each effect of the cluster.

        Raises InputError when two parameters claim the same effect.
        """
        choice = self._choice(cluster, model, method)
        return {effect: (self.parameters[i], self.values[i]) for effect, i in choice}

    def _choice(self, cluster: Cluster, model: str | None, method: str | None) -> Choice:
        """Return the position of the parameter of each effect; it is the same for all values."""
        key = (cluster.network, cluster.name, model, method)
        if key not in self._choices:
            self._choices[key] = tuple(self._most_specific(key).items())
        return self._choices[key]

    def _most_specific(self, key: Names) -> dict[str, int]:
        network, cluster, model, method = key
        found: dict[str, int] = {}
        for index, parameter in enumerate(self.parameters):
            if not parameter.applies((network, cluster, model), method):
                continue
            other = self.parameters[found[parameter.effect]] if parameter.effect in found else None
            if other is not None and other.kinds == parameter.kinds:
                raise InputError(
                    f"parameters {other.name!r} and {parameter.name!r} both stand for "
                    f"{parameter.effect} of cluster {cluster!r}, model {model!r}, method "
                    f"{method!r}; keep one"
                )
            if other is None or parameter.kinds > other.kinds:
                found[parameter.effect] = index
        return found


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


def prior_of(parameters: Sequence[Parameter]) -> Prior:
    """Return what is known of the parameters before anything is observed."""
    return Prior(
        tuple(parameter.name for parameter in parameters),
        np.log([parameter.prior for parameter in parameters]),
        np.array([parameter.spread for parameter in parameters]),
        np.log([parameter.low for parameter in parameters]),
        np.log([parameter.high for parameter in parameters]),
        np.array([parameter.prior_spread is None for parameter in parameters]),
    )


def listed_effects(cluster: Cluster) -> list[Parameter]:
    """Return a parameter for every effect that the cluster lists, with its value as the prior."""
    found = []
    for effect, value in cluster.effects.there.items():
        if value in (0.0, math.inf):
            continue
        unit = EFFECTS[effect].unit
        most = 1.0 if unit is SHARE else value * WITHIN
        low = max(value / WITHIN, unit.least)
        found.append(
            Parameter(
                effect, low=low, high=min(most, unit.most), prior=value, prior_spread=PRIOR_SPREAD
            )
        )
    require(
        bool(found), f"cluster {cluster.name!r} lists no effect; add those that are to be fitted"
    )
    return found
