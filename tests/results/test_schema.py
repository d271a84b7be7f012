"""Schemas of tables: one clear error that names the file, the line, its values and the rule."""

import pytest

from ddlnb.errors import InputError, ResultsError
from ddlnb.results.schema import Column, Kind, Rule, Schema

SCHEMA = Schema(
    (
        Column("fruit", Kind.NAME, allowed=("apple", "pear")),
        Column("count", Kind.COUNT),
        Column("grams", Kind.NUMBER, optional=True),
    ),
    unique=("fruit",),
    rules=(Rule(lambda table: table["count"] > 9, "more than nine are a crowd; take fewer"),),
    way_out="buy again",
)


def read(folder, *lines):
    path = folder / "fruit.csv"
    path.write_text("\n".join(lines) + "\n")
    return SCHEMA.read(path)


def test_a_table_is_read_with_its_types(tmp_path):
    table = read(tmp_path, "fruit,count,grams,note", "apple,3,,NA", "pear,4.0,1.5,")
    assert table["count"].tolist() == [3, 4]
    assert table["count"].dtype == int
    assert table["grams"].tolist()[1] == 1.5
    assert table["note"].tolist() == ["NA", ""]
    assert SCHEMA.checked(table).equals(table)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plum,3,", r"line 3 \(plum,3,.*\): fruit must be 'apple' or 'pear'; buy again"),
        ("pear,many,", r"line 3 \(pear,many,.*\): count must be a positive number; buy again"),
        ("pear,2.5,", r"line 3 .*count must be a whole number"),
        ("pear,2,heavy", r"line 3 .*grams must be empty or a number"),
        ("apple,2,1", r"line 3 .*the same cell appears twice"),
        ("pear,10,1", r"line 3 .*more than nine are a crowd; take fewer; buy again"),
        ("pear,1,1,1", r"line 3 has more values than the first line has columns \(4, not 3\)"),
        ("pear,1", r"line 3 has fewer values than the first line has columns \(2, not 3\)"),
    ],
)
def test_the_first_broken_rule_is_named_with_its_line(tmp_path, line, message):
    with pytest.raises(ResultsError, match=r"fruit\.csv " + message):
        read(tmp_path, "fruit,count,grams", "apple,3,", line)


def test_columns_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ResultsError, match="lacks the columns count; a table needs fruit, count"):
        read(tmp_path, "fruit", "apple")
    with pytest.raises(ResultsError, match="needs fruit, count, separated by commas"):
        read(tmp_path, "fruit;count", "apple;3")
    frame = read(tmp_path, "fruit,count", "apple,3")
    with pytest.raises(InputError, match=r"row 0 of the table \(apple,0\): count must be"):
        SCHEMA.checked(frame.assign(count=0))
