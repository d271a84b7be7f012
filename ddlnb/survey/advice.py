"""Notebook advice: three worked cases of what to do, and a published run that was too slow."""

from __future__ import annotations

from ddlnb.advice.advise import Advice, advise
from ddlnb.advice.explain import Gap, explain_gap
from ddlnb.advice.layouts import LayoutAdvice
from ddlnb.advice.question import Prices
from ddlnb.clusters.file import get_cluster
from ddlnb.clusters.named import cluster_of
from ddlnb.errors import require
from ddlnb.plans.methods import get_method
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.published import fig4_cells
from ddlnb.units import show_rate
from ddlnb.workloads.workload import read_profile

BETWEEN_BANDWIDTHS = ("between_bandwidth", "duplex_bandwidth", "connection_bandwidth")
Answer = Advice | LayoutAdvice


def two_machines(model: str, gpu: str, network: str, batch: int, draws: int = 200) -> Answer:
    """Return advice for two machines with a GPU each, by the names of their hardware."""
    cluster = cluster_of(gpu, nodes=2, gpus_per_node=1, network=network)
    return advise(model, cluster, local_batch=batch, draws=draws)


def lab(model: str, cluster: str, gpus: int, gpu_hour: float, draws: int = 200) -> Answer:
    """Return advice for a lab's cluster, with the price of a GPU per hour."""
    return advise(model, cluster, gpus=gpus, prices=Prices(gpu_hour), draws=draws)


def slow_run(profile: str, cluster: str, method: str, gpus: int, draws: int = 200) -> Gap:
    """Return what would explain a cell of the survey's Fig. 4, as published, on its testbed.

    The forecast is that of the method as its paper describes it. Raises InputError for a cell that
    is not published.
    """
    workload, on = read_profile(profile), get_cluster(cluster, gpus)
    rates = published(workload.model, on.network, gpus)
    require(
        method in rates,
        f"no published cell of {method!r} with {workload.model} on {on.network} and {gpus} GPUs; "
        f"there are {', '.join(rates) or 'none'}",
    )
    return explain_gap(Cell(workload, on, get_method(method)), rates[method], draws=draws)


def published(model: str, network: str, gpus: int) -> dict[str, float]:
    """Return the throughput of every method in the published cells of a panel, in samples/s."""
    here = fig4_cells().query("model == @model and network == @network and gpus == @gpus")
    return dict(zip(here["method"], here["throughput_samples_per_s"], strict=True))


def answer(found: Answer) -> Findings:
    """Return the sentences of an advice, and what it does not know."""
    return findings(*found.sentences, *(f"Not known: {one}" for one in found.unknowns))


def explanation(gap: Gap) -> Findings:
    """Return the gap in a sentence, and the least surprising suspects with their tests."""
    return findings(str(gap), *map(str, gap.likeliest))


def other_network(gap: Gap, model: str, network: str, gpus: int) -> Findings:
    """Return whether a suspect has the rate of another network, and what was published on that."""
    found = [
        one
        for one in gap.suspects
        if one.effect in BETWEEN_BANDWIDTHS and f"about {network}:" in one.explains
    ]
    if not found:
        return findings(f"No suspect has the rate of {network}.")
    beside = published(model, network, gpus)[gap.method]
    return findings(
        f"One suspect, {found[0].meaning}, would explain it at {found[0].explains.split(' (')[0]}: "
        f"the rate of {network}. There the same run was published with {show_rate(beside)} "
        f"samples/s, {gap.measured / beside - 1:+.1%} from this one. Traffic on the wrong "
        f"interface would look like this."
    )
