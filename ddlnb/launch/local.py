"""Ranks of this machine as ipyparallel starts them: all from one process (see forked.py)."""

from __future__ import annotations

from ipyparallel.cluster.launcher import LocalEngineLauncher


class ForkLauncher(LocalEngineLauncher):
    """Starts one process that forks n engines; its command is in ``engine_cmd``."""

    def find_args(self) -> list[str]:
        """Return the command: how many engines, and the words for each."""
        return [*self.engine_cmd, str(self.n), *self.cluster_args, *self.engine_args]

    def start(self, n: int) -> None:
        """Start the process."""
        self.n = n
        super().start()
