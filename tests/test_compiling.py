"""What is compiled is said on a terminal once, and nowhere when it comes from the cache."""

import errno
import os
import pty
import subprocess
import sys

import pytest
from numba.core.caching import FunctionCache

from ddlnb import compiling
from ddlnb.compiling import NOTICE

LOOPS = (  # one that is quickly compiled, and one more
    "import numpy as np; from ddlnb.compression import kernels\n"
    "values = np.ones(3, np.float32)\n"
    "kernels.measure(values); kernels.measure(values[::2])"
)


def said(folder, terminal: bool) -> str:
    """Return what a process that calls both loops writes to its standard error."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    with os.fdopen(reader, "rb", buffering=0) as output:
        command = [sys.executable, "-c", LOOPS]
        subprocess.run(command, stderr=writer, env=environment, check=True, timeout=60)
        os.close(writer)
        try:
            return output.read(65536).decode()
        except OSError:  # a terminal that nobody writes to any more
            return ""


def test_the_first_loop_that_is_compiled_is_announced_once(tmp_path):
    assert said(tmp_path, terminal=True).split("\n").count(f"{NOTICE}\r") == 1
    assert said(tmp_path, terminal=True) == ""


def test_where_nothing_can_be_kept_loops_are_compiled_all_the_same(monkeypatch):
    """As in a container that may only be read: numba finds no place for its files."""

    def nowhere(loop):
        raise RuntimeError("cannot cache function 'twice': no locator available")

    monkeypatch.setattr(compiling, "_Kept", nowhere)
    with pytest.warns(UserWarning, match="set NUMBA_CACHE_DIR"):
        twice = compiling.compiled()(lambda value: 2 * value)
    assert twice(3) == 6


@pytest.mark.parametrize("size", [0, 30])
def test_a_damaged_file_of_a_loop_is_made_anew(tmp_path, size):
    """As after a crash or on a full disk."""
    said(tmp_path, terminal=False)
    kept = [one for one in tmp_path.rglob("*.nb?") if one.stat().st_size > size]
    for one in kept:
        os.truncate(one, size)
    assert said(tmp_path, terminal=True).count(NOTICE) == 1
    assert all(one.stat().st_size > size for one in kept)
    assert said(tmp_path, terminal=True) == ""


def test_a_full_disk_keeps_no_loop_and_says_so(monkeypatch):
    def full(*made):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FunctionCache, "_save_overload", full)
    monkeypatch.setattr(FunctionCache, "_load_overload", lambda *asked: None)
    thrice = compiling.compiled()(lambda value: 3 * value)
    with pytest.warns(UserWarning, match="set NUMBA_CACHE_DIR"):
        assert thrice(3) == 9


def test_a_file_gets_no_notice(tmp_path):
    assert said(tmp_path, terminal=False) == ""
