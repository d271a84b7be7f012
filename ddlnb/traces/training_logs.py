"""Logs of training with Megatron-LM, torchtitan, nanotron, DeepSpeed or Hugging Face: medians.

A pattern says which number of a line is which quantity. Lines of a step, whatever a launcher wrote
before them, are joined by their order; the first tenth of them is warm-up.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddlnb.errors import InputError
from ddlnb.reading import pieces_of, reading
from ddlnb.units import MS, counted

MOST_BYTES = 256 << 20
_NUMBER = r"([\d.,]+(?:e[+-]?\d+)?[KMGT]?)"
_THOUSANDS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Quantities by the texts before their numbers (N), and the factor that makes them ours.
PATTERNS = tuple(
    (quantity, re.compile(text.replace("N", _NUMBER)), factor)
    for quantity, text, factor in (
        ("seconds", r"elapsed time per iteration \(ms\): N", MS),  # Megatron-LM
        ("seconds", r"elapsed_time_per_iteration_ms: N", MS),  # nanotron
        ("steps_per_s", r"'train_steps_per_second': '?N", 1.0),
        ("samples_per_s", r"CurrSamplesPerSec=N", 1.0),  # DeepSpeed
        ("samples_per_s", r"'train_samples_per_second': '?N", 1.0),
        ("tokens_per_s_per_gpu", r"\btps: +N", 1.0),  # torchtitan
        ("tokens_per_s_per_gpu", r"tokens_per_sec_per_gpu: N", 1.0),
        ("tokens_per_s", r"tokens_per_sec: N", 1.0),
        ("mfu", r"\bmfu: +N%", 0.01),
        ("tflops", r"TFLOP/s/GPU\): N", 1.0),
        ("tflops", r"\btflops: +N", 1.0),
        ("tflops", r"model_tflops_per_gpu: N", 1.0),
        ("memory_gib", r"\bmemory: +NGiB", 1.0),
        ("memory_gib", r"max reserved: +N", 1 / 1024),
        ("memory_gib", r"MaxMemAllocated=NGB", 1.0),
        ("batch", r"global[ _]batch[ _]size: +N", 1.0),
    )
)
_BAR = re.compile(rf"\d+/(\d+) \[[^\]]*, +{_NUMBER}(s/it|it/s)")  # Hugging Face's progress


@dataclass(frozen=True)
class TrainingLog:
    """Medians of what a log says of a step, by quantity; ``steps`` lines say something of one.

    ``late`` is the 95th percentile of the seconds (or of what passes for them) over the median.
    """

    name: str
    steps: int
    medians: dict[str, float]
    late: float

    def seconds(self, samples: int, tokens: int, gpus: int) -> float:
        """Return the seconds of a step of so many samples with so many tokens on these GPUs."""
        found = self.medians
        if "seconds" in found:
            return found["seconds"]
        for name, whole in (
            ("steps_per_s", 1.0),
            ("samples_per_s", samples),
            ("tokens_per_s", tokens),
            ("tokens_per_s_per_gpu", tokens / gpus),
        ):
            if name in found:
                return whole / found[name]
        raise InputError(
            f"{self.name} says no seconds, steps, samples or tokens per second; give another log"
        )

    @property
    def said(self) -> str:
        """What the log says beside seconds."""
        words = {
            "mfu": "MFU {:.1%}",
            "tflops": "{:.0f} TFLOP/s per GPU",
            "memory_gib": "{:.1f} GiB",
        }
        parts = [words[one].format(self.medians[one]) for one in words if one in self.medians]
        steps = f"{self.name}: {counted(self.steps, 'line')} of steps"
        return f"{steps}{' with ' if parts else ''}{', '.join(parts)} (medians)."


def read_training_log(path: str | Path) -> TrainingLog:
    """Return what a training log measured. Raises InputError for a file that says nothing of it."""
    text = b"".join(pieces_of(path, MOST_BYTES, "check the path")).decode(errors="replace")
    found: dict[str, list[float]] = defaultdict(list)
    bars: dict[str, list[float]] = defaultdict(list)  # seconds of a step, by the steps of all
    steps = 0
    with reading(path):
        for line in _COLOURS.sub("", text).replace("\r", "\n").splitlines():
            said = {
                quantity: factor * _number(match[1])
                for quantity, pattern, factor in PATTERNS
                if (match := pattern.search(line)) and 0 < _number(match[1]) * factor < math.inf
            }
            steps += bool({*said} - {"memory_gib"})
            for quantity, value in said.items():
                found[quantity].append(value)
            if (bar := _BAR.search(line)) and (number := _number(bar[2])) > 0:
                bars[bar[1]].append(number if bar[3] == "s/it" else 1 / number)
    longest = max(bars.values(), key=len, default=[])
    if longest and len(longest) >= steps:  # or it is that of loading something
        found["seconds"], steps = longest, len(longest)
    if not steps:
        raise InputError(
            f"{path} has no lines of steps of Megatron-LM, torchtitan, nanotron, DeepSpeed or "
            f"Hugging Face; give the log of rank 0, or of the last rank"
        )
    steady = {name: values[len(values) // 10 :] for name, values in found.items()}
    return TrainingLog(
        Path(path).name, steps, {name: median(one) for name, one in steady.items()}, _late(steady)
    )


def _late(steady: dict[str, list[float]]) -> float:
    """Return the seconds that one step in twenty takes at least, over the median."""
    if "seconds" in steady:
        values = sorted(steady["seconds"])
    else:
        rates = next((steady[name] for name in steady if name.startswith("tokens_per_s")), [1.0])
        values = sorted(1 / rate for rate in rates)
    return values[int(0.95 * (len(values) - 1))] / median(values)


def _number(text: str) -> float:
    """Return a number with commas, or with a letter for thousands.

    >>> _number("7,283"), _number("1.05M")
    (7283.0, 1050000.0)
    """
    plain = text.replace(",", "").rstrip(".")
    return float(plain.rstrip("KMGT")) * _THOUSANDS.get(plain[-1:], 1.0)
