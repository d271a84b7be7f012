"""The command line as a person types it, run in this process: a Python of its own takes seconds."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from ddlnb.cli.app import main
from ddlnb.cli.options import WIDTH


def ddlnb(*words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run ``ddlnb WORDS``; what it printed, and its status as the process would end with it.

    With ``check`` a status other than 0 fails. What no user should see, a traceback, is raised.
    """
    out, err = io.StringIO(), io.StringIO()
    status: object = None
    with (
        patch.object(sys, "argv", ["ddlnb", *words]),
        patch.dict(os.environ, COLUMNS=str(WIDTH)),  # whatever terminal the tests run in
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code
    done = subprocess.CompletedProcess(words, int(status or 0), out.getvalue(), err.getvalue())  # type: ignore[call-overload]
    if check:
        assert done.returncode == 0, done.stderr
    return done
