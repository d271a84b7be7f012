"""`ddlnb advise`: the tables, the sentences and the page."""

import re
from dataclasses import replace

import pandas as pd
import pytest

import ddlnb
from ddlnb.cli.advise import advice_page
from tests.command_line import ddlnb as run_command

ASKED = ["advise", "--model", "resnet50", "--cluster", "survey-10GbE", "--gpus", "8"]


def run(*words: str) -> str:
    return run_command(*ASKED, "--draws", "0", "--plans", "0", *words, check=True).stdout


def test_the_answer_names_the_first_option_and_writes_files(tmp_path):
    csv, page = tmp_path / "options.csv", tmp_path / "advice.html"
    said = run("--csv", str(csv), "--page", str(page), "--measured", "1000", "--method", "BSP-A2A")
    options = pd.read_csv(csv)
    assert f"take {options['option'].iloc[0]}" in " ".join(said.split())
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 2
    assert not re.search(r'(?:src|href)="http', text), "the page stands on its own"
    assert all(alt.strip() for alt in re.findall(r'alt="([^"]*)"', text))
    assert set(options["option"]) <= set(re.findall(r"<td>([^<]*)</td>", text))
    assert "What would explain the measured throughput" in text
    assert "Workload(" not in text


def test_names_from_inputs_are_texts_on_the_page():
    found = ddlnb.advise("resnet50", "survey-10GbE", gpus=8, draws=0, most_plans=0)
    workload = replace(found.question.workload, model="<script>boom()</script>")
    named = replace(found, question=replace(found.question, workload=workload))
    assert "<h1>What to do with &lt;script&gt;boom()&lt;/script&gt; on" in advice_page(named)


@pytest.mark.thorough
def test_a_table_with_intervals_says_how_many_draws_they_are_of():
    said = run_command(*ASKED, "--draws", "25", "--plans", "0", check=True).stdout
    assert "draws" in said.partition("with one thing changed")[0]
    assert "draws" not in run().partition("with one thing changed")[0]


def test_what_no_gpu_can_hold_is_answered_by_the_ranked_layouts(tmp_path):
    csv = tmp_path / "options.csv"
    words = ["advise", "--model", "llama3-70b", "--gpu", "H100", "--nodes", "8"]
    done = run_command(*words, "--draws", "0", "--csv", str(csv), check=True)
    said = " ".join(done.stdout.split())
    assert "Verdict: it has to be split" in said
    options = pd.read_csv(csv)
    assert f"(framework not named) as {options['layout'].iloc[0]}:" in said
