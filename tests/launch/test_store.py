"""A run belongs to its user: what another one on this machine reaches of it, which is nothing."""

import json
import os
import pickle
import random
import shutil
import socket
import subprocess
import textwrap
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import psutil
import pytest

from ddlnb.launch.ranks import Ranks
from ddlnb.launch.reaper import carriers
from ddlnb.launch.store import StoreServer, connected

NOBODY = 65534
PYTHON = Path("/usr/bin/python3")
# Random bytes, and a message of ZeroMQ's first protocol, in which nobody says who he is.
NOISE = [random.Random(1).randbytes(4096).hex(), (b"\x01\x00" + b"\x06\x00hello" * 9).hex()]
# What another user tries: each attempt that yields something is a line.
ATTEMPTS = """
    import json, os, signal, socket, sys
    from contextlib import suppress
    def late(*_): raise OSError
    signal.signal(signal.SIGALRM, late)
    told = json.load(sys.stdin)
    def read(path): return open(path, "rb").read(1)
    def listed(path): return os.listdir(path)
    def planted(path): return open(path + "/planted", "w")
    def linked(path): return os.symlink("/etc", path + "/linked") is None
    def connected(path):
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect(path) is None
    def killed(pid): return os.kill(pid, 9) is None
    def injected(port):
        for sent in told["sent"]:
            with socket.create_connection(("127.0.0.1", port), 2) as one:
                one.settimeout(0.3)
                one.sendall(bytes.fromhex(sent))
                with suppress(TimeoutError, ConnectionError):
                    if told["marker"].encode() in b"".join(iter(lambda: one.recv(4096), b"")):
                        return True
    for name, arguments in told["attempts"]:
        for argument in arguments:
            signal.alarm(2)
            try:
                if globals()[name](argument):
                    print(name, argument)
            except OSError:
                pass
"""


class Bomb:
    """Makes the file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (os.mkdir, (str(self.file),))


@pytest.fixture
def open_to_all():
    """A folder in which every user may write."""
    folder = Path("/tmp", f"store-test-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.ranks
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.skipif(not PYTHON.exists(), reason="other users need a Python outside of this home")
def test_another_user_reads_connects_injects_and_plants_nothing(open_to_all, capfd):
    with Ranks(2) as ranks:
        ranks.run(lambda context: context.store().set("marker", "secret of the run"))
        processes, folder = carriers(ranks._processes.token), ranks._processes.folder
        files = [str(path) for path in (folder, *folder.rglob("*"))]
        ports = {
            line.laddr.port
            for process in (*processes, psutil.Process())
            for line in process.net_connections("tcp")
            if line.status == psutil.CONN_LISTEN
        }
        assert len(processes) > 4
        assert len(ports) > 4  # of ZeroMQ: they are there to be tried
        told = {
            "sent": [pickle.dumps(Bomb(open_to_all / "exploded")).hex() * 3, *NOISE],
            "marker": "secret of the run",
            "attempts": [
                ("read", [*files, *(f"/proc/{one.pid}/environ" for one in processes)]),
                ("listed", files),
                ("planted", files),
                ("linked", files),
                ("connected", [str(folder / "store")]),
                ("killed", [one.pid for one in processes]),
                ("injected", sorted(ports)),
            ],
        }
        program = [PYTHON, "-c", textwrap.dedent(ATTEMPTS)]
        asked = {"input": json.dumps(told), "capture_output": True, "text": True, "cwd": "/"}
        done = subprocess.run(program, **asked, user=NOBODY, group=NOBODY, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert not (open_to_all / "exploded").exists()
        assert ranks.run(lambda context: context.rank) == [0, 1]
        assert capfd.readouterr().err == ""
        owner = subprocess.run(
            program, **asked | {"input": json.dumps(_harmless(told))}, check=True
        )
        assert {line.split()[0] for line in owner.stdout.splitlines()} == {
            *("read", "listed", "connected")  # by their owner: the attempts are real
        }


def _harmless(told):
    kept = ("read", "listed", "connected")
    return told | {"attempts": [one for one in told["attempts"] if one[0] in kept]}


@pytest.fixture(params=["a socket", "an address"])
def store(request, tmp_path):
    """A server, and the store that those see who know its secret."""
    where = str(tmp_path / "store") if request.param == "a socket" else ("127.0.0.1", 0)
    server = StoreServer(where)
    yield server, connected(server.address, server.secret)
    server.close()


def test_a_stranger_is_turned_away_and_nothing_is_unpickled(store, tmp_path):
    server, ours = store
    with pytest.raises(AuthenticationError):
        Client(server.address, authkey=b"guessed")
    with Client(server.address) as impatient:
        impatient.send(Bomb(tmp_path / "exploded"))
    family = socket.AF_UNIX if isinstance(server.address, str) else socket.AF_INET
    with socket.socket(family) as raw:
        raw.connect(server.address)
        with suppress(OSError):  # it hangs up in the midst of it
            raw.sendall(os.urandom(1 << 16))
    time.sleep(0.1)
    assert not (tmp_path / "exploded").exists()
    ours.set("key", b"\xff value")
    assert ours.get("key") == b"\xff value"


def test_a_store_without_memory_for_a_thread_turns_one_away_and_serves_the_next(store, monkeypatch):
    server, ours = store

    def start(thread):
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    with Client(server.address) as unlucky, pytest.raises(EOFError):
        unlucky.recv()
    ours.set("key", b"value")
    assert ours.get("key") == b"value"


def test_a_store_does_what_torch_asks_of_one(store):
    from datetime import timedelta

    from torch.distributed import DistNetworkError, DistStoreError, PrefixStore

    server, ours = store
    prefixed = PrefixStore("run1", ours)
    assert [prefixed.add("visits", 2), prefixed.add("visits", 1)] == [2, 3]
    assert prefixed.get("visits") == b"3"
    assert ours.check(["run1/visits"])
    assert not ours.check(["visits"])
    with pytest.raises(DistStoreError, match="nobody has set"):
        prefixed.wait(["never"], timedelta(seconds=0.01))
    server.close()
    with pytest.raises((DistNetworkError, DistStoreError)):
        connected(server.address, b"").get("visits")
