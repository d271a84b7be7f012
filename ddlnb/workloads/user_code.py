"""Tasks in a user's own Python: ``my.py:task`` names one in a file, ``package.module:task`` in a
module.

What is named is a Task, or a function without arguments that returns one. The code is run, as
``python my.py`` would run it: name only files that you would run.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ddlnb.errors import DdlnbError, ModelError, UnknownName

ATTRIBUTES = "give a task as FILE.py:NAME or PACKAGE.MODULE:NAME"
_as_run: dict[str, tuple[int, int]] = {}  # when a file that was run was written, and its bytes


def is_user_code(text: str) -> bool:
    """Return whether a text names something in a Python file or module.

    >>> is_user_code("my.py:task"), is_user_code("my.py"), is_user_code("resnet50")
    (True, True, False)
    """
    place, colon, _ = text.rpartition(":")
    return text.endswith(".py") or (bool(colon) and bool(place))


def object_of(text: str) -> Any:
    """Run the file or import the module that a text names, and return what it names in it.

    A function is called, and what it returns is returned. Raises ModelError for code that is not
    there or fails, and UnknownName for a name that it does not have.
    """
    if text.endswith(".py"):
        raise ModelError(f"model {text!r} names a file and nothing in it; {ATTRIBUTES}")
    place, _, name = text.rpartition(":")
    module = run_file(Path(place)) if place.endswith(".py") else _import(place)
    if not hasattr(module, name):
        public = sorted(one for one in vars(module) if not one.startswith("_"))
        raise UnknownName(f"name in {place}", name, public)
    found = getattr(module, name)
    from torch import nn

    if isinstance(found, nn.Module) or not callable(found):
        return found
    try:
        return found()
    except DdlnbError:
        raise
    except SystemExit as error:
        raise _ended(f"model {text!r}: {name}()", error) from error
    except Exception as error:
        raise ModelError(
            f"model {text!r}: {name}() raised {type(error).__name__}: {error}; it is "
            f"called without arguments and returns a task"
        ) from error


def run_file(path: Path) -> ModuleType:
    """Run a Python file as a module, and return it; again only if the file has changed since.

    So what it registers is registered once, however often a command asks for its names. Raises
    ModelError for a file that is not there or fails.
    """
    if not path.is_file():
        raise ModelError(f"file {str(path)!r} does not exist; {ATTRIBUTES}")
    full = path.resolve()
    state = full.stat()
    name = f"ddlnb_user_{full.stem}_{abs(hash(full)):x}"
    known = sys.modules.get(name)
    if known is not None and _as_run.get(name) == (state.st_mtime_ns, state.st_size):
        return known
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(full.parent))  # as python does, so that files next to it are found
    try:
        spec.loader.exec_module(module)
    except DdlnbError:
        raise
    except SystemExit as error:
        raise _ended(f"file {str(path)!r}", error) from error
    except Exception as error:
        raise ModelError(
            f"file {str(path)!r} cannot be run: {type(error).__name__}: {error}; make it one that "
            f"`python {path}` runs"
        ) from error
    finally:
        sys.path.remove(str(full.parent))
    _travels_by_value(module)
    _as_run[name] = (state.st_mtime_ns, state.st_size)
    return module


def _ended(what: str, error: SystemExit) -> ModelError:
    """Return the error of code that ended Python, as a program does that reads its arguments."""
    return ModelError(
        f"{what} ended Python ({error.code}) before a task was made; put what it does as a program "
        f"under if __name__ == '__main__'"
    )


def _travels_by_value(module: ModuleType) -> None:
    """Let what is defined there travel to ranks, which cannot import it by its name."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)


def _import(place: str) -> ModuleType:
    """Import a module as ``python -m`` would find it: in the current folder first."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ModelError(f"module {place!r} cannot be imported: {error}; {ATTRIBUTES}") from error
    except DdlnbError:
        raise
    except SystemExit as error:
        raise _ended(f"module {place!r}", error) from error
    except Exception as error:
        raise ModelError(
            f"module {place!r} cannot be imported: {type(error).__name__}: {error}; make it one "
            f"that `python -c 'import {place}'` imports"
        ) from error
    finally:
        sys.path.remove(here)
    if Path(getattr(module, "__file__", None) or "/").parent == Path(here):
        _travels_by_value(module)
    return module
