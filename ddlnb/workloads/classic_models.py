"""Two models from before attention, on random data: VGG-16 and the large LSTM of Penn Treebank."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.workloads.random_samples import RandomImages, RandomTokens
from ddlnb.workloads.tasks import Batch, Task, like_parameters

VGG_16: tuple[int | str, ...] = (
    *(64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool"),
    *(512, 512, 512, "pool", 512, 512, 512, "pool"),
)
PTB_WORDS, PTB_WIDTH, PTB_STEPS = 10_000, 1500, 35


def vgg16() -> nn.Module:
    """Return VGG-16 (Simonyan and Zisserman 2015, configuration D), without dropout."""
    steps: list[nn.Module] = []
    channels = 3
    for wider in VGG_16:
        if isinstance(wider, str):
            steps.append(nn.MaxPool2d(2))
        else:
            steps += [nn.Conv2d(channels, wider, 3, padding=1), nn.ReLU(inplace=True)]
            channels = wider
    steps += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True)]
    steps += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000)]
    return nn.Sequential(*steps)


class WordLSTM(nn.Module):
    """Two recurrent layers that predict the next word (Zaremba et al. 2014, large), no dropout."""

    def __init__(self, words: int = PTB_WORDS, width: int = PTB_WIDTH):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.next_word = nn.Linear(width, words)

    def forward(self, text: Tensor) -> Tensor:
        stream, _ = self.recurrent(self.words(text))
        logits: Tensor = self.next_word(stream)
        return logits


def _class_loss(module: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(module(like_parameters(module, images)), labels)


def _word_loss(module: nn.Module, batch: Batch) -> Tensor:
    (words,) = batch
    return F.cross_entropy(module(words).flatten(0, 1), words.flatten())


CLASSIC_TASKS = (
    Task(
        "vgg16", vgg16, RandomImages(), _class_loss, 32, "images",
        "VGG-16 (Simonyan and Zisserman 2015) on random 224x224 images",
    ),
    Task(
        "lstm", WordLSTM, RandomTokens(PTB_STEPS, PTB_WORDS), _word_loss, 20, "sequences",
        "the large LSTM of Zaremba et al. 2014 (Penn Treebank) on random words",
    ),
)  # fmt: skip
