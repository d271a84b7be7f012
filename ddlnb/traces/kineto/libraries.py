"""Which kernels communicate, and which compute: a registry of the names that libraries give them.

Names are those that the libraries' sources define or their users' traces show. A kernel of no
entry is unknown. It counts as computation, and is listed; if its name speaks of communication, it
counts as neither.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from math import prod
from typing import Any

from ddlnb.reading import reading

COMPUTATION, UNKNOWN, PERHAPS = "computation", "unknown", "perhaps communication"


@dataclass(frozen=True)
class Library:
    """A library whose kernels communicate, and what all of their names contain."""

    name: str
    pattern: str


LIBRARIES = (
    Library("NCCL or RCCL", r"\b(nccl|rccl)(Dev)?Kernel|rcclGenericKernel|^nccl"),
    Library("MSCCL", r"\bmscclKernel"),
    Library("MSCCL++", r"mscclpp"),
    Library("DeepEP", r"deep_ep::"),
    Library("NVSHMEM", r"nvshmem|rocshmem"),
    Library(
        "symmetric memory",
        r"symm_mem|symmetric_memory|multimem_(all|one|reduce)|(one|two)_shot_all_reduce",
    ),
    Library("custom all-reduce", r"cross_device_reduce_\dstage|quickreduce::|(one|two)ShotAllReduce"
            r"|allreduce_fusion_kernel|lamport.*allreduce|allreduce.*lamport"),
    Library("user buffers", r"userbuffers_"),
    Library("copies between GPUs", r"^Memcpy PtoP"),
)  # fmt: skip
_LIBRARIES = tuple((one.name, re.compile(one.pattern, re.IGNORECASE)) for one in LIBRARIES)
_COMPUTES = re.compile(
    r"at::|at_cuda|cub::|thrust::|gemm|gemv|cutlass|cublas|cudnn|cute::|nvjet|xmma|magma|Cijk_|"
    r"miopen|ck::|ck_tile|triton|flash|fmha|attention|fbgemm|split_embedding|embs?_|embedding|"
    r"elementwise|softmax|(layer|batch|rms|group)_?norm|transformer_engine|apex|multi_tensor|"
    r"conv|winograd|fft|dropout|gelu|swiglu|adam|sgd|bn_(fw|bw)|^Mem(cpy|set)|splitKreduce",
    re.IGNORECASE,
)
_HINTS = re.compile(
    r"all_?(reduce|gather|to_?all)|reduce_?scatter|a2a|broadcast_?(kernel|bucket)|send_?recv|"
    r"dispatch|combine|peer|ipc_?|p2p|rdma|barrier|collective|(^|_)comm(_|unic)",
    re.IGNORECASE,
)
# By what a name contains, the first that fits; the words are those of nccl-tests.
_COLLECTIVES = (
    ("all_reduce", r"all_?reduce|cross_device_reduce|quickreduce|userbuffers.*sum"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("alltoall", r"all_?to_?all|a2a"),
    ("dispatch", r"dispatch"),
    ("combine", r"combine"),
    ("broadcast", r"broadcast|bcast"),
    ("barrier", r"barrier"),
    ("sendrecv", r"send|recv|PtoP"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
_MADE = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _COLLECTIVES)
ELEMENT_BYTES = {
    **{"float": 4, "double": 8, "half": 2, "bfloat16": 2, "complex<float>": 8, "bool": 1},
    **{"long": 8, "long int": 8, "int": 4, "short": 2, "byte": 1, "char": 1},
    **{"unsigned char": 1, "signed char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1},
}


def element_bytes(kind: object) -> int:
    """Return the bytes of an element of a type as traces name it, 0 for one that is not known.

    >>> element_bytes("c10::BFloat16"), element_bytes("float"), element_bytes("")
    (2, 4, 0)
    """
    return ELEMENT_BYTES.get(str(kind).removeprefix("c10::").lower(), 0)


@functools.cache
def library_of(kernel: str) -> str:
    """Return the library of a kernel that communicates, empty for any other kernel.

    >>> library_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'NCCL or RCCL'
    >>> library_of("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)"), library_of("relu")
    ('DeepEP', '')
    """
    return next((name for name, pattern in _LIBRARIES if pattern.search(kernel)), "")


@functools.cache
def work_of(kernel: str) -> str:
    """Return what a kernel of no such library does: COMPUTATION, UNKNOWN or PERHAPS.

    >>> work_of("ampere_sgemm_128x64_nn"), work_of("my_kernel"), work_of("my_allgather_v2")
    ('computation', 'unknown', 'perhaps communication')
    """
    if _COMPUTES.search(kernel):
        return COMPUTATION
    return PERHAPS if _HINTS.search(kernel) else UNKNOWN


@functools.cache
def collective_of(name: str) -> str:
    """Return the collective that a name speaks of, in the words of nccl-tests; else "other".

    >>> collective_of("_allgather_base"), collective_of("nccl:all_to_all"), collective_of("wait")
    ('all_gather', 'alltoall', 'other')
    """
    return next((one for one, pattern in _MADE if pattern.search(name)), "other")


def bytes_of(args: dict[str, Any]) -> int:
    """Return the bytes of the whole buffer, as nccl-tests counts them; 0 where nothing says so.

    They come from NCCL's own arguments, or from the shape of the first input (record_shapes=True).
    Raises InputError for what is no count.
    """
    if "In msg nelems" in args:
        elements = max(count_in(args, "In msg nelems"), count_in(args, "Out msg nelems"))
        return elements * element_bytes(args.get("dtype", ""))
    shapes, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not shapes or not isinstance(kinds, list) or not kinds:
        return 0
    sizes = shapes[0] if isinstance(shapes[0], list) else []
    with reading("the Input Dims of an event", "record the trace again"):
        several = sizes if sizes and isinstance(sizes[0], list) else [sizes][: len(sizes)]
        return sum(prod(map(int, one)) for one in several) * element_bytes(_first(kinds[0]))


def count_in(args: dict[str, Any], key: str, absent: int = 0) -> int:
    """Return a count among an event's arguments, ``absent`` where it is not. Raises InputError."""
    with reading(f"the {key} of an event", "record the trace again"):
        return int(args.get(key, absent))


def _first(kind: Any) -> Any:
    return kind[0] if isinstance(kind, list) and kind else kind
