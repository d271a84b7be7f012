"""Pictures of one run that notebooks carry, so that they are seen where no kernel runs.

They are small, and the notebook's metadata say of which code and version they are. Cells that have
one carry the tags ``keep_output``, for nbstripout, and ``stored-picture``; nbval compares none.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddlnb.errors import DdlnbError
from ddlnb.files import write_atomically
from ddlnb.survey.notebooks import Outcome

KEPT, STORED = "keep_output", "stored-picture"
PNG, SVG = "image/png", "image/svg+xml"
WIDTHS, COLOURS, MOST_BYTES = (1000, 800, 600, 400), 64, 60_000  # of a picture; pixels, shades
Content = dict[str, Any]


def store_pictures(outcomes: Iterable[Outcome], folder: Path, version: str) -> dict[str, str]:
    """Put the pictures of executed notebooks into the repository's; return what became of each.

    ``folder`` is that of the run. A notebook whose code has changed since it was executed loses
    pictures of other code, and of one that was executed under several names the first is taken.
    """
    said: dict[str, str] = {}
    for outcome in outcomes:
        path, name = outcome.notebook.path, outcome.notebook.path.stem
        executed = folder / f"{outcome.notebook.name}.ipynb"
        if name in said or outcome.error or not executed.exists():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        run = json.loads(executed.read_text(encoding="utf-8"))
        code = code_digest(content)
        drawn = _drawn(run) if code_digest(run) == code else {}
        if not drawn and content["metadata"]["ddlnb"].get("pictures", {}).get("code") == code:
            said[name] = "kept: its pictures are of this code, the run is of another"
            continue
        stored = _stored(content, drawn, {"code": code, "version": version} if drawn else {})
        write_atomically(path, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
        said[name] = f"{sum(map(len, drawn.values()))} stored" if drawn else "none of this code"
    return said


def code_digest(content: Content) -> str:
    """Return the fingerprint of a notebook's code."""
    text = json.dumps(["".join(cell["source"]) for cell in _code(content)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _code(content: Content) -> list[Content]:
    cells = (cell for cell in content["cells"] if cell["cell_type"] == "code")
    return [one for one in cells if "injected-parameters" not in one["metadata"].get("tags", [])]


def _drawn(executed: Content) -> dict[int, list[Content]]:
    """Return the pictures of a run by the number of their cell."""
    by_cell = enumerate(cell.get("outputs", []) for cell in _code(executed))
    found = {
        number: [one for one in outputs if one.get("data", {}).keys() & {PNG, SVG}]
        for number, outputs in by_cell
    }
    return {number: outputs for number, outputs in found.items() if outputs}


def _stored(
    content: Content, drawn: Mapping[int, list[Content]], made: Mapping[str, str]
) -> Content:
    for number, cell in enumerate(_code(content)):
        tags = [tag for tag in cell["metadata"].get("tags", []) if tag != STORED]
        if STORED in cell["metadata"].get("tags", []):
            tags.remove(KEPT)
            cell["outputs"] = []
        if number in drawn and KEPT not in tags:
            cell["outputs"] = [_small(output) for output in drawn[number]]
            tags += [KEPT, STORED]
        if tags or "tags" in cell["metadata"]:
            cell["metadata"]["tags"] = tags
    content["metadata"]["ddlnb"].pop("pictures", None)
    if made:
        content["metadata"]["ddlnb"]["pictures"] = dict(made)
    return content


def _small(output: Content) -> Content:
    data, about = output["data"], output.get("metadata", {}).get(PNG, {})
    if SVG in data:  # moves
        kept = {kind: data[kind] for kind in (SVG, "text/plain")}
        return {"output_type": "display_data", "data": kept, "metadata": {}}
    said = about.get("alt", "")
    picture = base64.b64encode(smaller(base64.b64decode("".join(data[PNG]))))
    data = {PNG: picture.decode() + "\n", "text/plain": [said]}
    return {"output_type": "display_data", "data": data, "metadata": {PNG: {"alt": said}}}


def smaller(picture: bytes) -> bytes:
    """Return a PNG of at most MOST_BYTES. Raises DdlnbError for one that cannot be that small."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as drawn:
        opaque = Image.new("RGB", drawn.size, "white")
        opaque.paste(drawn, mask=drawn.convert("RGBA").getchannel("A"))
    for width in WIDTHS:
        across = min(width, opaque.width)
        size = (across, round(opaque.height * across / opaque.width))
        written = io.BytesIO()
        opaque.resize(size, Image.Resampling.LANCZOS).quantize(COLOURS).save(
            written, "png", optimize=True
        )
        if written.tell() <= MOST_BYTES:
            return written.getvalue()
    raise DdlnbError(
        f"a picture of {len(picture):,} bytes has more than {MOST_BYTES:,} at {WIDTHS[-1]} pixels; "
        f"draw less in it"
    )
