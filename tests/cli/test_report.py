"""The report: findings first, figures that say what is seen, a way from page to page."""

import base64
import html
import re
from pathlib import Path

import nbformat
import pytest

from ddlnb.survey.evidence import Entry, Evidence
from ddlnb.survey.items import Item
from ddlnb.survey.notebooks import Notebook, Outcome
from ddlnb.survey.report import pictures_of, read_executed, write_index, write_page, write_pages
from ddlnb.survey.runner import notebook_runs

PICTURE = base64.b64encode(b"a picture").decode()
SAID = {"caption": "Bars of <throughput>.", "alt": 'Throughput "rises".', "width": 10}


def notebook(name: str) -> Notebook:
    path = Path(f"{name}.ipynb")
    return Notebook(name, path, f"The {name}", "3.1", "", f"{name} holds", "", False)


def execute(folder: Path, name: str, about: dict | None = SAID) -> Outcome:
    """Write an executed notebook with one figure, its caption beneath and a wide table."""
    shown = nbformat.v4.new_output(
        "display_data", {"image/png": PICTURE}, metadata={"image/png": about} if about else {}
    )
    text = {"text/markdown": "*Bars of <throughput>.*", "text/plain": "Bars"}
    beneath = nbformat.v4.new_output(
        "display_data", text, metadata={"text/markdown": {"is_caption": True}}
    )
    table = nbformat.v4.new_output(
        "display_data", {"text/html": "<table><tr><td>1</td></tr></table>"}
    )
    code = nbformat.v4.new_code_cell("figure", outputs=[shown, beneath, table])
    cells = [nbformat.v4.new_markdown_cell(text) for text in (f"# The {name}", "## Compute here")]
    book = nbformat.v4.new_notebook(cells=[*cells, code])
    nbformat.write(book, folder / f"{name}.ipynb")
    return Outcome(notebook(name), "done", 1.0)


def entry(number: str, *verdicts: str) -> Entry:
    found = [
        Evidence(number, "a", "measured", word, f"seen in {number}", "a.html") for word in verdicts
    ]
    return Entry(Item(number, "3.1", f"Statement {number}."), tuple(found))


@pytest.fixture
def report(tmp_path):
    outcomes = [execute(tmp_path, name) for name in ("one", "two", "three")]
    entries = [
        entry("A01", "holds"),
        entry("A02", "holds", "contradicted"),
        entry("A03", "undecided"),
        entry("A04"),
        entry("A05", "not judged"),
    ]
    found = {one.item.id: one for one in entries}
    write_index(found, tmp_path)
    return write_pages(outcomes, tmp_path, "tiny", found)


def test_the_first_page_begins_with_what_was_found_and_what_does_not_hold(report):
    page = report.read_text()
    assert "Of 5 statements" in " ".join(page.split())
    assert "1 do not hold here, 1 are undecided, 1 hold, 2 could not be judged" in " ".join(
        page.split()
    )
    places = [
        page.index(f'id="{name}"')
        for name in ("findings", "contradicted", "undecided", "holds", "section-3", "notebooks")
    ]
    assert places == sorted(places)
    contradicted = page[places[1] : places[2]]
    assert "Statement A02." in contradicted
    assert contradicted.count("seen in A02") == 1  # what speaks against it, and nothing else
    assert "A01" not in contradicted


def test_every_link_of_the_report_leads_somewhere(report):
    pages = {path.name: path.read_text() for path in report.parent.glob("*.html")}
    for name, text in pages.items():
        for link in re.findall(r'href="([^"]+)"', text):
            file, _, anchor = link.partition("#")
            if file not in ("", "a.html"):
                assert (report.parent / file).exists(), f"{name}: {link}"
            if anchor and file != "a.html":
                assert f'id="{anchor}"' in pages[file or name], f"{name}: {link}"


def test_every_page_fits_a_phone_and_has_its_contents(report):
    for path in report.parent.glob("*.html"):
        page = path.read_text()
        assert 'name="viewport" content="width=device-width' in page
        assert '<nav class="contents"' in page
        for table in re.finditer("<table", page):
            before = page[: table.start()]
            assert (
                before.rfind('class="wide"') > before.rfind("</table>") or "output_area" in before
            )
    assert '<a href="#Compute-here">Compute here</a>' in (report.parent / "one.html").read_text()


def test_pages_lead_to_the_one_before_and_the_one_after(report):
    one, two, three = ((report.parent / f"{n}.html").read_text() for n in ("one", "two", "three"))
    assert 'rel="prev"' not in one
    assert '<a href="two.html" rel="next">The two &rarr;</a>' in one
    assert '<a href="one.html" rel="prev">&larr; The one</a>' in two
    assert 'rel="next"' not in three


def test_a_figure_has_its_caption_once_and_a_text_in_its_place(report):
    for page in ((report.parent / "one.html").read_text(), report.read_text()):
        figure = page[page.index("<figure") : page.index("</figure>")]
        assert "Bars of &lt;throughput&gt;." in figure
        alt = re.search(r"""<img[^>]*? alt=(["'])(.*?)\1""", figure)
        assert alt
        assert html.unescape(alt.group(2)) == SAID["alt"]
    page = (report.parent / "one.html").read_text()
    assert page.count("Bars of &lt;throughput&gt;.") == 1
    assert not re.search(r"<pre>\s*</pre>", page)  # where the caption was
    assert (report.parent / "figures" / "one-1.png").read_bytes() == b"a picture"


def test_a_figure_that_says_nothing_has_the_claim_of_its_notebook(tmp_path):
    execute(tmp_path, "one", about=None)
    content = read_executed(tmp_path / "one.ipynb")
    [picture] = pictures_of(content, notebook("one"))
    assert picture.caption == "One holds."
    assert picture.alt == "The one: One holds."
    page = write_page(content, [picture], tmp_path / "one.html", "The one").read_text()
    assert "<figcaption>One holds.</figcaption>" in page


def test_a_notebook_that_is_gone_leaves_no_page_and_no_picture(report):
    folder = report.parent
    failed = Outcome(notebook("two"), "failed", error="it broke")
    write_pages([failed], folder, "tiny", {})
    assert not (folder / "two.html").exists()
    assert not list((folder / "figures").glob("two-*"))
    assert "failed: it broke" in report.read_text()


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_the_nine_panels_are_told_apart_by_model_and_network(profile):
    runs = [run for run in notebook_runs(profile) if run.notebook.path.stem == "fig4_forecast"]
    assert len({run.notebook.title for run in runs}) == 9
    for run in runs:
        said = run.notebook.title.casefold().replace("-", "")
        assert str(run.parameters["model"]).replace("-", "") in said
        assert str(run.parameters["network"]).casefold() in said
