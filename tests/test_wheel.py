"""What is built and installed elsewhere: the package with its data, and without its extras."""

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ddlnb.errors import EXTRAS
from ddlnb.files import ROOT

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Answers of an installation without extras, as README and docs promise them.
QUESTIONS = (
    "forecast --model resnet50 --cluster survey-100GbE --gpus 32",
    "advise --model bert-base --cluster survey-10GbE --gpus 16",
    "scaling --model resnet50 --cluster survey-10GbE",
    "scale --model llama3-8b --gpu H100 --nodes 4",
)
BLOCKED = '''
import sys

class Absent:
    """Packages of the extras, as if nobody had installed them."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
'''


def packages(extra: str) -> list[str]:
    """Return the distributions that an extra names, those of other extras of ours left out."""
    listed = map(Requirement, PROJECT["optional-dependencies"][extra])
    return [canonicalize_name(found.name) for found in listed if found.name != "ddlnb"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder with a wheel and an sdist of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def elsewhere(built, tmp_path_factory) -> Path:
    """The Python of an environment into which the wheel alone was installed.

    It borrows the packages that ddlnb depends on from this one, and has none of its extras.
    """
    home = tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    wheel = next(built.glob("*.whl"))
    subprocess.run([sys.executable, *install, str(wheel)], check=True, timeout=120)
    folder = Path(sysconfig.get_path("purelib", vars={"base": home, "platbase": home}))
    (folder / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "sitecustomize.py").write_text(BLOCKED.format(names={*chain(*EXTRAS.values())}))
    return python


def asked(python: Path, words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``ddlnb WORDS`` of an environment in a folder that is no checkout."""
    command = [python.with_name("ddlnb"), *words.split()]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "120"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("words", QUESTIONS)
def test_an_installation_without_extras_answers_questions_by_name(elsewhere, tmp_path, words):
    done = asked(elsewhere, words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("measure --model small-conv --method MG-WFBP --workers 2", "run"),
        ("train --method bsp --task quadratic", "models"),
        ("survey reproduce --profile smoke --yes", "book"),
    ],
)
def test_a_command_says_which_extra_it_lacks(elsewhere, tmp_path, words, extra):
    done = asked(elsewhere, words, tmp_path)
    assert done.returncode == 2
    assert f"pip install 'ddlnb[{extra}]'" in done.stderr
    told = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert len(told) == 1


def test_data_notebooks_and_what_is_no_code_travel_in_the_wheel(built):
    files = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    for name in ("py.typed", "data/clusters/survey-10GbE.yaml", "notebooks/index.ipynb"):
        assert f"ddlnb/{name}" in files
    kinds = ("*.html", "*.c", "survey/pages/*.*")
    for path in (path for kind in kinds for path in ROOT.glob(f"ddlnb/**/{kind}")):
        assert str(path.relative_to(ROOT)) in files
    assert not [file for file in files if file.startswith(("tests/", "benchmarks/"))]


def test_the_sdist_builds_the_same_wheel(built):
    assert [path.name for path in built.glob("*.tar.gz")] == [f"ddlnb-{PROJECT['version']}.tar.gz"]


def test_every_package_is_pinned_for_conda_and_in_the_lock_file():
    pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][-1]["pip"]
    pinned = {canonicalize_name(entry.partition("==")[0]) for entry in pip if "==" in entry}
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {line.partition("==")[0] for line in lock if "==" in line and line[0] not in " #"}
    base = {canonicalize_name(Requirement(entry).name) for entry in PROJECT["dependencies"]}
    needed = base.union(*(packages(extra) for extra in EXTRAS))
    assert needed <= pinned
    assert needed - {"torch"} <= locked
    assert not [line for line in lock if "file:" in line or " @ " in line]


@pytest.mark.parametrize("extra", EXTRAS)
def test_errors_know_what_every_extra_brings(extra):
    modules = {"pyzmq": "zmq", "sphinxcontrib-bibtex": "sphinxcontrib.bibtex"}
    brought = {modules.get(one, one.replace("-", "_")) for one in packages(extra)}
    assert brought <= set(EXTRAS[extra])


def test_the_version_is_said_alike_everywhere():
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version} - " in (ROOT / "CHANGELOG.md").read_text()
