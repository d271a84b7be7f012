"""The items of the survey: each once, with its section, and nothing accepted that is none."""

from ddlnb.survey.claims import CLAIMS
from ddlnb.survey.evidence import CHECKED, NOT_RUN, Entry, Evidence
from ddlnb.survey.items import Verdict, survey_items
from ddlnb.survey.published import quotes

NUMBERS = [n for n in range(1, 66) if n not in (19, 37, 38, 39, 59)]  # no such items


def test_every_item_is_there_once_in_order_in_the_section_of_its_claim_or_quote():
    later = [f"C{number:02d}" for number in range(1, 10)] + [f"D{n:02d}" for n in range(1, 13)]
    assert list(survey_items()) == [f"A{number:02d}" for number in NUMBERS] + later
    items = survey_items()
    assert {items[key].section for key in CLAIMS} == {claim.section for claim in CLAIMS.values()}
    for key, quoted in quotes().items():
        assert {quote.section for quote in quoted} == {items[key].section}


def test_an_item_is_credited_with_the_ways_that_were_run_and_has_the_reason_that_says_most():
    planned = Evidence("A27", "a notebook", "simulated", NOT_RUN)
    passed = Evidence("A27", "a notebook", "measured", Verdict.HOLDS, CHECKED)
    tested = Evidence("A27", "a test", "computed", Verdict.HOLDS, "merging saves latencies")
    item = survey_items()["A27"]
    assert Entry(item, (planned,)).how == "simulated"
    assert Entry(item, (planned, passed)).reason == CHECKED
    found = Entry(item, (planned, passed, tested))
    assert (found.how, found.reason) == ("computed, measured", "merging saves latencies")
