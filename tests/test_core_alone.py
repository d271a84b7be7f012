"""The core imports no extension, by name or by string, and works where there is none."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ddlnb

PACKAGE = Path(ddlnb.__file__).parent
CORE = ("workloads", "plans", "hardware", "clusters", "simulator", "launch", "engines", "results")
ROOMS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
EXTENSIONS = sorted(ROOMS - {*CORE})
HIDING = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(tuple("ddlnb." + room for room in {EXTENSIONS})):
            raise ModuleNotFoundError(f"hidden: {{name}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.parametrize("room", CORE)
def test_a_room_of_the_core_names_no_extension(room):
    """Neither in an import nor in a string that could become one."""
    found = []
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
            elif isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [node.value] if " " not in node.value else []
            found += [
                f"{path.name}: {name}"
                for name in names
                for one in EXTENSIONS
                if name == f"ddlnb.{one}" or name.startswith(f"ddlnb.{one}.")
            ]
    assert found == []


def alone(tmp_path: Path, program: str) -> str:
    """Return what a program prints, in a process whose import system knows the core alone."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_clusters_are_simulated_and_forecast_without_extensions(tmp_path):
    """All but what is played on a graph, which says so; and workloads without torch."""
    said = alone(
        tmp_path,
        """
        import sys

        import ddlnb

        own = ddlnb.read_profile("resnet50_b64_rtx2080ti")
        print(ddlnb.simulate(own, "survey-10GbE", "MG-WFBP").iterations)
        print("torch" in sys.modules)
        rows = ddlnb.forecast("resnet50", "survey-10GbE", "all", gpus=[8, 32], draws=20)
        print(len(rows), rows["low"].notna().all())
        try:
            ddlnb.Cluster("two", "10GbE", 2, 4, ddlnb.get_cluster("survey-10GbE").effects,
                          topology="star(2)")
        except ddlnb.DdlnbError as error:
            print(type(error).__name__)
        """,
    )
    assert said.splitlines() == ["3", "False", "18 True", "MissingPart"]


def test_plans_are_simulated_and_methods_forecast_without_extensions(tmp_path):
    said = alone(
        tmp_path,
        """
        import ddlnb
        from ddlnb.clusters.file import get_cluster
        from ddlnb.plans.methods import SURVEYED
        from ddlnb.workloads.workload import read_profile

        workload = read_profile("small-conv_b64_cpu-1thread")
        cluster = get_cluster("two-cores-4-workers")
        print(ddlnb.simulate(workload, cluster, "MG-WFBP").iteration_seconds > 0)
        rows = ddlnb.forecast(workload, cluster, list(SURVEYED), draws=20).to_frame()
        print(set(rows["method"]) >= set(SURVEYED))
        """,
    )
    assert said.split() == ["True", "True"]


@pytest.mark.ranks
def test_methods_are_measured_without_extensions(tmp_path):
    """And what only an extension has is refused before anything starts."""
    said = alone(
        tmp_path,
        """
        import ddlnb

        short = dict(iterations=2, warmup=1, repetitions=1, local_batch=4, baselines=False)
        for asked in (
            {"methods": "searched"},
            {"methods": "WFBP-A2A", "collective": "ring"},
            {"methods": "WFBP-A2A", "topology": "mesh"},
            {"methods": "WFBP-A2A", "engine": "horovod"},
            {"methods": "WFBP-PS", "engine": "byteps"},
            {"methods": "WFBP-A2A", "launcher": "emulated", "network": "1Gb/s 1ms"},
        ):
            try:
                ddlnb.measure("small-conv", **asked, **short)
            except ddlnb.DdlnbError as error:
                print(type(error).__name__)
        print(*ddlnb.measure("small-conv", **short)["method"])
        """,
    )
    refused, methods = said.splitlines()[:-1], said.splitlines()[-1].split()
    assert refused == ["MissingPart"] * 6
    assert {"BSP-A2A", "MG-WFBP", "ByteScheduler-A2A", "ByteScheduler-PS"} <= {*methods}
