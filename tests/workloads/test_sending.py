"""Half-precision gradients and accumulation, against the sums that they must come to."""

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, UnknownName
from ddlnb.plans.methods import get_method
from ddlnb.simulator.simulate import simulate
from ddlnb.workloads.workload import Workload, read_profile

WORKLOAD = read_profile("resnet50_b64_rtx2080ti")
CLUSTER = get_cluster("survey-10GbE", 8)


def exposed(workload, method="WFBP-A2A"):
    return simulate(workload, CLUSTER, method).exposed_communication_seconds


def test_half_precision_sends_half_the_bytes_in_the_same_seconds_of_computation():
    half = WORKLOAD.sent_as("fp16")
    assert half.gradient_bytes * 2 == WORKLOAD.gradient_bytes
    assert half.compute_seconds == WORKLOAD.compute_seconds
    assert half.sent_as("fp32").gradients == WORKLOAD.gradients
    assert exposed(half, "BSP-A2A") == pytest.approx(exposed(WORKLOAD, "BSP-A2A") / 2, rel=0.05)


def test_the_buckets_of_ddp_hold_the_same_gradients_whatever_they_are_sent_as():
    whole, half = (get_method("DDP").plan(one) for one in (WORKLOAD, WORKLOAD.sent_as("fp16")))
    assert half.messages == whole.messages
    assert np.array_equal(2 * np.array(half.message_bytes), whole.message_bytes)
    assert Workload.from_json(WORKLOAD.sent_as("fp16").to_json()) == WORKLOAD.sent_as("fp16")


@pytest.mark.parametrize("cluster", ["survey-10GbE", "survey-100GbIB"])
def test_ddp_is_no_slower_for_gradients_of_half_the_bytes(cluster):
    cluster = get_cluster(cluster, 32)
    taken = [
        simulate(one, cluster, "DDP").iteration_seconds
        for one in (WORKLOAD.sent_as("fp16"), WORKLOAD)
    ]
    assert taken[0] <= taken[1]


def test_gradients_of_several_types_are_sent_in_one():
    first, *others = WORKLOAD.gradients
    mixed = replace(WORKLOAD, gradients=(replace(first, bytes_per_element=2), *others))
    with pytest.raises(InputError, match=r"mixes gradients of .*sent_as"):
        get_method("BSP-A2A").plan(mixed)
    assert get_method("BSP-A2A").plan(mixed.sent_as("bf16")).message_bytes[0] > 0


@pytest.mark.parametrize("method", ["BSP-A2A", "WFBP-A2A", "ByteScheduler-A2A", "DDP"])
def test_micro_batches_add_their_computation_and_no_communication(method):
    four = WORKLOAD.accumulated(4)
    assert four.local_batch == 4 * WORKLOAD.local_batch
    assert four.compute_seconds == pytest.approx(4 * WORKLOAD.compute_seconds)
    assert four.flops == pytest.approx(4 * WORKLOAD.flops)
    assert four.gradients == WORKLOAD.gradients
    once = simulate(WORKLOAD, CLUSTER, method)
    rare = simulate(four, CLUSTER, method)
    if method == "ByteScheduler-A2A":  # its sizes are tuned for either, to within some percent
        assert rare.iteration_seconds < 1.05 * 4 * once.iteration_seconds
    else:
        assert rare.iteration_seconds < 4 * once.iteration_seconds
        assert rare.exposed_communication_seconds == pytest.approx(
            once.exposed_communication_seconds, rel=1e-6
        )


def test_one_micro_batch_is_the_workload_itself():
    assert WORKLOAD.accumulated(1) is WORKLOAD
    with pytest.raises(InputError, match="micro_batches 0"):
        WORKLOAD.accumulated(0)
    with pytest.raises(UnknownName, match="type of gradients 'fp61'"):
        WORKLOAD.sent_as("fp61")
