"""The site: findings first, figures that say what is seen, a way from page to page."""

import base64
import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

from ddlnb.survey.evidence import Entry, Evidence
from ddlnb.survey.items import Item
from ddlnb.survey.notebooks import Notebook, Outcome
from ddlnb.survey.runner import notebook_runs
from ddlnb.survey.site import (
    READ_FIRST,
    Shown,
    finding_of,
    first_of,
    pictures_of,
    prepare,
    read_executed,
    write_changed,
    write_site,
)
from tests.cli.browser import CHROMIUM, faults_of

PICTURE = base64.b64encode(b"a picture").decode()
SAID = {"caption": "Bars of <throughput>.", "alt": 'Throughput "rises".', "width": 10}


LINKS = "[two](two.ipynb) by [Ho et al.](references.bib#ho), [code](../ddlnb/files.py)"
REFERENCE = "@article{ho, author={Ho, Q.}, title={SSP}, journal={NIPS}, year={2013}}"


def broken_links(site: Path) -> list[str]:
    """Links, pictures and scripts of a site's pages that are not there, or are on other hosts."""
    pages = {path.resolve(): path.read_text() for path in site.rglob("*.html")}
    wrong = []
    for path, text in pages.items():
        for kind, place in re.findall(r'\b(href|src)="([^"]*)"', text):
            if place.startswith(("http", "//")):
                wrong += [f"{path}: {place}"] if kind == "src" else []
            elif not place.startswith(("mailto:", "data:")):
                name, _, anchor = unquote(place).partition("#")
                target = (path.parent / name.partition("?")[0]).resolve() if name else path
                there = target.exists() and (not anchor or f'id="{anchor}"' in pages[target])
                wrong += [] if there else [f"{path}: {place}"]
    return wrong


def notebook(name: str) -> Notebook:
    return Notebook(
        name, Path(f"{name}.ipynb"), f"The {name}", "3.1", "", f"{name} holds", "", False
    )


def execute(folder: Path, name: str, said: dict | None = SAID) -> Outcome:
    """Write an executed notebook with one figure, its caption beneath and a wide table."""
    shown = nbformat.v4.new_output(
        "display_data", {"image/png": PICTURE}, metadata={"image/png": said} if said else {}
    )
    text = {"text/markdown": "*Bars of <throughput>.*", "text/plain": "Bars"}
    beneath = nbformat.v4.new_output(
        "display_data", text, metadata={"text/markdown": {"is_caption": True}}
    )
    table = nbformat.v4.new_output(
        "display_data", {"text/html": "<table><tr><td>1</td></tr></table>"}
    )
    code = nbformat.v4.new_code_cell("figure", outputs=[shown, beneath, table], id="drawn")
    so = nbformat.v4.new_output("display_data", {"text/markdown": "**Finding.** It is *so*."})
    finding = nbformat.v4.new_code_cell("so", outputs=[so], metadata={"tags": ["finding"]})
    texts = (f"# The {name}", f"## Compute here\n\n$$\\frac{{a}}{{b}}$$\n\n{LINKS}")
    cells = [nbformat.v4.new_markdown_cell(text) for text in texts]
    about = {"language_info": {"name": "python"}}
    book = nbformat.v4.new_notebook(cells=[*cells, code, finding], metadata=about)
    nbformat.write(book, folder / f"{name}.ipynb")
    return Outcome(notebook(name), "done", 1.0)


def entry(number: str, *verdicts: str) -> Entry:
    found = [
        Evidence(number, "a", "measured", word, f"seen in {number}", "#one-cell-drawn")
        for word in verdicts
    ]
    return Entry(Item(number, "3.1", f"Statement {number}."), tuple(found))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    outcomes = [execute(folder, name) for name in ("one", "two", "three")]
    outcomes.append(Outcome(notebook("four"), "failed", error="it broke"))
    entries = [
        entry("A01", "holds"),
        entry("A02", "holds", "contradicted"),
        entry("A03", "undecided"),
        entry("A04"),
        entry("A05", "not judged"),
    ]
    (folder / "notebooks").mkdir()
    (folder / "notebooks" / "references.bib").write_text(REFERENCE)
    found = {one.item.id: one for one in entries}
    return write_site(outcomes, folder, "tiny", found, folder / "notebooks")


def page(site: Path, name: str) -> str:
    """A page's own part, without the theme's."""
    text = (site.parent / name).read_text()
    return text[text.index("<article") : text.index("</article>")]


def words(text: str) -> str:
    return " ".join(re.sub(r"<.*?>", "", text).split())


