"""The settings of a measurement: one value, checked once, changed by name."""

from dataclasses import replace

import pytest

from ddlnb.engines.settings import DEFAULTS, MeasurementSettings
from ddlnb.engines.targets import cells_of, targets_of
from ddlnb.errors import InputError
from ddlnb.launch.options import LaunchOptions, emulated
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import Bucketing, message_of
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.plan_file import method_of
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.tracing import trace


def test_options_of_the_site_are_changed_by_name():
    changed = DEFAULTS.changed(launcher="ssh", hosts=["a", "b"], workers=4)
    assert changed.site == LaunchOptions("ssh", hosts=("a", "b"))
    assert (changed.workers, changed.server_count) == (4, 2)
    assert DEFAULTS.site == LaunchOptions()


def test_settings_at_ranks_that_are_up_keep_only_the_name_of_the_network():
    ranks = emulated("1Gb/s 1ms", 0.5)
    assert DEFAULTS.changed(scale=0.1).at(ranks).site == ranks
    assert DEFAULTS.changed(network="rack 7").at(ranks).site.network_name == "rack 7"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, ""),
        ({"partition": "256KB", "credit": "1MB"}, "partition=256000B credit=1000000B"),
        ({"topology": "mesh"}, "topology=mesh"),
        ({"workers": 8, "collective": "torus(2, 4)"}, "collective=torus(2,4)"),
        ({"launcher": "emulated", "network": "10GbE", "scale": 0.01}, "scale=0.01"),
        ({"launcher": "emulated", "network": "10GbE", "ranks_per_node": 2}, "ranks_per_node=2"),
        ({"launcher": "ssh", "hosts": ["node1", "node2"]}, "hosts=node1,node2"),
        ({"device": "cuda", "backend": "nccl"}, "backend=nccl"),
    ],
)
def test_the_settings_column_says_what_differs_from_a_plain_run(options, text):
    name = "ByteScheduler-A2A" if "partition" in options else "WFBP-A2A"
    settings = DEFAULTS.changed(baselines=False, **options)
    (contender,) = targets_of(name, settings)
    assert contender.settings_text(settings, replayed=False) == text
    assert "replayed" in contender.settings_text(settings, replayed=True).split()


def test_rows_of_another_rule_plan_or_cost_are_missing():
    """What is kept is known by what runs, not by the name of a method alone."""
    task, words = get_task("small-conv"), []

    def word(method: Method, **options: object) -> str:
        settings = DEFAULTS.changed(baselines=False, **options)
        return str(cells_of(task, targets_of(method, settings), settings)[0]["settings"])

    for number in (1, 2):

        def rule(workload, number=number):
            return [message_of(workload, workload.gradients[:number]),
                    message_of(workload, workload.gradients[number:])]  # fmt: skip

        words.append(word(replace(METHODS["WFBP-A2A"], name="Own", bucketing=Bucketing(rule))))
    assert words[0].startswith("plan=")
    assert words[0] != words[1]
    plan = METHODS["WFBP-A2A"].plan(trace(task, 32))
    kept = [method_of(one) for one in (plan, replace(plan, messages=plan.messages[::-1]))]
    assert len({word(one) for one in kept}) == 2
    with pytest.raises(InputError, match="the same name"):
        targets_of(kept, DEFAULTS)
    costs = [word("MG-WFBP", cost=cost) for cost in (None, AlphaBeta(1e-3, 1e-9))]
    assert costs == ["", "cost=0.001s+1e-09s/B"]
    assert word("WFBP-A2A", cost=AlphaBeta(1e-3, 1e-9)) == ""


def test_a_network_text_may_name_a_topology():
    settings = MeasurementSettings(
        site=LaunchOptions("emulated", network="two-tier(2, 2, 2) of 100Mb/s 1ms"), workers=4
    )
    assert settings.site.network.hosts == ("host0", "host1", "host2", "host3")
    assert settings.site.network_name == "two-tier(2, 2, 2) of 100Mb/s 1000us"
    again = settings.changed(network="star(2) of 1GbE")
    assert again.site.network.hosts == ("host0", "host1")
    assert again.site.name == "emulated-star(2)-of-1Gbps-50us"


@pytest.mark.parametrize("text", ["two-tear(2, 2) of 1GbE", "star(2) of 1GBE", "star(2) of 1ms"])
def test_a_network_text_that_makes_no_sense_is_refused(text):
    with pytest.raises(InputError):
        MeasurementSettings(site=LaunchOptions("emulated", network=text))


def test_a_collective_goes_with_methods_that_all_reduce():
    settings = DEFAULTS.changed(collective="halving-doubling", baselines=False)
    names = {contender.name for contender in targets_of("all", settings)}
    assert names == {name for name, method in METHODS.items() if method.exchange == "all_reduce"}
    with pytest.raises(InputError, match="'WFBP-PS' has no all-reduce that could be 'halving-doub"):
        targets_of(["WFBP-A2A", "WFBP-PS"], settings)


def test_a_mesh_goes_with_methods_that_all_reduce_on_our_own_engine():
    for methods, engine in (("WFBP-PS", "torch"), ("WFBP-A2A", "horovod")):
        with pytest.raises(InputError, match="topology 'mesh' says how all-reduces of our own"):
            targets_of(methods, DEFAULTS.changed(topology="mesh", engine=engine))
    both = targets_of(["WFBP-A2A", "WFBP-PS"], DEFAULTS.changed(topology="mesh"))
    assert {one.name for one in both} >= {"WFBP-A2A", "WFBP-PS"}


@pytest.mark.parametrize("engine", ["horovod", "ddp", ["torch", "horovod"]])
def test_a_collective_goes_with_our_own_engine(engine):
    with pytest.raises(InputError, match="of our own engine travel; take engine"):
        targets_of("all", DEFAULTS.changed(collective="ring", engine=engine))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"collective": "rings"}, "unknown collective 'rings'.*did you mean 'ring'"),
        ({"collective": "torus(2, 4)"}, "torus has 2 x 4 = 8 places for 2 workers"),
        ({"collective": "swing", "workers": 6}, "needs a power of two of workers"),
        ({"collective": "rotating"}, "does not carry out 'all-reduce'"),
        ({"collective": "parameter-servers"}, "needs 1 ranks more as servers"),
        ({"collective": "ring", "topology": "mesh"}, "both say how all-reduces travel"),
        ({"collective": "ring", "device": "cuda"}, "runs on CPUs"),
        ({"topology": "mesh", "device": "cuda"}, "topology .mesh. runs on CPUs"),
        ({"replan": 0}, "replan 0 must be a whole number"),
        ({"replan": 9}, "replan=9 iterations do not tell drift from noise; take 10 or more"),
        ({"replan": 10, "iterations": 20}, "leave none for a new plan; time more than 20 iter"),
    ],
)
def test_options_that_cannot_be_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        DEFAULTS.changed(**options)
