"""The traffic of the three ways of sharing, by formula."""

from __future__ import annotations

from itertools import pairwise

from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.studies.sec1_parallelism.perceptron import WIDTHS, mlp
from ddlnb.studies.sec1_parallelism.pipeline import entering_width, stages_of

FLOAT_BYTES = 4  # single precision
PARAMETERS = sum(wide * narrow + narrow for wide, narrow in pairwise(WIDTHS))


def exchanged_neurons() -> int:
    """Return how many numbers per sample the workers exchange when they split the neurons.

    The outputs of every layer forward, and their gradients backward, but for those of the last
    layer: every worker computes the whole loss, and has them.
    """
    outputs = WIDTHS[1:]
    return 2 * sum(outputs) - outputs[-1]


def traffic(workers: int, batch: int) -> dict[str, float]:
    """Return the bytes that all workers together send in a step, by the way of sharing.

    Split neurons: each of them goes to the n - 1 other workers, once per sample and direction.
    Pipeline: what crosses a cut does so once up and once down. Data: a ring all-reduce of all
    parameters, 2 (n - 1) times their bytes.
    """
    cuts = [entering_width(stage) for stage in stages_of(mlp(), workers)[1:]]
    return {
        "one worker": 0,
        "model parallelism": FLOAT_BYTES * batch * (workers - 1) * exchanged_neurons(),
        "pipeline of layers": FLOAT_BYTES * batch * 2 * sum(cuts),
        "data parallelism": workers * ring_bytes_sent(FLOAT_BYTES * PARAMETERS, workers),
    }


def break_even_batch() -> float:
    """Return the batch at which split neurons and data parallelism send equally much.

    Both grow with n - 1, so that it is the same for all numbers of workers:
    2 parameters / (exchanged numbers per sample).
    """
    return 2 * PARAMETERS / exchanged_neurons()
