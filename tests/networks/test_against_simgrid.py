"""Flows on every topology end when SimGrid says that they end.

SimGrid (Casanova et al. 2014) is Debian's python3-simgrid, and so runs under the system's Python,
in a process of its own. It knows one path per flow; flows that are split are checked against a
linear program in `test_flows`.
"""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlnb.networks.flows import NO_STARTUP, Cap
from ddlnb.networks.network import Network
from ddlnb.networks.play import of_flows, share
from ddlnb.networks.topologies import with_islands
from tests.networks.oracles import flow_of
from tests.networks.random_traffic import SMALL, unlike

SYSTEM_PYTHON = "/usr/bin/python3"
WITHIN = 0.01


def simgrid_is_missing() -> bool:
    """Whether the system's Python has no SimGrid."""
    found = subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True)
    return found.returncode != 0


def scenario(seed: int) -> tuple[Network, list[tuple[int, int, float, float]], Cap]:
    """Draw a topology with its own routing, or one path by hash, and up to 20 flows on it."""
    random = np.random.default_rng(seed)
    topology = SMALL[seed % len(SMALL)]
    network = topology.network(bandwidth=1e9)
    if network.routing == "ecmp":
        network = replace(network, routing="ecmp hash")
    has_gpus = any(device.kind == "gpu" for device in network.devices)
    if not has_gpus and random.random() < 0.3:
        network = with_islands(network, 2, bandwidth=3e9)
    if random.random() < 0.7:
        network = unlike(network, random)
    count = int(random.integers(2, 21))
    source = random.integers(0, network.ranks, count)
    target = (source + random.integers(1, network.ranks, count)) % network.ranks
    sizes = random.integers(10**5, 10**8, count)
    starts = np.where(random.random(count) < 0.4, 0.0, random.uniform(0, 0.2, count))
    flows = list(zip(*(each.tolist() for each in (source, target, sizes, starts)), strict=True))
    caps = random.choice([math.inf, math.inf, 1.5e9, 2e8], 2)
    return network, flows, Cap(*caps.tolist())


def as_json(network: Network, flows: list[tuple[int, int, float, float]], cap: Cap) -> Any:
    """Return what `simgrid_flows` reads."""
    channels = of_flows(network, flows, NO_STARTUP, cap).channels
    lowered = [flow_of(channels, number) for number in range(len(flows))]
    assert all(set(flow.shares) == {1.0} for flow in lowered)
    return {
        "bandwidths": network.bandwidths.tolist(),
        "flows": [
            {
                "links": flow.links,
                "bytes": sizes,
                "start": start,
                "cap": None if flow.cap == math.inf else flow.cap,
            }
            for flow, (_, _, sizes, start) in zip(lowered, flows, strict=True)
        ],
    }


def compare(seeds: range, folder: Path) -> None:
    """Play all scenarios with both, and list every flow that ends at another time."""
    drawn = [scenario(seed) for seed in seeds]
    source, answers = folder / "scenarios.json", folder / "answers.json"
    source.write_text(json.dumps([as_json(*each) for each in drawn]))
    script = Path(__file__).with_name("simgrid_flows.py")
    command = [SYSTEM_PYTHON, str(script), str(source), str(answers)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wrong = []
    theirs = json.loads(answers.read_text())
    for seed, (network, flows, cap), expected in zip(seeds, drawn, theirs, strict=True):
        ours = share(network, flows, cap=cap).messages["left"]
        durations = np.array(expected) - [start for *_, start in flows]
        wrong += [
            f"seed {seed}, {network.name}, flow {number} {flows[number]}: "
            f"{ours[number]:.6g} s, SimGrid {expected[number]:.6g} s"
            for number in np.flatnonzero(np.abs(ours - expected) > WITHIN * durations)
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(simgrid_is_missing(), reason=f"{SYSTEM_PYTHON} lacks python3-simgrid")
def test_completion_times_are_within_a_hundredth_of_a_flow_s_duration(tmp_path):
    compare(range(100), tmp_path)
