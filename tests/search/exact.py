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

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

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
    """Return the best plan of the class; ``proven_seconds`` is the solver's own lower bound."""
    gradients, layers = workload.gradients, workload.layers
    n = len(gradients)
    assert n <= MOST_GRADIENTS
    z, s, e, own = np.arange(4 * n).reshape(4, n)
    forward = 4 * n + np.arange(len(layers))
    ready = np.array(workload.ready_seconds)
    size = np.array([gradient.bytes for gradient in gradients], float)
    total = size.sum()
    # In units of all bytes, so that coefficients are of one magnitude.
    size, per_unit, a = size / total, cost.seconds_per_byte * total, cost.latency_seconds
    slack = float(ready[-1] + n * a + per_unit) + a + per_unit  # with it a constraint always holds
    rows: list[tuple[dict[int, float], float]] = []  # coefficients, and the least that they give
    for j in range(n):
        if j:
            rows.append(({s[j]: 1, s[j - 1]: -1, z[j - 1]: 1}, size[j]))
            rows.append(({e[j]: 1, e[j - 1]: -1}, 0.0))
            rows.append(({e[j]: 1, e[j - 1]: -1, s[j]: -per_unit, z[j]: -slack}, a - slack))
        rows.append(({s[j]: 1}, size[j]))
        rows.append(({e[j]: 1, s[j]: -per_unit, z[j]: -slack}, ready[j] + a - slack))
        rows.append(({own[j]: 1, e[j]: -1, z[j]: -slack}, -slack))
        rest = dict.fromkeys(z[j:], -a)  # follows anyway, so that the solver need not find it out
        rows.append(({e[-1]: 1, **rest}, ready[j] + per_unit * size[j:].sum()))
        if j + 1 < n:
            rows.append(({own[j]: 1, own[j + 1]: -1, z[j]: slack}, 0.0))
    rows.append(({forward[0]: 1}, ready[-1]))
    for before, after, layer in zip(forward, forward[1:], layers, strict=False):
        rows.append(({after: 1, before: -1}, layer.forward_seconds))
    waits = {layer.name: [e[-1]] for layer in layers}
    if gate is not Gate.ALL_LAYERS:
        waits = {
            name: [own[j] for j, one in enumerate(gradients) if one.layer == name] for name in waits
        }
    for begins, arrivals in zip(forward, waits.values(), strict=True):
        rows += [({begins: 1, arrival: -1}, 0.0) for arrival in arrivals]
    found = _solved(rows, z, 4 * n + len(layers))
    last = layers[-1].forward_seconds
    return Optimum(
        ends=tuple(int(j) + 1 for j in np.flatnonzero(found.x[z] > 0.5)),
        iteration_seconds=float(found.fun) + last,
        proven_seconds=float(found.mip_dual_bound) + last,
    )


def _solved(rows: list[tuple[dict[int, float], float]], z: np.ndarray, count: int) -> Any:
    """Return the least value of the last variable, by HiGHS; all z are binary, the last is 1."""
    matrix = np.zeros((len(rows), count))
    for row, (coefficients, _) in zip(matrix, rows, strict=True):
        row[list(coefficients)] = list(coefficients.values())
    integer, lower, upper = np.zeros(count), np.zeros(count), np.full(count, np.inf)
    integer[z] = upper[z] = lower[z[-1]] = 1
    found = milp(
        np.eye(count)[-1],
        integrality=integer,
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(matrix, lb=[float(least) for _, least in rows]),
        options={"time_limit": TIME_LIMIT, "mip_rel_gap": GAP},
    )
    assert found.x is not None, found.message
    return found
