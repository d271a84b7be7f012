"""Bars of progress: in a notebook unless they are refused, elsewhere where they are asked for.

Where the variable TQDM_DISABLE is set there are none, as in notebooks that
`ddlnb survey reproduce` runs.
"""

from __future__ import annotations

import os
import sys
from typing import Any

Show = bool | None  # None: where this process is a notebook's


def bar(*arguments: Any, progress: Show, **words: Any) -> Any:
    """Return a bar of tqdm's, which in a notebook is a widget; it counts in silence if unwanted."""
    from tqdm.auto import tqdm

    words["disable"] = refused() or not (in_notebook() if progress is None else progress)
    make: Any = tqdm
    return make(*arguments, **words)


def refused() -> bool:
    """Return whether nobody wants progress to be shown; tqdm's widget does not look at it."""
    return os.environ.get("TQDM_DISABLE", "0") not in ("", "0")


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and "IPKernelApp" in shell.config
