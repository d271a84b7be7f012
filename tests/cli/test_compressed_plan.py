"""Plans for compressed gradients, as a person asks for them: found, kept, priced, and refused."""

from io import StringIO

import pandas as pd

from ddlnb.plans.plan_file import read_plan
from tests.command_line import ddlnb

EIGHT = """
about: Eight machines of one core each, on 1 Gb/s Ethernet
network: 1 Gb/s Ethernet
nodes: 8
gpus_per_node: 1
hardware: cpu-1thread
effects:
  between_bandwidth: 1 Gb/s
  between_latency: 50 us
"""
TOP_K = ["--sent", "top-k(0.01) + feedback"]


def test_a_compressed_plan_is_kept_and_priced_beside_fixed_methods(tmp_path):
    cluster, kept = tmp_path / "eight.yaml", tmp_path / "plan.json"
    cluster.write_text(EIGHT)
    on = ["--model", "small-transformer", "--batch", "16", "--cluster", str(cluster)]
    on += ["--compression", "cpu-1thread"]
    words = ["plan", *on, *TOP_K, "--mixed", "--method", "searched", "--out", str(kept)]
    said = ddlnb(*words, check=True).stdout
    assert "best method bsp + top-k(0.01) + feedback as " in said
    assert "dense, searched: " in said
    plan = read_plan(kept)
    assert 0 < sum(map(bool, plan.compressions)) < len(plan.messages)
    words = [
        "forecast",
        "lossy",
        *on,
        "--method",
        "bsp + top-k(0.01) + feedback",
        "--plan",
        str(kept),
        "--csv",
    ]
    rows = pd.read_csv(StringIO(ddlnb(*words, check=True).stdout)).set_index("method")
    searched = rows.loc["searched: top-k(0.01) + feedback"]
    fixed = rows.loc["bsp + top-k(0.01) + feedback on A2A"]
    assert searched["iteration_seconds"] < fixed["iteration_seconds"]
    assert searched["compression_seconds"] < fixed["compression_seconds"]
    assert plan.digest in searched["source"]
    words = ["measure", "--model", "small-transformer", "--plan", str(kept), "--engine", "horovod"]
    refused = ddlnb(*words)
    assert refused.returncode == 2
    assert "the plan compresses messages by top-k(0.01) + feedback" in refused.stderr
