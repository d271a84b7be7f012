"""Advice on how to split a large model: options, reasons, sentences, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlnb.advice.layouts.counterfactuals import layout_reasons
from ddlnb.advice.layouts.options import SHOWN, layout_options
from ddlnb.advice.layouts.question import PricedQuestion
from ddlnb.advice.layouts.sentences import layout_sentences, layout_unknowns
from ddlnb.advice.prices import Prices
from ddlnb.errors import require_whole

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.hardware.gpu import Gpu
    from ddlnb.parallelism.transformer import Transformer

DRAWS = 400


@dataclass(frozen=True)
class LayoutAdvice:
    """Which way to split a large model, and why; ``str`` is the answer in sentences.

    ``options`` has a row per option, the split to be taken first (columns: see
    `ddlnb.advice.layouts.options.layout_options`); ``reasons`` one per counterfactual, each
    forecast again over all layouts; ``unknowns`` are sentences.
    """

    question: PricedQuestion
    options: pd.DataFrame
    reasons: pd.DataFrame
    unknowns: tuple[str, ...]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def advise_layouts(
    model: str | Transformer,
    gpu: str | Gpu = "H100",
    nodes: int = 8,
    *,
    prices: Prices | None = None,
    top: int = SHOWN,
    draws: int = DRAWS,
    seed: int = 0,
    **options: Any,
) -> LayoutAdvice:
    """Return which way to split a large model, how sure that is, and what would make it faster.

    Arguments are those of `ddlnb.scale`, with ``prices`` per hour of a GPU. The options of the
    advice are the ``top`` best splits, then larger batches and fewer nodes, with tokens/s, 90 %
    intervals, cost of a million tokens, and the chance that a split is the fastest: ``draws`` share
    the parameters that all layouts have in common. Its reasons are forecast again with one thing
    changed each. Raises what `ddlnb.scale` raises.

    >>> import ddlnb
    >>> found = ddlnb.advise_layouts("llama3-8b", "H100", nodes=8, sequence=4096, draws=0)
    >>> found.options["option"].iloc[0]
    'dp32 tp2 zero1 sp mb2 acc16'
    >>> found.reasons["what"].iloc[1]
    'twice the bandwidth between nodes'
    """
    asked = PricedQuestion.of(model, gpu, nodes, prices=prices or Prices(), **options)
    return advise_on_layouts(asked, top=top, draws=draws, seed=seed)


def advise_on_layouts(
    asked: PricedQuestion, *, top: int = SHOWN, draws: int = DRAWS, seed: int = 0
) -> LayoutAdvice:
    """Return advice on a question."""
    require_whole(top=top)
    rows = layout_options(asked, top=top, draws=draws, seed=seed)
    reasons = layout_reasons(asked)
    return LayoutAdvice(
        asked,
        rows,
        reasons,
        tuple(layout_unknowns(asked)),
        tuple(layout_sentences(asked, rows, reasons)),
    )
