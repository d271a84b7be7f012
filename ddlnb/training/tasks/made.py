"""Larger learning tasks, made of what every machine has: rendered letters, Python's own sources.

Letters are the 62 letters and digits in sixteen typefaces that matplotlib brings, turned, sheared,
scaled, shifted and covered with noise, all drawn from one seed. Some look alike (0 and O, 1 and l),
so nobody reads all of them. Code is the text of Python's standard library, byte by byte; a tenth of
its files is kept for the test. It differs between versions of Python, and letters may differ
between versions of matplotlib, so curves name both.
"""

from __future__ import annotations

import hashlib
import math
import platform
import string
import sysconfig
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.errors import MissingPart
from ddlnb.reading import read_bytes
from ddlnb.training.tasks.built_in import classification_loss, evaluate_classifier, seeded
from ddlnb.training.tasks.task import Constants, Evaluation, LearningTask, Samples
from ddlnb.workloads.models import BYTE_VALUES, CONTEXT_BYTES, SmallTransformer
from ddlnb.workloads.task import Batch

LETTERS_OF = string.digits + string.ascii_letters
STYLES = {
    "DejaVuSans{}.ttf": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono{}.ttf": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif{}.ttf": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral{}.ttf": ("", "Bol", "Italic", "BolIta"),
}
FONTS = tuple(family.format(style) for family, styles in STYLES.items() for style in styles)
RENDERED, TESTED = 60_000, 2_000  # letters in all, and those to test on
SIDE = 16  # pixels
POINTS = 22  # of a letter on a canvas twice as wide as an image
# The first scale is that of both axes, the second that of what turning mixes into the other axis.
TURN, SHEAR, SCALE, SHIFT = 0.2, 0.2, 0.15, 0.1  # at most: radians, and shares of the whole
NOISE = 16.0  # standard deviation, of 255
MEAN, SPREAD = 25.0, 55.0  # of a pixel, about
AT_ONCE = 2_000  # letters that are rendered together


