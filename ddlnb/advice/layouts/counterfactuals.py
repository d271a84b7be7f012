"""What would make a large model train faster: the same question with one thing changed.

Each counterfactual is forecast again over all layouts: another one may be the best then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from ddlnb.advice.counterfactuals import AS_IT_IS, Counterfactual, reason_table
from ddlnb.advice.layouts.question import PricedQuestion
from ddlnb.hardware.gpu import Gpu, Nvlink
from ddlnb.parallelism.forecast.parameters import Fitted, Parameters

if TYPE_CHECKING:
    import pandas as pd

ZERO_BUBBLE = "zero-bubble"
STARTS = ("launch",)
LATENCIES = ("hop", "pipelined_hop", "pipelined_node", "transfer")
SLOW_MODE = ("slow_link", "slow_whole")
LEAST = {one.name: float(one.metadata["low"]) for one in fields(Parameters)}


def layout_counterfactuals(asked: PricedQuestion) -> Iterator[Counterfactual[PricedQuestion]]:
    """Yield what could be otherwise about the machines and the software, at the same batch."""
    if asked.nodes > 1:
        for words, factor in (("twice", 2), ("four times", 4)):
            faster = _network_times(asked, factor)
            yield Counterfactual(f"{words} the bandwidth between nodes", faster, True)
    if asked.gpus_per_node > 1:
        gpu = replace(asked.gpu, nvlink=_link_times(asked.gpu, 2))
        yield Counterfactual("twice the bandwidth inside nodes", replace(asked, gpu=gpu), True)
    if asked.nodes % 2 == 0 and asked.gpu.nvlink is not None:
        size = 2 * asked.gpus_per_node
        joined = asked.network and replace(asked.network, ports=2 * asked.network.ports)
        wider = replace(asked, nodes=asked.nodes // 2, gpus_per_node=size, network=joined)
        yield Counterfactual(f"{asked.gpu.nvlink.name} over {size} GPUs", wider, True)
    flops = {name: 2 * rate for name, rate in asked.gpu.flops.items()}
    gpu = replace(asked.gpu, flops=flops, memory_bandwidth=2 * asked.gpu.memory_bandwidth)
    yield Counterfactual("GPUs twice as fast", replace(asked, gpu=gpu), True)
    roomy = replace(asked.gpu, memory=2 * asked.gpu.memory)
    yield Counterfactual("twice the memory of a GPU", replace(asked, gpu=roomy), True)
    if not asked.ranking.outlook.cases.overlap.any():
        hidden = replace(asked, overlap=True)
        yield Counterfactual("exchanges of replicas beside the computation", hidden)
    if asked.schedule != ZERO_BUBBLE and (asked.ranking.outlook.cases.pp > 1).any():
        filled = replace(asked, schedule=ZERO_BUBBLE, vpp=None)
        yield Counterfactual("zero-bubble pipelines", filled)
    yield Counterfactual("no floor of starting kernels", _without(asked, STARTS))
    if asked.gpus > 1:
        yield Counterfactual("no latency of exchanges", _without(asked, LATENCIES))
    if asked.ranking.outlook.chance.any():
        yield Counterfactual("no slow runs", _without(asked, SLOW_MODE))


def layout_reasons(asked: PricedQuestion) -> pd.DataFrame:
    """Return the table of `reason_table` for the best layout of every counterfactual.

    Further columns: layout, and tokens per second of all GPUs with the 90 % interval
    (``tokens_per_s``, ``low``, ``high``).
    """
    listed = [Counterfactual(AS_IT_IS, asked), *layout_counterfactuals(asked)]
    best = [one.cell.ranking.rows(1)[0] for one in listed]
    table = reason_table(listed, [row["seconds"] for row in best])
    table["layout"] = [row["layout"] for row in best]
    for column, name in (("tokens_per_s_per_gpu", "tokens_per_s"), ("low", "low"),
                         ("high", "high")):  # fmt: skip
        table[name] = [asked.gpus * row[column] for row in best]
    return table


def without(fitted: Fitted, names: Sequence[str]) -> Fitted:
    """Return a fit in which these parameters are the least that they may be, in all frameworks."""
    least = {name: LEAST[name] for name in names}
    own = {
        framework: {name: value for name, value in values.items() if name not in least}
        for framework, values in fitted.frameworks.items()
    }
    return replace(fitted, parameters=replace(fitted.parameters, **least), frameworks=own)


def _without(asked: PricedQuestion, names: Sequence[str]) -> PricedQuestion:
    return replace(asked, fitted=without(asked.fitted, names))


def _network_times(asked: PricedQuestion, factor: int) -> PricedQuestion:
    if asked.network is None:
        return replace(asked, gpu=replace(asked.gpu, port=factor * asked.gpu.port))
    rate = factor * asked.network.port_rate
    return replace(asked, network=replace(asked.network, port_rate=rate))


def _link_times(gpu: Gpu, factor: int) -> Nvlink:
    """Return links inside a node that are so many times as fast as those that there are."""
    if gpu.nvlink is not None:
        return replace(gpu.nvlink, bandwidth=factor * gpu.nvlink.bandwidth)
    return Nvlink(f"PCIe times {factor}", factor * gpu.pcie_bandwidth, False, False)
