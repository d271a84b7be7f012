"""The proven best plan of a class, by a mixed integer program that HiGHS solves.

The class: all-reduces of neighbours in backward order, each at most when its last gradient is ready
and the message before it has arrived; a message of M bytes takes a + b M seconds; computation and
network do not slow one another. The forward pass waits for all layers, or each layer for its own
messages. For a gradient j, in backward order, ready at r_j and of m_j bytes:

    z_j     whether a message ends with it (binary); the last one's is 1
    s_j     bytes of its message up to it         s_j >= s_{j-1} + m_j - S z_{j-1}
    e_j     when all messages that end by j have arrived, at least
            e_j >= e_{j-1},  e_j >= max(e_{j-1}, r_j) + a + b s_j   where z_j = 1
    E_j     when its own message has arrived      E_j >= e_j where z_j = 1, else E_j >= E_{j+1}
    F_l     when the forward pass of layer l begins: after that of the layer before, and after
            E_j of its gradients (own layer), or after e of the last gradient (all layers)

The least end of the forward pass is sought. With "where" as big-M constraints all are linear. What
follows for the last arrival is added: e_n >= r_j + a (z_j + .. + z_n) + b (m_j + .. + m_n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from ddlnb.errors import DdlnbError, require
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Gate
from ddlnb.workloads.workload import Workload

MOST_GRADIENTS = 40
TIME_LIMIT = 60.0
GAP = 1e-4  # relative, up to which an optimum counts as proven


@dataclass(frozen=True)
class Optimum:
    """The best merging: the ends of its groups, its seconds, and what no other falls below."""

    ends: tuple[int, ...]
    iteration_seconds: float
    proven_seconds: float


def proven_best(workload: Workload, cost: AlphaBeta, gate: Gate) -> Optimum:
    """Return the best plan of the class; ``proven_seconds`` is the solver's own lower bound.

    Raises InputError for more than MOST_GRADIENTS gradients, DdlnbError where the solver found
    nothing in time.
    """
    count = len(workload.gradients)
    require(
        count <= MOST_GRADIENTS,
        f"workload {workload.model!r} has {count} gradients, and optima are proven for at most "
        f"{MOST_GRADIENTS}; merge some before",
    )
    program = _Program(workload, cost, gate)
    found = program.solved()
    if found.x is None:
        raise DdlnbError(f"HiGHS found no plan in {TIME_LIMIT} s: {found.message}")
    chosen = found.x[program.z] > 0.5
    return Optimum(
        ends=tuple(int(j) + 1 for j in np.flatnonzero(chosen)),
        iteration_seconds=float(found.fun),
        proven_seconds=float(found.mip_dual_bound),
    )


class _Program:
    """The variables in one vector, and the constraints as rows of coefficients."""

    def __init__(self, workload: Workload, cost: AlphaBeta, gate: Gate):
        gradients, layers = workload.gradients, workload.layers
        n, layer_count = len(gradients), len(layers)
        self.z, self.s = np.arange(n), n + np.arange(n)
        self.e, self.own = 2 * n + np.arange(n), 3 * n + np.arange(n)
        self.forward = 4 * n + np.arange(layer_count)
        self._count = 4 * n + layer_count
        self._rows: list[tuple[dict[int, float], float]] = []
        ready = np.array(workload.ready_seconds)
        size = np.array([gradient.bytes for gradient in gradients], float)
        total = size.sum()
        # In units of all bytes, so that coefficients are of one magnitude.
        size, per_unit, a = size / total, cost.seconds_per_byte * total, cost.latency_seconds
        longest = float(ready[-1] + n * a + per_unit)
        for j in range(n):
            z, s, e, own = (int(one[j]) for one in (self.z, self.s, self.e, self.own))
            # Where z is 0 the constraint must hold anyway: e is then at least r_j - longest + ...
            slack = longest + a + per_unit
            if j == 0:
                self._at_least({s: 1}, size[0])
            else:
                before = j - 1
                self._at_least({s: 1, int(self.s[before]): -1, int(self.z[before]): 1.0}, size[j])
                self._at_least({e: 1, int(self.e[before]): -1}, 0.0)
                self._at_least({e: 1, int(self.e[before]): -1, s: -per_unit, z: -slack}, a - slack)
            self._at_least({s: 1}, size[j])
            self._at_least({e: 1, s: -per_unit, z: -slack}, ready[j] + a - slack)
            self._at_least({own: 1, e: -1, z: -slack}, -slack)
            self._cut(j, ready[j] + per_unit * size[j:].sum(), a)
            if j + 1 < n:
                self._at_least({own: 1, int(self.own[j + 1]): -1, z: slack}, 0.0)
        forwards = [layer.forward_seconds for layer in layers]
        for number, layer in enumerate(layers):
            begins = int(self.forward[number])
            if number:
                earlier = int(self.forward[number - 1])
                self._at_least({begins: 1, earlier: -1}, forwards[number - 1])
            else:
                self._at_least({begins: 1}, float(ready[-1]))
            if gate is Gate.ALL_LAYERS:
                self._at_least({begins: 1, int(self.e[-1]): -1}, 0.0)
                continue
            for j, gradient in enumerate(gradients):
                if gradient.layer == layer.name:
                    self._at_least({begins: 1, int(self.own[j]): -1}, 0.0)
        self._last_forward = forwards[-1]

    def _cut(self, j: int, least: float, a: float) -> None:
        """Say what follows anyway, so that the solver need not find it out.

        No message with a gradient from j on starts before j is ready, and they go one by one.
        """
        latencies = {int(z): -a for z in self.z[j:]}
        self._at_least({int(self.e[-1]): 1, **latencies}, least)

    def _at_least(self, coefficients: dict[int, float], least: float) -> None:
        self._rows.append((coefficients, float(least)))

    def solved(self) -> Any:
        entries = [
            (row, column, value)
            for row, (coefficients, _) in enumerate(self._rows)
            for column, value in coefficients.items()
        ]
        rows, columns, values = zip(*entries, strict=True)
        matrix = coo_array((values, (rows, columns)), shape=(len(self._rows), self._count))
        integer = np.zeros(self._count)
        integer[self.z] = 1
        lower, upper = np.zeros(self._count), np.full(self._count, np.inf)
        upper[self.z] = 1.0
        lower[self.z[-1]] = 1.0
        objective = np.zeros(self._count)
        objective[self.forward[-1]] = 1.0
        found = milp(
            objective,
            integrality=integer,
            bounds=Bounds(lower, upper),
            constraints=LinearConstraint(matrix.tocsr(), lb=[least for _, least in self._rows]),
            options={"time_limit": TIME_LIMIT, "mip_rel_gap": GAP},
        )
        if found.x is not None:
            found.fun += self._last_forward
            found.mip_dual_bound += self._last_forward
        return found
