"""Frameworks: one entry each, with what its steps do and what of it was measured; and the fit.

The parameters of a step have a meaning, a unit, and an interval in which they are looked for. A
framework has some values of its own, from runs of it or from counting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, look_up, require, require_known, require_whole
from ddlnb.files import CALIBRATION
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.hardware.gpu import Gpu, generations
from ddlnb.reading import read_text, reading, yaml_of
from ddlnb.registry import register_entry
from ddlnb.workloads.roofline import efficiency_of

V100, A100, H100, B200 = 125e12, 312e12, 989.4e12, 2250e12  # FLOP/s in half precision


@dataclass(frozen=True)
class Framework:
    """A framework: the words by which tables name it, what its steps do, and its runs.

    - gradient_bytes: of a gradient while replicas reduce it.
    - zero: its degree of ZeRO, where nothing else is said.
    - splits_models: it has pipeline stages and tensor parallelism; otherwise it shards all.
    - layers_by_cost: stages get layers by cost, the head included; otherwise evenly.
    - slow_transfers: runs may lose time in transfers between stages, as those of nanotron did.
    - overlaps: its replicas exchange gradients and sharded parameters while the GPU computes.
    - hides_gradients: without ZeRO, gradients are reduced beside the last backward pass.
    - splits_sequences: tensor parallelism splits sequences, too, where nothing else is said.
    - fuses: one kernel computes the activation of a gated feed-forward part.
    - fuses_norms: norms and positions are a kernel each, whatever it does with activations.
    - older_attention: its attention is FlashAttention 2, in instructions of Ampere on any GPU.
    - keeps_scores: its attention keeps scores, their masks and what is left of them.
    - adds_apart: gradients of micro batches are added up in fp32 by kernels of their own.
    - hides_transfers: interleaved stages send while they compute another chunk.
    - interleaves: its pipelines can hold several chunks of layers per stage (vpp).
    - pipelined_latency: its tensor-parallel exchanges slow down where a pipeline spans nodes.
    - reports_first: its runs report the memory of the first stage, others of the fullest.
    - splits_transfers: ranks of a tensor send each its part of activations to the next stage.
    - splits_batches: where a pipeline's micro batches are not told, the batch of a rank is split.
    - sends_once: a token goes to another node once, however many of its experts are there (DeepEP).
    - unstated: the shares of runs without, with selective and with full recomputation, where a row
      does not say; judgements, which memory overrules.
    - later: a month, and words that mean this entry from then on, and another one before.
    - like: the entry whose fitted parameters it takes, where no run of its own is open.
    - gpus: the FLOP/s in half precision of the GPUs of its runs, the first those of most; network:
      the bytes/s between their nodes, 0 where several clusters were used; ``shared`` whether others
      used it, too: the more nodes, the less runs are alike then.
    - fitted: the parameters that its runs say; all where nothing is named.
    - parameters: values of its own, where the saved fit has none.
    - in_use: whether who names no framework may mean it: it is developed today. All of these are
      as likely, as nobody counted who trains with which.
    """

    name: str
    words: str = ""
    gradient_bytes: int = 4
    zero: int = 1
    splits_models: bool = True
    layers_by_cost: bool = False
    slow_transfers: bool = False
    pipelined_latency: bool = False
    fuses: bool = False
    fuses_norms: bool = False
    older_attention: bool = False
    keeps_scores: bool = False
    overlaps: bool = False
    hides_gradients: bool = False
    splits_sequences: bool = False
    interleaves: bool = False
    reports_first: bool = False
    hides_transfers: bool = False
    adds_apart: bool = False
    splits_transfers: bool = True
    splits_batches: bool = False
    sends_once: bool = False
    unstated: tuple[float, float, float] = (1.0, 0.0, 0.0)
    later: tuple[str, str] = ("", "")
    like: str = ""
    gpus: tuple[float, ...] = ()
    network: float = 0.0
    shared: bool = False
    fitted: tuple[str, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)
    in_use: bool = False


OFTEN_AGAIN = (0.6, 0.2, 0.2)  # of runs that do not say whether they compute activations again
FRAMEWORKS = {
    one.name: one
    for one in (
        Framework(
            "nanotron",
            in_use=True,
            zero=0,
            fuses_norms=True,
            older_attention=True,
            layers_by_cost=True,
            slow_transfers=True,
            hides_gradients=True,
            pipelined_latency=True,
            splits_sequences=True,
            reports_first=True,
            adds_apart=True,
            gpus=(H100,),
            network=400e9,
            shared=True,
        ),
        # Megatron's kernels of 2021 under DeepSpeed's ZeRO-1: BigScience, GPT-NeoX.
        Framework(
            "megatron-deepspeed",
            r"megatron.?deepspeed|deepspeed\W+megatron|neox",
            splits_transfers=False,
            keeps_scores=True,
            unstated=(0.2, 0.0, 0.8),
            like="megatron",
            gpus=(A100,),
        ),
        # Megatron-LM since its core is a package of its own (core 0.x, 2024), NeMo and
        # Megatron-Bridge on top of it: Transformer Engine, fused attention, overlapped exchanges.
        Framework(
            "nemo",
            r"nemo|mcore|megatron.?(core|bridge)|transformer.?engine"
            r"|megatron([- _]?lm)?[ ,]*(core)?[ _-]*[rv]*0\.\d",
            in_use=True,
            fuses=True,
            overlaps=True,
            splits_sequences=True,
            interleaves=True,
            hides_transfers=True,
            sends_once=True,
            unstated=OFTEN_AGAIN,
            fitted=("matrix_share", "attention_share", "elementwise"),
            later=("2024-06", r"megatron"),
            gpus=(H100, B200),
        ),
        # ZeRO-1 within nodes, flash attention, gradients reduced beside the backward pass.
        Framework(
            "internevo",
            r"intern.?evo|internlm",
            in_use=True,
            older_attention=True,
            overlaps=True,
            splits_sequences=True,
            unstated=OFTEN_AGAIN,
            fitted=("matrix_share", "elementwise"),
            gpus=(A100,),
        ),
        # FSDP of PyTorch 2.x under torch.compile, which fuses norms and activations.
        Framework(
            "fsdp-compiled",
            r"torch.?titan(?!.*eager)|fsdp.*compile|compile.*fsdp",
            in_use=True,
            fuses=True,
            older_attention=True,
            gradient_bytes=2,
            zero=3,
            overlaps=True,
            splits_sequences=True,
            interleaves=True,
            splits_batches=True,
            unstated=OFTEN_AGAIN,
            fitted=("matrix_share", "attention_share", "elementwise"),
            gpus=(H100, A100),
        ),
        Framework(
            "fsdp",
            r"^(?!.*megatron).*(fsdp|torch.?titan|composer|foundry|deepspeed|zero(?!.?bubble))",
            in_use=True,
            older_attention=True,
            gradient_bytes=2,
            zero=3,
            splits_models=False,
            overlaps=True,
            unstated=OFTEN_AGAIN,
            gpus=(A100,),
            network=200e9,
            fitted=("matrix_share", "attention_share", "elementwise", "reduction_share"),
        ),
        Framework(
            "megatron",
            fuses=True,
            keeps_scores=True,
            interleaves=True,
            unstated=OFTEN_AGAIN,
            fitted=("matrix_share", "elementwise", "launch"),
            gpus=(A100, V100),
        ),
    )
}


SHIPPED = dict(FRAMEWORKS)


def register_framework(entry: Framework) -> None:
    """Add a framework to FRAMEWORKS, so that layouts and tables of runs are forecast with it.

    Registering one anew, as a notebook does whose cell runs again, replaces it; ``del
    FRAMEWORKS[name]`` removes it. Raises InputError for the name of a shipped one, and for what no
    framework can be like or say.
    """
    where, names = f"framework {entry.name!r}", parameter_names()
    require(
        not (entry.like and entry.parameters),
        f"{where} is like {entry.like!r} and has parameters of its own; leave out one of them",
    )
    like = entry.like
    while like:
        require(like != entry.name, f"{where} is like itself, by way of {entry.like!r}")
        like = get_framework(like).like
    for name in (*entry.parameters, *entry.fitted):
        require_known("parameter of a framework", name, names)
    Parameters(**(vars(saved_fit().parameters) | dict(entry.parameters)))  # refuses values
    require(entry.zero in range(4), f"{where} has ZeRO {entry.zero!r}; give 0 to 3")
    require(
        all(isinstance(one, int | float) for one in entry.gpus),
        f"{where} was run on GPUs {entry.gpus!r}; give their peak FLOP/s",
    )
    require_whole(gradient_bytes=entry.gradient_bytes)
    shares = np.asarray(entry.unstated)
    require(
        shares.dtype.kind in "fiu"
        and shares.shape == (3,)
        and min(shares) >= 0
        and abs(sum(shares) - 1) < SLACK,
        f"{where} has unstated shares {entry.unstated!r}; give three that add up to 1: of runs "
        f"that recompute nothing, selectively, and fully",
    )
    for pattern in (entry.words, entry.later[1]):
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"{where} has the words {pattern!r}, no pattern: {error}") from error
    if entry.name not in SHIPPED:
        FRAMEWORKS.pop(entry.name, None)
    register_entry("framework", entry, FRAMEWORKS)


def framework_in(words: str, month: str = "") -> str:
    """Return the framework that these words of a month (2024-06) name, '' if they name none.

    >>> framework_in("Composer + PyTorch FSDP (MPT)"), framework_in("JAX")
    ('fsdp', '')
    >>> framework_in("Megatron-DeepSpeed"), framework_in("Megatron-LM", "2021-04")
    ('megatron-deepspeed', 'megatron')
    """
    for name, one in FRAMEWORKS.items():
        since, later = one.later
        patterns = [one.words or re.escape(name), *([later] if since and month >= since else [])]
        if any(re.search(pattern, words, re.IGNORECASE) for pattern in patterns):
            return name
    return ""


def get_framework(name: str) -> Framework:
    """Return the framework of this name. Raises UnknownName."""
    return look_up("framework", name, FRAMEWORKS)


SLACK = 1e-6  # rounding at the ends of an interval
SAVED = CALIBRATION / "scale.yaml"


def _one(unit: str, low: float, high: float, meaning: str, phase: str = "time") -> Any:
    return field(
        metadata={"unit": unit, "low": low, "high": high, "meaning": meaning, "phase": phase}
    )


@dataclass(frozen=True)
class Parameters:
    """Twenty-five numbers with a physical meaning; `describe` lists them."""

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
        "s", 1e-7, 1e-3, "that the host takes to hand over an operation, while the GPU may wait"
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
    slow_cluster: float = _one(
        "chance", 0, 1, "that runs of a cluster are ever slow: 1 where some were", "cluster"
    )
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


LIMITS = {one.name: (one.metadata["low"], one.metadata["high"]) for one in fields(Parameters)}


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
        entry = FRAMEWORKS.get(framework, Framework(framework))
        while entry.like:
            entry = FRAMEWORKS.get(entry.like, Framework(entry.like))
        own = self.frameworks.get(entry.name, entry.parameters)
        return Parameters(**(vars(self.parameters) | dict(own)))


def parameter_names(phase: str | None = None) -> list[str]:
    """Return the names of the parameters, of a phase of the fit (time, chance, memory) or all."""
    return [one.name for one in fields(Parameters) if phase in (None, one.metadata["phase"])]


def describe() -> list[dict[str, Any]]:
    """Return one row per parameter: name, value of the saved fit, unit, bounds, meaning."""
    values = asdict(saved_fit().parameters)
    return [
        {"parameter": one.name, "value": values[one.name], **dict(one.metadata)}
        for one in fields(Parameters)
    ]


@lru_cache(maxsize=1)
def saved_fit() -> Fitted:
    """Return the saved fit, data/calibration/scale.yaml. Raises InputError for one that is none."""
    with reading(SAVED):
        found = yaml_of(read_text(SAVED), SAVED)
        parameters = {name: float(value) for name, value in found["parameters"].items()}
        for own in ({}, *found["frameworks"].values()):
            Parameters(**(parameters | own))  # refuses names and values that cannot be
        return Fitted(Parameters(**parameters), found["frameworks"], found["spread"])


def fit_text(fitted: Fitted) -> str:
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


# The largest matrices reach more than those of BERT, to which roofline.yaml is fitted: about 270 of
# 312 TFLOP/s on an A100 (ml-engineering, maximum achievable matmul) beside a share of 0.721.
LARGEST = 1.2


def sustained_share(gpu: Gpu, precision: str) -> float:
    """Return the share of its peak that the largest matrices reach on a GPU for long.

    What GPUs of its generation were measured at. One that may draw less power for its FLOP/s than
    the usual one of them runs slower: power grows with the cube of the clock.

    >>> import ddlnb
    >>> [round(sustained_share(ddlnb.hardware.get_gpu(name), "bf16"), 2)
    ...  for name in ("A100", "H100", "H100-PCIe", "B200")]
    [0.87, 0.75, 0.65, 0.45]
    """
    least = 1.0
    if gpu.power and gpu.kin.usual:
        usual = get_gpu(gpu.kin.usual)
        watts = gpu.power / usual.power * usual.flops["bf16"] / gpu.flops["bf16"]
        least = min(watts ** (1 / 3), 1.0)
    return LARGEST * efficiency_of(gpu, precision).matrix.value * least


def core_share(gpu: Gpu, precision: str) -> float:
    """Return the share of its peak that the core of attention reaches on a GPU at most.

    What matrices sustain, or do on the generation that this core is like on the GPU's
    (data/hardware/generations.yaml).

    >>> import ddlnb
    >>> [round(core_share(ddlnb.hardware.get_gpu(name), "bf16"), 2) for name in ("A100", "B200")]
    [0.87, 0.75]
    """
    like = get_gpu(generations()[gpu.kin.core_like].usual) if gpu.kin.core_like else gpu
    return max(sustained_share(one, precision) for one in (gpu, like))


Flops = TypeVar("Flops", float, NDArray[np.float64])


def matrix_flops(peak: Flops, sustained: Flops, values: Parameters) -> Flops:
    """Return the FLOP/s that matrices in the layers of a model get, of GPUs with these peaks.

    Power and clock leave a share of the peak to matrices of any size, and layers get a share of
    that, which is fitted to published runs.
    """
    return peak * sustained * values.matrix_share


def frameworks_meant(name: str = "") -> list[str]:
    """Return the framework of this name, or those that are meant by none. Raises UnknownName."""
    in_use = [known for known, one in FRAMEWORKS.items() if one.in_use]
    return [get_framework(name).name] if name else in_use


def layer_flops(gpu: Gpu, precision: str = "bf16", framework: str = "") -> float:
    """Return the FLOP/s that matrices in the layers of a model get on a GPU, by the saved fit.

    Of a framework, or the mean of those that are in use.

    >>> import ddlnb
    >>> h100 = ddlnb.hardware.get_gpu("H100")
    >>> round(layer_flops(h100) / h100.peak("bf16"), 2)
    0.65
    """
    peak, sustained = gpu.peak(precision), sustained_share(gpu, precision)
    each = [saved_fit().of(name) for name in frameworks_meant(framework)]
    return float(np.mean([matrix_flops(peak, sustained, one) for one in each]))
