"""Hardware by name: the options that make a cluster of it, and the command that lists it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import Csv, print_table

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.hardware.gpu import Gpu
    from ddlnb.hardware.interconnect import Interconnect, Known
    from ddlnb.hardware.machine import Machine

ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster", help="One of `ddlnb clusters`, or a .yaml file. Or name its hardware:"
    ),
]
GpuName = Annotated[
    str, typer.Option("--gpu", help="A GPU of `ddlnb hardware`, such as A100, for a new cluster.")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", help="Nodes of the new cluster, 1 by default; of --cluster, those in use."
    ),
]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", help="GPUs in each node. Default: the usual.")
]
NetworkName = Annotated[
    str, typer.Option("--network", help="Such as 25GbE, 200GbIB, 8x400GbIB, '400 Gb/s EFA'.")
]
MachineName = Annotated[
    str, typer.Option("--machine", help="A machine of `ddlnb hardware`, such as p4d or DGX-A100.")
]
SaveCluster = Annotated[
    Path | None, typer.Option("--save-cluster", help="Also write the cluster to this .yaml file.")
]
PrecisionName = Annotated[
    str, typer.Option("--precision", help="fp32, tf32, fp16, bf16, fp8: of seconds by data sheet.")
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(hardware)


def chosen_cluster(
    cluster: str,
    gpu: str = "",
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    network: str = "",
    machine: str = "",
    save: Path | None = None,
) -> Cluster:
    """Return the cluster of a name or file, or of named hardware, and say what was assumed.

    Raises InputError for both together, for neither, and for what cannot be.
    """
    from ddlnb.cli.options import refuse_unused
    from ddlnb.clusters.file import get_cluster
    from ddlnb.clusters.named import cluster_of
    from ddlnb.clusters.write import write_cluster
    from ddlnb.errors import require
    from ddlnb.files import require_writable_file

    named = {
        "gpu": gpu, "gpus_per_node": gpus_per_node, "network": network, "machine": machine,
    }  # fmt: skip
    if save is not None:
        require(
            save.suffix in (".yaml", ".yml"),
            f"cluster file {str(save)!r} must have a name in .yaml, by which --cluster knows it",
        )
        require_writable_file(save, "mine.yaml")
    if cluster:
        refuse_unused(f"--cluster {cluster} says what hardware there is", **named)
        found = get_cluster(cluster)
        found = found if nodes is None else nodes_in_use(found, nodes)
    else:
        require(
            bool(gpu or machine),
            "give --cluster (see `ddlnb clusters`), or the hardware by name, such as --gpu A100 "
            "--nodes 4 --gpus-per-node 8 --network 200GbIB, or --machine p4d --nodes 4",
        )
        found = cluster_of(
            gpu, 1 if nodes is None else nodes, gpus_per_node, network, machine=machine
        )
        typer.echo(assumptions(found), err=True)
    if save is not None:
        typer.echo(f"Cluster in {write_cluster(found, save)}", err=True)
    return found


def nodes_in_use(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster with the GPUs of so many of its nodes in use.

    Raises InputError for more nodes than it has.
    """
    from ddlnb.errors import require, require_whole

    require_whole(nodes=nodes)
    require(
        nodes <= cluster.nodes,
        f"nodes {nodes:,} exceed the {cluster.nodes:,} of cluster {cluster.name!r}; give at most "
        f"{cluster.nodes:,}, or the hardware by name (--gpu, --gpus-per-node, --network)",
    )
    return cluster.with_workers(nodes * cluster.gpus_per_node)


def assumptions(cluster: Cluster) -> str:
    """Return in one line what a cluster of named hardware is, and what nobody gave."""
    missing = [f"{what} {text}" for what, text in cluster.facts.items() if text.startswith("not ")]
    said = f"Cluster {cluster.about}: rates of data sheets, less what open measurements say is lost"
    said += "; servers on extra machines" if cluster.server_place else ""
    return "; ".join([said, *missing]) + "."


def hardware(
    name: Annotated[
        str | None,
        typer.Argument(help="gpus, networks or machines; or one of them, shown with its sources."),
    ] = None,
    csv: Csv = False,
) -> None:
    """List the GPUs, networks and machines that are known by name, or show one."""
    from ddlnb.errors import require
    from ddlnb.hardware.catalogue import gpus, interconnects, machines

    tables: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "gpus": ("GPUs (dense TFLOP/s; GB/s)", [_gpu_row(one) for one in gpus().values()]),
        "networks": (
            "Networks (--network also reads words such as '2x100 Gb/s RoCE')",
            [_network_row(one) for one in interconnects().values()],
        ),
        "machines": ("Machines (--machine)", [_machine_row(one) for one in machines().values()]),
    }
    require(
        not csv or name is not None,
        f"--csv prints one table; name {', '.join(tables)}, or one GPU, network or machine",
    )
    if name is not None and name not in tables:
        return _show(name, csv)
    for kind, (title, rows) in tables.items():
        if name in (None, kind):
            print_table(rows, csv, title)


def _show(name: str, csv: bool) -> None:
    from ddlnb.errors import InputError, UnknownName
    from ddlnb.hardware.catalogue import find, get_interconnect, gpus, interconnects, machines

    if gpu := find(name, gpus()):
        return print_table(_gpu_facts(gpu), csv, f"{gpu!r}: {gpu.about or gpu.source}")
    if machine := find(name, machines()):
        return print_table([_machine_row(machine)], csv, repr(machine))
    try:
        network = get_interconnect(name)
    except InputError:
        known = [*gpus(), *machines(), *interconnects()]
        raise UnknownName("hardware", name, known) from None
    return print_table(_network_facts(network), csv, repr(network))


def _gpu_row(gpu: Gpu) -> dict[str, Any]:
    rates = {
        name: f"{gpu.flops[name] / 1e12:.4g}" if name in gpu.flops else "-"
        for name in ("fp32", "tf32", "fp16", "bf16", "fp8")
    }
    link = f"{gpu.nvlink.name} {gpu.nvlink.bandwidth / 1e9:g}" if gpu.nvlink else "-"
    return {
        "GPU": gpu.name, "year": str(gpu.year), **rates, "memory": f"{gpu.memory / 2**30:g} GB",
        "GB/s": f"{gpu.memory_bandwidth / 1e9:g}", "link": link,
        "PCIe": f"{gpu.pcie_generation}.0 x{gpu.pcie_lanes}",
    }  # fmt: skip


def _gpu_facts(gpu: Gpu) -> list[dict[str, str]]:
    from ddlnb.units import show_bandwidth
    from ddlnb.workloads.roofline import efficiency_of

    rows = [
        {"what": f"{precision}, dense", "value": f"{rate / 1e12:.4g} TFLOP/s",
         "source": gpu.source_of("tflops")}
        for precision, rate in gpu.flops.items()
    ]  # fmt: skip
    rows += [
        {"what": f"of it, programs reach at {precision}",
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
        "PCIe": (f"{gpu.pcie_generation}.0 x{gpu.pcie_lanes}, {gpu.pcie_bandwidth / 1e9:.1f} GB/s "
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
    from ddlnb.units import show_bandwidth, show_seconds

    return {
        "network": one.name, "protocol": one.protocol.name, "ports": one.ports,
        "line": show_bandwidth(one.line_rate), "left of it": show_bandwidth(one.bandwidth.value),
        "latency": show_seconds(one.latency.value), "source": one.source,
    }  # fmt: skip


def _network_facts(one: Interconnect) -> list[dict[str, str]]:
    from ddlnb.units import show_bandwidth, show_seconds

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
