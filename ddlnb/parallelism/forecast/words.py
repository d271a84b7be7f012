"""What the words of a table of runs mean, in the spellings of those who make such tables.

Columns have other names elsewhere; precisions, dates, degrees of ZeRO and what is computed again
have several words each, and a word after "no" or "without" says the opposite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddlnb.parallelism.forecast.cases import FULL, NONE, SELECTIVE

# Columns by the names that others give them, in small letters and without signs between words.
ALSO = {
    "tp": "tensorparallel tensorparallelsize tensormodelparallelsize tpsize",
    "pp": "pipelineparallel pipelineparallelsize pipelinemodelparallelsize ppsize",
    "dp": "dataparallel dataparallelsize dpsize",
    "cp": "contextparallel contextparallelsize cpsize",
    "ep": "expertparallel expertparallelsize expertmodelparallelsize epsize",
    "vpp": "virtualpipeline virtualpipelinesize interleavedstages",
    "micro_batch": "mbs microbatchsize",
    "grad_accum": "gradientaccumulation gradientaccumulationsteps gradaccumsteps gas",
    "global_batch_seqs": "gbs globalbatch globalbatchsize",
    "num_gpus": "gpus ngpus numberofgpus worldsize",
    "nodes": "numnodes nnodes numberofnodes",
    "seq_len": "sequence seqlen seqlength sequencelength contextlength",
    "vocab": "vocabsize",
    "hidden": "hiddensize dmodel",
    "layers": "numlayers nlayers",
    "heads": "numheads nheads attentionheads numattentionheads",
    "kv_heads": "kvheads numkvheads numkeyvalueheads querygroups numquerygroups",
    "ffn": "ffnhiddensize intermediatesize",
    "experts": "numexperts",
    "precision": "dtype",
    "activation_checkpointing": "recompute recomputation activationrecomputation "
    "activationrecompute gradientcheckpointing checkpointing",
    "zero_stage": "zerostage",
    "gpu": "gputype gpumodel accelerator",
    "gpus_per_node": "gpuspernode",
    "params_b": "paramsb parametersb",
}
# Those that others call the same, but for capitals and signs.
SAME = (
    *("model", "framework", "framework_version", "software", "source_date", "network", "table"),
    *("sharding", "schedule", "overlap", "sp", "sequence_parallel", "top_k", "nvlink_domain"),
    *("training", "notes"),
)
MEANT = {
    other.replace("_", ""): column
    for column, others in ALSO.items()
    for other in (column, *others.split())
} | {column.replace("_", ""): column for column in SAME}


def meaning(column: str) -> str:
    """Return what a column is called here, or its own name where it is none of those known.

    >>> meaning("Tensor-parallel size"), meaning("GPU"), meaning("tp2")
    ('tp', 'gpu', 'tp2')
    """
    return MEANT.get(re.sub(r"[^a-z0-9]", "", column.lower()), column)


def columns_meant(columns: Mapping[str, str]) -> dict[str, str]:
    """Return a row's cells by the names that columns have here; those of other names stay.

    Of several columns for one thing the first that is not empty counts.

    >>> columns_meant({"TP": "4", "Micro batch size": "1", "tensor_parallel": "", "MFU": "0.4"})
    {'MFU': '0.4', 'tp': '4', 'micro_batch': '1'}
    """
    found: dict[str, str] = {}
    ours_first = sorted(columns, key=lambda name: name != meaning(name))
    for column in ours_first:
        name = meaning(column)
        if not str(found.get(name) or "").strip():
            found[name] = columns[column]
    return found


_NEGATED = re.compile(
    r"\b(?:no|not|non|without|w/o)[\s-]+(?:an?\s+|use of\s+|using\s+)?[\w-]+(?:[ /-]bubble)?"
    r"|[\w-]+(?:[ /-]bubble)?\s+(?:is\s+|was\s+)?(?:not used|unused|off\b|disabled)",
    re.IGNORECASE,
)
_OF_ATTENTION = re.compile(r"interleav\w*[\w/ -]*attention", re.IGNORECASE)


def affirmed(words: str) -> str:
    """Return words without what they say is not so, and without how layers of attention alternate.

    >>> affirmed("full fine-tuning, no LoRA"), affirmed("zero bubble not used; interleaved")
    ('full fine-tuning, ', '; interleaved')
    """
    return _OF_ATTENTION.sub("", _NEGATED.sub("", words))


def has_adapters(words: str) -> bool:
    """Return whether a run trains adapters, as LoRA does.

    >>> has_adapters("QLoRA, rank 16"), has_adapters("Colorado, without LoRA")
    (True, False)
    """
    return re.search(r"\bq?-?lora\b", affirmed(words), re.IGNORECASE) is not None


PRECISIONS = {  # patterns, the first that is found counts
    "fp4": r"(?:nv|mx)?fp4|float4",
    "fp8": r"(?:mx)?fp8|float8",
    "bf16": r"bf16|bfloat16",
    "fp16": r"fp16|float16|\bhalf\b|^(?:amp|mixed|16(?:-mixed)?)$",
    "tf32": r"tf32",
    "fp32": r"fp32|float32|\bsingle\b|^32$",
}
# What is in fp8 beside the matrix products.
_BESIDE_PRODUCTS = re.compile(r"(?:fp8|float8)[ -]*(?:kv|all-?gather|communication|optimi[sz]er)")


def precision_in(words: str) -> str:
    """Return the precision of matrix products that words name, '' if they name none.

    >>> [precision_in(one) for one in ("float8", "bf16, w/o fp8", "mixed", "int8")]
    ['fp8', 'bf16', 'fp16', '']
    """
    said = _BESIDE_PRODUCTS.sub("", affirmed(words.strip().lower()))
    return next((name for name, pattern in PRECISIONS.items() if re.search(pattern, said)), "")


_AGAIN = {  # patterns, the first that is found counts
    r"selective": SELECTIVE,
    r"none|^(0|0\.0|false|no|off|disabled)$|\b(off|disabled|without)\b": NONE,
    r"full|every|all layers|uniform|block|^(1|1\.0|true|yes|on)$|enabled"
    r"|(gradient|activation)s?.?(re)?(checkpoint|comput)": FULL,
}


def again_in(words: str) -> int | None:
    """Return what is computed again by these words, None where they do not say.

    >>> [again_in(one) for one in ("gradient checkpointing", "full recompute off", "unknown")]
    [2, 0, None]
    """
    found = (again for pattern, again in _AGAIN.items() if re.search(pattern, words.lower()))
    return next(found, None)


SHARDING = ("full_shard", "hybrid_shard", "shard_grad_op", "no_shard")
_SHARDINGS = {  # patterns, the first that is found counts
    r"no_shard|^(zero|stage)?[ -]?0(\.0)?\b|^(ddp|no|false)$": 0,
    r"shard_grad|(zero|stage)[ -]?2\b|^2(\.0)?$": 2,
    r"full|hybrid|hsdp|fsdp|(zero|stage)[ -]?3\b|^3(\.0)?$": 3,
    r"optim|distrib|dist.?opt|^(zero|stage)?[ -]?1(\.0)?\b": 1,
}


def zero_in(words: str) -> int | None:
    """Return the degree of ZeRO of a cell about sharding, None for a word that is not known.

    >>> [zero_in(one) for one in ("FULL_SHARD", "ZeRO 3", "dist-opt", "DDP", "4")]
    [3, 3, 1, 0, None]
    """
    found = (zero for words_, zero in _SHARDINGS.items() if re.search(words_, words.lower()))
    return next(found, None)


def zero_of_framework(words: str) -> int | None:
    """Return the degree of ZeRO that the words for a framework say, None where they say none.

    >>> [zero_of_framework(one) for one in ("DeepSpeed ZeRO-1", "FSDP shard_grad_op", "ZeRO")]
    [1, 2, None]
    """
    if stage := re.search(r"zero[ -]?(?:stage[ -]?)?([0-3])\b", words, re.IGNORECASE):
        return int(stage[1])
    named = re.search(r"shard_grad_op|no_shard|full_shard", words, re.IGNORECASE)
    return zero_in(named[0]) if named else None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def month_in(date: str) -> str:
    """Return the month of a date as 2024-06, the first of several; of a year alone its middle.

    >>> [month_in(one) for one in ("2021-05..2022-05", "06/2025", "June 2022", "2024", "")]
    ['2021-05', '2025-06', '2022-06', '2024-07', '']
    """
    if found := re.search(r"\b((?:19|20)\d\d)(?:[-/.](\d{1,2})\b)?", date):
        year, month = found.groups()
        before = re.search(rf"\b(\d{{1,2}})[-/.]{year}", date)
        named = re.search(rf"\b({'|'.join(_MONTHS)})[a-z]*\b", date.lower())
        if month is None and before:
            month = before[1]
        elif month is None and named:
            month = str(_MONTHS.index(named[1]) + 1)
        return f"{year}-{int(month or 7):02d}"
    return ""
