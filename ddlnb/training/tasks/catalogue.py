"""The learning tasks by name, and those from a user's own files: CIFAR-10 and WikiText.

Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ddlnb.errors import InputError, MissingPart, UnknownName, require
from ddlnb.training.tasks.built_in import (
    DIGITS,
    LOGISTIC,
    QUADRATIC,
    TEXT,
    classification_loss,
    evaluate_classifier,
    seeded,
)
from ddlnb.training.tasks.made import (
    CODE,
    LETTERS,
    SMALL_GPT,
    evaluate_on_bytes,
    loss_of_bytes,
    passages,
)
from ddlnb.training.tasks.task import Constants, Evaluation, LearningTask, Samples
from ddlnb.workloads.models import CONTEXT_BYTES

CIFAR_HELP = (
    "download cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, unpack it, "
    "and give the folder cifar-10-batches-bin"
)
WIKITEXT_HELP = (
    "unpack WikiText-2 or WikiText-103 in its raw form, and give the folder with wiki.train.raw "
    "and wiki.test.raw"
)
RECORD = 1 + 3 * 32 * 32  # bytes of an image of CIFAR-10: its label and its pixels
AT_ONCE = 500  # images that are evaluated together


def _content(folder: Path, name: str, what: str, way_out: str) -> bytes:
    path = folder / name
    if not path.is_file():
        raise MissingPart(f"{what} needs {path}, which is not there; {way_out}")
    return path.read_bytes()


def _written(folder: Path, names: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return when these files of a folder were written, and their bytes; none of lacking ones."""
    found = [path.stat() for name in names if (path := folder / name).is_file()]
    return tuple((one.st_mtime_ns, one.st_size) for one in found)


def _digest(folder: Path, names: Iterable[str]) -> str:
    """Return the hash of these files of a folder."""
    names = tuple(names)
    return _hashed(folder, names, _written(folder, names))


@lru_cache(maxsize=8)
def _hashed(folder: Path, names: tuple[str, ...], written: object) -> str:
    digest = sha256()
    for name in names:
        if (path := folder / name).is_file():
            digest.update(path.read_bytes())
    return f"files {digest.hexdigest()[:12]}"


def _cifar(folder: Path, *names: str) -> Samples:
    return _read_cifar(folder, names, _written(folder, [f"{name}.bin" for name in names]))


@lru_cache(maxsize=4)
def _read_cifar(folder: Path, names: tuple[str, ...], written: object) -> Samples:
    content = b"".join(_content(folder, f"{name}.bin", "cifar10", CIFAR_HELP) for name in names)
    if not content or len(content) % RECORD:
        raise MissingPart(f"{folder} holds no whole images of {RECORD} bytes; {CIFAR_HELP}")
    records = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD).copy())
    labels = records[:, 0].long()
    images = records[:, 1:].reshape(-1, 3, 32, 32).float() / 127.5 - 1
    return Samples((images, labels), labels)


def _three_convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for narrow, wide in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.GroupNorm(8, wide), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


def _evaluate_cifar(folder: Path, module: nn.Module) -> Evaluation:
    images, labels = _cifar(folder, "test_batch").tensors
    found = [
        len(part) * np.array(evaluate_classifier(module, part, theirs))
        for part, theirs in zip(images.split(AT_ONCE), labels.split(AT_ONCE), strict=True)
    ]
    return Evaluation(*(np.sum(found, axis=0) / len(images)).tolist())


def cifar10(folder: str | Path) -> LearningTask:
    """CIFAR-10 (Krizhevsky 2009) from its binary files.

    Raises MissingPart when a file is needed and is not there.
    """
    folder = Path(folder).resolve()
    trained = [f"data_batch_{number}" for number in range(1, 6)]
    files = tuple(f"{name}.bin" for name in (*trained, "test_batch"))
    return LearningTask(
        "cifar10",
        partial(seeded, _three_convolutions),
        partial(_cifar, folder, *trained),
        classification_loss,
        partial(_evaluate_cifar, folder),
        Constants,
        local_batch=32,
        learning_rate=0.1,
        about="CIFAR-10 from a folder of yours, three convolutions with group normalisation",
        made_of=partial(_digest, folder, files),
    )


def _wikitext(folder: Path, name: str) -> Samples:
    return _read_wikitext(folder, name, _written(folder, [name]))


@lru_cache(maxsize=4)
def _read_wikitext(folder: Path, name: str, written: object) -> Samples:
    content = _content(folder, name, "wikitext", WIKITEXT_HELP)
    if len(content) <= CONTEXT_BYTES:
        raise MissingPart(f"{folder / name} is too short; {WIKITEXT_HELP}")
    return passages(content)


def _evaluate_wikitext(folder: Path, module: nn.Module) -> Evaluation:
    return evaluate_on_bytes(module, _wikitext(folder, "wiki.test.raw"))


def wikitext(folder: str | Path) -> LearningTask:
    """WikiText (Merity et al. 2016), byte by byte.

    Raises MissingPart when a file is needed and is not there.
    """
    folder = Path(folder).resolve()
    return LearningTask(
        "wikitext",
        partial(seeded, SMALL_GPT),
        partial(_wikitext, folder, "wiki.train.raw"),
        loss_of_bytes,
        partial(_evaluate_wikitext, folder),
        Constants,
        local_batch=16,
        learning_rate=0.3,
        about="the next byte of WikiText from a folder of yours, two transformer blocks",
        made_of=partial(_digest, folder, ("wiki.train.raw", "wiki.test.raw")),
    )


LEARNING_TASKS = {task.name: task for task in (DIGITS, LETTERS, TEXT, CODE, QUADRATIC, LOGISTIC)}
FROM_FILES: dict[str, Callable[[str | Path], LearningTask]] = {
    "cifar10": cifar10,
    "wikitext": wikitext,
}


def get_learning_task(task: str | LearningTask, data: str | Path | None = None) -> LearningTask:
    """Return the task of that name, or the task itself; ``data`` is the folder of its files.

    Raises UnknownName and InputError.

    >>> get_learning_task("digits")
    LearningTask(name='digits', local_batch=16, learning_rate=0.2, replacement=False)
    """
    if isinstance(task, LearningTask):
        return task
    if task in FROM_FILES:
        if data is None:
            raise InputError(
                f"task {task!r} is made from files of yours; give their folder as data (--data)"
            )
        return FROM_FILES[task](str(data))
    if task not in LEARNING_TASKS:
        raise UnknownName("learning task", task, [*LEARNING_TASKS, *FROM_FILES])
    require(data is None, f"task {task!r} has data of its own; leave out data {str(data)!r}")
    return LEARNING_TASKS[task]
