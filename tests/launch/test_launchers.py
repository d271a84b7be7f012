"""Open MPI, SSH and Slurm, each for real: the seven methods, errors in words, nothing left."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest

from ddlnb.engines.measure import measure
from ddlnb.errors import InputError, RankError
from ddlnb.files import ROOT, claim
from ddlnb.launch import leftovers
from ddlnb.launch.launchers import jobs_in_queue
from ddlnb.launch.processes import hold, neighbours_together
from ddlnb.launch.ranks import RankContext, Ranks
from ddlnb.launch.reaper import shared_memory
from ddlnb.launch.starters import CONFIG_VARIABLE, remote_script, ssh_arguments
from ddlnb.plans.methods import SURVEYED
from ddlnb.survey.execution import run_notebook
from ddlnb.survey.launchers import rank_inventory
from tests.launch.owner import wait_until
from tests.running import is_running
from tests.toy import mlp

SCRIPTS = ROOT / "scripts" / "launchers"
PROGRAMS = {
    "mpi": ("mpiexec",),
    "ssh": ("ssh", "sshd"),
    "slurm": ("munged", "slurmctld", "slurmd", "sbatch"),
}
STARTED_BY = {"mpi": "Open MPI, rank ", "ssh": "SSH", "slurm": "Slurm, job "}
HOSTS: dict[str, dict] = {"mpi": {}, "ssh": {"hosts": ["loopback"]}, "slurm": {}}
LAUNCHERS = list(HOSTS)
REMOTE = ["ssh", "slurm"]


# ---------------------------------------------------------------- the services


class Service:
    """A service started by its script; the variable that it prints is for the tests."""

    def __init__(self, script: str):
        self.script = SCRIPTS / script
        # Sockets have short names, so not the folder of a test.
        self.folder = Path(tempfile.gettempdir(), f"ddlnb-{self.script.stem[:5]}-{os.getpid()}")
        self.name, _, self.value = self("start").removeprefix("export ").partition("=")
        self.pids = [int(file.read_text()) for file in self.folder.glob("*.pid")]

    def __call__(self, action: str) -> str:
        command = [str(self.script), action, str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def addresses(self) -> set[str]:
        """The addresses on which it listens."""
        found = [c for pid in self.pids for c in psutil.Process(pid).net_connections("inet")]
        return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Service]:
    yield from service("slurm", "slurm_one_node.sh")


@pytest.fixture(scope="module")
def ssh() -> Iterator[Service]:
    yield from service("ssh", "ssh_loopback.sh")


def service(launcher: str, script: str) -> Iterator[Service]:
    require_programs(launcher)
    started = Service(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(started.name, started.value)
        yield started
        started("stop")
    assert not started.folder.exists()
    assert not any(map(is_running, started.pids))


def require_programs(launcher: str) -> None:
    """Skip where a program is missing: tests install nothing, `make launchers` does."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS[launcher] if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"launcher {launcher!r} needs {', '.join(missing)}: make launchers, as root")


@pytest.fixture
def launcher(request: pytest.FixtureRequest) -> str:
    """The launcher's name, once what it needs is up."""
    if request.param == "mpi":
        require_programs("mpi")
        pytest.importorskip("mpi4py", exc_type=ImportError)
    else:
        request.getfixturevalue(request.param)
    return request.param


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of our own, in which nothing may be left, nor a process or job of it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    wait_until(lambda: not left(folder), 15)
    assert not left(folder)


def left(folder: Path) -> list[str]:
    """Files in the folder, processes that work for ranks with their files there, and our jobs."""
    caches = "torchinductor_"  # which torch makes, and would find again
    found = [str(path) for path in folder.iterdir() if not path.name.startswith(caches)]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = (process.environ().get("IPYTHONDIR", ""), *process.cmdline())
            if any(str(folder) in word for word in words):
                found.append(" ".join(words))
    if "SLURM_CONF" in os.environ:
        command = ["squeue", "--noheader", "--format=%i %j %T"]
        found += subprocess.check_output(command, text=True).splitlines()
    return found


