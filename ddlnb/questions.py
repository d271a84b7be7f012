"""Questions that are declared once, and answers that say the same wherever they are shown.

A question is a dataclass whose fields say what they mean. They are the keywords of the Python call,
the options of the command line with their help, and what is checked before any work is done. An
answer has rows, tables for people, and sentences: the command line prints them, a notebook shows
them, pages and files hold them.
"""

from __future__ import annotations

import html
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ParamSpec,
    TypeVar,
    cast,
    dataclass_transform,
    get_type_hints,
)

from pydantic import BeforeValidator, ConfigDict, SkipValidation, ValidationError
from pydantic.dataclasses import dataclass as validated

from ddlnb.errors import InputError, UnknownName, require_known, require_positive, require_whole
from ddlnb.units import bytes_from

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import ValidationInfo

P = ParamSpec("P")
A = TypeVar("A")
Kind = TypeVar("Kind", bound=type)

ONE, NUMBERS, WORDS = "", "numbers", "words"


@dataclass(frozen=True)
class Asked:
    """What a field of a question means, and how the command line takes it.

    ``flag`` is the option where it is not the field's name; ``kind`` says that there may be several
    numbers or words. A field without an Asked is no option of the command line.
    """

    meaning: str
    flag: str = ""
    kind: str = ONE


@dataclass_transform(frozen_default=True)
def question(kind: Kind) -> Kind:
    """Return the class as a frozen dataclass that checks its fields.

    Making one raises InputError for what its fields do not allow.
    """
    config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    made: Any = validated(frozen=True, config=config)(kind)
    check = made.__init__

    @wraps(check)
    def checked(self: Any, *given: Any, **named: Any) -> None:
        try:
            check(self, *given, **named)
        except ValidationError as error:
            raise _refused(error, kind) from None

    made.__init__ = checked
    return cast(Kind, made)


def asks(kind: Callable[P, Any]) -> Callable[[Callable[[Any], A]], Callable[P, A]]:
    """Return a decorator: a function of a question becomes one of the question's fields.

    Its signature is that of the question, and its docstring lists what the fields mean. Raises
    InputError for a field that the question does not allow.
    """

    def decorated(answer: Callable[[Any], A]) -> Callable[P, A]:
        @wraps(answer)
        def asked(*given: P.args, **named: P.kwargs) -> A:
            return answer(kind(*given, **named))

        meanings = "\n".join(f"    {name}: {one.meaning}" for name, one in options(kind).items())
        asked.__doc__ = f"{inspect.cleandoc(answer.__doc__ or '')}\n\nArguments:\n{meanings}\n"
        returned = inspect.signature(answer).return_annotation
        named_only = [
            one.replace(annotation=one.empty) for one in inspect.signature(kind).parameters.values()
        ]
        asked.__signature__ = inspect.Signature(named_only, return_annotation=returned)  # type: ignore[attr-defined]
        return asked

    return decorated


