"""The searched plan as a method: by the name "searched" wherever methods have names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError
from ddlnb.plans.bucketing import ONE_BUCKET
from ddlnb.plans.methods import Method
from ddlnb.plans.plan import Gate, Launch, Plan
from ddlnb.search.search import search_plan
from ddlnb.search.space import SEARCHED, Space
from ddlnb.workloads.workload import Workload

WITHOUT_SERVERS = Space(servers=False)


@dataclass(frozen=True)
class Searching:
    """A planner that searches a space, with a fixed seed: the same plan for the same arguments."""

    space: Space = WITHOUT_SERVERS

    def __call__(self, workload: Workload, cluster: Any = None) -> Plan:
        """Return the plan that is found. Raises InputError without a cluster."""
        if not isinstance(cluster, Cluster):
            raise InputError(
                "method 'searched' makes its plan for a cluster; name one (cluster=..., "
                "--cluster), or take a kept plan (--plan)"
            )
        return search_plan(workload, cluster, space=self.space, progress=False).plan


# Exchange, launch and gate are those of its plan. It goes without parameter servers, which would
# be more machines.
SEARCHED_METHOD = Method(
    name=SEARCHED,
    scheduling="searched",
    bucketing=ONE_BUCKET,
    exchange="all_reduce",
    launch=Launch.WHEN_READY,
    priority=False,
    gate=Gate.ALL_LAYERS,
    planner=Searching(),
)
