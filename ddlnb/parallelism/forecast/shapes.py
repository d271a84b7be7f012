"""Shapes of large models by name: what their authors publish."""

from __future__ import annotations

from ddlnb.errors import UnknownName
from ddlnb.parallelism.transformer import Transformer, gpt, llama

_SHAPES = (
    # The Llama 3 Herd of Models (arXiv 2407.21783), Table 3; Llama 3.2 model cards.
    llama("llama3-1b", 16, 2048, 32, 8, 8192, 128256, 8192, tied=True),
    llama("llama3-3b", 28, 3072, 24, 8, 8192, 128256, 8192, tied=True),
    llama("llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192),
    llama("llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192),
    llama("llama3-405b", 126, 16384, 128, 8, 53248, 128256, 8192),
    # Llama 2 (arXiv 2307.09288), appendix A.1.
    llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
    llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
    llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
    # Language Models are Few-Shot Learners (arXiv 2005.14165), Table 2.1.
    gpt("gpt3-1.3b", 24, 2048, 16, 51200, 2048),
    gpt("gpt3-6.7b", 32, 4096, 32, 51200, 2048),
    gpt("gpt3-13b", 40, 5120, 40, 51200, 2048),
    gpt("gpt3-175b", 96, 12288, 96, 51200, 2048),
)
SHAPES = {shape.name: shape for shape in _SHAPES}
OF_YOUR_OWN = (
    "a model of your own is given by its sizes (docs/large_scale.md#a-model-of-your-own); one that "
    "a GPU can hold alone, such as my.py:task, is for `ddlnb advise`"
)


def get_shape(name: str | Transformer) -> Transformer:
    """Return the shape of that name, or the shape itself; "llama-8b" is the newest Llama of it.

    Raises UnknownName.

    >>> get_shape("llama-8b").name
    'llama3-8b'
    """
    if isinstance(name, Transformer):
        return name
    known = SHAPES | {
        shape.name.replace("llama3-", "llama-").replace("gpt3-", "gpt-"): shape for shape in _SHAPES
    }
    if name.casefold() not in known:
        raise UnknownName("large model", name, SHAPES, otherwise=OF_YOUR_OWN)
    return known[name.casefold()]
