"""The command line as a process: ``ddlnb``, or ``python -m ddlnb``.

Imports little before Ctrl-C is seen to: imports take most of the time in which a command starts.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; see `ddlnb.cli.app` for how it ends."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        Path.cwd()
    except OSError:  # numba and torch do not load without one
        os.write(2, b"ddlnb: the working folder was removed; change to one that is there\n")
        sys.exit(2)
    from ddlnb.cli.app import main as command

    command()


def interrupt(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; amid an import say that this is the end, and end at once.

    C++ code that imports, as torch's does, ends a process that raises there with words of its own
    (``terminate called after throwing``), and other imports swallow it. What was started by then
    ends as it does with an owner that is killed (see `ddlnb.launch.reaper`).
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"ddlnb: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
