"""Counts what has to be learnt: modules, statements, imports, classes and functions of every room.

    python -m tests.house

Statements are counted without docstrings, so that neither long lines nor prose change the count.
The core is what `CORE` lists and the modules beside the rooms; extensions import it, and it imports
none of them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import astuple, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CORE = (
    *("workloads", "plans", "hardware", "clusters"),
    *("simulator", "launch", "engines", "results"),
)
ROOT = "beside the rooms"
COLUMNS = ("modules", "statements", "imports", "classes", "functions")


@dataclass(frozen=True)
class Count:
    """What a module, a room or all of them hold."""

    modules: int = 0
    statements: int = 0
    imports: int = 0
    classes: int = 0
    functions: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def counted(source: str) -> Count:
    """Return what a module's source holds.

    >>> counted('"A module."\\nimport os\\n\\ndef f():\\n    "Nothing."\\n    return os')
    Count(modules=1, statements=3, imports=1, classes=0, functions=1)
    """
    nodes = list(ast.walk(ast.parse(source)))
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(isinstance(n, documented) and ast.get_docstring(n) is not None for n in nodes)
    return Count(
        modules=1,
        statements=statements - docstrings,
        imports=sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
    )


def rooms(package: Path) -> dict[str, Count]:
    """Return the count of every folder of a package, by name; modules beside them are `ROOT`."""
    found: dict[str, Count] = defaultdict(Count)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        found[parts[0] if len(parts) > 1 else ROOT] += counted(path.read_text())
    return dict(found)


def house(checkout: Path = CHECKOUT) -> dict[str, Count]:
    """Return the counts that CONTRIBUTING quotes: rooms, then core, library and tests."""
    library = rooms(checkout / "ddlnb")
    in_order = {name: library[name] for name in (*CORE, ROOT)}
    core = sum(in_order.values(), Count())
    in_order |= {name: count for name, count in library.items() if name not in in_order}
    tests = [rooms(checkout / name).values() for name in ("tests", "benchmarks")]
    return in_order | {
        "core": core,
        "library": sum(library.values(), Count()),
        "tests and benchmarks": sum((count for counts in tests for count in counts), Count()),
    }


def table(counts: dict[str, Count]) -> str:
    """Return the counts as the table of Markdown that stands in CONTRIBUTING."""
    lines = [f"| room | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{number:,}' for number in astuple(count))} |"
        for name, count in counts.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(house()))  # noqa: T201
