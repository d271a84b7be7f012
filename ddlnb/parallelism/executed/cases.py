"""The strategies that are executed: name, layout, and the small model that each trains."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.transformer import Transformer

DENSE = Transformer(
    "small transformer", layers=4, hidden=32, heads=4, vocab=64, sequence=16,
    learned_positions=True, norm="layer",
)  # fmt: skip
MIXTURE = replace(DENSE, name="small mixture", experts=4, top_k=2)
SCORES = replace(DENSE, name="small, scores kept", flash=False)


@dataclass(frozen=True)
class Case:
    """A strategy by the name that the field gives it, the model, and the layout."""

    strategy: str
    shape: Transformer
    layout: Layout


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
