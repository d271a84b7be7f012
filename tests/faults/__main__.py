"""python -m tests.faults: inject faults, and count what became of them."""

import argparse
import os
import signal
import sys
from pathlib import Path

PRIVATE = "DDLNB_FAULTS_PRIVATE"


def main() -> int:
    """Status 0 if no fault did what it must not."""
    words = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    words.add_argument("--count", type=int, default=500, help="faults in all")
    words.add_argument("--seed", type=int, default=1, help="of kinds, moments and victims")
    words.add_argument("--kinds", default="all", help="names, separated by commas")
    words.add_argument("--out", type=Path, default=Path("build/faults/faults.csv"))
    words.add_argument("--part", default="1/1", help="2/3: the second third; to run beside others")
    asked = words.parse_args()
    if os.geteuid() == 0 and PRIVATE not in os.environ:
        # With mounts of its own, it may fill a disk, and whatever is in /dev/shm is its own.
        os.environ[PRIVATE] = "1"
        command = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        own = "mount -t tmpfs tmpfs /dev/shm && exec"
        shell = ["sh", "-c", f'{own} "$@"', "sh", *command]
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *shell])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
    from tests.faults.campaign import KINDS, campaign

    kinds = list(KINDS) if asked.kinds == "all" else asked.kinds.split(",")
    if unknown := set(kinds) - KINDS.keys():
        words.error(f"unknown kinds {sorted(unknown)}; choose from {', '.join(KINDS)}")
    part, parts = map(int, asked.part.split("/"))
    return campaign(asked.count, asked.seed, kinds, asked.out, part - 1, parts)


if __name__ == "__main__":
    sys.exit(main())
