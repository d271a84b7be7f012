"""Measures all compressors on this machine, and keeps the seconds as a profile.

python -m benchmarks.compression_seconds [--threads 1] [--device cuda] [--also "top-k(0.001)"]
    [--write NAME]
"""

from __future__ import annotations

import argparse

from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.profiling import profile_compression
from ddlnb.compression.seconds import write_compression_profile

MILLION = 1_000_000


def main() -> None:
    """Print seconds of a million elements among 16 workers; with --write keep the profile."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--also", action="append", default=[], help="with these parameters, too")
    parser.add_argument("--write", metavar="NAME")
    given = parser.parse_args()
    chosen = [kind() for kind in COMPRESSORS.values()]
    profile = profile_compression(
        [*chosen, *given.also], threads=given.threads, repeats=given.repeats, device=given.device
    )
    print(profile.source)
    for name, seconds in profile.compressors.items():
        before, after = seconds.before(MILLION), seconds.after(MILLION, 16)
        print(f"{name:28s} encode {before * 1e3:8.2f} ms   decode {after * 1e3:8.2f} ms")
    for name, reason in profile.left_out.items():
        print(f"{name:28s} left out: {reason}")
    if given.write:
        print(write_compression_profile(profile, given.write))


if __name__ == "__main__":
    main()
