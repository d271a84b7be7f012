"""What a user may call a model, in one place: a task, a workload, or the text that names one.

Kept profiles are workloads, by their name or the path of their file. Every other text names a task:
one of `ddlnb.workloads.models.TASKS`, a Hugging Face configuration or architecture, or something in
a user's own Python, ``my.py:task`` in a file and ``package.module:task`` in a module. What is named
there is a Task, or a function without arguments that returns one. The code is run, as
``python my.py`` would run it: name only files that you would run.

Torch is loaded for tasks, and not for profiles.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddlnb.errors import DdlnbError, ModelError, UnknownName, require
from ddlnb.files import MODELS, PROFILES
from ddlnb.reading import read_json
from ddlnb.workloads.workload import Workload, read_profile

if TYPE_CHECKING:
    from ddlnb.workloads.task import Task

ATTRIBUTES = "give a task as FILE.py:NAME or PACKAGE.MODULE:NAME"
YOURS = "my.py:task, a Hugging Face config.json or architecture (see docs/own_model.md)"
State = dict[str, tuple[int, int]]  # of files: when they were written, and their bytes
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_as_run: dict[str, State] = {}  # a module that was run: its file, and those beside it that it took
_beside: dict[str, str] = {}  # modules that such files imported from their folder, and their files
_loaded: State = {}  # these files when they were imported


def resolve(model: str | Task | Workload, *, sequence: int | None = None) -> Task | Workload:
    """Return what a model is: a task to trace, or a workload that has its seconds.

    Workloads are kept profiles, by the name of one in data/profiles or the path of its .json file;
    every other text names a task (`get_task`). ``sequence`` is the tokens of a sample, by default
    the task's own. Raises UnknownName, ModelError or InputError, each with the way out.

    >>> resolve("small-conv")
    Task(name='small-conv', local_batch=64, unit='images')
    >>> resolve("resnet50_b64_rtx2080ti")
    Workload('resnet50', batch=64, 161 gradients, 102 MB, 252 ms)
    """
    found = _profile(model) if isinstance(model, str) else model
    if isinstance(found, Workload):
        require(
            sequence is None,
            f"the profile of {found.model!r} has its samples already; leave out the sequence",
        )
        return found
    task = get_task(model)  # type: ignore[arg-type]
    return task if sequence is None else task.with_sequence(sequence)


def _profile(model: str) -> Workload | None:
    """Return the profile of this name or file, or None if it is something else."""
    path = Path(model)
    if (PROFILES / f"{model}.json").is_file() and path.name == model:
        return read_profile(model)
    if path.suffix != ".json":
        return None
    require(
        path.is_file(),
        f"file {model!r} does not exist; give a profile, a Hugging Face config.json, or a name "
        f"of `ddlnb models`",
    )
    fields = read_json(path)
    is_profile = isinstance(fields, dict) and "gradients" in fields
    return Workload.from_fields(fields, repr(model)) if is_profile else None


def get_task(model: str | Task) -> Task:
    """Return the task that a text names, or the task itself.

    A text is one of TASKS, a model of data/models/large, ``my.py:task`` or ``package.module:task``
    (a Task, or a function that returns one), a Hugging Face ``config.json`` or its folder, or the
    name of an architecture of transformers. Raises UnknownName for other texts, ModelError for
    what cannot be trained.

    >>> get_task("small-conv")
    Task(name='small-conv', local_batch=64, unit='images')
    >>> get_task("BertForMaskedLM")
    Task(name='BertForMaskedLM', local_batch=1, unit='sequences')
    """
    from ddlnb.workloads.hugging_face import is_architecture, task_of_architecture, task_of_file
    from ddlnb.workloads.models import TASKS

    if not isinstance(model, str):
        return _given(model, "unknown model")
    if model in TASKS:
        return TASKS[model]
    if (MODELS / "large" / f"{model}.json").is_file():
        return task_of_file(MODELS / "large" / f"{model}.json")
    if is_user_code(model):
        return _given(object_of(model), f"model {model!r} gives")
    path = Path(model)
    if model and path.is_dir():
        return task_of_file(path / "config.json")
    if path.suffix == ".json":
        return task_of_file(path)
    if is_architecture(model):
        return task_of_architecture(model)
    raise UnknownName("model", model, [*TASKS, YOURS])


def is_task(model: str) -> bool:
    """Return whether a text names a task; what it names is made. Raises what `get_task` raises.

    >>> is_task("resnet50"), is_task("llama3-999b")
    (True, False)
    """
    with suppress(UnknownName):
        return bool(get_task(model))
    return False


def _given(model: Any, said: str) -> Task:
    """Return a task or a model of transformers as a task; all others lack data."""
    from torch import nn

    from ddlnb.workloads.hugging_face import is_of_transformers, task_of_module
    from ddlnb.workloads.task import Task

    if isinstance(model, Task):
        return model
    if is_of_transformers(model):
        return task_of_module(model)
    if isinstance(model, nn.Module):
        raise ModelError(
            f"model {type(model).__name__} comes without data; wrap it with "
            f"ddlnb.task(module, batch=..., loss=...)"
        )
    raise ModelError(
        f"{said} {model!r}: it is neither a task nor the name of one; make one with "
        f"ddlnb.task(module, batch=..., loss=...), or name one of `ddlnb models`"
    )


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
    from torch import nn

    if text.endswith(".py"):
        raise ModelError(f"model {text!r} names a file and nothing in it; {ATTRIBUTES}")
    place, _, name = text.rpartition(":")
    module = run_file(Path(place)) if place.endswith(".py") else _import(place)
    if not hasattr(module, name):
        public = sorted(other for other in vars(module) if not other.startswith("_"))
        if not public:
            raise ModelError(f"{place} defines nothing, so no {name!r}; {ATTRIBUTES}")
        raise UnknownName(f"name in {place}", name, public)
    named = getattr(module, name)
    if isinstance(named, nn.Module) or not callable(named):
        return named
    with _of_the_user(
        f"model {text!r}: {name}()",
        "raised {error}; it is called without arguments and returns a task",
    ):
        return named()


def run_file(path: Path) -> ModuleType:
    """Run a Python file as a module, and return it; again only if it has changed since.

    Or a file beside it that it imports. So what it registers is registered once, however often a
    command asks for its names. Raises ModelError for a file that is not there or fails.
    """
    if not path.is_file():
        raise ModelError(f"file {str(path)!r} does not exist; {ATTRIBUTES}")
    full = path.resolve()
    name = f"ddlnb_user_{full.stem}_{hashlib.sha256(bytes(full)).hexdigest()[:16]}"
    former = _as_run.pop(name, {})
    if former and former == _state(former):
        _as_run[name] = former
        return sys.modules[name]
    is_elsewhere = any(full.parent not in Path(file).parents for file in _beside.values())
    if is_elsewhere or _loaded != _state(_loaded):  # another folder may have the same names
        for other in _beside:
            sys.modules.pop(other, None)
        _beside.clear()
        _loaded.clear()
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = set(sys.modules)
    advice = f"cannot be run: {{error}}; make it one that `python {path}` runs"
    try:  # as python does, so that files next to it are found
        with _on_the_path(full.parent), _of_the_user(f"file {str(path)!r}", advice):
            spec.loader.exec_module(module)
    finally:
        _beside.update(_from(full.parent, set(sys.modules) - before))
        _loaded.update(_state(_beside.values()))
    _travels_by_value(module)
    _as_run[name] = _state([str(full)]) | _loaded
    return module


def _from(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return those of these modules that lie in a folder, with their files."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) or "" for name in names}
    return {
        name: file
        for name, file in files.items()
        if folder in Path(file).resolve().parents
        and not file.startswith(INSTALLED)
        and name.partition(".")[0] != "ddlnb"
    }


def _state(files: Iterable[str]) -> State:
    found = {file: Path(file).stat() for file in files if Path(file).is_file()}
    return {file: (one.st_mtime_ns, one.st_size) for file, one in found.items()}


def _import(place: str) -> ModuleType:
    """Import a module as ``python -m`` would find it: in the current folder first."""
    here = Path.cwd()
    advice = f"cannot be imported: {{error}}; make it one that `python -c 'import {place}'` imports"
    with _on_the_path(here), _of_the_user(f"module {place!r}", advice):
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ModelError(
                f"module {place!r} cannot be imported: {error}; {ATTRIBUTES}"
            ) from error
    if Path(getattr(module, "__file__", None) or "/").parent == here:
        _travels_by_value(module)
    return module


@contextmanager
def _on_the_path(folder: Path) -> Iterator[None]:
    """Let modules in a folder be imported for a while."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _of_the_user(what: str, advice: str) -> Iterator[None]:
    """Turn whatever a user's code raises into a ModelError that says what to do.

    Code may also end Python, as a program does that reads its arguments.
    """
    try:
        yield
    except DdlnbError:
        raise
    except SystemExit as error:
        raise ModelError(
            f"{what} ended Python ({error.code}) before a task was made; put what it does as a "
            f"program under if __name__ == '__main__'"
        ) from error
    except Exception as error:
        told = advice.replace("{error}", f"{type(error).__name__}: {error}")
        raise ModelError(f"{what} {told}") from error


def _travels_by_value(module: ModuleType) -> None:
    """Let what is defined there travel to ranks, which cannot import it by its name."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