@pytest.mark.thorough
def test_every_link_leads_to_a_page_a_citation_or_words_and_a_formula_is_mathml(site):
    assert (site.parent.with_name("site-state") / "warnings.txt").read_text().strip() == ""
    assert broken_links(site.parent) == []
    one = page(site, "notebooks/one.html")
    assert 'href="two.html"' in one
    assert "Ho [2013]" in words(one)
    assert "code" in words(one)
    assert "files.py" not in one
    assert "<mfrac>" in one


@pytest.mark.thorough
def test_the_first_page_begins_with_what_was_found_and_what_does_not_hold(site):
    first = page(site, "index.html")
    said = words(first)
    assert "Of 5 statements" in said
    assert "1 do not hold here, 1 are undecided, 1 hold, 2 could not be judged" in said
    places = [first.index(f'id="{name}"') for name in ("section-3", "what-was-found", "notebooks")]
    assert places == sorted(places)
    order = ["What does not hold here: 1", "What is undecided: 1", "What holds: 1"]
    found = [said.rindex(heading) for heading in order]
    assert found == sorted(found)
    contradicted = said[found[0] : found[1]]
    assert "Statement A02." in contradicted
    assert contradicted.count("seen in A02") == 1  # what speaks against it, and nothing else
    assert "A01" not in contradicted
    assert "failed: it broke" in said


def test_three_notebooks_are_to_be_read_first():
    """One of them runs under several names."""
    first = first_of([Shown(one.notebook, [], "") for one in notebook_runs("quick")])
    assert [one.notebook.path.stem for one in first] == [*READ_FIRST]


def test_a_figure_has_its_caption_once_and_a_text_in_its_place(site):
    one = page(site, "notebooks/one.html")
    assert one.count("Bars of &lt;throughput&gt;.") == 1
    assert re.search(r'<img[^>]* alt="Throughput &quot;rises&quot;."[^>]*width: 10px', one)
    first = page(site, "index.html")
    assert "It is <em>so</em>." in first  # the finding stands beside the picture
    assert 'alt="Throughput' in first
    drawn = site.parents[1] / "pages" / "figures" / "one-1.png"
    assert drawn.read_bytes() == b"a picture"


def test_a_figure_that_says_nothing_has_the_claim_of_its_notebook(tmp_path):
    execute(tmp_path, "one", said=None)
    content = read_executed(tmp_path / "one.ipynb")
    [picture] = pictures_of(content, notebook("one"))
    assert picture.caption == "One holds."
    assert picture.alt == "The one: One holds."
    assert finding_of(content) == "It is *so*."
    ready = prepare(content, notebook("one"), [picture], {})
    outputs = [output for cell in ready.cells for output in cell.get("outputs", [])]
    assert "One holds." in outputs[0]["data"]["text/markdown"]
    assert not any("is_caption" in str(output.get("metadata")) for output in outputs)


def test_pages_that_are_gone_leave_nothing_and_others_keep_their_time(tmp_path):
    write_changed(tmp_path, {"a/one.md": "one", "two.md": "two"})
    before = (tmp_path / "two.md").stat().st_mtime_ns
    write_changed(tmp_path, {"two.md": "two"})
    assert not (tmp_path / "a/one.md").exists()
    assert (tmp_path / "two.md").stat().st_mtime_ns == before
    write_changed(tmp_path, {"two.md": "changed"})
    assert (tmp_path / "two.md").read_text() == "changed"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; `.ci/run` installs it")
def test_a_browser_says_what_a_reader_with_a_phone_would_see(tmp_path):
    wide = '<p style="width: 400px">wide</p>'
    tucked = f'<div style="overflow-x: auto">{wide}<div class="math">{wide}</div></div>'
    body = f'{tucked}<img src="gone.png"><script>console.error("broken")</script>'
    (tmp_path / "one.html").write_text(f"<article>{body}</article>")
    (tmp_path / "two.html").write_text(f"<article>{wide}</article>")
    picture, formula, sideways, cut, missing, console = faults_of(tmp_path)
    assert "one.html: cut at the right: wide" in formula
    assert re.search("one.html: no picture at .*gone.png", picture)
    assert sideways == "two.html: scrolls sideways"
    assert "two.html: cut at the right" in cut
    assert missing == "/gone.png is not there"
    assert '"broken"' in console


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_the_nine_panels_are_told_apart_by_model_and_network(profile):
    runs = [run for run in notebook_runs(profile) if run.notebook.path.stem == "fig4_forecast"]
    assert len({run.notebook.title for run in runs}) == 9
    for run in runs:
        said = run.notebook.title.casefold().replace("-", "")
        assert str(run.parameters["model"]).replace("-", "") in said
        assert str(run.parameters["network"]).casefold() in said
