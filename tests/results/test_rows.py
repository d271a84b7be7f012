"""The tidy table: nothing finished is lost, nothing unreadable is taken for a table."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from ddlnb.errors import InputError, ResultsError
from ddlnb.files import lock_path, require_writable_file, write_atomically
from ddlnb.results.rows import ResultsFile, read_rows
from ddlnb.results.schema import CELL


def cell(method="WFBP-A2A"):
    values = ("nan", "0e10", 8, "loopback", method, 2, "torch", "measured", 0, "sgd", "", 10, 2, "")
    return dict(zip(CELL, values, strict=True))


def a_run(repetition=0, throughput=100.0, method="WFBP-A2A"):
    return {
        **cell(method),
        "repetition": repetition,
        "throughput_samples_per_s": throughput,
        "iteration_seconds": 16 / throughput,
        "exposed_communication_seconds": float("nan"),
        "bytes_sent": 10.0,
        "messages": 3,
        "plan": "012345",
        "versions": "python 3",
        "commit": "12e5",
        "time": "2026-01-01T00:00:00+00:00",
    }


def test_a_row_is_the_median_of_its_runs_with_their_spread(tmp_path):
    results = ResultsFile(tmp_path / "rows.csv")
    for repetition, throughput in enumerate([100.0, 130.0, 110.0]):
        results.add(a_run(repetition, throughput))
    (row,) = read_rows(tmp_path / "rows.csv").to_dict("records")
    assert row["throughput_samples_per_s"] == 110.0
    assert row["std"] == pytest.approx(15.275, abs=1e-3)
    assert row["repetitions"] == 3


def test_runs_come_back_from_disk_as_they_were(tmp_path):
    first = ResultsFile(tmp_path / "rows.csv")
    first.add(a_run())
    again = ResultsFile(tmp_path / "rows.csv")
    assert again.has(cell(), 0)
    assert not again.has(cell(), 1)
    assert not again.has(cell("BSP-PS"), 0)
    assert again.runs["commit"].tolist() == ["12e5"]  # text, though it looks like a number


def test_rows_that_lag_behind_the_runs_are_made_anew(tmp_path):
    results = ResultsFile(tmp_path / "rows.csv")
    results.add(a_run())
    (tmp_path / "rows.csv").unlink()
    assert len(ResultsFile(tmp_path / "rows.csv").rows) == 1
    assert (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2].rsplit(",", 3)[0],
        lambda text: "",
        lambda text: text.replace("throughput_samples_per_s", "speed"),
        lambda text: text.replace("100.0", "fast"),
        lambda text: text + "a,b\n",
        lambda text: text + "x," * 60 + "\n",
        lambda text: text.rsplit(",", 4)[0] + "\n",
        lambda text: text[:-1],
    ],
)
def test_a_damaged_file_is_refused_and_left_alone(tmp_path, damage):
    path = tmp_path / "rows.csv"
    ResultsFile(path).add(a_run())
    runs = path.with_suffix(".runs.csv")
    runs.write_text(damage(runs.read_text()))
    before = runs.read_text()
    with pytest.raises(ResultsError, match=r"rows\.runs\.csv"):
        ResultsFile(path)
    assert runs.read_text() == before


def test_a_table_without_its_runs_is_not_overwritten(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("mine\n")
    with pytest.raises(ResultsError, match=r"without rows\.runs\.csv"):
        ResultsFile(path)
    assert path.read_text() == "mine\n"


def test_a_file_that_was_cut_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "rows.csv"
    results = ResultsFile(path)
    for repetition in range(2):
        results.add(a_run(repetition))
    runs = path.with_suffix(".runs.csv")
    whole = runs.read_bytes()
    for length in {*range(0, len(whole), 41), *range(len(whole) - 12, len(whole))}:
        runs.write_bytes(whole[:length])
        with pytest.raises(ResultsError, match=r"rows\.runs\.csv"):
            ResultsFile(path)
        with pytest.raises(ResultsError, match=r"rows\.runs\.csv"):
            results.add(a_run(2))
        assert runs.read_bytes() == whole[:length]


def test_runs_that_vanished_are_run_again_once_the_table_is_removed(tmp_path):
    path = tmp_path / "rows.csv"
    results = ResultsFile(path)
    for repetition in range(2):
        results.add(a_run(repetition))
    runs = path.with_suffix(".runs.csv")
    runs.write_text("\n".join(runs.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(ResultsError, match=r"holds 1 runs and .* counts 2"):
        ResultsFile(path)
    path.unlink()
    assert not ResultsFile(path).has(cell(), 1)


def test_a_table_that_was_cut_is_made_anew(tmp_path):
    path = tmp_path / "rows.csv"
    ResultsFile(path).add(a_run())
    whole = path.read_bytes()
    for length in range(0, len(whole), 23):
        path.write_bytes(whole[:length])
        assert len(ResultsFile(path).rows) == 1
        assert path.read_bytes() == whole


def test_a_full_disk_is_one_clear_error_and_keeps_what_there_was(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    results = ResultsFile(path)
    results.add(a_run(0))

    def disk_is_full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", disk_is_full)
        with pytest.raises(ResultsError, match=r"csv cannot be written: No space left"):
            results.add(a_run(1))
    assert ResultsFile(path).runs["repetition"].tolist() == [0]


def test_a_second_writer_loses_nothing_of_the_first(tmp_path):
    one, other = ResultsFile(tmp_path / "rows.csv"), ResultsFile(tmp_path / "rows.csv")
    one.add(a_run(0))
    other.add(a_run(1))
    assert ResultsFile(tmp_path / "rows.csv").runs["repetition"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("file/rows.csv", ResultsError, "cannot be written"),
        ("rows.xlsx", InputError, r"\.csv"),
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_anything_runs(tmp_path, name, error, told):
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=told):
        ResultsFile(tmp_path / name)


def test_one_run_has_no_deviation_and_mixed_plans_say_so():
    results = ResultsFile()
    results.add(a_run(0))
    assert results.rows["std"].isna().all()
    results.add(a_run(1) | {"plan": "another"})
    assert results.rows["plan"].tolist() == ["several"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    write_atomically(path, "old")

    def disk_is_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(Path(tmp_path).iterdir()) == [path]


def test_a_link_stays_a_file_keeps_its_mode_and_a_pipe_takes_the_bytes(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("rows.csv", "link.csv", "pipe"))
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    require_writable_file(pipe, "rows.csv")
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        write_atomically(pipe, "bytes")
        assert read.result(10) == "bytes"
    assert pipe.is_fifo()
    assert lock_path(link) == lock_path(target)


def test_runs_are_beside_the_file_that_a_link_leads_to(tmp_path):
    ResultsFile(tmp_path / "rows.csv").add(a_run())
    (tmp_path / "link.csv").symlink_to(tmp_path / "rows.csv")
    ResultsFile(tmp_path / "link.csv").add(a_run(1))
    assert len(ResultsFile(tmp_path / "rows.csv").runs) == 2


@pytest.mark.parametrize("name", ["rows.csv", "rows.runs.csv"])
def test_columns_that_would_not_be_written_again_are_refused(tmp_path, name):
    ResultsFile(tmp_path / "rows.csv").add(a_run())
    table = pd.read_csv(tmp_path / name).assign(note="hello")
    table.to_csv(tmp_path / name, index=False)
    with pytest.raises(ResultsError, match="has columns of yours, note"):
        ResultsFile(tmp_path / "rows.csv")
    assert "hello" in (tmp_path / name).read_text()


def test_what_a_killed_writer_left_goes_with_the_next_write_and_what_a_live_one_writes_stays(
    tmp_path,
):
    path = tmp_path / "file.txt"
    killed, live = tmp_path / ".file.txt.abc.part", tmp_path / ".file.txt.def.part"
    killed.write_text("half")
    with live.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        write_atomically(path, "new")
    assert sorted(tmp_path.iterdir()) == [live, path]
    assert path.read_text() == "new"


def test_a_file_that_is_removed_under_a_run_is_said_and_written_again(tmp_path):
    results = ResultsFile(tmp_path / "rows.csv")
    results.add(a_run(0))
    results.runs_path.unlink()
    with pytest.warns(UserWarning, match=r"rows\.runs\.csv was removed under the run; its 1 runs"):
        results.add(a_run(1))
    assert ResultsFile(tmp_path / "rows.csv").runs["repetition"].tolist() == [0, 1]
