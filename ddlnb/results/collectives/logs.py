"""Read logs of benchmarks of collectives into the table of measured collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ddlnb.errors import InputError, ResultsError, UnknownName, require
from ddlnb.results.collective_rows import (
    COLLECTIVES,
    COLUMNS,
    MEASURED,
    SECONDS,
    bus_factors,
    with_seconds,
)
from ddlnb.results.collectives import nccl_tests, osu, probe
from ddlnb.units import GB

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Facts:
    """What a log does not say, or says otherwise; what is None is taken from the log."""

    collective: str | None = None
    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    network: str | None = None
    library: str | None = None
    settings: str | None = None
    block: str | None = None
    source: str | None = None
    source_url: str | None = None

    def __post_init__(self) -> None:
        if self.collective is not None and self.collective not in COLLECTIVES:
            raise UnknownName("collective", self.collective, COLLECTIVES)
        for name, count in (("nodes", self.nodes), ("gpus_per_node", self.gpus_per_node)):
            require(count is None or count >= 1, f"{name} {count} must be at least 1")

    @property
    def ranks(self) -> int | None:
        """Return the number of ranks, where both of its factors are given."""
        if self.nodes is None or self.gpus_per_node is None:
            return None
        return self.nodes * self.gpus_per_node


def read_collective_logs(
    paths: str | Path | Sequence[str | Path], facts: Facts | None = None
) -> pd.DataFrame:
    """Return the collectives in logs as a table with the columns of the published one.

    Known are logs of nccl-tests with or without a launcher's prefixes, of the OSU micro-benchmarks
    (these need ``facts.nodes`` and ``facts.gpus_per_node``), and the ``all_reduces.json`` of
    `ddlnb calibrate here`. Missing rates are computed. Raises ResultsError for a file that has
    none of these, and InputError for one that does not say what ran on how many ranks.

    >>> import ddlnb
    >>> from ddlnb.files import DATA
    >>> kept = DATA / "measured" / "2026-11-21_two-cores_loopback" / "all_reduces.json"
    >>> rows = ddlnb.read_collective_logs(kept)
    >>> rows["collective"].unique().tolist(), sorted(set(rows["ranks"]))
    (['all_reduce'], [2, 4])
    """
    import pandas as pd

    facts = facts or Facts()
    listed = [paths] if isinstance(paths, str | Path) else paths
    rows = [row for path in listed for row in _read(Path(path), facts)]
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    return _with_rates(table)


def _read(path: Path, facts: Facts) -> list[dict[str, object]]:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError as error:
        raise ResultsError(f"there is no log {path}") from error
    if probe.is_probe(text):
        found = list(probe.tables(text))
    elif nccl_tests.is_nccl_tests(text):
        found = list(nccl_tests.tables(text))
    elif osu.is_osu(text):
        if facts.ranks is None:
            raise InputError(
                f"{path} is of the OSU micro-benchmarks, which do not print the number of ranks; "
                "give it with --nodes and --gpus-per-node"
            )
        found = list(osu.tables(text, facts.ranks))
    else:
        found = []
    if not found:
        raise ResultsError(
            f"{path} has no table of nccl-tests, of a collective of the OSU micro-benchmarks or of "
            "`ddlnb calibrate here`; give the whole output of one of them"
        )
    return [_complete(row, facts, path) for row in found]


def _complete(row: dict[str, object], facts: Facts, path: Path) -> dict[str, object]:
    """Return the row with the facts in place of what the log says. Raises InputError."""
    given = {name: value for name, value in asdict(facts).items() if value is not None}
    row = {"source": path.name, "block": path.stem, **row, **given}
    if facts.ranks is not None:
        row["ranks"] = facts.ranks
    nodes, each, ranks = (row.get(name) for name in ("nodes", "gpus_per_node", "ranks"))
    if not (nodes and each and ranks):
        raise InputError(
            f"{path} does not say how many ranks took part; give --nodes and --gpus-per-node"
        )
    if float(cast(float, nodes)) * float(cast(float, each)) != float(cast(float, ranks)):
        raise InputError(
            f"{path}: {ranks} ranks are not {nodes} nodes times {each} GPUs; give both, --nodes "
            "and --gpus-per-node, or take apart what ran on unlike nodes"
        )
    if not row.get("collective"):
        raise InputError(
            f"{path} does not name its collective; give --collective with one of "
            f"{', '.join(COLLECTIVES)}"
        )
    return row


def _with_rates(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the rates that its times imply, where the log printed none."""
    texts = [column.name for column in MEASURED.columns if column.kind.is_text]
    table = table.assign(
        **{name: table[name].astype(object).fillna("").astype(str) for name in texts}
    )
    checked = with_seconds(MEASURED.checked(table))
    rate = checked["size_bytes"] / checked[SECONDS] / GB
    return checked.assign(
        algbw_GBps=checked["algbw_GBps"].fillna(rate.round(4)),
        busbw_GBps=checked["busbw_GBps"].fillna((rate * bus_factors(checked)).round(4)),
    ).drop(columns=SECONDS)
