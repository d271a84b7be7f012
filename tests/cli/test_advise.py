"""`ddlnb advise`: the tables, the sentences and the page."""

import re
from dataclasses import replace

import pandas as pd
from typer.testing import CliRunner

import ddlnb
from ddlnb.cli.advise import advice_page
from ddlnb.cli.app import app

ASKED = ["advise", "--model", "resnet50", "--cluster", "survey-10GbE", "--gpus", "8"]


def run(*words: str):
    return CliRunner().invoke(app, [*ASKED, "--draws", "0", "--plans", "0", *words])


def test_the_answer_names_the_first_option_and_writes_files(tmp_path):
    csv, page = tmp_path / "options.csv", tmp_path / "advice.html"
    done = run("--csv", str(csv), "--page", str(page), "--measured", "1000", "--method", "BSP-A2A")
    assert done.exit_code == 0, done.output
    options = pd.read_csv(csv)
    assert f"take {options['option'].iloc[0]}" in " ".join(done.output.split())
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


def test_a_table_with_intervals_says_how_many_draws_they_are_of():
    done = CliRunner().invoke(app, [*ASKED, "--draws", "25", "--plans", "0"])
    assert done.exit_code == 0, done.output
    assert "draws" in done.output.partition("with one thing changed")[0]
    assert "draws" not in run().output.partition("with one thing changed")[0]


def test_what_no_gpu_can_hold_is_answered_by_the_ranked_layouts(tmp_path):
    csv = tmp_path / "options.csv"
    words = ["advise", "--model", "llama3-70b", "--gpu", "H100", "--nodes", "8"]
    done = CliRunner().invoke(app, [*words, "--draws", "0", "--csv", str(csv)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "Verdict: it has to be split" in said
    options = pd.read_csv(csv)
    assert f"(mixture of 5 frameworks) as {options['layout'].iloc[0]}:" in said
    for option in ("--throughput", "--measured", "--server-price", "--plans"):
        refused = CliRunner().invoke(app, [*words, option, "3"])
        assert str(refused.exception).endswith(f"({option})")


def test_advice_is_on_the_framework_that_is_named_and_every_command_takes_it():
    on = ["--model", "llama3-8b", "--gpu", "H100", "--nodes", "2", "--draws", "0"]
    verdicts = set()
    for command in (["advise"], ["forecast"]):
        done = CliRunner().invoke(app, [*command, *on, "--framework", "fsdp"])
        assert done.exit_code == 0, done.output
        said = " ".join(done.output.split())
        assert "(fsdp)" in said
        verdicts.add(said[said.index("Verdict:") :].split(" GiB on each")[0])
    assert len(verdicts) == 1
