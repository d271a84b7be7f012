"""Pictures that move: one file each, and what moves is what the library's lists say."""

import re
from xml.etree import ElementTree

import pytest

from ddlnb.files import NOTEBOOKS
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.survey.animations import ANIMATIONS, Mark, double_tree, of_marks, of_pipeline, ring

SVG = "{http://www.w3.org/2000/svg}"


def parts(animation, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(animation.svg).iter(SVG + tag))


def frames(element: ElementTree.Element, name: str) -> tuple[list[float], list[float]]:
    """Return the values of an attribute, and the shares of a round at which it has them."""
    [one] = [each for each in element.iter(SVG + "animate") if each.get("attributeName") == name]
    values, times = (one.get(key, "").split(";") for key in ("values", "keyTimes"))
    return list(map(float, values)), list(map(float, times))


@pytest.mark.parametrize("name", ANIMATIONS)
def test_an_animation_is_one_small_file_that_any_browser_plays(name, tmp_path):
    animation = ANIMATIONS[name]()
    path = animation.write(tmp_path / f"{name}.svg")
    assert path.stat().st_size < 60_000
    assert "http" not in animation.svg.replace("http://www.w3.org/2000/svg", "")
    assert animation.caption.split(":")[0] in animation._repr_mimebundle_()["text/html"]
    for one in parts(animation, "animate"):
        times = [float(time) for time in one.get("keyTimes").split(";")]
        assert times == sorted(times)
        assert times[0] == 0
        assert times[-1] <= 1
        assert len(times) == len(one.get("values").split(";"))
        assert one.get("calcMode") == "discrete" or times[-1] == 1  # else browsers play nothing


@pytest.mark.parametrize(
    ("animation", "algorithm", "workers"),
    [(ring(5), "ring", 5), (double_tree(8), "double-tree(1)", 8)],
)
def test_a_dot_is_a_transfer_and_every_square_fills(animation, algorithm, workers):
    collective = get_collective(algorithm, workers)
    moved = sum(int(row["stop"] - row["first"]) for row in collective.transfers)
    dots = [one for one in parts(animation, "circle") if one.get("opacity") == "0"]
    assert len(dots) == moved
    squares = [one for one in parts(animation, "rect") if one.get("fill-opacity")]
    assert len(squares) == workers * collective.parts
    for square in squares:
        filled, _ = frames(square, "fill-opacity")
        assert filled[0] == pytest.approx(1 / workers, abs=1e-4)
        assert filled[-1] == 1
        assert filled == sorted(filled)


def test_bars_grow_when_their_passes_run_and_are_hatched_where_they_wait():
    played = play(schedule("1f1b", 2, 3), {"F": 1.0, "B": 2.0})
    passes = [one for stage in played.stages for one in stage]
    bars = [one for one in parts(of_pipeline(played), "rect") if one.get("height")]
    assert len(bars) == len(passes)
    for bar, (_, start, stop) in zip(bars, passes, strict=True):
        _, (_, begins, ends, _) = frames(bar, "width")
        assert begins / ends == pytest.approx(start / stop, abs=1e-3)
    marks = [Mark("a", 0, 1, "red", waits=True), Mark("a", 1, 2, "red")]
    looks = [one.get("fill") for one in parts(of_marks(marks, ["a"], "waits"), "rect")]
    assert looks == ["url(#waits)", "red"]


def test_every_animation_is_seen_in_a_notebook():
    cells = "".join(path.read_text() for path in NOTEBOOKS.glob("*.ipynb"))
    assert set(re.findall(r'animation\(\\"([\w-]+)\\"\)', cells)) == set(ANIMATIONS)
