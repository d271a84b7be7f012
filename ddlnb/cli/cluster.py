"""Clusters: what is known by name, a new one of named hardware, and one fitted to measurements."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.fit import collectives, fit, import_logs
from ddlnb.cli.options import App, Csv, Family, first_line, grouped, print_table, refuse_unused, say
from ddlnb.cli.questions import Changes, Hardware
from ddlnb.errors import InputError, UnknownName, require, require_known
from ddlnb.registry import usage
from ddlnb.units import GB, counted, gpus_in_words, show_bandwidth, show_seconds

if TYPE_CHECKING:
    from ddlnb.hardware.gpu import Gpu
    from ddlnb.hardware.machine import Interconnect, Known, Machine


app = App(
    cls=Family,
    help="Clusters: list, show, new, import and fit them; expect judges logs of collectives.",
)
KINDS = ("clusters", "hardware", "gpus", "networks", "machines", "topologies")


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}.")] = KINDS[0],
    csv: Csv = False,
) -> None:
    """List what is known by name: clusters, hardware, or how nodes are joined.

    Examples: `ddlnb cluster list` and `ddlnb cluster list gpus --csv`.
    """
    from ddlnb.hardware.catalogue import gpus, interconnects, machines

    require_known("kind", kind, KINDS, otherwise="or `ddlnb cluster show NAME`")
    if kind == "clusters":
        return print_table(_cluster_rows(), csv, "Clusters")
    if kind == "topologies":
        return print_table(_topology_rows(), csv, "Networks")
    require(
        not csv or kind != "hardware", "--csv prints one table; list gpus, networks or machines"
    )
    tables: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "gpus": ("GPUs (dense TFLOP/s; GB/s)", [_gpu_row(one) for one in gpus().values()]),
        "networks": (
            "Networks (--network also reads words such as '2x100 Gb/s RoCE')",
            [_network_row(one) for one in interconnects().values()],
        ),
        "machines": ("Machines (--machine)", [_machine_row(one) for one in machines().values()]),
    }
    for one, (title, rows) in tables.items():
        if kind in ("hardware", one):
            print_table(rows, csv, title)


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A cluster or its .yaml file, a GPU, a network, a machine, or a topology such as "
            "'fat-tree(4)'."
        ),
    ],
    change: Changes = None,
    infragraph: Annotated[
        Path | None, typer.Option(help="Also write a topology to this file as InfraGraph.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Show what is known of a cluster, of hardware with its sources, or the cables of a topology.

    Examples: `ddlnb cluster show survey-10GbE` and
    `ddlnb cluster show 'two-tier(2, 4, 4.0)'`.
    """
    from ddlnb.clusters.file import cluster_names
    from ddlnb.hardware.catalogue import find, get_interconnect, gpus, interconnects, machines
    from ddlnb.networks.topologies import TOPOLOGIES

    if name.partition("(")[0].strip().casefold() in TOPOLOGIES:
        return _show_topology(name, change or [], infragraph, csv)
    refuse_unused(f"{name} has no cables", change=change, infragraph=infragraph)
    if name in cluster_names() or name.endswith((".yaml", ".yml")):
        return _show_cluster(name, csv)
    if gpu := find(name, gpus()):
        return print_table(_gpu_facts(gpu), csv, f"{gpu!r}: {gpu.about or gpu.source}")
    if machine := find(name, machines()):
        return print_table([_machine_row(machine)], csv, repr(machine))
    try:
        network = get_interconnect(name)
    except InputError:
        also = [*gpus(), *machines(), *interconnects(), *TOPOLOGIES]
        way_out = "or hardware that `ddlnb cluster list hardware` has"
        raise UnknownName("cluster or hardware", name, cluster_names(), also, way_out) from None
    print_table(_network_facts(network), csv, repr(network))


@app.command()
@grouped
def new(
    *,
    file: Annotated[Path, typer.Argument(help="The cluster file to write, such as mine.yaml.")],
    hardware: Hardware,
) -> None:
    """Write the file of a cluster of named hardware, in which your own values can be filled in.

    Examples: `ddlnb cluster new mine.yaml --gpu A100 --nodes 4 --network 200GbIB` and
    `ddlnb cluster new mine.yaml --machine p4d --nodes 16`.
    """
    hardware.chosen(save=file)


