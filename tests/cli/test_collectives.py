"""`ddlnb import` and `ddlnb collectives`, as a person types them."""

import io

import pandas as pd
import pytest

from ddlnb.calibration.collective_tables import OPEN_ROWS
from tests.cli.test_command_lines import GIVEN
from tests.command_line import ddlnb

ASKED = """\
collective,gpu,network,nodes,gpus_per_node,ranks,size_bytes,settings
all_reduce,H100-SXM,InfiniBand NDR 8x400 Gb/s,8.0,8.0,64.0,1073741824.0,
alltoall,Unheard Of,carrier pigeons,3,,24,4194304,by hand
"""


@pytest.mark.thorough
def test_a_table_is_forecast_from_the_published_rows_and_can_be_drawn(tmp_path):
    asked, out, figure = (tmp_path / name for name in ("in.csv", "out.csv", "rates.png"))
    asked.write_text(ASKED)
    words = ["--fit", OPEN_ROWS, "--table", asked, "--out", out, "--figure", figure]
    ddlnb("cluster", "collectives", *map(str, words), check=True)
    assert figure.read_bytes().startswith(b"\x89PNG")
    found = pd.read_csv(out)
    assert list(found.columns) == [*ASKED.splitlines()[0].split(","), "time_us", "low", "high"]
    assert 4000 < found["time_us"][0] < 8000  # 1 GiB at 537 to 268 GB/s of bus bandwidth
    assert (found["low"] < found["time_us"]).all()
    assert (found["time_us"] < found["high"]).all()


def test_a_log_is_imported_fitted_and_forecast_through_pipes(tmp_path, monkeypatch):
    lines = [
        "# Collective test starting: all_reduce_perf\n",
        "#  size  count  type  time  algbw  busbw\n",
    ]
    lines += [f"{2**n} {2 ** (n - 2)} float {40 + 2**n / 1e5:.2f} 0 0\n" for n in range(10, 31)]
    (tmp_path / "run.log").write_text("".join(lines))
    about = ["--nodes", "2", "--gpus-per-node", "8", "--gpu", "A100"]
    about += ["--network", "8x200 Gb/s RoCE"]
    rows = str(tmp_path / "rows.csv")
    ddlnb("cluster", "import", str(tmp_path / "run.log"), "--out", rows, *about, check=True)
    done = ddlnb("cluster", "collectives", "--fit", rows, "--csv", check=True)
    assert set(pd.read_csv(io.StringIO(done.stdout))["GPU"]) == {"A100"}
    done = ddlnb("cluster", "collectives", "--fit", rows, check=True)
    assert "worst row" in " ".join(done.stdout.split())
    monkeypatch.setattr("sys.stdin", io.StringIO(ASKED))
    done = ddlnb("cluster", "collectives", "--fit", rows, "--table", "-", check=True)
    assert len(pd.read_csv(io.StringIO(done.stdout))) == 2


def test_counts_that_contradict_a_log_count_and_are_named():
    log = str(GIVEN / "ok.log")
    done = ddlnb("cluster", "import", log, "--nodes", "4", "--gpus-per-node", "1", check=True)
    assert "The log says 2 x 2 GPUs; 4 x 1 count, as --nodes and" in done.stderr
    assert ddlnb("cluster", "import", log, "--nodes", "2", check=True).stderr == ""
