"""Counts what has to be learnt: modules, statements, imports, classes and functions of every room.

    python -m tests.house                       # every column, and the words of the pages
    python -m tests.house modules statements    # the columns that CONTRIBUTING quotes

Statements are counted without docstrings, so that neither long lines nor prose change the count.
The core is what `CORE` lists and the modules beside the rooms; extensions import it, and it imports
none of them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CORE = (
    *("workloads", "plans", "hardware", "clusters"),
    *("simulator", "launch", "engines", "results"),
)
ROOT = "beside the rooms"
COLUMNS = ("modules", "statements", "imports", "classes", "functions")


def counted(source: str) -> Counter[str]:
    """Return how much of each of `COLUMNS` a module's source holds.

    >>> counted('"A module."\\nimport os\\n\\ndef f():\\n    "Nothing."\\n    return os')
    Counter({'statements': 3, 'modules': 1, 'imports': 1, 'functions': 1, 'classes': 0})
    """
    nodes = list(ast.walk(ast.parse(source)))
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(isinstance(n, documented) and ast.get_docstring(n) is not None for n in nodes)
    return Counter(
        modules=1,
        statements=statements - docstrings,
        imports=sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
    )


def rooms(package: Path) -> dict[str, Counter[str]]:
    """Return the count of every folder of a package, by name; modules beside them are `ROOT`."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        found[parts[0] if len(parts) > 1 else ROOT] += counted(path.read_text())
    return dict(found)


def house(checkout: Path = CHECKOUT) -> dict[str, Counter[str]]:
    """Return the counts that CONTRIBUTING quotes: rooms, then core, library and tests."""
    library = rooms(checkout / "ddlnb")
    in_order = {name: library[name] for name in (*CORE, ROOT)}
    core = sum(in_order.values(), Counter())
    in_order |= {name: count for name, count in library.items() if name not in in_order}
    tests = [rooms(checkout / name).values() for name in ("tests", "benchmarks")]
    return in_order | {
        "core": core,
        "library": sum(library.values(), Counter()),
        "tests and benchmarks": sum((count for counts in tests for count in counts), Counter()),
    }


def table(counts: dict[str, Counter[str]], columns: tuple[str, ...] = COLUMNS) -> str:
    """Return columns of the counts as a table of Markdown, as one stands in CONTRIBUTING."""
    lines = [f"| room | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{count[column]:,}' for column in columns)} |"
        for name, count in counts.items()
    ]
    return "\n".join(lines)


def words(checkout: Path = CHECKOUT) -> int:
    """Return the words of README, CONTRIBUTING and every page of docs, as `wc -w` counts them."""
    pages = [checkout / "README.md", checkout / "CONTRIBUTING.md", *checkout.glob("docs/**/*.md")]
    return sum(len(page.read_text().split()) for page in pages)


if __name__ == "__main__":
    print(table(house(), tuple(sys.argv[1:]) or COLUMNS))  # noqa: T201
    print(f"\nREADME, CONTRIBUTING and docs: {words():,} words")  # noqa: T201
