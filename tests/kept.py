"""What docs/reliability.md says of the inputs that were tried: python -m tests.kept."""

import hashlib
import sys

import pandas as pd

from ddlnb.files import DATA
from ddlnb.training.runs.train import PACKAGE, source_hash

FOLDER = DATA / "measured" / "2026-11-27_two-cores_fuzz"
FAULTED = ["launch", "engines", "emulation", "foreign_engines"]  # what faults are injected into


def code_of_faults() -> str:
    """Return the digest of the sources that the campaign of faults covers, as they are now."""
    return source_hash(PACKAGE, FAULTED)


def code_of_sources(sources: str) -> str:
    """Return the digest of these files of ours, spaces between their names, as they are now."""
    digest = hashlib.sha256()
    for source in sources.split():
        path = PACKAGE / source
        digest.update(source.encode() + (path.read_bytes() if path.exists() else b""))
    return digest.hexdigest()[:12]


def sentence() -> str:
    """Return what the kept inputs showed, and how many of them went through today's code."""
    table = pd.read_csv(FOLDER / "fuzz.csv", dtype={"code": str}, keep_default_na=False)
    failed = table.loc[(table["foreign"] != "") | (table["over_5_seconds"] > 0), "reader"]
    today = table[table["sources"].map(code_of_sources) == table["code"]]
    return (
        f"{table['inputs'].sum():,} odd inputs through {table['reader'].nunique()} readers: "
        f"{', '.join(failed) or 'no reader'} raised another error than ours or took too long. "
        f"{today['inputs'].sum():,} of them, through {today['reader'].nunique()} readers, were of "
        f"today's code ({table['date'].max()})."
    )


if __name__ == "__main__":
    sys.stdout.write(f"{sentence()}\n")
