"""Forecast published runs on 16 to 64 H100 from the name of the machine and the rate on 8.

    python -m benchmarks.by_name_h100            # print the kept table
    python -m benchmarks.by_name_h100 --write    # forecast again, in two minutes, and keep the rows

The runs are llama-like models of the Ultra-Scale Playbook on AWS p5, in data parallel alone, with
1 M tokens a step (data/published/nanotron_h100_upto64.csv). Their table does not say what they hide
behind the computation: nothing (BSP-A2A) and buckets as DDP has them are both forecast. The rate on
8 GPUs, less their wait for the slowest, stands for that of one; linear scaling keeps it. What is
assumed of EFA and of busy GPUs was chosen with these rows in sight (data/hardware), so that the
errors are those of a fit.
"""

import json
import tempfile
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from benchmarks.errors import error_table
from ddlnb.clusters.effects import slowest_of
from ddlnb.clusters.named import cluster_of
from ddlnb.files import DATA, PUBLISHED, write_atomically
from ddlnb.plans.methods import get_method
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.tracing import trace

KEPT = DATA / "forecasts" / "by_name_h100.csv"
PER_NODE = 8
METHODS = ["BSP-A2A", "DDP"]
RATE = "tokens_per_s_per_gpu"
OF_A_RUN = ["model", "zero_stage", "micro_batch", "num_gpus"]
COLUMNS = [*OF_A_RUN, "method", "published", "forecast", "low", "high", "linear"]


def published() -> pd.DataFrame:
    """Return the runs in data parallel alone, with the rate of such a run on 8 GPUs."""
    rows = pd.read_csv(PUBLISHED / "nanotron_h100_upto64.csv")
    rows = rows.query("status == 'ok' and pp == 1 and tp == 1")
    on_eight = rows[rows["num_gpus"] == PER_NODE].groupby(["model", "micro_batch"])[RATE].max()
    rows = rows[rows["num_gpus"] > PER_NODE]
    return rows.join(on_eight.rename("rate_on_8"), on=["model", "micro_batch"])


def by_name(draws: int = 200) -> pd.DataFrame:
    """Return a row per run and way to overlap: published, forecast, interval, linear scaling."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for run in published().to_dict("records"):
            cluster = cluster_of(machine="p5", nodes=run["num_gpus"] // PER_NODE)
            alone = 1 + cluster.effects.jitter * slowest_of(PER_NODE)  # of 8, the slowest is last
            task = get_task(str(_config(run, Path(folder)))).with_sequence(int(run["seq_len"]))
            workload = estimate(
                trace(task, int(run["micro_batch"])),
                cluster.hardware,
                "bf16",
                samples_per_second=alone * run["rate_on_8"] / run["seq_len"],
            ).accumulated(int(run["grad_accum"]))
            rows = forecast_cells(
                [Cell(workload, cluster, get_method(name)) for name in METHODS], draws=draws
            )
            of_one = run["seq_len"] / run["num_gpus"]
            table = rows[["method", "throughput_samples_per_s", "low", "high"]].rename(
                columns={"throughput_samples_per_s": "forecast"}
            )
            table[["forecast", "low", "high"]] *= of_one
            table = table.assign(published=run[RATE], linear=run["rate_on_8"])
            found.append(table.assign(**{name: run[name] for name in OF_A_RUN}))
    return pd.concat(found)[COLUMNS]


def _config(run: dict[str, object], folder: Path) -> Path:
    """Write the architecture as a configuration of transformers."""
    names = {
        "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads", "intermediate_size": "ffn", "vocab_size": "vocab",
        "max_position_embeddings": "seq_len",
    }  # fmt: skip
    config = {key: int(run[name]) for key, name in names.items()}  # type: ignore[call-overload]
    kind = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    path = folder / f"{run['model']}.json"
    path.write_text(json.dumps({**kind, **config, "tie_word_embeddings": True}))
    return path


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by method and GPUs: runs, median and worst error, share in the interval, linear."""
    return error_table(
        rows,
        ["method", "num_gpus"],
        "published",
        "forecast",
        {"linear_scaling": "linear"},
        rows["published"].between(rows["low"], rows["high"]),
        count="runs",
        share="in_interval",
    ).sort_index()


def main(*, write: bool = False) -> None:
    """Print the table. With --write the runs are forecast again, and their rows kept."""
    if write:
        write_atomically(KEPT, by_name().to_csv(index=False, float_format="%.6g"))
    print(summary(pd.read_csv(KEPT)).to_string())


if __name__ == "__main__":
    command(main)
