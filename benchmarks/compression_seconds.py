"""Measure all compressors on this machine, and keep the seconds as a profile.

python -m benchmarks.compression_seconds [--threads 1] [--device cuda] [--also "top-k(0.001)"]
    [--write NAME]
"""

from collections.abc import Sequence

from benchmarks.command import command
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.profile import CompressionProfile, write_compression_profile
from ddlnb.compression.profiling import profile_compression

MILLION = 1_000_000
WHOLE = 25_000_000  # elements of a model


def relative_errors(profile: CompressionProfile) -> list[float]:
    """Return by what share the lines miss each measured time, in ascending order."""
    off = []
    for row in profile.samples:
        lines, elements = profile.compressors[row["compressor"]], row["elements"]
        off.append(abs(lines.before(elements) / row["encode_seconds"] - 1))
        off.append(abs(lines.after(elements, row["workers"]) / row["decode_seconds"] - 1))
    return sorted(off)


def main(
    *,
    threads: int = 1,
    device: str = "cpu",
    repeats: int = 7,
    also: Sequence[str] = (),
    write: str | None = None,
) -> None:
    """Print the seconds of two tensors among 16 workers.

    --also compressors with their parameters are measured, too. The profile is kept by the name
    after --write.
    """
    chosen = [*(kind() for kind in COMPRESSORS.values()), *also]
    profile = profile_compression(chosen, threads=threads, repeats=repeats, device=device)
    print(profile.source)
    for name, seconds in profile.compressors.items():
        shown = [
            f"{size // MILLION} M: encode {seconds.before(size) * 1e3:8.2f} ms, "
            f"decode {seconds.after(size, 16) * 1e3:8.2f} ms"
            for size in (MILLION, WHOLE)
        ]
        print(f"{name:28s} {'   '.join(shown)}")
    off = relative_errors(profile)
    print(
        f"The lines miss half of {len(off)} measured seconds by less than "
        f"{off[len(off) // 2]:.0%}, nine in ten by less than {off[9 * len(off) // 10]:.0%} "
        f"and the worst by {off[-1]:.0%}"
    )
    for name, reason in profile.left_out.items():
        print(f"{name:28s} left out: {reason}")
    if write:
        print(write_compression_profile(profile, write))


if __name__ == "__main__":
    command(main)