def _glyphs() -> Tensor:
    """Return every letter in every typeface, white on black in the middle of a canvas."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    side = 2 * SIDE
    canvas = np.zeros((len(FONTS), len(LETTERS_OF), side, side), np.uint8)
    for number, name in enumerate(FONTS):
        font = FT2Font(str(Path(get_data_path(), "fonts", "ttf", name)))
        font.set_size(POINTS, 72)
        for letter, sign in enumerate(LETTERS_OF):
            font.set_text(sign)
            font.draw_glyphs_to_bitmap(antialiased=True)
            drawn = np.asarray(font.get_image())[:side, :side]
            top, left = ((side - length) // 2 for length in drawn.shape)
            canvas[number, letter, top:, left:][: len(drawn), : drawn.shape[1]] = drawn
    return torch.from_numpy(canvas).float()


def _maps(count: int, draw: torch.Generator) -> Tensor:
    """Return random affine maps, (count, 2, 3), in the order turn, shear, scale, shift."""

    def within(most: float, *shape: int) -> Tensor:
        return most * (2 * torch.rand(count, *shape, generator=draw) - 1)

    turn, shear = within(TURN), within(SHEAR)
    scale, shift = 1 + within(SCALE, 2), within(SHIFT, 2)
    cos, sin = turn.cos() / scale[:, 0], turn.sin() / scale[:, 1]
    rows = torch.stack([cos, shear - sin, shift[:, 0], sin, cos, shift[:, 1]], 1)
    return rows.view(count, 2, 3)


@cache
def _letters() -> tuple[Samples, Samples]:
    """Return the letters to train on and to test on; every class has its share, up to rounding."""
    draw = torch.Generator().manual_seed(0)
    glyphs = _glyphs()
    labels = torch.randperm(RENDERED, generator=draw) % len(LETTERS_OF)
    faces = torch.randint(len(FONTS), (RENDERED,), generator=draw)
    parts = []
    for chosen in torch.arange(RENDERED).split(AT_ONCE):
        plain = glyphs[faces[chosen], labels[chosen]][:, None]
        field = F.affine_grid(_maps(len(chosen), draw), list(plain.shape), align_corners=False)
        seen = F.avg_pool2d(F.grid_sample(plain, field, align_corners=False), 2)
        seen += NOISE * torch.randn(seen.shape, generator=draw)
        parts.append(seen.round_().clamp_(0, 255).to(torch.uint8))
    sizes = (TESTED, RENDERED - TESTED)
    both = zip(torch.cat(parts).split(sizes), labels.split(sizes), strict=True)
    test, train = (Samples((images, named), named) for images, named in both)
    return train, test


def _letters_to_train() -> Samples:
    return _letters()[0]


def _evaluate_letters(module: nn.Module) -> Evaluation:
    return evaluate_classifier(module, *_letters()[1].tensors)


def _fonts() -> str:
    from matplotlib import __version__

    return f"typefaces of matplotlib {__version__}"


class _Block(nn.Module):
    """Two convolutions and a way around them, without parameters (He et al. 2016, option A)."""

    def __init__(self, narrow: int, wide: int):
        super().__init__()
        self.stride = wide // narrow
        self.first = nn.Conv2d(narrow, wide, 3, self.stride, 1, bias=False)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, wide) for _ in range(2))

    def forward(self, stream: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(stream)))
        inner = self.norms[1](self.second(inner))
        if self.stride > 1:
            around = stream[:, :, :: self.stride, :: self.stride]
            more = inner.shape[1] - around.shape[1]
            stream = F.pad(around, (0, 0, 0, 0, 0, more))
        return F.relu(inner + stream)


class ResNet20(nn.Module):
    """ResNet-20 of He et al. 2016 (section 4.2) for images of bytes, 272,814 parameters.

    Groups are normalised in place of batches, whose statistics workers would not share, and the
    first convolution has a stride of two, which makes a gradient four times as cheap.
    """

    def __init__(self, classes: int = len(LETTERS_OF)):
        super().__init__()
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.first = nn.Sequential(
            nn.Conv2d(1, widths[0], 3, 2, 1, bias=False), nn.GroupNorm(4, widths[0]), nn.ReLU()
        )
        self.blocks = nn.Sequential(*(_Block(*pair) for pair in pairwise(widths)))
        self.last = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        stream = self.blocks(self.first((images.float() - MEAN) / SPREAD))
        scores: Tensor = self.last(stream.mean((2, 3)))
        return scores


LETTERS = LearningTask(
    "letters",
    partial(seeded, ResNet20),
    _letters_to_train,
    classification_loss,
    _evaluate_letters,
    Constants,
    local_batch=8,
    learning_rate=0.2,
    about="58,000 rendered letters and digits of 62 classes, ResNet-20",
    made_of=_fonts,
)


# Text, byte by byte.

TESTED_FILES = 10  # one in this many files of code is for the test
TESTED_CONTEXTS = 256  # passages of a test text that are evaluated


def passages(content: bytes) -> Samples:
    """Return a text as passages of CONTEXT_BYTES and the byte that follows; labels are tenths."""
    text = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
    windows = text.unfold(0, CONTEXT_BYTES + 1, CONTEXT_BYTES)
    positions = torch.arange(len(windows))
    return Samples((windows,), positions * 10 // len(positions))


def loss_of_bytes(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of every next byte of these passages."""
    text = batch[0].long()
    scores = module(text[:, :-1])
    return F.cross_entropy(scores.reshape(-1, BYTE_VALUES), text[:, 1:].flatten())


def evaluate_on_bytes(module: nn.Module, samples: Samples) -> Evaluation:
    """Return the loss on passages from everywhere in the samples."""
    (windows,) = samples.tensors
    every = math.ceil(len(windows) / TESTED_CONTEXTS)
    with torch.no_grad():
        return Evaluation(loss_of_bytes(module, (windows[::every].clone(),)).item())


@cache
def _sources() -> tuple[bytes, bytes]:
    """Return the modules of the standard library by name: those to train on, those to test on."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if len(files) < 2 * TESTED_FILES:
        raise MissingPart(
            f"the task code needs the sources of Python's standard library, of which {folder} has "
            f"{len(files)} files; take a Python that is installed with them, or the task wikitext"
        )
    tested = files[TESTED_FILES // 2 :: TESTED_FILES]
    of_train = b"".join(read_bytes(path) for path in files if path not in tested)
    return of_train, b"".join(map(read_bytes, tested))


@cache
def _passages_of_code(number: int) -> Samples:
    return passages(_sources()[number])


def _evaluate_code(module: nn.Module) -> Evaluation:
    return evaluate_on_bytes(module, _passages_of_code(1))


def _python() -> str:
    digest = hashlib.sha256(b"".join(_sources())).hexdigest()[:12]
    return f"sources of Python {platform.python_version()}, {digest}"


SMALL_GPT = partial(SmallTransformer, width=64, heads=4, blocks=2)
CODE = LearningTask(
    "code",
    partial(seeded, SMALL_GPT),
    partial(_passages_of_code, 0),
    loss_of_bytes,
    _evaluate_code,
    Constants,
    local_batch=4,
    learning_rate=0.3,
    about="the next byte of Python's standard library, two transformer blocks",
    made_of=_python,
)
