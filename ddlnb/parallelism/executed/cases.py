"""The strategies that are executed: name, layout, and the small model that each trains."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddlnb.errors import require
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.stages import require_fits
from ddlnb.parallelism.transformer import Transformer

DENSE = Transformer(
    "small transformer", layers=4, hidden=32, heads=4, vocab=64, sequence=16,
    learned_positions=True, norm="layer",
)  # fmt: skip
MIXTURE = replace(DENSE, name="small mixture", experts=4, top_k=2)
SCORES = replace(DENSE, name="small, scores kept", flash=False)


@dataclass(frozen=True)
class Case:
    """A strategy by the name that the field gives it, the model, and the layout.

    Raises InputError for a model or a combination that is not executed here.

    >>> Case("both", DENSE, Layout(dp=2, pp=2, zero=3))
    Traceback (most recent call last):
    ddlnb.errors.InputError: ZeRO-2 and 3 are executed without pipelines; give zero1 or pp 1
    """

    strategy: str
    shape: Transformer
    layout: Layout

    def __post_init__(self) -> None:
        shape, layout = self.shape, self.layout
        require_fits(shape.shape, layout)
        kind = (shape.learned_positions, shape.norm, shape.bias, shape.gated, shape.tied)
        require(
            kind == (True, "layer", False, False, False) and shape.kv_heads == shape.heads,
            f"model {shape.name!r} is not executed here: it needs learned positions, layer norms, "
            f"no biases, no gates, as many key heads as heads, and an untied head",
        )
        require(
            layout.tp == 1 or not (shape.experts or layout.cp > 1),
            "tensor parallelism is executed for dense layers and whole sequences; give tp 1",
        )
        require(
            not (layout.zero and layout.ep > 1),
            "shared experts are executed without ZeRO; give zero 0",
        )
        require(
            layout.zero < 2 or layout.pp == 1,
            "ZeRO-2 and 3 are executed without pipelines; give zero1 or pp 1",
        )
        require(
            not (layout.sequence_parallel and layout.gather_again),
            "torch's sequence parallelism keeps what it gathered: say so with the word keep",
        )
        require(
            layout.recomputation != "selective" or not shape.flash,
            "selective recomputation needs a model that keeps its scores: flash=False",
        )


def _case(strategy: str, layout: str, shape: Transformer = DENSE) -> Case:
    return Case(strategy, shape, Layout.parse(layout))


CASES = (
    _case("data (DDP)", "dp4 acc2"),
    _case("ZeRO-1", "dp4 zero1 acc2"),
    _case("ZeRO-2", "dp4 zero2 acc2"),
    _case("ZeRO-3 (FSDP2)", "dp4 zero3 acc2"),
    _case("tensor", "tp4 mb2"),
    _case("tensor, sequence", "tp4 sp keep"),
    _case("pipeline, GPipe", "pp4 gpipe acc4"),
    _case("pipeline, 1F1B", "pp4 acc8"),
    _case("pipeline, interleaved", "pp2 vpp2 acc4"),
    _case("pipeline, zero-bubble", "pp4 zero-bubble acc8"),
    _case("context, ring", "cp4"),
    _case("context, all-to-all", "cp4 all-to-all"),
    _case("expert", "dp4 ep4", MIXTURE),
    _case("expert, two replicas", "dp4 ep2", MIXTURE),
    _case("full recomputation", "dp2 tp2 full"),
    _case("selective recomputation", "dp4 selective", SCORES),
    _case("data, tensor", "dp2 tp2 acc2"),
    _case("data, tensor, sequence, ZeRO-1", "dp2 tp2 sp keep zero1"),
    _case("ZeRO-3, tensor", "dp2 tp2 zero3"),
    _case("data, pipeline, ZeRO-1", "dp2 pp2 zero1 acc2"),
    _case("tensor, pipeline", "tp2 pp2 acc2"),
    _case("data, context", "dp2 cp2"),
)
