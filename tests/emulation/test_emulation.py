"""Emulated networks: what was asked for is what there is, and nothing of it stays behind."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ddlnb.emulation.network import lacking
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MEASURING
from ddlnb.errors import DdlnbError, InputError, RankError
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.topology import LINKS, Link, get_link, links_of
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.engines.jobs import made_up
from tests.launch.owner import Owner
from tests.running import is_running

needs_emulation = pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")
SLOW = "20Mb/s 5ms"  # what two busy cores still emulate well


# Links


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("1GbE", LINKS["1GbE"]),
        ("1Gb/s 50us", Link(125e6, 50e-6)),
        ("100Mb/s, 1ms", Link(12.5e6, 1e-3)),
        ("2.5Gbit/s 0.1ms jitter 20us loss 1%", Link(312.5e6, 1e-4, 2e-5, 0.01)),
    ],
)
def test_a_network_is_described_in_words(text, link):
    found = get_link(text)
    assert found.bandwidth == pytest.approx(link.bandwidth)
    assert (found.latency, found.jitter, found.loss) == pytest.approx(
        (link.latency, link.jitter, link.loss)
    )


@given(
    st.floats(1e3, 1e11), st.floats(0, 1), st.sampled_from([0.0, 1e-4]), st.sampled_from([0, 0.01])
)
def test_a_link_reads_what_it_prints(bandwidth, latency, jitter, loss):
    link = Link(bandwidth, latency, jitter, loss)
    again = get_link(str(link))
    assert again.bandwidth == pytest.approx(bandwidth, rel=1e-4)
    assert (again.latency, again.jitter, again.loss) == pytest.approx((latency, jitter, loss), 1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10Gbe", "10GbE"),
        ("fast 1ms", "'fast' cannot be read"),
        ("1Gb/s soon", "'soon' cannot be read"),
        ("1Gb/s 1ms loss", "cannot be read"),
        ("1Gb/s 1ms loss 120%", "loss 1.2 must be"),
        ("0Gb/s 1ms", "must be positive"),
    ],
)
def test_a_network_that_makes_no_sense_is_explained(text, says):
    with pytest.raises(InputError, match=says):
        get_link(text)


def test_every_node_may_have_its_own_link_but_none_may_lack_one():
    assert [link.bandwidth for link in links_of(["1GbE", "100MbE"], 2)] == [125e6, 12.5e6]
    with pytest.raises(InputError, match="has 2 links for 3 nodes"):
        links_of(["1GbE", "100MbE"], 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"launcher": "emulated"}, "give network='10GbE'"),
        ({"network": "10GbE"}, "only with it"),
        ({"launcher": "emulated", "network": "10GbE", "scale": 0}, "scale=0.0 must be above 0"),
        ({"launcher": "emulated", "network": "10GbE", "scale": 3}, "at most 1"),
        ({"launcher": "emulated", "network": "10Gbe"}, "10GbE"),
    ],
)
def test_ranks_refuse_what_cannot_be_emulated(options, says):
    with pytest.raises(InputError, match=says):
        Ranks(2, **options)


# Real ones


@pytest.fixture(scope="module")
def nodes():
    with Ranks(4, launcher="emulated", network=SLOW, imports=(__name__,)) as ranks:
        yield ranks


def require_as_asked(table, seconds):
    """Within what a busy machine adds: 10 % of the median bandwidth, 20 % of each and of times."""
    full = table[table["full"]]
    off = (full["bandwidth"] / full["asked_bandwidth"] - 1).abs()
    assert off.median() < 0.1, table
    assert off.max() < 0.2, table
    assert (table["round_trip"] >= 0.99 * table["asked_round_trip"]).all(), table
    assert (table["round_trip"] <= 1.2 * table["asked_round_trip"] + seconds).all(), table


def _address(context):
    return context.host


@needs_emulation
@pytest.mark.ranks
def test_ranks_sit_on_nodes_of_their_own(nodes):
    assert nodes.run(_address) == [f"10.77.0.{node + 1}" for node in range(4)]


@needs_emulation
@pytest.mark.ranks
def test_links_have_the_bandwidth_and_the_round_trip_that_were_asked_for(nodes):
    assert len(nodes.verified) == 8  # both directions of each
    assert nodes.verified["full"].all()
    require_as_asked(nodes.verified, 2e-3)


def _all_reduce(context, elements):
    import torch
    import torch.distributed as dist

    from ddlnb.launch.rank import process_group

    with process_group(context, context.store(), context.count):
        tensor = torch.ones(elements)
        start = time.perf_counter()
        dist.all_reduce(tensor)
        return float(tensor.sum()), time.perf_counter() - start


@needs_emulation
@pytest.mark.ranks
def test_every_byte_of_an_all_reduce_crosses_the_switch(nodes):
    elements = 250_000
    before = nodes.network.statistics()
    answers = nodes.run(_all_reduce, elements)
    after = nodes.network.statistics()
    crossed = after["bytes"] - before["bytes"]
    least = 4 * elements * 2 * 3  # 2 (n-1) / n of the tensor from each of n nodes
    assert all(total == 4 * elements for total, _ in answers)
    assert least < crossed < 1.2 * least
    assert after["dropped"] == before["dropped"]
    ideal = 4 * elements * 2 * 3 / 4 / 2.5e6
    assert all(seconds > ideal for _, seconds in answers)


@needs_emulation
@pytest.mark.ranks
def test_a_cut_link_ends_a_run_with_one_error_and_a_restored_one_serves_again(nodes):
    nodes.network.cut(1)
    start = time.monotonic()
    with pytest.raises(RankError, match=r"host0 and host1, .* have lost each other"):
        nodes.run(_all_reduce, 1000, timeout_seconds=4)
    assert time.monotonic() - start < 30
    assert nodes.run(_all_reduce, 1000)[0][0] == 4000  # fresh ranks on a fresh network


@needs_emulation
@pytest.mark.ranks
def test_ranks_of_one_node_share_its_link():
    with Ranks(4, launcher="emulated", network=SLOW, ranks_per_node=2) as ranks:
        assert ranks.run(_address) == ["10.77.0.1"] * 2 + ["10.77.0.2"] * 2
        assert len(ranks.verified) == 4


def _waits(workload, scale):
    task = replayed(workload, scale=scale)
    module = task.build()
    start = time.perf_counter()
    task.loss(module, task.batch(4, 1)).backward()
    return module, time.perf_counter() - start


TRACED = Workload("m", 4, (Layer("a"),), (Gradient("a.w", "a", 3),), "traced")


def test_a_replayed_module_takes_its_time_and_its_gradients_come_in_the_recorded_order():
    workload = made_up(3, 5, 7)
    task = replayed(workload)
    module = task.build()
    arrived = []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: arrived.append((name, p.grad.clone()))
        )
    start = time.perf_counter()
    task.loss(module, task.batch(4, 1)).backward()
    seconds = time.perf_counter() - start
    assert [name for name, _ in arrived] == [gradient.name for gradient in workload.gradients]
    assert seconds >= workload.compute_seconds * 0.99
    value = task.batch(4, 1)[0].item()
    for _, gradient in arrived:
        assert gradient.unique().tolist() == pytest.approx([value])


def test_a_slowed_world_takes_longer():
    _, quick = _waits(made_up(3, 5), 1.0)
    _, slow = _waits(made_up(3, 5), 0.2)
    assert slow >= 5 * 0.99 * made_up(3, 5).compute_seconds > quick / 5


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (TRACED, {}, "no seconds to replay"),
        ("resnet50_b64_rtx2080ti", {"of": "bert-base"}, "the profile is one of 'resnet50'"),
        ("resnet50_b64_rtx2081ti", {}, "did you mean 'resnet50_b64_rtx2080ti'"),
    ],
)
def test_what_cannot_be_replayed_is_refused(model, options, says):
    with pytest.raises(InputError, match=says):
        replayed(model, **options)


@pytest.mark.thorough
@needs_emulation
@pytest.mark.ranks
def test_emulated_rows_say_so_and_hold_real_seconds(nodes):
    with Ranks(
        3, launcher="emulated", network="200Mb/s 1ms", scale=0.1, imports=MEASURING
    ) as ranks:
        rows = measure(
            replayed(made_up(10_000, 20_000)),
            ["WFBP-A2A", "WFBP-PS"],
            workers=2,
            ranks=ranks,
            iterations=5,
            warmup=1,
            repetitions=1,
        )
    assert set(rows["source"]) == {"emulated"}
    assert set(rows["network"]) == {"200Mb/s 1ms"}
    assert rows["settings"].str.contains("replayed scale=0.1").all()
    least = made_up(1, 1).compute_seconds
    assert (rows["iteration_seconds"] >= 0.99 * least).all()
    single = rows[rows["method"] == "single"].iloc[0]
    assert single["iteration_seconds"] < 2 * least  # real seconds, not those of the slowed world


OWNER = """
import signal, time
from ddlnb.launch.ranks import Ranks
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
ranks = Ranks(2, launcher="emulated", network="100MbE")
print("pids", ranks.network.pid, *ranks.pids, flush=True)
time.sleep(60)
"""


@pytest.mark.thorough(but=1)
@needs_emulation
@pytest.mark.ranks
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_when_the_owner_is_killed(number, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # the switch stays, compiled
    owner = Owner(tmp_path, OWNER)
    pids = owner.read_until("pids").splitlines()[-1].split()[1:]
    assert len({Path(f"/proc/{pid}/ns/net").readlink() for pid in pids}) == 3
    owner.process.send_signal(number)
    owner.assert_nothing_left(within_seconds=60)


@needs_emulation
@pytest.mark.ranks
def test_a_user_without_privileges_enters_a_user_namespace_first(monkeypatch):
    """Root can go that way, too, if it is told that it is nobody."""
    probe = subprocess.run(["unshare", "-Urn", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"this kernel does not let users make namespaces: {probe.stderr.decode()}")
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with Ranks(2, launcher="emulated", network=SLOW) as ranks:
        pids = [ranks.network.pid, *ranks.pids]
        assert len({Path(f"/proc/{pid}/ns/user").readlink() for pid in pids}) == 1
        assert Path("/proc/self/ns/user").readlink() != Path(f"/proc/{pids[0]}/ns/user").readlink()
        assert ranks.run(_address) == ["10.77.0.1", "10.77.0.2"]
    assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.skipif(not lacking(), reason="networks can be emulated here")
def test_a_machine_that_cannot_emulate_says_what_is_missing():
    with pytest.raises(DdlnbError, match="emulated"):
        Ranks(2, launcher="emulated", network="10GbE")
