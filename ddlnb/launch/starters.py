"""How ipyparallel starts ranks here and on named hosts, instead of its own ways.

Ranks of this machine come from one process (see forked.py). Those on a host come by one SSH
connection, which ends them when it ends; ipyparallel's own SSH launcher connects several times for
each engine, leaves a second process beside each and its folders on the hosts, and loses what ssh
complains about.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ipyparallel.cluster.launcher import EngineLauncher, LocalEngineLauncher
from traitlets import Dict, Unicode

from ddlnb.errors import require
from ddlnb.files import OWNER


class ForkLauncher(LocalEngineLauncher):
    """Starts one process that forks n engines; its command is in ``engine_cmd``."""

    def find_args(self) -> list[str]:
        """Return the command: how many engines, and the words for each."""
        return [*self.engine_cmd, str(self.n), *self.cluster_args, *self.engine_args]

    def start(self, n: int) -> None:
        """Start the process."""
        self.n = n
        super().start()


# Names a file that ssh reads instead of the user's configuration: it has no variable of its own.
CONFIG_VARIABLE = "DDLNB_SSH_CONFIG"


class HostsLauncher(EngineLauncher):
    """Starts engines on hosts that share this interpreter's path, and no folder."""

    hosts = Dict(config=True, help="The number of engines by host, as ssh is to be told it.")
    log_folder = Unicode(config=True, help="Where the engines' output goes, host by host.")

    def find_args(self) -> list[str]:
        """Return the command of one engine; the environment says how it connects."""
        return [*self.engine_cmd, *self.cluster_args, *self.engine_args]

    def start(self, n: int) -> list[int]:
        """Start the connections and return their process ids; failures are in the log only."""
        self.n = n
        self._connections = [self._connect(host, count) for host, count in self.hosts.items()]
        pids = [connection.pid for connection in self._connections]
        self.notify_start(pids)
        return pids

    def _connect(self, host: str, count: int) -> subprocess.Popen:
        script = "\n".join(remote_script(self.args, self.get_env(), self.profile_dir, count))
        log = Path(self.log_folder, f"ssh-{host}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            connection = subprocess.Popen(
                ["ssh", *ssh_arguments(), "--", host, "sh", "-s"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for the owner
            )
        assert connection.stdin is not None
        with suppress(BrokenPipeError):  # the log says why
            connection.stdin.write(script.encode())
            connection.stdin.flush()  # and stays open: its end is the end of the engines
        return connection

    def poll(self) -> int | None:
        """Return the exit status of a connection that ended, None while all are up."""
        ended = (connection.poll() for connection in self._connections)
        return next((status for status in ended if status is not None), None)

    def stop(self) -> None:
        """End the connections, and with them the engines."""
        for connection in self._connections:
            connection.kill()
            with suppress(BrokenPipeError):
                connection.communicate()
        self.notify_stop({"exit_code": 0})


def ssh_arguments() -> list[str]:
    """Return arguments of ssh: never ask for a password, and perhaps another configuration.

    Raises InputError where the variable names no file.
    """
    file = os.environ.get(CONFIG_VARIABLE)
    require(
        file is None or Path(file).is_file(),
        f"{CONFIG_VARIABLE}={file!r} is not a file; name one, or unset it to use your own",
    )
    chosen = ["-F", file] if file else []
    return [*chosen, "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]


def remote_script(
    command: list[str], environment: Mapping[str, str], folder: str, count: int
) -> Iterator[str]:
    """Yield lines for a shell that starts engines, and ends them with the connection.

    The environment has secrets: they come by standard input and are in nobody's list of processes.
    A folder that somebody on the same machine has claimed stays: its owner removes it or, by what
    it says, the next start (see leftovers.py).
    """
    yield "{ umask 077"  # the shell reads to the closing brace before it starts
    yield f"mkdir -p {shlex.quote(folder)}"
    for name, value in environment.items():
        yield f"export {name}={shlex.quote(value)}"
    for _ in range(count):
        yield f"{shlex.join(command)} </dev/null &"
        yield 'engines="$engines $!"'
    yield "cat >/dev/null"
    yield "kill -9 $engines"
    yield (
        f'cd {shlex.quote(folder)} && ! grep -qsxF "$(uname -n)" {OWNER} && '
        'cd / && rm -rf "$OLDPWD"'
    )
    yield "kill -9 0"  # what the engines started
    yield "}"
    yield ""
