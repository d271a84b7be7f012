"""Table 2: the plans of the seven methods, counted anew."""

from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import SURVEYED
from ddlnb.survey.sec4_methods import plans, plans_table
from ddlnb.workloads.workload import read_profile
from tests.toy import COST, TOY


def test_every_plan_sends_every_element_once():
    table = plans_table(plans(TOY, COST, partition=40, credit=80))
    assert list(table.index) == list(SURVEYED)
    assert (table[["least_times_sent", "most_times_sent"]] == 1).all(axis=None)
    assert (table["elements"] == TOY.parameters).all()


def test_merging_sends_fewer_messages_than_there_are_tensors_and_partition_more():
    workload = read_profile("small-conv_b64_cpu-1thread")
    made = plans(workload, AlphaBeta(1e-3, 1e-9), partition="256KB", credit="1MB")
    messages = plans_table(made)["messages"]
    assert messages["BSP-A2A"] == 1 < messages["MG-WFBP"] < messages["WFBP-A2A"]
    assert messages["ByteScheduler-A2A"] > messages["WFBP-A2A"] == len(workload.gradients)
