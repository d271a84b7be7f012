"""Flags of a launch script: what a shell would hand to a framework, read without running a shell.

Flags count wherever they stand, also in strings that hold several. A variable stands for what it is
set to, and where only a shell can choose between several values, none is taken. Of Slurm's own
lines, which are comments to the shell, nodes and GPUs are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddlnb.errors import require
from ddlnb.parallelism.settings import FORMATS, LAUNCHERS, Fields
from ddlnb.units import listed

_WORD = re.compile(r"""(?:[^\s"'\\]|"[^"]*"|'[^']*')+""")
_QUOTED = re.compile(r"""("[^"\n]*"|'[^'\n]*')""")
_NAMED = re.compile(r"\$\{?(\w+)(?::?-([^}]*))?\}?$")
# Where branches begin and end, and what is set: to a word, behind what separates commands.
_STEP = re.compile(
    r"(^|;|&&|\|\||\bthen\b|\belse\b|\bdo\b|\{|\))[ \t]*"
    r"(?:(if|case|for|while|until)\b|(fi|esac|done)\b"
    r"|(?:export[ \t]+|local[ \t]+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;]*))",
    re.MULTILINE,
)
_CONDITIONAL = ("&&", "||")
_JOB = re.compile(r"^#SBATCH[ \t]+(.*)", re.MULTILINE)
_GPUS = re.compile(r"--(?:gres[= ][\"']?gpu:|gpus-per-node[= ])(?:[\w.-]{1,40}:)?(\d{1,9})")
_OF_JOB = {
    "nodes": re.compile(r"(?:--nodes[= ]|(?<!\S)-N ?)(\d{1,9})(?![\d-])"),
    "gpus_per_node": _GPUS,
    "ntasks_per_node": re.compile(r"--ntasks-per-node[= ](\d{1,9})"),
}
_BY_SLURM = {
    "SLURM_NNODES": "nodes", "SLURM_JOB_NUM_NODES": "nodes", "SLURM_GPUS_ON_NODE": "gpus_per_node",
    "SLURM_GPUS_PER_NODE": "gpus_per_node", "SLURM_NTASKS_PER_NODE": "ntasks_per_node",
}  # fmt: skip
OPTIONS = {one.name for form in FORMATS for one in (*form.options, *form.read)}
KNOWN = OPTIONS | {one.name for one in LAUNCHERS}


def flags(text: str, place: str = "the script") -> Fields:
    """Return the flags of a script by name, with _ for -, and Slurm's nodes and GPUs of each.

    Raises InputError, which names the script's ``place``, for a known one whose values differ by
    branch.

    >>> flags("TP=8\\nARGS=(\\n --tensor-model-parallel-size $TP\\n --bf16\\n)")
    {'tensor_model_parallel_size': 8, 'bf16': True}
    >>> flags('ARGS="--bf16 --seq-length 4096"\\nbash -c "train --zero-stage 1"')
    {'bf16': True, 'seq_length': 4096, 'zero_stage': 1}
    """
    job = _of_job(text)
    text = re.sub(r"(^|\s)#.*", r"\1", text)
    values, has_branches = _assigned(text)
    for name, of_job in _BY_SLURM.items():
        if of_job in job:
            values.setdefault(name, [str(job[of_job])])
    found = dict(job)
    for name, words in _flags(text):
        meant = [True] if words is None else list(map(_plain, _meant(words, values)))
        if name in OPTIONS and has_branches and name in found:
            meant.insert(0, found[name])
        require(
            name not in KNOWN or len({*map(str, meant)}) == 1,
            f"{place}: --{name.replace('_', '-')} is {listed([*dict.fromkeys(map(str, meant))])}"
            f" by branches that only a shell can choose between; leave the one that runs",
        )
        if name not in job:
            found[name] = meant[-1]
    return found


def _of_job(text: str) -> Fields:
    """Return nodes, GPUs and tasks of a node as lines for Slurm say them, or GPUs as srun does."""
    lines = "\n".join(line.partition(" #")[0] for line in _JOB.findall(text))
    found = {name: one.search(lines) for name, one in _OF_JOB.items()}
    found["gpus_per_node"] = found["gpus_per_node"] or _GPUS.search(text)
    return {name: int(one[1]) for name, one in found.items() if one}


def _assigned(text: str) -> tuple[dict[str, list[str]], bool]:
    """Return what variables may be set to, and whether there are branches.

    Outside of branches the last value counts. One that may be its own default has its former ones.
    """
    values: dict[str, list[str]] = {}
    depth, has_branches = 0, False
    for before, opens, closes, name, quoted in _STEP.findall(text):
        depth = max(0, depth + bool(opens) - bool(closes))
        is_conditional = depth > 0 or before in _CONDITIONAL
        has_branches |= is_conditional
        value = quoted.strip("\"'")
        own = _NAMED.match(value)
        if own and own[1] == name:  # PP=${PP:-2}
            values.setdefault(name, [own[2]] if own[2] else [])
        elif name:
            values[name] = [*(values.get(name, ()) if is_conditional else ()), value]
    return values, has_branches


def _flags(text: str) -> Sequence[tuple[str, str | None]]:
    """Return every flag with the word that stands beside it, None if it stands alone."""
    found: list[tuple[str, str | None]] = []
    parts = _QUOTED.split(text)  # what is quoted at odd places, where parentheses stay
    for at in range(1, len(parts), 2):
        before = parts[at - 1].rsplit(maxsplit=1)[-1:]
        of_a_flag = before and before[0].startswith("--")
        if not of_a_flag and re.search(r"(?<!\S)--[a-zA-Z]", parts[at][1:-1]):
            parts[at] = f" {parts[at][1:-1]} "  # ARGS="--bf16 ...", or bash -c "..."
    parts[::2] = [re.sub(r"[()]", "\n", one) for one in parts[::2]]
    for line in "".join(parts).split("\n"):  # a value stands beside its flag
        words = [word.strip("\"'") for word in _WORD.findall(line)]
        for word, after in zip(words, [*words[1:], "--"], strict=False):
            if re.match(r"--[a-zA-Z]", word):
                name, equals, value = word[2:].partition("=")
                alone = not equals and after.startswith("--")
                found.append((name.replace("-", "_"), None if alone else value or after))
    return found


def _meant(word: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a word may stand for: itself, or what the variable that it names is set to."""
    found, named, todo = dict[str, None](), set[str](), [word]
    for one in todo:  # which grows
        name = _NAMED.match(one)
        default = name and name[2]
        if name and name[1] not in named:
            todo += values.get(name[1]) or ([default] if default else [])
            named.add(name[1])
            if not values.get(name[1]) and not default:
                found[one] = None
        elif not name:
            found[one] = None
    return list(found) or [word]


def _plain(word: str) -> Any:
    """Return a word as a number, a truth or a text."""
    if re.fullmatch(r"-?\d{1,18}", word):
        return int(word)
    return {"true": True, "false": False}.get(word.lower(), word)
