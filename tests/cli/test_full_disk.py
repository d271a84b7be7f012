"""A disk that is full, and a place that takes no files: one line, and before the work is done."""

import errno
import os
from pathlib import Path

import pytest

from ddlnb.cli.app import main
from ddlnb.errors import DdlnbError, InputError, NotWritten
from ddlnb.files import require_writable, write_atomically

FORECAST = "forecast --model resnet50 --cluster survey-10GbE --gpus 8 --draws 0 --csv {}/rows.csv"
TIMELINE = "timeline --model resnet50 --cluster survey-10GbE --gpus 8 --out {}/trace.json"
TRAIN = "train --task quadratic --method bsp --steps 2 --workers 2 --jobs 1 --folder {}"
CURVES = "train --task quadratic --method bsp --steps 2 --workers 2 --jobs 1 --out {}/curves.csv"
MEASURE = "measure --model small-conv --out {}/rows.csv"
CALIBRATE = "calibrate here --out {}"
REPRODUCE = "reproduce --only sec4_methods --build {}"
COMMANDS = [FORECAST, TIMELINE, TRAIN, CURVES, MEASURE, CALIBRATE, REPRODUCE]
WORK = [  # what takes the time of these commands
    "ddlnb.simulator.forecast.forecast",
    "ddlnb.simulator.simulate.simulate",
    "ddlnb.training.runs.runner.in_parallel",
    "ddlnb.engines.measure.Bench",
    "ddlnb.calibration.calibrated_model.micro_benchmark",
    "ddlnb.survey.runner.Worker",
]


class Disk:
    """Takes so many files and is full then."""

    def __init__(self, room: int):
        self.room = room
        self.fsync = os.fsync

    def __call__(self, file: int) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.fsync(file)


def said_by(command: str, folder: Path, monkeypatch, capsys) -> str:
    monkeypatch.setattr("sys.argv", ["ddlnb", *command.format(folder).split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_refused_before_any_work(command, monkeypatch, capsys, tmp_path):
    for work in WORK:
        monkeypatch.setattr(work, None)  # which nothing can call
    monkeypatch.setattr("ddlnb.files.os.fsync", Disk(room=0))
    said = said_by(command, tmp_path, monkeypatch, capsys)
    assert said.startswith(f"ddlnb: no file can be written in '{tmp_path}")
    assert said.endswith("(No space left on device); name another folder")


@pytest.mark.parametrize("command", [FORECAST, TIMELINE, TRAIN, CURVES])
def test_a_disk_that_fills_up_meanwhile_is_one_line(command, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("ddlnb.files.os.fsync", Disk(room=1))
    said = said_by(command, tmp_path, monkeypatch, capsys)
    assert "cannot be written: No space left on device; make room or choose" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []  # no half of a file


def test_what_was_written_before_stays_and_a_file_is_no_folder(monkeypatch, tmp_path):
    path = write_atomically(tmp_path / "rows.csv", "old\n")
    monkeypatch.setattr("ddlnb.files.os.fsync", Disk(room=0))
    with pytest.raises(NotWritten, match=r"rows\.csv cannot be written: No space left") as raised:
        write_atomically(path, "new\n")
    assert isinstance(raised.value, DdlnbError)
    assert isinstance(raised.value, OSError)
    assert path.read_text() == "old\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="no file can be written in"):
        require_writable(tmp_path / "file")
    with pytest.raises(NotWritten, match="cannot be written: File exists"):
        write_atomically(tmp_path / "file" / "rows.csv", "")
