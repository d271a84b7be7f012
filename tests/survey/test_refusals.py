"""What makes no sense to a study is refused by it, with the reason, before anything runs."""

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.errors import InputError
from ddlnb.figures import gossip_mixing, taxonomy_tree
from ddlnb.results.timeline import Span, Timeline
from ddlnb.survey import (
    advice,
    convergence_rates,
    explorer,
    fig3_timelines,
    layers_codesign,
    layers_overview,
    networks,
    scale_case_study,
    scale_forecast,
    scale_strategies,
    sec1_parallelism,
    sec2_intensity,
    sec2_message_size,
    sec3_1_2_synchronisation,
    sec3_1_3_compression,
    sec3_1_4_scheduling,
    sec3_2_architectures,
    sec3_3_1_protocols,
    sec3_3_2_topologies,
    sec5_3_compression_level,
    sec5_5_servers,
    sec5_6_collectives,
    table1_attributes,
)
from ddlnb.survey.published import quoted
from ddlnb.survey.time_to_target import made_up_cluster
from ddlnb.training.method import SYNCHRONISATIONS, TrainingMethod
from ddlnb.workloads.tracing import trace

ONE_SPAN = Timeline("toy", "measured", (Span(0, "forward", "a", 0.0, 1.0, 0),))
ONE_COMBINATION = pd.DataFrame([dict.fromkeys(layers_codesign.CHOICES, False)])
QUADRATIC = convergence_rates.get_problem("quadratic")
TRAFFIC = table1_attributes.Derived("PS", "traffic", 1.0, "computed")
COLOUR = table1_attributes.Derived("PS", "colour", 1.0, "computed")