# ---------------------------------------------------------------- the services themselves


@pytest.mark.ranks
def test_slurm_listens_on_the_loopback_only_and_a_second_start_changes_nothing(slurm):
    assert slurm.addresses() == {"127.0.0.1"}
    assert slurm("start") == f"export SLURM_CONF={slurm.folder}/slurm.conf"
    assert all(map(psutil.pid_exists, slurm.pids))


@pytest.mark.ranks
def test_the_ssh_server_listens_on_the_loopback_only_and_keeps_its_keys_to_itself(ssh):
    assert ssh.addresses() == {"127.0.0.1"}
    assert ssh("start") == f"export {CONFIG_VARIABLE}={ssh.folder}/ssh_config"
    assert all(file.stat().st_mode & 0o077 == 0 for file in ssh.folder.iterdir())


@pytest.mark.parametrize("script", ["slurm_one_node.sh", "ssh_loopback.sh"])
def test_a_script_without_an_action_says_which_there_are(script):
    done = subprocess.run([SCRIPTS / script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{script}: say install, start or stop")


PACKAGES = {
    "slurm_one_node.sh": "munge slurm-wlm",
    "ssh_loopback.sh": "openssh-client openssh-server",
}


@pytest.fixture
def bare_machine(tmp_path: Path) -> Callable[[str, str], subprocess.CompletedProcess]:
    """Run a script as root of a machine that has none of the services; apt-get writes a list."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("rm", "cat", "tr"):
        (bare / name).symlink_to(shutil.which(name))
    for name, line in (("id", "echo 0"), ("apt-get", f"echo $* >>{tmp_path}/apt-get")):
        (bare / name).write_text(f"#!/bin/sh\n{line}\n")
        (bare / name).chmod(0o755)

    def run(script: str, action: str) -> subprocess.CompletedProcess:
        text = (SCRIPTS / script).read_text().replace("PATH=$PATH:/usr/sbin:/sbin", f"PATH={bare}")
        command = ["/bin/sh", "-c", text, script, action, str(tmp_path / "service")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("script", list(PACKAGES))
def test_only_install_installs_what_is_missing(script, bare_machine, tmp_path):
    started = bare_machine(script, "start")
    assert started.returncode == 1
    assert f"needs {PACKAGES[script]} (sudo apt-get install {PACKAGES[script]}" in started.stderr
    assert not (tmp_path / "apt-get").exists()
    assert bare_machine(script, "install").returncode == 0
    assert (tmp_path / "apt-get").read_text().endswith(f" {PACKAGES[script]}\n")


# ---------------------------------------------------------------- the seven methods


def task_number(context: RankContext, launcher: str) -> int:
    if launcher == "mpi":
        from mpi4py import MPI

        return MPI.COMM_WORLD.Get_rank()
    return int(os.environ.get("SLURM_PROCID", context.rank))


def hang(context: RankContext, victim: int) -> None:
    if context.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    context.store().wait(["never"])


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS, indirect=True)
def test_all_methods_run_on_ranks_numbered_as_their_launcher_does_and_a_death_is_one_error(
    launcher, own_tmp
):
    with Ranks(3, launcher=launcher, **HOSTS[launcher]) as ranks:
        places = rank_inventory(ranks)
        assert list(places.index) == [0, 1, 2]
        assert places["started_by"].str.startswith(STARTED_BY[launcher]).all()
        assert set(places["process"]) == set(ranks.pids)
        assert ranks.run(task_number, launcher) == [0, 1, 2]
        rows = measure(
            mlp([16]), list(SURVEYED), workers=2, iterations=2, warmup=0, repetitions=1, ranks=ranks
        )
        assert set(SURVEYED) < set(rows["method"])
        with pytest.raises(RankError, match="first rank 1"):
            ranks.run(hang, 1)


@pytest.mark.thorough
@pytest.mark.notebook
@pytest.mark.ranks
@pytest.mark.slow
def test_a_notebook_runs_all_methods_with_only_the_launcher_changed(ssh, own_tmp, tmp_path):
    """With hosts besides; the notebook itself is run with ranks of this machine elsewhere."""
    path = run_notebook(
        "launchers",
        tmp_path / "out.ipynb",
        where="ssh:" + ",".join(HOSTS["ssh"]["hosts"]),
        iterations=2,
    )
    cells = nbformat.read(path, as_version=4).cells
    shown = "\n".join(
        output.data.get("text/plain", "")
        for cell in cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert shown.count(STARTED_BY["ssh"]) == 3  # two workers and a server
    assert all(method in shown for method in SURVEYED)


# ---------------------------------------------------------------- owners that are killed


OWNER = """
import sys
from ddlnb.launch.ranks import Ranks
print("starting", flush=True)
ranks = Ranks(2, launcher=sys.argv[1], hosts=sys.argv[2:])
print("running", flush=True)
ranks.run(lambda context: context.store().wait(["never"]))
"""


@contextlib.contextmanager
def killed_owner(launcher: str, word: str, seconds: float) -> Iterator[subprocess.Popen]:
    """An owner of ranks, killed the given number of seconds after it said the word."""
    command = [sys.executable, "-c", OWNER, launcher, *HOSTS[launcher].get("hosts", [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert any(word in line for line in owner.stdout)
        time.sleep(seconds)
        yield owner
        owner.kill()


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpi", *REMOTE], indirect=True)
def test_an_owner_killed_during_a_run_leaves_nothing(launcher, own_tmp):
    with killed_owner(launcher, "running", 0.5):
        assert len(left(own_tmp)) > 3
        shared = [shared_memory(one) for one in own_tmp.glob("ddlnb-*")]
        assert any(one.is_dir() for one in shared) == (launcher == "mpi")
    wait_until(lambda: not any(one.exists() for one in shared), 15)
    assert not any(one.exists() for one in shared)


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.slow
def test_what_outlives_an_owner_and_its_reaper_over_ssh_goes_with_the_next_start(ssh, own_tmp):
    with killed_owner("ssh", "running", 0.5) as owner:
        started = psutil.Process(owner.pid).children()
        [reaper] = [one for one in started if any("reaper.py" in word for word in one.cmdline())]
        reaper.kill()
    time.sleep(2)  # in which the ranks see it, and end
    assert left(own_tmp)
    leftovers.sweep()


@pytest.mark.ranks
def test_an_owner_killed_while_its_job_waits_leaves_no_job(slurm, own_tmp):
    with closed_partition(), killed_owner("slurm", "starting", 0):
        wait_until(queued_jobs, 30)
        assert "PENDING" in queued_jobs()


# ---------------------------------------------------------------- errors in words


def queued_jobs() -> str:
    return subprocess.check_output(["squeue", "--noheader", "--format=%j %T"], text=True)


@contextlib.contextmanager
def closed_partition() -> Iterator[None]:
    """While it is down, jobs are accepted and do not start."""

    def become(state: str) -> None:
        change = ["scontrol", "update", "partitionname=all", f"state={state}"]
        subprocess.run(change, check=True)

    become("down")
    yield
    become("up")


@pytest.mark.ranks
def test_a_queue_that_does_not_start_the_job_is_quoted(slurm, own_tmp):
    with closed_partition(), pytest.raises(RankError) as caught:
        Ranks(2, launcher="slurm", start_timeout_seconds=6)
    message = str(caught.value)
    assert "2 ranks were not started with launcher 'slurm'" in message
    assert "start_timeout_seconds=6 can be raised" in message
    assert "PENDING (PartitionDown)" in message


@pytest.mark.ranks
def test_a_refused_job_is_one_error_with_what_sbatch_said(slurm, own_tmp, monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    with pytest.raises(RankError, match=r"sbatch: error: invalid partition specified: nowhere"):
        Ranks(2, launcher="slurm")


@pytest.mark.thorough
@pytest.mark.ranks
def test_a_job_that_ends_at_once_is_not_waited_for(slurm, own_tmp, monkeypatch):
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")  # so the ranks do not know where to connect
    start = time.monotonic()
    with pytest.raises(RankError, match=r"what starts them has ended(.|\n)*not in the queue"):
        Ranks(2, launcher="slurm", start_timeout_seconds=100)
    assert time.monotonic() - start < 60


@pytest.mark.ranks
def test_slurm_without_a_controller_is_one_line_that_stands_alone(monkeypatch, tmp_path):
    for name in ("sbatch", "squeue", "scancel"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name}: no controller >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(RankError) as caught:
        Ranks(2, launcher="slurm", start_timeout_seconds=20)
    first, *details = str(caught.value).splitlines()
    assert first.startswith("2 ranks were not started with launcher 'slurm': ")
    assert first.endswith("; squeue failed: squeue: no controller")
    assert "sbatch: no controller" in details


def test_a_queue_that_does_not_answer_says_so(monkeypatch, tmp_path):
    (tmp_path / "squeue").write_text("#!/bin/sh\necho no controller >&2; exit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(OSError, match="squeue failed: no controller"):
        jobs_in_queue("job")


@pytest.mark.ranks
def test_an_unknown_host_is_one_error_with_what_ssh_said(ssh, own_tmp):
    start = time.monotonic()
    with pytest.raises(RankError, match=r"what starts them has ended(.|\n)*nohost\.invalid"):
        Ranks(2, launcher="ssh", hosts=["nohost.invalid"], start_timeout_seconds=100)
    assert time.monotonic() - start < 60


def test_a_configuration_of_ssh_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"DDLNB_SSH_CONFIG=.*absent' is not a file"):
        ssh_arguments()
    monkeypatch.delenv(CONFIG_VARIABLE)
    assert "-F" not in ssh_arguments()


# ---------------------------------------------------------------- ends that no reaper reaches


@pytest.mark.parametrize("claimed", [False, True])
def test_a_script_for_a_host_ends_its_processes_with_its_input(claimed, tmp_path):
    folder = tmp_path / "it's here"
    command = ["sh", "-c", 'echo "$SECRET $$"; exec sleep 99']
    script = "\n".join(remote_script(command, {"SECRET": "a b'c"}, str(folder), 2))
    shell = subprocess.Popen(
        ["sh", "-s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    shell.stdin.write(script)
    shell.stdin.flush()
    lines = [shell.stdout.readline().split() for _ in range(2)]
    assert folder.is_dir()
    assert [line[:2] for line in lines] == [["a", "b'c"]] * 2
    if claimed:  # the owner is on this machine
        claim(folder).close()
    shell.communicate()
    assert folder.exists() == claimed
    pids = [int(line[2]) for line in lines]
    wait_until(lambda: not any(map(is_running, pids)), 5)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("owner", ["elsewhere", "dead", "alive"])
def test_who_holds_a_lifeline_ends_when_it_breaks(owner, tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    claimed = claim(folder if owner != "elsewhere" else tmp_path)
    if owner == "dead":
        claimed.close()
    lifeline = socket.create_server(("127.0.0.1", 0))
    host, port = lifeline.getsockname()
    program = (
        "import sys, time; from ddlnb.launch.processes import hold; "
        f"print(hold({str(folder)!r}, {host!r}, {port}), flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as rank:
        assert socket.gethostname() in str(rank.stdout.readline())
        assert rank.poll() is None
        lifeline.close()
        assert rank.wait(5) == 1
    claimed.close()
    assert folder.exists() == (owner == "dead")  # the next start finds by it what else is there
    with pytest.raises(OSError, match="refused"):
        hold(str(folder), host, port)


def test_ranks_of_a_machine_are_neighbours_in_the_order_of_their_tasks():
    slots = [("b", 3), ("a", 1), ("b", 2), ("a", 0)]
    assert neighbours_together(range(4), slots) == [3, 1, 2, 0]
    assert neighbours_together(range(4), [("b", 0), ("a", 0), ("b", 0), ("a", 0)]) == [0, 2, 1, 3]
