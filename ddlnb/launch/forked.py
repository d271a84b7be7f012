"""Engines for ranks of this machine: forked from one process that has imported torch.

    forked.py MORE COUNT WORDS        # as COUNT times: python -m ipyparallel.engine WORDS

Importing torch takes a second or two of a core, and ranks that share the cores would all do it. The
process forks before anything of it runs, waits until all engines have ended, and ends then. MORE is
what else it imports for all: the owner's path and names of modules, as JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys


def main(path: list[str], modules: list[str], count: int, words: list[str]) -> None:
    """Fork the engines; return in the first process when all of them have ended."""
    import numpy as np
    import torch.distributed  # noqa: F401
    from ipyparallel.engine.app import main as engine

    sys.path += [folder for folder in path if folder not in sys.path]
    for name in modules:
        with contextlib.suppress(Exception):  # the function that needs it says why it cannot be
            importlib.import_module(name)
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
    path, modules = json.loads(sys.argv[1])
    main(path, modules, int(sys.argv[2]), sys.argv[3:])
