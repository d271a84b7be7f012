"""Inject faults of many kinds at random moments of real sweeps, and count what became of them."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import command
from ddlnb.errors import require_known

PRIVATE = "DDLNB_FAULTS_PRIVATE"


def main(
    *,
    count: int = 500,
    seed: int = 1,
    kinds: Sequence[str] = (),
    out: Path = Path("build/faults/faults.csv"),
    part: str = "1/1",
) -> int:
    """Return status 0 if none of --count faults did what it must not.

    By default they are of all --kinds; kinds, moments and victims are drawn from the --seed. --part
    2/3 is the second third, to run beside the others.
    """
    if os.geteuid() == 0 and PRIVATE not in os.environ:
        # With mounts of its own, it may fill a disk, and whatever is in /dev/shm is its own.
        os.environ[PRIVATE] = "1"
        again = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        own = "mount -t tmpfs tmpfs /dev/shm && exec"
        shell = ["sh", "-c", f'{own} "$@"', "sh", *again]
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *shell])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup lets all commands ignore
    from tests.faults.campaign import KINDS, campaign

    for kind in kinds:
        require_known("kind of fault", kind, KINDS)
    number, parts = map(int, part.split("/"))
    return campaign(count, seed, list(kinds or KINDS), out, number - 1, parts)


if __name__ == "__main__":
    sys.exit(command(main))
