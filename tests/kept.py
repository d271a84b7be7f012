"""What docs/reliability.md says of the inputs that were tried: python -m tests.kept."""

import sys

import pandas as pd

from ddlnb.files import DATA
from ddlnb.training.runs.train import PACKAGE, source_hash

FOLDER = DATA / "measured" / "2026-11-27_two-cores_fuzz"
COVERED = {"fuzz": ["."], "faults": ["launch", "engines", "emulation", "foreign_engines"]}


def code(campaign: str) -> str:
    """Return the digest of the sources that a campaign covers, as they are now."""
    return source_hash(PACKAGE, COVERED[campaign])


def sentence() -> str:
    """Return what the kept inputs showed, and of which code; whether that has changed since."""
    table = pd.read_csv(FOLDER / "fuzz.csv", dtype={"code": str}, keep_default_na=False)
    failed = table.loc[(table["foreign"] != "") | (table["over_5_seconds"] > 0), "reader"]
    codes = sorted(set(table["code"]))
    changed = "" if codes == [code("fuzz")] else "; the code has changed since"
    return (
        f"{table['inputs'].sum():,} odd inputs through {len(table)} readers: "
        f"{', '.join(failed) or 'no reader'} raised another error than ours or took too long "
        f"({table['date'].max()}, code {', '.join(codes)}{changed})."
    )


if __name__ == "__main__":
    sys.stdout.write(f"{sentence()}\n")
