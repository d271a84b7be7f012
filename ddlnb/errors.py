"""Every error ddlnb raises on purpose. Each message names the value, the rule and the way out.

DdlnbError
|-- InputError (ValueError)     something the caller passed is not valid
|   |-- UnknownName             a name that is not in the catalogue
|   |-- ModelError              a model that cannot be trained with exchanged gradients
|   |-- NotFinite               numbers to compress that are infinite or none: a run diverged
|   `-- PlanError               a plan that loses, repeats or misorders gradient elements
|-- ResultsError (ValueError)   a results file that cannot be read as the tidy table
|-- NotWritten (OSError)         a file that a full disk or a read-only place did not take
|-- MissingPart (RuntimeError)  this machine lacks an optional part
`-- RankError (RuntimeError)    a rank failed, died or did not answer in time
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_NAME = 200  # characters of a name that nobody knows


class DdlnbError(Exception):
    """The root of all errors that ddlnb raises on purpose: catch this to catch every one of them.

    >>> import ddlnb
    >>> try:
    ...     ddlnb.get_method("MGWFBP")
    ... except ddlnb.DdlnbError as error:
    ...     print(type(error).__name__, str(error).endswith("(did you mean 'MG-WFBP'?)"))
    UnknownName True
    """

    def __str__(self) -> str:
        """Return the sentence, safe for a terminal whatever names a file had."""
        return printable(super().__str__())


class InputError(DdlnbError, ValueError):
    """Something the caller passed is not valid."""


class UnknownName(InputError):
    """A name that is not in the catalogue; the message suggests the nearest one that is.

    ``also`` are names that mean the same as known ones: they are suggested, but not listed.
    ``otherwise`` says what can be given in place of a name.

    >>> print(UnknownName("method", "MGWFBP", ["BSP-PS", "MG-WFBP"]))
    unknown method 'MGWFBP'; choose one of BSP-PS, MG-WFBP (did you mean 'MG-WFBP'?)
    """

    def __init__(
        self,
        what: str,
        name: object,
        known: Iterable[str],
        also: Iterable[str] = (),
        otherwise: str = "",
    ):
        known, also = list(known), list(also)
        folded = {option.casefold(): option for option in (*also, *known)}
        folded_name = str(name)[:LONGEST_NAME].casefold()
        near = difflib.get_close_matches(folded_name, folded, n=1, cutoff=0.5)
        hint = f" (did you mean {folded[near[0]]!r}?)" if near else ""
        way_out = f"choose one of {', '.join(known)}{hint}" + (otherwise and f"; {otherwise}")
        shown = repr(name)
        if len(shown) > LONGEST_NAME:
            shown = f"{shown[:LONGEST_NAME]}... ({len(shown):,} characters)"
        super().__init__(f"unknown {what} {shown}; {way_out}")
        self._given = (what, name, known, also, otherwise)

    def __reduce__(self) -> tuple[type[UnknownName], tuple[object, ...]]:
        """Return how it is made again in another process."""
        return type(self), self._given


class ModelError(InputError):
    """A model that cannot be trained with exchanged gradients, and how to change it."""


class NotFinite(InputError):
    """Numbers to compress that are infinite or none: a run has diverged."""


class PlanError(InputError):
    """A plan that loses, repeats or misorders gradient elements."""


class ResultsError(DdlnbError, ValueError):
    """A results file that cannot be read as the tidy table."""


class NotWritten(DdlnbError, OSError):
    """A file that could not be written, and why; what was there before is as it was."""


class MissingPart(DdlnbError, RuntimeError):
    """This machine lacks an optional part; the message says how to get it."""


class RankError(DdlnbError, RuntimeError):
    """A rank failed, died or did not answer in time; the message quotes every rank."""


# Modules that only an extra of the package brings: `pip install 'ddlnb[run]'`.
EXTRAS = {
    "models": ("torch", "transformers"),
    "run": ("ipyparallel", "zmq", "pyroute2", "cloudpickle"),
    "book": (
        *("jupyterlab", "ipywidgets", "ipykernel", "papermill", "nbformat", "nbconvert", "jinja2"),
        *("jupyter_client", "IPython", "seaborn", "sphinx", "myst_nb", "furo", "sphinx_design"),
        *("sphinxcontrib.bibtex", "sphinx_revealjs", "latex2mathml"),
    ),
}


def without(module: str, extra: str = "", what: str = "this") -> str:
    """Return how to get a module that is not installed: by an extra, where one brings it.

    >>> without("torch")
    "this needs torch, which is not installed: pip install 'ddlnb[models]'"
    """
    brings = [name for name, modules in EXTRAS.items() if module.partition(".")[0] in modules]
    name = extra or (brings[0] if brings else "")
    target = f"'ddlnb[{name}]'" if name else module
    return f"{what} needs {module}, which is not installed: pip install {target}"


def printable(text: str) -> str:
    """Return the text with escapes for what a terminal would obey, or could not write.

    >>> print(printable("a \\x1b[2J b"))
    a \\x1b[2J b
    """
    if text.isprintable():
        return text
    shown = (c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return "".join(shown)


def reason_of(error: Exception) -> str:
    """Return why something failed, in one line; of a file, what the system says of it.

    >>> reason_of(ValueError("no number:\\n  'x'.")), reason_of(FileNotFoundError(2, "Not there"))
    ("no number: 'x'", 'Not there')
    """
    told = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(told.split()).rstrip(".") or type(error).__name__


def require(condition: bool, message: str) -> None:
    """Raise InputError with the message unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_known(
    what: str,
    name: Any,
    known: Iterable[str],
    also: Iterable[str] = (),
    otherwise: str = "",
) -> None:
    """Raise `UnknownName` unless the name is a known one.

    >>> require_known("method", "MG-WFBP", ["BSP-PS", "MG-WFBP"])
    """
    if name not in known:
        raise UnknownName(what, name, known, also, otherwise)


def look_up(what: str, name: str, known: Mapping[str, T], otherwise: str = "") -> T:
    """Return the entry of this name. Raises UnknownName, with what can be given otherwise.

    >>> look_up("axis", "tp", {"tp": 2})
    2
    """
    require_known(what, name, known, otherwise=otherwise)
    return known[name]


def require_whole(least: int = 1, /, **values: object) -> None:
    """Raise InputError unless every named value is a whole number and not below the least.

    >>> require_whole(workers=0)
    Traceback (most recent call last):
    ddlnb.errors.InputError: workers 0 must be a whole number, at least 1
    """
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} {value!r} must be a whole number, at least {least}")


def require_positive(**values: object) -> None:
    """Raise InputError unless every named value is a finite number above 0.

    >>> require_positive(samples_per_second=float("inf"))
    Traceback (most recent call last):
    ddlnb.errors.InputError: samples_per_second inf must be a finite number above 0
    """
    for name, value in values.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
            raise InputError(f"{name} {value!r} must be a finite number above 0")
