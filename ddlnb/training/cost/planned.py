"""The cost of an iteration by a plan whose messages are compressed, as of a kept one."""

from __future__ import annotations

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import CompressionProfile
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.kept import fitted
from ddlnb.plans.plan import Plan
from ddlnb.simulator.unlike.team import Slowness
from ddlnb.training.cost.coding import coding_source
from ddlnb.training.cost.compressing import Compressing
from ddlnb.training.cost.iteration import IterationCost
from ddlnb.training.cost.overlapped import hidden_behind
from ddlnb.training.cost.traffic import gathers
from ddlnb.workloads.workload import Workload


def planned_cost(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    profile: CompressionProfile,
    slower: Slowness | None = None,
    steps: int = 1,
) -> IterationCost:
    """Return the cost of a plan that compresses some of its messages, or all.

    Raises PlanError for a workload with other gradients, InputError as a lossy method does for
    gradients other than float32, and for a compressor that the profile lacks.
    """
    plan = fitted(plan, workload)
    compressing = Compressing(workload, cluster, profile)
    made = compressing.messages(plan)
    played = compressing.played(plan, made, slower, steps)
    some = [one for one in made if one is not None]
    coding = sum(one.encode_seconds + one.decode_seconds for one in some)
    dense = sum(size for size, one in zip(plan.message_bytes, made, strict=True) if one is None)
    bytes_ = sum(one.bytes for one in some) + ring_bytes_sent(dense, cluster.workers)
    used = [piece for text in plan.compressed_by for piece in compressing.pieces(text).values()]
    return IterationCost.of_played(
        f"{plan.method}: {' and '.join(plan.compressed_by)}",
        played,
        bytes_,
        coding,
        gathers=gathers(used),
        hidden_behind=hidden_behind(plan.launch, plan.gate),
        source=f"simulated by plan {plan.digest}, {len(some)} of {len(made)} messages compressed; "
        f"compression {coding_source(used, profile)}",
    )