def options(kind: Any) -> dict[str, Asked]:
    """Return the options of a question by the names of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: said
        for field in fields(kind)
        for said in getattr(hints[field.name], "__metadata__", ())
        if isinstance(said, Asked)
    }


def _refused(error: ValidationError, kind: Any) -> InputError:
    """Return the first problem that a question has as one sentence."""
    problem = error.errors()[0]
    raised = problem.get("ctx", {}).get("error")
    if isinstance(raised, InputError):
        return raised
    names = [field.name for field in fields(kind)]
    key = problem["loc"][0] if problem["loc"] else "question"
    name = names[key] if isinstance(key, int) and key < len(names) else str(key)
    if problem["type"] == "missing":
        return InputError(f"{name} is missing; give it")
    if problem["type"].startswith("unexpected"):
        return UnknownName("argument", name, names)
    return InputError(f"{name} {problem['input']!r}: {problem['msg'].lower()}")


def _whole(least: int) -> BeforeValidator:
    def check(value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        require_whole(least, **{str(info.field_name): value})
        return int(value)

    return BeforeValidator(check)


def one_of(*known: str) -> BeforeValidator:
    """Return a check of a field: one of these names. It raises UnknownName."""

    def check(value: Any, info: ValidationInfo) -> Any:
        require_known(str(info.field_name), value, known)
        return value

    return BeforeValidator(check)


def _size(value: Any) -> Any:
    if value is not None:
        bytes_from(value)
    return value


def _positive(value: Any, info: ValidationInfo) -> Any:
    if value is not None:
        require_positive(**{str(info.field_name): value})
    return value


# Fields of a question that are checked in the words of the library.
Whole = Annotated[int, _whole(1)]
Natural = Annotated[int, _whole(0)]
LaterWhole = Annotated[int, SkipValidation, _whole(1)]  # None until it is looked up
MaybeWhole = Annotated[int | None, _whole(1)]
MaybeNatural = Annotated[int | None, _whole(0)]
MaybePositive = Annotated[float | None, BeforeValidator(_positive)]
MaybeBytes = Annotated[str | int | None, BeforeValidator(_size)]


@dataclass(frozen=True)
class Table:
    """Rows as texts, under a title."""

    title: str
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """What every answer says first of training a model on machines, in two sentences.

    ``memory_bytes`` is what a GPU holds of the model unsplit, ``fits`` whether it can, None where
    nobody knows; ``way`` is the layout or method whose ``samples_per_s`` of all GPUs are given, NaN
    where nothing can be trained, and ``way_bytes`` what a GPU holds of it, NaN if not known.
    """

    memory_bytes: float
    fits: bool | None
    way: str
    samples_per_s: float
    way_bytes: float
    said: tuple[str, ...]


class Answer(ABC):
    """What comes of a question: rows, tables for people, and sentences.

    ``rows`` is a frame with a row per case; whatever else a frame has, such as ``answer["method"]``
    or ``answer.loc``, is that of the rows. ``sentences`` are what the rows say, ``remarks`` what a
    reader must know beside it. Before both stands the ``verdict``, where something is trained.
    ``str`` is the verdict and the sentences; shown as a value, in a notebook or by the command
    line, an answer is its tables with all that is said.
    """

    rows: pd.DataFrame

    @property
    def verdict(self) -> Verdict | None:
        """Whether a GPU holds what is trained, and how fast it then is."""
        return None

    @property
    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """What is shown of the rows."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the rows say."""
        return ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know beside it."""
        return ()

    @property
    def settings(self) -> tuple[str, ...]:
        """What one writes down: texts of several lines, the first of which says for what."""
        return ()

    @property
    def said(self) -> tuple[str, ...]:
        """All that stands below the tables."""
        return (*self._first, *self.remarks, *self.settings)

    @property
    def _first(self) -> tuple[str, ...]:
        return (*(self.verdict.said if self.verdict else ()), *self.sentences)

    def to_frame(self) -> pd.DataFrame:
        """Return the rows, as a copy of one's own."""
        return self.rows.copy()

    def __str__(self) -> str:
        return "\n".join(self._first)

    def __repr__(self) -> str:
        import pandas as pd

        shown = [
            f"{one.title}\n{pd.DataFrame(one.rows).to_string(index=False)}" for one in self.tables
        ]
        return "\n\n".join([*shown, "\n".join(self.said)])

    def _repr_html_(self) -> str:
        import pandas as pd

        shown = [
            f"<p><b>{html.escape(one.title)}</b></p>{pd.DataFrame(one.rows).to_html(index=False)}"
            for one in self.tables
        ]
        tags = {one: "pre" if "\n" in one else "p" for one in self.said}
        said = (f"<{tag}>{html.escape(one)}</{tag}>" for one, tag in tags.items())
        return "".join([*shown, *said])

    def __getitem__(self, key: Any) -> Any:
        return self.rows[key]

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "rows":
            raise AttributeError(name)
        return getattr(self.rows, name)
