"""`ddlnb trace`, as a person types it."""

import io
import json

import pandas as pd
import pytest

from ddlnb.files import DATA, ROOT
from ddlnb.traces.read import KINETO
from ddlnb.workloads.workload import Workload
from tests.command_line import ddlnb
from tests.traces.gpu_traces import header, one_iteration
from tests.traces.toy_jobs import ToyJob

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a job, a GPU's trace, and things that are no trace."""
    folder = tmp_path_factory.mktemp("traces")
    ToyJob(steps=3).rows().to_csv(folder / "job.csv", index=False)
    ToyJob().rows().drop(columns="stage").to_csv(folder / "lacking.csv", index=False)
    content = {**header(), "traceEvents": one_iteration()}
    (folder / "gpu.json").write_text(json.dumps(content))
    (folder / "other.json").write_text('{"traceEvents": [{"ph": "X", "cat": "v8", "name": "gc"}]}')
    (folder / "notes.txt").write_text("no trace")
    return folder


def test_a_job_is_replayed_and_its_iterations_are_kept(files, tmp_path):
    out, figure = tmp_path / "rows.csv", tmp_path / "job.png"
    said = ddlnb(
        "trace", str(files / "job.csv"), "--out", str(out), "--figure", str(figure), check=True
    ).stdout
    assert "The replay is off by at most 0.00% of an iteration" in said
    assert "S = 1.000" in said
    rows = pd.read_csv(out)
    assert rows["traced_seconds"].tolist() == pytest.approx([ToyJob().seconds_of()] * 3)
    assert figure.read_bytes().startswith(PNG)
    printed = ddlnb("trace", str(files / "job.csv"), "--csv", check=True).stdout
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(printed)), rows)


def test_a_rank_s_trace_becomes_a_profile_and_a_picture(files, tmp_path):
    out, figure, line = (tmp_path / name for name in ("profile.json", "rank.png", "line.json"))
    words = ["--batch", "4", "--out", str(out), "--figure", str(figure), "--perfetto", str(line)]
    said = ddlnb("trace", str(files / "gpu.json"), *words, check=True).stdout
    assert "and no circle among them" in said
    assert "forward 300 us, backward 500 us (medians over 1 iteration)" in said
    assert Workload.from_json(out.read_text()).gradient_bytes == 256
    assert figure.read_bytes().startswith(PNG)
    assert json.loads(line.read_text())["traceEvents"]


RECORDED = str(DATA / "measured" / "2026-11-22_h100" / "traces" / "small-conv.json.gz")
TRACED = ("trace", RECORDED, "--model", "small-conv", "--batch", "64")


def test_a_gpu_s_trace_says_that_the_gpu_waits_for_the_host_and_is_simulated_elsewhere(tmp_path):
    out = tmp_path / "profile.json"
    there = ("--gpu", "H100", "--nodes", "2", "--gpus-per-node", "1", "--network", "10GbE")
    said = ddlnb(*TRACED, *there, "--method", "MG-WFBP", "--out", str(out), check=True).stdout
    assert "and no circle among them" in said
    assert "the GPU waits for the host" in said
    assert "(medians over 3 iterations)" in said
    assert "MG-WFBP" in said
    assert Workload.from_json(out.read_text()).hardware == "NVIDIA H100 80GB HBM3"


def test_an_h100_s_seconds_are_not_those_of_a_cluster_of_other_gpus():
    words = (*TRACED, "--cluster", "survey-100GbIB", "--method", "MG-WFBP")
    refused = ddlnb(*words)
    assert refused.returncode == 2
    assert "are those of 'NVIDIA H100 80GB HBM3'" in refused.stderr
    assert "'survey-100GbIB' has 'rtx2080ti'; give" in refused.stderr
    assert "--throughput" in refused.stderr
    scaled = ddlnb(*words, "--throughput", "6400", check=True).stdout
    assert "MG-WFBP" in scaled


RANKS = ("trace", *(str(DATA / "published" / "traces" / f"hta-rank-{n}.json.gz") for n in (0, 1)))


@pytest.mark.thorough
def test_ranks_are_read_together_and_their_bandwidths_judged(tmp_path):
    page, line, out = (tmp_path / name for name in ("ranks.html", "line.json", "rows.csv"))
    files = ["--page", str(page), "--perfetto", str(line), "--out", str(out)]
    said = ddlnb(*RANKS, "--machine", "DGX-A100", "--nodes", "16", *files, check=True).stdout
    quoted = (ROOT / "docs" / "traces.md").read_text()
    shown = [line for line in said.splitlines() if line.startswith(("In a step", "Rank 1 keeps"))]
    assert len(shown) == 2
    assert all(line in quoted for line in shown)
    assert "slow, or others late" in said
    assert "no stragglers" in said
    rows = pd.read_csv(out)
    assert set(rows["collective"]) == {"all_gather", "all_reduce", "alltoall"}
    printed = ddlnb(*RANKS, "--csv", check=True).stdout
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(printed)), rows)
    assert {event["pid"] for event in json.loads(line.read_text())["traceEvents"]} == {0, 1}
    assert all(text.replace("'", "&#39;") in page.read_text() for text in shown)


def test_a_rank_alone_says_what_it_sends_and_a_file_is_named_by_what_is_written(tmp_path):
    said = ddlnb(*RANKS[:2], check=True).stdout
    assert "What a rank sends in a step" in said
    assert "No workload: " in said
    said = ddlnb(*RANKS, "--out", str(tmp_path / "rows.json")).stderr
    assert "is written as .csv; name it so" in " ".join(said.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpu.json", "--page", "a.html"], "a page is of several ranks"),
        ([*RANKS[1:], "--figure", "a.png"], "leave out --figure"),
        ([*RANKS[1:], "--model", "small-conv"], "leave out --model"),
        (["job.csv", "--model", "small-conv"], "job.csv holds no layers; leave out --model"),
        (["job.csv", "--perfetto", "line.json"], "leave out --perfetto"),
        (["gpu.json", "--csv"], "has no rows; leave out --csv"),
        (["gpu.json", "--method", "MG-WFBP"], "--method needs the --cluster"),
        (["gpu.json", "--throughput", "9"], "--throughput needs the --cluster"),
        (["gpu.json", "--throughput", "9", "--cluster", "survey-100GbIB"], "give the --model, too"),
        (["gpu.json", "--nodes", "2"], "give --cluster (see `ddlnb cluster list`), or the"),
        (["job.csv", "--gpu", "H100"], "job.csv holds no layers; leave out --gpu"),
        (["gpu.json", "--model", "small-conv"], "has 2 gradients in an iteration and model"),
        (["gpu.json", "--figure", "a.png"], "give the batch, or the model"),
        (["lacking.csv"], "lacks the columns stage; it has dp_rank"),
        (
            ["other.json"],
            f"1 event with categories v8, such as gc, of no tool known here; give {KINETO}",
        ),
        (["notes.txt"], f"is not JSON: Expecting value: line 1 column 1 (char 0); give {KINETO}"),
        (["missing.json"], f"cannot be read: No such file or directory; give {KINETO}"),
    ],
)
def test_what_cannot_be_done_is_one_line(files, words, said):
    done = ddlnb("trace", str(files / words[0]), *words[1:])
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