@app.command()
@grouped
def expect(
    *,
    log: Annotated[
        list[Path],
        typer.Argument(
            help="Output of nccl-tests or of the OSU micro-benchmarks, or what a job logged: JSON "
            "of torch's flight recorder or NCCL's Inspector (a file, or the folder of all ranks), "
            "DeepSpeed's comms log. NCCL_DEBUG=INFO and `nvidia-smi topo -m` among it are read, "
            "too, and NCCL's topology (.xml) beside it."
        ),
    ],
    hardware: Hardware,
    collective: Annotated[
        str | None, typer.Option(help="Of a log that does not name it, such as all_reduce.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Say whether measured collectives are as fast as the hardware should be, and what to test.

    Each size has a 90 % interval, what NCCL should take for it, and a verdict.

    Examples: `ddlnb cluster expect all_reduce.log --gpu H100 --network 8x400GbIB` and
    `ddlnb cluster expect all_reduce.log topo.xml --machine p4d`.
    """
    from ddlnb.calibration.collective_logs import read_log
    from ddlnb.calibration.expected import joined, judged, nccl_facts, topology_facts
    from ddlnb.calibration.logs import rows_of
    from ddlnb.cli.trace import size_row
    from ddlnb.reading import read_text, xml_of

    refuse_unused("the log is judged by hardware by name", cluster=hardware.cluster)
    each = hardware.gpus_per_node
    logs = [
        read_log(one, each, progress=sys.stderr.isatty()) for one in log if one.suffix != ".xml"
    ]
    facts = nccl_facts("\n".join(one.text for one in logs))
    for one in log:
        if one.suffix == ".xml":
            facts = joined(facts, topology_facts(xml_of(read_text(one), one), one))
    if not logs:
        say([*facts.said, "Nothing in it is measured; give a log beside it."])
        return
    named = hardware.found()
    rows = rows_of(logs, named.facts["gpu"], hardware.nodes, each, named.network, collective)
    on = replace(hardware, nodes=max(named.nodes, int(rows["nodes"].max()))).chosen()
    found = judged(rows, on.facts["gpu"], on.network, facts)
    if csv:
        return typer.echo(found.rows.to_csv(index=False), nl=False)
    title = ", ".join(one.path.name for one in logs)
    print_table([size_row(row) for row in found.rows.to_dict("records")], False, title)
    say([*facts.said, *found.said])


app.command("import")(import_logs)
app.command()(fit)
app.command()(collectives)


def _cluster_rows() -> list[dict[str, Any]]:
    from ddlnb.clusters.file import cluster_names, get_cluster

    return [
        {
            "cluster": one.name,
            "network": one.network,
            "nodes": one.nodes,
            "GPUs per node": one.gpus_per_node,
            "all-reduce": one.all_reduce,
            "topology": one.topology or "star",
            "servers": one.server_place or "none",
            "fitted effects": len(one.fits),
            "about": one.about,
        }
        for one in map(get_cluster, cluster_names())
    ]


def _show_cluster(name: str, csv: bool) -> None:
    from ddlnb.clusters.cluster import describe
    from ddlnb.clusters.file import get_cluster

    one = get_cluster(name)
    rows = describe(one)
    if csv:
        return print_table(rows, csv, one.name)
    short = [{key: text for key, text in row.items() if key != "meaning"} for row in rows]
    print_table(short, csv, f"{one!r}: {one.about}")
    typer.echo(
        f"{counted(one.nodes, 'node')} of {gpus_in_words(one.gpus_per_node)}; topology: "
        f"{', '.join(filter(None, [one.topology or 'star', one.routing, *one.changes]))}; "
        f"all-reduce: {one.all_reduce}; "
        f"parameter servers: {one.server_place or 'none'}."
    )
    if str(one.heterogeneity):
        typer.echo(f"Unlike workers: {one.heterogeneity}.")
    say(f"{row['effect']}: {row['meaning']}" for row in rows)
    say(f"fact about {fact}: {value}" for fact, value in one.facts.items())


def _gpu_row(gpu: Gpu) -> dict[str, Any]:
    rates = {
        name: f"{gpu.flops[name] / 1e12:.4g}" if name in gpu.flops else "-"
        for name in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
    }
    link = f"{gpu.nvlink.name} {gpu.nvlink.bandwidth / 1e9:g}" if gpu.nvlink else "-"
    return {
        "GPU": gpu.name, "year": str(gpu.year), **rates, "memory": f"{gpu.memory / 2**30:g} GB",
        "GB/s": f"{gpu.memory_bandwidth / 1e9:g}", "link": link,
        "PCIe": f"{gpu.pcie.generation}.0 x{gpu.pcie.lanes}",
    }  # fmt: skip


def _gpu_facts(gpu: Gpu) -> list[dict[str, str]]:
    from ddlnb.workloads.roofline import efficiency_of

    rows = [
        {"what": f"{precision}, dense", "value": f"{rate / 1e12:.4g} TFLOP/s",
         "source": gpu.source_of("tflops")}
        for precision, rate in gpu.flops.items()
    ]  # fmt: skip
    rows += [
        {"what": f"of it, matrix products reach at {precision}",
         "value": _interval(efficiency_of(gpu, precision).matrix),
         "source": efficiency_of(gpu, precision).matrix.source}
        for precision in gpu.flops
    ]  # fmt: skip
    if gpu.chip:
        clock, matrix = gpu.chip.clock / 1e6, gpu.chip.matrix_clock / 1e6
        slower = f", matrices at {matrix:.0f} MHz" if matrix < clock else ""
        made = f"{gpu.chip.multiprocessors} multiprocessors at {clock:.0f} MHz{slower}"
        rows.append(
            {"what": "chip", "value": f"{gpu.chip.name}, {made}", "source": gpu.chip.source}
        )
    bus = gpu.memory_bus
    pins = f", {bus.bits} pins of {bus.pin_rate / 1e9:g} Gb/s" if bus else ""
    links = {
        "memory": (f"{gpu.memory / 2**30:g} GB", "memory"),
        "its bandwidth": (f"{gpu.memory_bandwidth / 1e9:g} GB/s{pins}", "memory_bandwidth"),
        "PCIe": (f"{gpu.pcie.generation}.0 x{gpu.pcie.lanes}, {gpu.pcie_bandwidth / 1e9:.1f} GB/s "
                 f"per direction", "pcie"),
        "usual share of ports": (show_bandwidth(gpu.port), "port"),
    }  # fmt: skip
    if gpu.nvlink:
        rate = f"{gpu.nvlink.bandwidth / 1e9:g} GB/s per direction"
        switched = ", switched" if gpu.nvlink.switched else ""
        links["link in a node"] = (f"{gpu.nvlink.name}, {rate}{switched}", "nvlink")
    rows += [
        {"what": what, "value": value, "source": gpu.source_of(number)}
        for what, (value, number) in links.items()
    ]
    return rows


def _network_row(one: Interconnect) -> dict[str, Any]:
    return {
        "network": one.name, "protocol": one.protocol.name, "ports": one.ports,
        "line": show_bandwidth(one.line_rate), "left of it": show_bandwidth(one.bandwidth.value),
        "latency": show_seconds(one.latency.value), "source": one.source,
    }  # fmt: skip


def _network_facts(one: Interconnect) -> list[dict[str, str]]:

    rate, latency, wire = one.bandwidth, one.latency, one.line
    lanes = ""
    if wire:
        of_lane = f"{wire.lane_rate / 1e9:g} Gb/s, {float(wire.data):.1%} of it data"
        lanes = f" ({wire.lanes} lanes of {of_lane})"
    return [
        {"what": "line", "value": f"{one.ports} x {show_bandwidth(one.port_rate)}{lanes}",
         "90 % interval": "-", "source": one.source},
        {"what": "left for large messages", "value": show_bandwidth(rate.value),
         "90 % interval": f"{show_bandwidth(rate.low)} to {show_bandwidth(rate.high)}",
         "source": rate.source},
        {"what": "latency of a hop", "value": show_seconds(latency.value),
         "90 % interval": f"{show_seconds(latency.low)} to {show_seconds(latency.high)}",
         "source": latency.source},
    ]  # fmt: skip


def _machine_row(one: Machine) -> dict[str, Any]:
    return {
        "machine": one.name, "GPUs": f"{one.gpus} x {one.gpu.name}",
        "network": one.interconnect.name, "source": one.source,
    }  # fmt: skip


def _interval(known: Known) -> str:
    return f"{known.value:.0%} ({known.low:.0%} to {known.high:.0%})"


def _topology_rows() -> list[dict[str, Any]]:
    from ddlnb.networks.collectives.catalogue import COLLECTIVES
    from ddlnb.networks.network import CHANGES
    from ddlnb.networks.routes import ROUTINGS
    from ddlnb.networks.topologies import TOPOLOGIES

    catalogues: dict[str, dict[str, Any]] = {
        "topology": TOPOLOGIES,  # type: ignore[dict-item]
        "change": CHANGES,  # type: ignore[dict-item]
        "collective": COLLECTIVES,  # type: ignore[dict-item]
    }
    rows = [
        {"what": what, "name": usage(kind), "meaning": first_line(kind)}
        for what, known in catalogues.items()
        for kind in known.values()
    ]
    return rows + [
        {"what": "routing", "name": name, "meaning": first_line(find)}
        for name, find in ROUTINGS.items()
    ]


def _show_topology(text: str, changes: list[str], infragraph: Path | None, csv: bool) -> None:
    from ddlnb.networks.infragraph import write_infragraph
    from ddlnb.networks.network import changed
    from ddlnb.networks.topologies import get_topology

    network = changed(get_topology(text).network(GB), changes)
    joined = {(link.start, link.end): link.bandwidth for link in network.links[::2]}
    rows = [
        {
            "from": network.devices[start].name,
            "to": network.devices[end].name,
            "bandwidth": f"{bandwidth / GB:g}",
        }
        for (start, end), bandwidth in joined.items()
    ]
    print_table(rows, csv, f"{network!r}; bandwidths as multiples of a host's cable")
    if infragraph is not None:
        if infragraph.suffix not in (".yaml", ".yml"):
            raise InputError(f"InfraGraph file {str(infragraph)!r} must have a name in .yaml")
        typer.echo(
            f"InfraGraph in {write_infragraph(network, infragraph)}, with {show_bandwidth(GB)} "
            f"for a host's cable"
        )
