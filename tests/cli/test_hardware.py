"""Hardware by name on the command line: what is listed, what makes a cluster, what is refused."""

import pytest

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
    assert "TCP moves" not in done.stderr
    ddlnb("forecast", *RESNET, "--cluster", str(saved), *words[-4:], check=True)
    assert get_cluster(saved).workers == 32


def test_a_line_of_which_software_moves_a_part_is_named():
    words = [*RESNET, *TESTBED[:-1], "100GbE", "--method", "DDP", "--draws", "0"]
    said = ddlnb("forecast", *words, check=True).stderr
    assert "TCP moves 22 Gb/s of 100GbE, and no more of a faster line; RDMA does" in said


def test_a_plan_is_made_for_hardware_by_name_as_for_its_file_and_nodes_are_those_in_use(tmp_path):
    saved = tmp_path / "mine.yaml"
    words = ["plan", *RESNET, "--method", "MG-WFBP", "--gpus", "8"]
    named = ddlnb(*words, *TESTBED, "--save-cluster", str(saved), check=True)
    assert "from the names of its hardware" in named.stderr
    assert "workers=8 of 32" in named.stdout
    filed = ddlnb(*words, "--cluster", str(saved), check=True)
    assert named.stdout.splitlines()[1:] == filed.stdout.splitlines()[1:]  # first: where from
    some = ddlnb(*words[:-2], "--cluster", str(saved), "--nodes", "2", check=True)
    assert some.stdout == filed.stdout
    on = ["--cluster", "survey-10GbE", "--method", "MG-WFBP"]
    words = ["forecast", *RESNET, *on, "--draws", "0"]
    some = ddlnb(*words, "--nodes", "2", check=True)
    assert "On 8 GPUs of survey-10GbE" in some.stdout
    assert some.stdout == ddlnb(*words, "--gpus", "8", check=True).stdout


@pytest.mark.parametrize(
    "words", [("cluster", "new"), ("forecast", "--model", "resnet50", "--save-cluster")]
)
def test_a_cluster_file_with_values_of_mine_is_not_overwritten(words, tmp_path):
    file = tmp_path / "mine.yaml"
    named = [*words, str(file), "--gpu", "A100", "--nodes"]
    for _ in range(2):  # the same command says the same
        ddlnb(*named, "2", check=True)
    mine = file.read_text().replace("A100", "A100 of mine", 1)
    file.write_text(mine)
    for nodes in ("2", "4"):
        refused = ddlnb(*named, nodes)
        assert refused.returncode == 2
        assert "mine.yaml' holds something else; name another file" in refused.stderr
    assert file.read_text() == mine
