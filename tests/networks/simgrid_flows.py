"""Completion times of flows by SimGrid: `/usr/bin/python3 simgrid_flows.py IN.json OUT.json`.

It runs under the system's Python, which has Debian's python3-simgrid, and knows nothing of ddlnb.
A scenario has ``bandwidths`` of links and flows with ``links``, ``bytes``, ``start`` and ``cap``
(null for none). SimGrid shares links max-min fairly when its corrections for TCP are off; links
have no latency, as flows would have shares in inverse proportion to it.
"""

import json
import os
import sys

OPTIONS = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
    "network/crosstraffic:0",
)


def main(source: str, target: str) -> None:
    """Play every scenario in a process of its own: SimGrid has one engine per process."""
    with open(source) as file:  # noqa: PTH123
        scenarios = json.load(file)
    answers = [in_child(scenario) for scenario in scenarios]
    with open(target, "w") as file:  # noqa: PTH123
        json.dump(answers, file)


def in_child(scenario: dict) -> list[float]:
    """Return the completion time of every flow, in seconds."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(write, "w") as file:
                json.dump(completion_times(scenario), file)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"SimGrid ended with {status} on {json.dumps(scenario)}")
    return json.loads(answer)


def completion_times(scenario: dict) -> list[float]:
    """Build the platform, with two hosts for every flow, and run it."""
    import simgrid  # not above: pytest imports every file, and its Python has none

    engine = simgrid.Engine(
        ["flows", "--log=root.thres:critical", *(f"--cfg={o}" for o in OPTIONS)]
    )
    zone = simgrid.NetZone.create_full_zone("zone")

    def link(name, bandwidth):
        return zone.create_link(name, float(bandwidth)).set_latency(0.0).seal()

    links = [link(f"link{i}", bandwidth) for i, bandwidth in enumerate(scenario["bandwidths"])]
    pairs = []
    for number, flow in enumerate(scenario["flows"]):
        pair = [zone.create_host(f"{side}{number}", 1e9) for side in ("from", "to")]
        route = [links[i] for i in flow["links"]]
        if flow["cap"]:  # a link of its own: SimGrid 3.32 refuses a rate for such a flow
            route.append(link(f"cap{number}", flow["cap"]))
        route = [simgrid.LinkInRoute(each) for each in route]
        zone.add_route(pair[0].netpoint, pair[1].netpoint, None, None, route, False)
        pairs.append(pair)
    boss = zone.create_host("boss", 1e9)
    zone.seal()
    found = [0.0] * len(pairs)
    simgrid.Actor.create("boss", boss, play, engine, scenario["flows"], pairs, found)
    engine.run()
    return found


def play(engine, flows: list[dict], pairs: list, found: list[float]) -> None:
    """Start every flow at its time, and note when each of them ends."""
    import simgrid

    order = sorted(range(len(flows)), key=lambda number: flows[number]["start"])
    flying = {}
    while order or flying:
        while order and flows[order[0]]["start"] <= engine.clock:
            number = order.pop(0)
            comm = simgrid.Comm.sendto_init(*pairs[number])
            comm.set_payload_size(flows[number]["bytes"])
            flying[number] = comm.start()
        ahead = flows[order[0]]["start"] - engine.clock if order else -1
        if not flying:
            simgrid.this_actor.sleep_for(ahead)
            continue
        names = list(flying)
        which = simgrid.Comm.wait_any_for([flying[name] for name in names], ahead)
        if which >= 0:
            found[names[which]] = engine.clock
            del flying[names[which]]


if __name__ == "__main__":
    main(*sys.argv[1:])
