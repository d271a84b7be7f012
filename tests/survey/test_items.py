"""The items of the survey: each once, with its section, and nothing accepted that is none."""

import pytest

from ddlnb.errors import ResultsError
from ddlnb.survey.claims import CLAIMS
from ddlnb.survey.items import survey_items
from ddlnb.survey.published import quotes

HEADER = "id,section,text,source,missing,decided\n"
NUMBERS = [n for n in range(1, 66) if n not in (19, 37, 38, 39, 59)]  # no such items


def test_every_item_is_there_once_in_order():
    later = [f"C{number:02d}" for number in range(1, 10)] + [f"D{n:02d}" for n in range(1, 13)]
    assert list(survey_items()) == [f"A{number:02d}" for number in NUMBERS] + later


def test_claims_and_quotes_are_items_of_the_same_section():
    items = survey_items()
    assert {items[key].section for key in CLAIMS} == {claim.section for claim in CLAIMS.values()}
    for key, quoted in quotes().items():
        assert {quote.section for quote in quoted} == {items[key].section}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("A01,1,Text.,stated,,\nA01,1,Text.,stated,,", "line 3 .*appears twice"),
        ("A44,1,Text.,stated,,", "line 2 .*id is that of a claim"),
        ("B01,1,Text.,stated,,", "line 2 .*id must be one such as A07"),
        ("A01,1,Text.,heard,,", "source must begin with stated, primary, derived, known"),
        ("A01,1,,stated,,", "text is empty"),
        ("A01,1,Text.,stated,", "line 2 has fewer values"),
        ("A01,1,Text.,stated,,luck", "decided must be '' or 'arithmetic'"),
        ("A01,1,Text.,stated,,,", "line 2 has more values|cannot be read"),
    ],
)
def test_what_is_no_item_is_refused_with_its_line(tmp_path, line, said):
    path = tmp_path / "items.csv"
    path.write_text(HEADER + line + "\n")
    with pytest.raises(ResultsError, match=said):
        survey_items(path)
