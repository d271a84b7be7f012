"""Engines for ranks of this machine: forked from one process that has imported torch.

    forked.py COUNT WORDS        # as COUNT times: python -m ipyparallel.engine WORDS

Importing torch takes a second or two of a core, and ranks that share the cores would all do it. The
process forks before anything of it runs, waits until all engines have ended, and ends then.

It imports nothing of ddlnb: what its owner can import is known to the engines later.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys


def main(count: int, words: list[str]) -> None:
    """Fork the engines; return in the first process when all of them have ended."""
    import numpy as np
    import torch.distributed  # noqa: F401
    from ipyparallel.engine.app import main as engine

    gc.freeze()  # so that no collection touches, and copies, the pages that all share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is gone at once
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            np.random.seed()  # or all would draw the same: its state was copied
            sys.argv = ["ipengine", *words]
            return engine()
    with contextlib.suppress(ChildProcessError):
        os.wait()
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
