"""`ddlnb import` and `ddlnb collectives`, as a person types them."""

from __future__ import annotations

import io
import subprocess
import sys

import pandas as pd
import pytest

from ddlnb.results.collectives.rows import OPEN_ROWS

ASKED = """\
collective,gpu,network,nodes,gpus_per_node,ranks,size_bytes,settings
all_reduce,H100-SXM,InfiniBand NDR 8x400 Gb/s,8.0,8.0,64.0,1073741824.0,
alltoall,Unheard Of,carrier pigeons,3,,24,4194304,by hand
"""


def ddlnb(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "ddlnb.cli.app", *map(str, words)],
        capture_output=True,
        text=True,
        **options,
    )


@pytest.mark.parametrize("command", ["import", "collectives"])
def test_the_commands_explain_themselves(command):
    done = ddlnb(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_a_table_is_forecast_from_the_published_rows(tmp_path):
    (tmp_path / "in.csv").write_text(ASKED)
    words = ["--fit", OPEN_ROWS, "--table", tmp_path / "in.csv", "--out", tmp_path / "out.csv"]
    ddlnb("collectives", *words, check=True)
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found.columns) == [*ASKED.splitlines()[0].split(","), "time_us", "low", "high"]
    assert 4000 < found["time_us"][0] < 8000  # 1 GiB at 537 to 268 GB/s of bus bandwidth
    assert (found["low"] < found["time_us"]).all()
    assert (found["time_us"] < found["high"]).all()


def test_a_table_comes_through_pipes():
    done = ddlnb("collectives", "--table", "-", input=ASKED, check=True)
    assert len(pd.read_csv(io.StringIO(done.stdout))) == 2


def test_a_log_is_imported_and_fitted(tmp_path):
    lines = [
        "# Collective test starting: all_reduce_perf\n",
        "#  size  count  type  time  algbw  busbw\n",
    ]
    lines += [f"{2**n} {2 ** (n - 2)} float {40 + 2**n / 1e5:.2f} 0 0\n" for n in range(10, 31)]
    (tmp_path / "run.log").write_text("".join(lines))
    about = ["--nodes", 2, "--gpus-per-node", 8, "--gpu", "A100", "--network", "8x200 Gb/s RoCE"]
    ddlnb("import", tmp_path / "run.log", "--out", tmp_path / "rows.csv", *about, check=True)
    done = ddlnb("collectives", "--fit", tmp_path / "rows.csv", "--csv", check=True)
    assert set(pd.read_csv(io.StringIO(done.stdout))["GPU"]) == {"A100"}


def test_what_is_fitted_can_be_drawn(tmp_path):
    ddlnb("collectives", "--figure", tmp_path / "rates.png", check=True)
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["collectives", "--table", "nowhere.csv"], "there is no table nowhere.csv"),
        (["collectives", "--fit", "nowhere.csv"], "there is no table of measured collectives"),
        (["collectives", "--out", "out.csv"], "--out needs --table"),
        (["collectives", "--validate", "--table", "x"], "leave out --table"),
        (["import", "nowhere.log"], "there is no log nowhere.log"),
    ],
)
def test_a_wrong_call_is_one_line(words, said, tmp_path):
    done = ddlnb(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
