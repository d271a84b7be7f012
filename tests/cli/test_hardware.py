"""Hardware by name on the command line: what is listed, what makes a cluster, what is refused."""

from ddlnb.clusters.file import get_cluster
from tests.command_line import ddlnb

TESTBED = ["--gpu", "rtx2080ti", "--nodes", "8", "--gpus-per-node", "4", "--network", "10GbE"]
RESNET = ["--model", "resnet50"]


def test_a_forecast_needs_no_file_and_says_what_it_assumed(tmp_path):
    saved = tmp_path / "mine.yaml"
    words = [*RESNET, *TESTBED, "--gpus", "32", "--method", "MG-WFBP", "--draws", "40"]
    done = ddlnb("forecast", *words, "--save-cluster", str(saved), check=True)
    assert "MG-WFBP" in done.stdout
    assert "no interval" not in done.stdout
    assert "from the names of its hardware" in done.stderr
    ddlnb("forecast", *RESNET, "--cluster", str(saved), *words[-4:], check=True)
    assert get_cluster(saved).workers == 32


def test_a_model_without_a_profile_takes_its_seconds_from_the_data_sheet():
    words = [
        "--model",
        "small-conv",
        "--machine",
        "DGX-A100",
        "--nodes",
        "2",
        "--method",
        "BSP-A2A",
    ]
    done = ddlnb("forecast", *words, "--precision", "bf16", "--draws", "0", check=True)
    said = " ".join(done.stdout.split())
    assert "estimated from the data sheet of A100-SXM4-80GB at bf16" in said
    assert "8x200GbIB" in said


def test_the_same_options_work_in_timeline_and_lossy(tmp_path):
    trace = tmp_path / "trace.json"
    ddlnb("timeline", *RESNET, *TESTBED, "--gpus", "8", "--out", str(trace), check=True)
    assert trace.exists()
    done = ddlnb(
        "forecast", "lossy", *RESNET, *TESTBED, "--gpus", "8", "--method", "local(8)", check=True
    )
    assert "local(8)" in done.stdout


def test_a_plan_is_made_for_hardware_by_name_as_for_the_file_of_it(tmp_path):
    saved = tmp_path / "mine.yaml"
    words = ["plan", *RESNET, "--method", "MG-WFBP", "--gpus", "8"]
    named = ddlnb(*words, *TESTBED, "--save-cluster", str(saved), check=True)
    assert "from the names of its hardware" in named.stderr
    assert "workers=8 of 32" in named.stdout
    filed = ddlnb(*words, "--cluster", str(saved), check=True)
    assert named.stdout.splitlines()[1:] == filed.stdout.splitlines()[1:]  # first: where from
    some = ddlnb(*words[:-2], "--cluster", str(saved), "--nodes", "2", check=True)
    assert some.stdout == filed.stdout


def test_nodes_of_a_cluster_are_those_in_use():
    words = ["forecast", *RESNET, "--method", "MG-WFBP", "--draws", "0"]
    words += ["--cluster", "survey-10GbE"]
    some = ddlnb(*words, "--nodes", "2", check=True)
    assert "On 8 GPUs of survey-10GbE" in some.stdout
    assert some.stdout == ddlnb(*words, "--gpus", "8", check=True).stdout