OF_METHODS = [
    (
        lambda: advice.slow_run("bert-large_b8_rtx2080ti", "survey-100GbE", "DeAR", 8, draws=20),
        r"no published cell of 'DeAR' .* there are BSP",
    ),
    (lambda: explorer.Setting("alexnet").workload, "model 'alexnet' must be one of resnet50"),
    (lambda: explorer.explored_grid(["resnet5"]), "did you mean 'resnet50'"),
    (
        lambda: TrainingMethod(SYNCHRONISATIONS["bsp"](), architecture="gossip"),
        "it needs the average over all workers",
    ),
    (lambda: taxonomy_tree([]), "no rows"),
    (lambda: fig3_timelines.overlap_table({"toy": ONE_SPAN}, rank=7), "rank 7"),
    (lambda: fig3_timelines.overlap_table({"toy": ONE_SPAN}), "take iterations=2 or more"),
    (lambda: quoted("A99", "anything"), "unknown quote 'A99'"),
    (lambda: quoted("A06", "intensity of resnet-50"), "did you mean 'intensity of resnet50'"),
    (lambda: table1_attributes.compared([TRAFFIC, TRAFFIC]), "twice"),
    (lambda: table1_attributes.compared([COLOUR]), "lacks some of the cells.*colour"),
    (lambda: sec1_parallelism.compare_parallelism(workers=5), "workers 5 must be 2 to 4"),
    (
        lambda: sec1_parallelism.compare_parallelism(batch=63),
        "batch 63 must divide evenly among 2 workers",
    ),
    (lambda: sec2_intensity.audit([trace("small-conv")]), "intensity of small-conv"),
    (lambda: sec2_message_size.measure_bandwidth(workers=1), "workers"),
]
OF_TRAINING = [
    (lambda: QUADRATIC.rate(16, 4), "above 1/L"),
    (
        lambda: convergence_rates.rate_study(["bsp"], steps=[100], workers=[1, 2]),
        "make no slope",
    ),
    (
        lambda: convergence_rates.slope_interval([1, 2], np.array([[1.0, 0.0]])),
        "finite numbers above 0",
    ),
    (lambda: convergence_rates.get_problem("quadratics"), "did you mean 'quadratic'"),
    (
        lambda: gossip_mixing(convergence_rates.spectral_gaps([4]).iloc[:0], pd.DataFrame([1])),
        "no gaps",
    ),
    (
        lambda: convergence_rates.consensus_rounds(["bsp"], workers=4, rounds=2),
        "bsp on A2A does not gossip",
    ),
    (lambda: convergence_rates.consensus_rounds([], workers=4, rounds=2), "no methods"),
    (lambda: convergence_rates.divergence_pattern(["QSGD 3 bit"]), "did you mean"),
    (
        lambda: sec3_1_2_synchronisation.virtual_clock("constant", -1),
        "message_seconds -1 must not be negative",
    ),
    (lambda: sec3_1_2_synchronisation.waits([3, 1]), r"bounds \[3, 1\] must rise"),
    (
        lambda: sec3_1_2_synchronisation.staleness(["bsp on PS"], workers=2, steps=2),
        "bsp on PS has no staleness",
    ),
    (
        lambda: sec3_1_2_synchronisation.same_traffic(4, steps=9),
        "steps 9 must be a multiple of the period 4",
    ),
    (
        lambda: sec3_1_3_compression.residual_growth(["signsgd"], [torch.ones(4)]),
        "no error feedback",
    ),
    (
        lambda: sec3_1_3_compression.residual_growth(["ef-sign"], [torch.zeros(4)]),
        "leave no residual",
    ),
    (
        lambda: sec3_1_3_compression.compression_errors([torch.zeros(4)], "zeros"),
        "nothing to lose",
    ),
    (lambda: sec5_3_compression_level.level_methods([0.1, 0.01]), "no interior"),
]
OF_NETWORKS = [
    (lambda: layers_codesign.slowdown("mixed", 1.5, 0.0), r"duty 1\.5 must be a share"),
    (lambda: layers_codesign.slowdown("mixed", 0.5, 1.0), r"phase 1\.0 must be from 0"),
    (
        lambda: layers_codesign.gain_table(ONE_COMBINATION.assign(topology="toy", seconds=1.0)),
        "each of 16 combinations of choices, and has 1",
    ),
    (
        lambda: layers_overview.volume_table(layers_overview.layout_traffic(["dp4 zero3"])),
        "layout dp4 zero3 has no closed form here; take dp4",
    ),
    (
        lambda: layers_overview.walk_table(["star(4)"], layout="tp4", per_node=1),
        "layout tp4 must be of replicas alone",
    ),
    (lambda: layers_overview.hidden_table(share=1.0), r"share 1\.0 of communication"),
    (lambda: networks.described(["ring(4)"]), "unknown topology 'ring'"),
    (lambda: made_up_cluster("fast", "1 ms"), "fast"),
    (lambda: sec3_2_architectures.measure_topologies(None, [0]), "sizes"),
    *(
        (lambda asked=asked: sec3_3_1_protocols.measure_protocols("1Gb/s 1ms", **asked), name)
        for name in ("trips", "rounds", "seconds")
        for asked in [{name: 0}]
    ),
    (lambda: sec3_3_2_topologies.topologies_of(32), "32 hosts do not fit all three networks"),
    (
        lambda: sec5_5_servers.sweep(["resnet50"], ["survey-10GbE"], gpus=4),
        "4 GPUs of cluster 'survey-10GbE' are one node",
    ),
    (
        lambda: sec5_6_collectives.host_link("8 Gb/s"),
        "must have a bandwidth and a latency",
    ),
    (
        lambda: sec5_6_collectives.networks_of(8),
        "8 hosts must be a square and a multiple of four",
    ),
    *(
        (lambda asked=asked: sec3_1_4_scheduling.breakdown_rows(*asked, 8), said)
        for asked, said in [
            (("resnet51", ("survey-10GbE",)), r"unknown model of Fig\. 4"),
            (("resnet50", ("survey",)), "unknown cluster"),
            (("resnet50", 2 * ("survey-10GbE",)), "share a network"),
        ]
    ),
]
OF_LARGE_MODELS = [
    (
        lambda: scale_case_study.yield_table("llama3-70b", "H100", [64], [0], -2.0),
        r"-2\.0, must be a number from 0, in any currency",
    ),
    (
        lambda: scale_forecast.left_out_by(scale_forecast.left_out(), ["ep"]),
        "unknown kind of left-out runs 'ep'",
    ),
    (
        lambda: scale_strategies.played_layouts(["dp32"], nodes=1),
        "needs 32 ranks, and network",
    ),
    (
        lambda: scale_strategies.played_schedules(["pp16"]),
        "pp 16 times vpp 1 is more than the 8 layers",
    ),
    # Before ranks start.
    (lambda: scale_strategies.executed_strategies(["tensors"]), "did you mean 'tensor'"),
]


@pytest.mark.parametrize(("ask", "said"), OF_METHODS + OF_TRAINING + OF_NETWORKS + OF_LARGE_MODELS)
def test_what_makes_no_sense_is_refused_with_the_reason(ask, said):
    with pytest.raises(InputError, match=said):
        ask()
