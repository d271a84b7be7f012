"""The package as a whole: light to import, its names listed, its requirements in step."""

import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import ddlnb
from ddlnb.cli.app import OLD
from ddlnb.files import ROOT

DOCS = list((ROOT / "docs").glob("*.md"))
HEAVY = ("torch", "pandas", "matplotlib", "numpy", "transformers", "ipyparallel", "zmq")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("ddlnb", HEAVY),
        ("ddlnb.figures", HEAVY),
        ("ddlnb.training.settings", HEAVY[:2]),
        ("ddlnb.engines.settings", HEAVY[:2]),
        ("ddlnb.calibration.validation", HEAVY[:3]),
        ("ddlnb.clusters.file", HEAVY[:3]),
    ],
)
def test_an_import_loads_nothing_heavy(module, heavy):
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_sorted_and_all_there():
    assert ddlnb.__all__ == sorted(ddlnb.__all__)
    for name in ddlnb.__all__:
        assert getattr(ddlnb, name) is not None
    assert dir(ddlnb) == ddlnb.__all__
    with pytest.raises(AttributeError, match="no attribute 'MGWFBP'"):
        _ = ddlnb.MGWFBP


def test_no_module_hides_a_figure():
    modules = {path.stem for path in Path(ddlnb.figures.__file__).parent.glob("*.py")}
    assert not modules & set(ddlnb.figures.__all__)
    for name in ddlnb.figures.__all__:
        assert callable(getattr(ddlnb.figures, name))
    with pytest.raises(AttributeError, match="no attribute 'timeline'"):
        _ = ddlnb.figures.timeline


def pins() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    return dict(entry.split("==") for entry in listed if "==" in entry)


def test_environment_yml_pins_what_pyproject_requires_and_nothing_else():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    required = {
        Requirement(text) for text in (*project["dependencies"], *chain(*optional.values()))
    }
    wanted = {need.name: need.specifier for need in required if need.name != project["name"]}
    assert pins().keys() == wanted.keys()
    for name, version in pins().items():
        assert version in wanted[name], f"{name} {version} is not {wanted[name]}"


def test_torch_is_pinned_first_and_without_a_local_build():
    assert next(iter(pins())) == "torch"
    assert re.fullmatch(r"\d+\.\d+\.\d+", pins()["torch"])


@pytest.mark.parametrize("target", ["env", "reproduce", "test", "lint"])
def test_make_lists_its_targets(target):
    done = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True)
    assert re.search(rf"^{target} ", done.stdout, re.MULTILINE)


def test_rooms_import_downwards_and_without_circles():
    """The contracts are in pyproject.toml, section importlinter."""
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(lint, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


def test_the_readme_fits_on_a_page_or_two():
    assert len((ROOT / "README.md").read_text().split()) <= 1100


PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{page.name}" for page in DOCS)]


def anchors(page: Path) -> set[str]:
    """What links to headings of a page may name, as a repository's site makes it of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_in_the_documents_lead_somewhere(page):
    file = ROOT / page
    text = file.read_text()
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        there = file.parent / target if target else file
        assert "://" in target or there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"
    for path in re.findall(r"`((?:ddlnb|tests|docs|data|benchmarks|scripts)/[\w./-]+)`", text):
        assert "NAME" in path or page == "CHANGELOG.md" or (ROOT / path).exists(), path


RETIRED = re.compile(rf"(?<!from )\bddlnb (--with \S+ )?({'|'.join(OLD)})\b(?!\()")
NOTED = {"app.py", "testbed.py"}  # the names themselves; the source that kept profiles state


def test_documents_notebooks_and_messages_name_the_commands_of_today():
    pages = [ROOT / page for page in PAGES if page != "CHANGELOG.md"]
    pages += [*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "data").glob("*/README.md")]
    pages += [path for path in (ROOT / "ddlnb").rglob("*.py") if path.name not in NOTED]
    found = {page.name: RETIRED.search(page.read_text()) for page in pages}
    assert {name: match[0] for name, match in found.items() if match} == {}
