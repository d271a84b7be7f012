"""The command that lists hardware by name, or shows one with its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import Csv, print_table

if TYPE_CHECKING:
    from ddlnb.hardware.gpu import Gpu
    from ddlnb.hardware.interconnect import Interconnect, Known
    from ddlnb.hardware.machine import Machine


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(hardware)


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
        "PCIe": f"{gpu.pcie.generation}.0 x{gpu.pcie.lanes}",
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
