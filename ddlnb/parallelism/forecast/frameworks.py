"""Frameworks: what they do differently, and the words by which tables name them.

Chunks of layers that a pipeline stage may hold: what interleaved schedules can run.

Megatron-LM (arXiv 2104.04473, section 2.2) deals the layers of every stage to ``vpp`` chunks of the
same size, and starts micro batches in groups of as many as there are stages.

The parameters of the step: what each means, its unit, and the interval it is looked for in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from ddlnb.errors import InputError, UnknownName, require
from ddlnb.files import CALIBRATION


@dataclass(frozen=True)
class Framework:
    """A framework: its words, and what its steps do.

    - gradient_bytes: of a gradient while replicas reduce it.
    - deals_by_cost: stages get layers by cost, the head included; otherwise evenly.
    - slow_transfers: runs may lose time in transfers between stages, as those of nanotron did.
    - overlaps: its replicas exchange gradients and sharded parameters while the GPU computes.
    - splits_sequences: tensor parallelism splits sequences, too, where nothing else is said.
    - keeps_scores: its attention keeps scores, their masks and what is left of them.
    - adds_apart: gradients of micro batches are added up in fp32 by kernels of their own.
    - hides_transfers: interleaved stages send while they compute another chunk.
    - interleaves: its pipelines can hold several chunks of layers per stage (vpp).
    - pipelined_latency: its tensor-parallel exchanges slow down where a pipeline spans nodes.
    - reports_first: its runs report the memory of the first stage, others of the fullest.
    """

    name: str
    words: str
    gradient_bytes: int
    deals_by_cost: bool = False
    slow_transfers: bool = False
    pipelined_latency: bool = False
    keeps_scores: bool = False
    overlaps: bool = False
    splits_sequences: bool = False
    interleaves: bool = False
    reports_first: bool = False
    hides_transfers: bool = False
    adds_apart: bool = False


FRAMEWORKS = (
    Framework(
        "nanotron",
        r"nanotron",
        4,
        True,
        True,
        True,
        splits_sequences=True,
        reports_first=True,
        adds_apart=True,
    ),
    Framework("fsdp", r"fsdp|composer|foundry|torchtitan|deepspeed|zero", 2, overlaps=True),
    Framework(
        "nemo",
        r"nemo|mcore|transformer.?engine",
        4,
        overlaps=True,
        splits_sequences=True,
        interleaves=True,
        hides_transfers=True,
    ),
    Framework("megatron", r"megatron", 4, keeps_scores=True, interleaves=True),
)
NAMES = tuple(framework.name for framework in FRAMEWORKS)


def named(words: str) -> int | None:
    """Return the index of the framework that these words name, None if they name none.

    >>> NAMES[named("Composer + PyTorch FSDP (MPT)")], named("JAX")
    ('fsdp', None)
    """
    for index, framework in enumerate(FRAMEWORKS):
        if re.search(framework.words, words, re.IGNORECASE):
            return index
    return None


INTERLEAVED = "interleaved"
INTERLEAVES = "1f1b"  # the schedule of which chunks make the interleaved one


def chunk_degrees(layers: int, pp: int, micro_batches: int) -> list[int]:
    """Return how many chunks a stage can hold, from 1 to a layer in each.

    More than 1 where stages have the same number of layers, which the chunks divide, and micro
    batches are a multiple of the stages.

    >>> chunk_degrees(96, 8, 16), chunk_degrees(96, 8, 12), chunk_degrees(126, 4, 16)
    ([1, 2, 3, 4, 6, 12], [1], [1])
    """
    each, left = divmod(layers, pp)
    if pp == 1 or left or micro_batches % pp:
        return [1]
    return [chunks for chunks in range(1, each + 1) if each % chunks == 0]


def searched_chunks(framework: Framework, schedule: str, vpp: int | None) -> bool:
    """Return whether a search looks at interleaved pipelines.

    Raises InputError where ``vpp`` asks for them, and framework or schedule have none.
    """
    if vpp is not None and vpp > 1:
        able = [one.name for one in FRAMEWORKS if one.interleaves]
        require(
            framework.interleaves,
            f"vpp {vpp}: {framework.name} runs no interleaved pipelines; use vpp 1, or one of the "
            f"frameworks {', '.join(able)}",
        )
        require(
            schedule == INTERLEAVES,
            f"vpp {vpp}: the schedule {schedule} has one chunk per stage; use vpp 1, or the "
            f"schedule {INTERLEAVES}",
        )
    return framework.interleaves and schedule == INTERLEAVES and vpp != 1


def no_such_chunks(vpp: int, model: str, layers: int, gpus: int, offered: set[int]) -> InputError:
    """Return the error for a degree that no layout has, with those that some have."""
    return InputError(
        f"vpp {vpp} divides the {layers} layers of {model} in no layout on {gpus} GPUs (chunks "
        f"divide the layers of a stage, stages the micro batches); use one of "
        f"{', '.join(map(str, sorted(offered)))}"
    )


SLACK = 1e-6  # rounding at the ends of an interval
KEPT = CALIBRATION / "scale.yaml"


def _one(unit: str, low: float, high: float, meaning: str, phase: str = "time") -> Any:
    return field(
        metadata={"unit": unit, "low": low, "high": high, "meaning": meaning, "phase": phase}
    )


@dataclass(frozen=True)
class Parameters:
    """Twenty-four numbers with a physical meaning; `describe` lists them."""

    matrix_share: float = _one(
        "share", 0.2, 1.0, "of the FLOP/s that matrices can sustain on this GPU, what layers get"
    )
    attention_share: float = _one(
        "share", 0.05, 1, "of the FLOP/s that matrices get, what the core of attention gets"
    )
    elementwise: float = _one(
        "bytes/element",
        1,
        4000,
        "memory traffic of norms, activations and the like, per layer, "
        "token and width of the model, forward and backward",
    )
    launch: float = _one(
        "s", 1e-4, 2e-2, "least time of a layer and micro batch: starting its kernels"
    )
    inside_share: float = _one(
        "share", 0.05, 1, "of the GPU's links inside a node, what is reached"
    )
    across_share: float = _one(
        "share", 0.05, 2, "of the node's network, what tensor-parallel exchanges reach"
    )
    neighbours: float = _one(
        "factor", 1, 4, "by which such exchanges slow down where other groups have them too"
    )
    hop: float = _one(
        "s",
        1e-6,
        1e-2,
        "latency of a layer's tensor-parallel exchanges across nodes, per rank and "
        "node of the group",
    )
    pipelined_hop: float = _one(
        "s",
        1e-5,
        1e-2,
        "latency of a layer's tensor-parallel exchanges, per rank, where a pipeline spans nodes",
    )
    pipelined_node: float = _one(
        "share", 1e-3, 2, "by which the latter grows with every further node of the group"
    )
    transfer: float = _one("s", 1e-6, 1e-1, "latency of a transfer between stages")
    reduction_share: float = _one(
        "share", 0.02, 4, "of the node's network, what the data-parallel reduction reaches"
    )
    reduction_growth: float = _one(
        "share", 1e-4, 0.5, "by which that takes longer with every further node of its rings"
    )
    fixed: float = _one("s", 1e-4, 1, "per step, whatever it is: the optimizer's start, the loop")
    stall: float = _one(
        "factor",
        1,
        8,
        "by which a step takes longer where groups across nodes ask for more memory than there is",
    )
    slow_transfer: float = _one("s", 0.1, 0.5, "that a transfer between stages loses in a slow run")
    slow_link: float = _one(
        "log chance", -15, 0, "that a link between stages across nodes makes a run slow", "chance"
    )
    slow_whole: float = _one(
        "log factor",
        0,
        9,
        "by which that is more likely where every replica keeps all optimizer states",
        "chance",
    )
    states: float = _one(
        "bytes/parameter", 0, 8, "of buffers beside parameters, gradients and optimizer", "memory"
    )
    kept: float = _one(
        "bytes/element", 1, 200, "of activations per layer, token and width of the model", "memory"
    )
    kept_inner: float = _one(
        "bytes/element",
        0.1,
        40,
        "of activations per layer, token and width of the feed-forward part",
        "memory",
    )
    held_back: float = _one(
        "bytes/element",
        0.01,
        20,
        "of gathered activations that exchanges hold back while the "
        "GPU is behind, per layer, token and width",
        "memory",
    )
    logits: float = _one("bytes/element", 1, 40, "of logits, in all their copies", "memory")
    context: float = _one("GiB", 0.01, 6, "of the GPU's context and of libraries", "memory")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            low, high = one.metadata["low"], one.metadata["high"]
            require(
                low - SLACK <= value <= high + SLACK * abs(high),
                f"{one.name} {value!r} must lie between {low} and {high} {one.metadata['unit']}",
            )


@dataclass(frozen=True)
class Fitted:
    """What a fit found: the parameters, what differs by framework, and how far off forecasts are.

    ``frameworks``: values of some parameters by name of framework. ``spread``: by kind of case, the
    scale of Student's t of the log of the ratio between measured and forecast seconds.
    """

    parameters: Parameters
    frameworks: Mapping[str, Mapping[str, float]]
    spread: Mapping[str, float]

    def of(self, framework: str) -> Parameters:
        """Return the parameters of one framework."""
        return Parameters(**(asdict(self.parameters) | dict(self.frameworks.get(framework, {}))))


def names(phase: str | None = None) -> list[str]:
    """Return the names of the parameters, of a phase of the fit (time, chance, memory) or all."""
    return [one.name for one in fields(Parameters) if phase in (None, one.metadata["phase"])]


def describe() -> list[dict[str, Any]]:
    """Return one row per parameter: name, value of the kept fit, unit, bounds, meaning."""
    values = asdict(kept().parameters)
    return [
        {"parameter": one.name, "value": values[one.name], **dict(one.metadata)}
        for one in fields(Parameters)
    ]


@lru_cache(maxsize=1)
def kept() -> Fitted:
    """Return the kept fit, data/calibration/scale.yaml."""
    return read(KEPT)


def read(path: Path) -> Fitted:
    """Return the fit that a file holds. Raises InputError that names the file and what is wrong."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
        parameters = Parameters(**{name: float(v) for name, v in found["parameters"].items()})
        for values in found["frameworks"].values():
            for name in values:
                if name not in names():
                    raise UnknownName("parameter", name, names())
        return Fitted(parameters, found["frameworks"], found["spread"])
    except (OSError, yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{path} is not a fit of the step: {error}") from error


def written(fitted: Fitted) -> str:
    """Return the text of a file with this fit."""
    import yaml

    def rounded(values: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.5g}") for name, value in values.items()}

    return "# Written by `python -m benchmarks.scale_validation --write`.\n" + yaml.safe_dump(
        {
            "parameters": rounded(asdict(fitted.parameters)),
            "frameworks": {name: rounded(one) for name, one in fitted.frameworks.items()},
            "spread": rounded(fitted.spread),
        },
        sort_keys=False,
    )
