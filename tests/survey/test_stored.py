"""Pictures that notebooks carry: of a run of their code, small, taken out with other code."""

import base64
import io
import json

import nbformat
import numpy as np
import pytest
from PIL import Image

from ddlnb.errors import DdlnbError
from ddlnb.survey.notebooks import (
    KEPT,
    STORED,
    Outcome,
    all_notebooks,
    code_digest,
    smaller,
    store_pictures,
)


def png(width: int, height: int, noise: bool = False) -> bytes:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    drawn = Image.fromarray(pixels) if noise else Image.new("RGBA", (width, height), "teal")
    written = io.BytesIO()
    drawn.save(written, "png")
    return written.getvalue()


def write(path, source: str, picture: bytes | None = None) -> None:
    cells = [nbformat.v4.new_markdown_cell("# One"), nbformat.v4.new_code_cell(source)]
    if picture is not None:
        about = {"image/png": {"alt": "Bars."}}
        data = {"image/png": base64.b64encode(picture).decode()}
        cells[1].outputs = [nbformat.v4.new_output("display_data", data, metadata=about)]
        injected = {"tags": ["injected-parameters"]}
        cells.insert(
            1, nbformat.v4.new_code_cell("# Parameters\nx = 2\nout_folder = 1", metadata=injected)
        )
    metadata = {"ddlnb": {"claim": "c"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)


@pytest.fixture
def stored(tmp_path):
    """Return a function that stores the pictures of a run of some code and gives the notebook."""
    (tmp_path / "run").mkdir()
    write(tmp_path / "one.ipynb", "draw()")

    def stored(source: str, picture: bytes = png(40, 20)) -> dict:
        write(tmp_path / "run" / "one.ipynb", source, picture)
        outcome = Outcome(all_notebooks(tmp_path)["one"], "done")
        store_pictures([outcome], tmp_path / "run", "1.0")
        return json.loads((tmp_path / "one.ipynb").read_text())

    return stored


def test_a_notebook_carries_the_pictures_of_a_run_and_says_of_which_code(stored):
    content = stored("draw()")
    assert content == stored("draw()")  # again: nothing changes
    _, cell = content["cells"]
    assert cell["metadata"]["tags"] == [KEPT, STORED]
    said, output = cell["outputs"]
    assert said["text"] == ["Drawn by a run with x = 2.\n"]  # and not of where it kept its files
    assert base64.b64decode(output["data"]["image/png"]).startswith(b"\x89PNG")
    assert output["data"]["text/plain"] == ["Bars."]
    assert content["metadata"]["ddlnb"]["pictures"] == {
        "code": code_digest(content),
        "version": "1.0",
    }


def test_pictures_of_other_code_are_taken_out_and_of_this_code_stay(stored, tmp_path):
    before = stored("draw()")
    assert stored("draw(3)") == before
    content = stored("draw()")
    content["cells"][1]["source"] = ["draw(2)"]
    (tmp_path / "one.ipynb").write_text(json.dumps(content))
    content = stored("draw()")
    assert content["cells"][1]["outputs"] == []
    assert content["cells"][1]["metadata"] == {"tags": []}
    assert "pictures" not in content["metadata"]["ddlnb"]


@pytest.mark.thorough
def test_a_picture_becomes_small_or_is_refused():
    found = smaller(png(3000, 300))
    assert Image.open(io.BytesIO(found)).size == (1000, 100)
    with pytest.raises(DdlnbError, match=r"more than 60,000 at 400 pixels; draw less in it"):
        smaller(png(800, 800, noise=True))


def test_lines_keep_the_colours_that_tell_them_apart():
    """Among many shades of grey, blue and green were one colour, and so were two tasks."""
    shades = np.linspace(0, 255, 800).astype(np.uint8)[None, :, None]
    drawn = np.tile(shades, (600, 1, 3))
    colours = {"blue": (0, 114, 178), "green": (0, 158, 115), "orange": (213, 94, 0)}
    for place, colour in enumerate(colours.values()):
        drawn[100 * place : 100 * place + 4, :40] = colour
    written = io.BytesIO()
    Image.fromarray(drawn).save(written, "png")
    kept = np.asarray(Image.open(io.BytesIO(smaller(written.getvalue()))).convert("RGB"))
    high = len(kept) / 600
    for place, colour in enumerate(colours.values()):
        seen = kept[round((100 * place + 2) * high), 10].astype(int)
        assert np.abs(seen - colour).max() < 60, colour
