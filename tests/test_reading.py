"""The door for bytes from outside: nothing else opens files, and what comes through is bounded."""

import ast
import gzip
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import ddlnb
from ddlnb.errors import DdlnbError, InputError, ResultsError, UnknownName
from ddlnb.reading import MOST_LEVELS, json_of, read_bytes, read_text, reading, yaml_of
from tests.fuzz.play import play
from tests.fuzz.readers import READERS

PACKAGE = Path(ddlnb.__file__).parent
EACH = 6  # inputs of every reader; `make fuzz` has a million
# Calls that open a file or take bytes apart.
OPENS = {"open", "read_text", "read_bytes", "load", "loads", "safe_load", "loadtxt", "read_csv"}
# Files that read otherwise, and what: nothing that a user gives or others may write.
OTHERWISE = {
    "reading.py": "the door",
    "files.py": "the kernel's files, and who holds a lock",
    "launch": "the kernel's files, and what this run wrote into its own folder",
    "results/rows.py": "whether its own file ends in a whole line",
    "emulation": "the kernel's files, and pipes of its own processes",
    "engines/worker.py": "the kernel's name of this boot",
    "engines/distributed_model.py": "what rank 0 sent",
    "replanning/replanner.py": "what rank 0 sent",
    "figures/__init__.py": "sources of the package",
    "cli": "templates of the package, and /dev/null",
    "workloads/models.py": "data of the package",
    "training/tasks/catalogue.py": "data of the package",
    "training/runs": "sources, for their digests",
    "training/cost/published.py": "data of the package",
    "calibration/collective_tables.py": "data of the package",
    "calibration/data_parallel.py": "data of the package",
    "survey/board.py": "data of the package",
    "survey/execution.py": "what this run wrote into its own folder",
    "survey/kernels.py": "what the worker of this run asks for, and the kernel's files",
    "survey/runner.py": "sources, for their digests",
    "survey/site.py": "pages of the checkout, and what this run wrote",
    "survey/slides.py": "files of an installed package",
    "survey/notebooks.py": "notebooks of the checkout, and what this run wrote",
    "survey/sec3_3_1_protocols.py": "the kernel's list of modules, and what rank 0 sent",
}


def opened(path):
    """Return the lines of a source that read files or take bytes apart."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) and node.func.id == "open" else name
        first = node.args[0] if node.args else None
        of_text = isinstance(first, ast.Call) and ast.unparse(first.func) in ("StringIO", "BytesIO")
        if name in OPENS and not of_text:
            yield node.lineno


def test_no_reader_opens_a_file_by_itself():
    sources = {path.relative_to(PACKAGE): path for path in sorted(PACKAGE.rglob("*.py"))}
    found = [
        f"{name}:{line}"
        for name, path in sources.items()
        if not {str(name), *map(str, name.parents)} & OTHERWISE.keys()
        for line in opened(path)
    ]
    assert not found, "read with ddlnb.reading"


@pytest.mark.parametrize("name", READERS)
def test_odd_bytes_make_a_reader_raise_nothing_but_our_errors(name):
    found = play(name, READERS[name], EACH)
    assert found.good, found


@pytest.mark.parametrize("reads", [json_of, yaml_of])
@given(text=st.text(st.characters(), max_size=40))
def test_any_text_is_read_or_refused_in_words(reads, text):
    with suppress(InputError):
        reads(text, "the text")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * (MOST_LEVELS + 2) + "]" * (MOST_LEVELS + 2), "nested too deeply"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("reads", [json_of, yaml_of])
def test_what_nests_too_deeply_is_refused(reads, text, said):
    with pytest.raises(InputError, match=said):
        reads(text, "the text")


def bomb(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(9), "aliases unfold to more than it says"),
        ("a: &a [*a]", "aliases unfold"),
        ("a: !!timestamp 2001-99-99", "constructor for the tag"),
        ("a: !!python/object/apply:os.system [ls]", "constructor for the tag"),
        ("a: !!int x", "invalid literal"),
        ("a: 1\na: 2", "has the key 'a' in line 1 and in line 2"),
        ("a: " + "x" * (1 << 20), "holds more than"),
    ],
)
def test_odd_yaml_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        yaml_of(text, "the text")


def test_dates_of_yaml_are_texts():
    assert yaml_of("a: 2001-99-99\nb: 2001-01-01", "the text") == {
        "a": "2001-99-99",
        "b": "2001-01-01",
    }


def test_a_bomb_of_gzip_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(InputError, match="holds more than 1,000,000 bytes"):
        read_bytes(path, 1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_packed_and_marked_texts_are_read(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(gzip.compress("\N{BYTE ORDER MARK}é".encode()))
    assert read_text(path) == "é"


def test_errors_of_ours_pass_and_others_name_the_place():
    said = r"^rows\.csv cannot be read: it lacks 'a'; correct it$"
    with pytest.raises(ResultsError, match=said), reading("rows.csv", error=ResultsError):
        {}["a"]
    with pytest.raises(DdlnbError, match=r"^as it is$"), reading("rows.csv"):
        raise DdlnbError("as it is")


def test_a_text_in_another_encoding_says_which_one_it_has_to_have(tmp_path):
    (tmp_path / "latin.yaml").write_bytes("name: café".encode("latin-1"))
    with pytest.raises(InputError, match="byte 9 is not UTF-8, the encoding in which"):
        read_text(tmp_path / "latin.yaml")


def test_a_lack_of_memory_is_no_fault_of_the_file():
    said = r"^rows\.csv cannot be read: no memory is left; give this process more$"
    with pytest.raises(ResultsError, match=said), reading("rows.csv", error=ResultsError):
        raise MemoryError


def test_a_long_name_that_nobody_knows_is_not_repeated_whole():
    told = str(UnknownName("method", "M" * 10_000, ["MG-WFBP"]))
    assert len(told) < 300
    assert "(10,002 characters)" in told
