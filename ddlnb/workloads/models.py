"""The models that are known by name, as tasks: nothing is downloaded.

The survey's three are built by transformers and run on random data, two small ones learn from real
data, two are from before attention, and the others are those of later papers: each of these is a
configuration of transformers with the sizes of its paper or of the published file of weights.
Dropout is off everywhere. Where vocabularies are published padded, they are padded here too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.errors import InputError
from ddlnb.files import DIGITS, SURVEY_NOTES
from ddlnb.workloads.hugging_face import build_from_config, image_loss, token_loss
from ddlnb.workloads.task import Batch, RandomImages, RandomTokens, Task, like_parameters

# As published, and not padded. Scripts that train BERT on GPUs round it up to a multiple of 8, for
# matrices that are faster there; the rows that this adds are never looked up.
BERT_VOCABULARY = 30_522


def _resnet50() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000)  # type: ignore[call-arg]  # a field of its base class
    return ResNetForImageClassification(config)


def _bert(layers: int, hidden: int, heads: int) -> nn.Module:
    from transformers import BertConfig, BertForPreTraining

    # Dropout would make the gradient depend on which rank drew which mask; without it all ranks
    # together compute the gradient of the joined batch, and results can be compared exactly.
    config = BertConfig(
        vocab_size=BERT_VOCABULARY,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForPreTraining(config)


@dataclass(frozen=True)
class _RandomSentences:
    """Tokens, a label for each of them, and whether the second half follows the first."""

    sequence: int = 64
    longest: int = 512

    def __call__(self, local_batch: int, seed: int) -> Batch:
        """Return so many sentences, others for every seed."""
        # Every token carries a label: means over equally many tokens average to the joined mean.
        draw = torch.Generator().manual_seed(seed)
        shape = (local_batch, self.sequence)
        tokens = torch.randint(BERT_VOCABULARY, shape, generator=draw)
        labels = torch.randint(BERT_VOCABULARY, shape, generator=draw)
        return tokens, labels, torch.randint(2, (local_batch,), generator=draw)


def _image_loss(module: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(module(like_parameters(module, images)).logits, labels)


def _sentence_loss(module: nn.Module, batch: Batch) -> Tensor:
    tokens, labels, follows = batch
    loss: Tensor = module(input_ids=tokens, labels=labels, next_sentence_label=follows).loss
    return loss


_BERT_BASE = partial(_bert, layers=12, hidden=768, heads=12)
_BERT_LARGE = partial(_bert, layers=24, hidden=1024, heads=16)

SURVEY_TASKS = (
    Task(
        "resnet50", _resnet50, RandomImages(), _image_loss, 64, "images",
        "ResNet-50 on random 224x224 images; batch normalisation is per rank, as in the survey",
    ),
    Task(
        "bert-base", _BERT_BASE, _RandomSentences(), _sentence_loss, 64, "sentences",
        "BERT-Base pre-training on random sentences of 64 tokens, without dropout",
    ),
    Task(
        "bert-large", _BERT_LARGE, _RandomSentences(), _sentence_loss, 8, "sentences",
        "BERT-Large pre-training on random sentences of 64 tokens, without dropout",
    ),
)  # fmt: skip


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images, (1797, 1, 8, 8) with pixels of 0 to 16 in float32, and labels in int64.

    Raises InputError if the file cannot be read.
    """
    try:
        rows = np.loadtxt(DIGITS, delimiter=",", dtype=np.int64)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the digits are read from {DIGITS}, which cannot be read ({error}); "
            f"it is part of a complete checkout"
        ) from error
    return rows[:, :-1].astype(np.float32).reshape(-1, 1, 8, 8), rows[:, -1]


BYTE_VALUES = 256
CONTEXT_BYTES = 64


def class_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean loss of a module whose outputs are the logits of classes."""
    images, labels = batch
    return F.cross_entropy(module(like_parameters(module, images)), labels)


def small_conv() -> nn.Module:
    """Six 3x3 convolutions and two linear layers; one late tensor holds most of the bytes."""
    steps: dict[str, nn.Module] = {}
    channels = 1
    for index, wider in enumerate((24, 24, 48, 48, 96, 96), start=1):
        steps[f"conv{index}"] = nn.Conv2d(channels, wider, 3, padding=1)
        # BatchNorm would normalise over one rank's batch, not over the joined one.
        steps[f"norm{index}"] = nn.GroupNorm(4, wider)
        steps[f"relu{index}"] = nn.ReLU()
        if index in (2, 4):
            steps[f"pool{index}"] = nn.MaxPool2d(2)
        channels = wider
    steps["flatten"] = nn.Flatten()
    steps["hidden"] = nn.Linear(96 * 4 * 4, 512)
    steps["relu"] = nn.ReLU()
    steps["classes"] = nn.Linear(512, 10)
    return nn.Sequential(OrderedDict(steps))


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """All 1,797 digits as images of 16x16 with values in 0..1, and their labels."""
    pixels, labels = read_digits()
    return F.interpolate(torch.tensor(pixels) / 16, scale_factor=2), torch.tensor(labels)


def _draw_digits(local_batch: int, seed: int) -> Batch:
    images, labels = _digits()
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(images), (local_batch,), generator=draw)
    return images[chosen], labels[chosen]


class _Block(nn.Module):
    """One pre-norm transformer block with causal self-attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        joined = self.query_key_value(self.attention_norm(stream))
        query, key, value = joined.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attention_out(mixed.transpose(1, 2).flatten(-2))
        stream = stream + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(stream))))
        return stream


class SmallTransformer(nn.Module):
    """A causal language model over bytes: logits of the next byte at every position."""

    def __init__(self, width: int = 128, heads: int = 4, blocks: int = 4):
        super().__init__()
        self.bytes = nn.Embedding(BYTE_VALUES, width)
        self.positions = nn.Embedding(CONTEXT_BYTES, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.next_byte = nn.Linear(width, BYTE_VALUES)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        stream = self.bytes(text) + self.positions(positions)
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.next_byte(self.norm(stream))
        return logits


@cache
def _text() -> Tensor:
    """Return the bytes of the frozen text, which no edit of the project changes."""
    try:
        content = SURVEY_NOTES.read_bytes()
    except OSError as error:
        raise InputError(
            f"small-transformer trains on {SURVEY_NOTES}, which cannot be read "
            f"({error.strerror}); run from a checkout"
        ) from error
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def _draw_text(local_batch: int, seed: int) -> Batch:
    text = _text()
    draw = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT_BYTES, (local_batch,), generator=draw)
    windows = text[starts[:, None] + torch.arange(CONTEXT_BYTES + 1)]
    return windows[:, :-1], windows[:, 1:]


def _text_loss(module: nn.Module, batch: Batch) -> Tensor:
    context, following = batch
    return F.cross_entropy(module(context).flatten(0, 1), following.flatten())


SMALL_TASKS = (
    Task(
        "small-conv", small_conv, _draw_digits, class_loss, 64, "images",
        "six convolutions on scikit-learn's handwritten digits",
    ),
    Task(
        "small-transformer", SmallTransformer, _draw_text, _text_loss, 16, "sentences",
        "a causal transformer that predicts the next byte of this project's own text",
    ),
)  # fmt: skip


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


def _word_loss(module: nn.Module, batch: Batch) -> Tensor:
    (words,) = batch
    return F.cross_entropy(module(words).flatten(0, 1), words.flatten())


CLASSIC_TASKS = (
    Task(
        "vgg16", vgg16, RandomImages(), class_loss, 32, "images",
        "VGG-16 (Simonyan and Zisserman 2015) on random 224x224 images",
    ),
    Task(
        "lstm", WordLSTM, RandomTokens(PTB_STEPS, PTB_WORDS), _word_loss, 20, "sequences",
        "the large LSTM of Zaremba et al. 2014 (Penn Treebank) on random words",
    ),
)  # fmt: skip


def build_published(architecture: str, sizes: dict[str, Any]) -> nn.Module:
    """Return the model of transformers of this class, with these fields of its configuration."""
    import transformers

    model_class = getattr(transformers, architecture)
    return build_from_config(model_class.config_class(**sizes), architecture)


@dataclass(frozen=True)
class _Family:
    """Models of one class of transformers: the fields of its configuration, by size and for all."""

    architecture: str
    about: str
    varies: tuple[str, ...]
    fixed: dict[str, Any] = field(default_factory=dict)
    samples: RandomImages | RandomTokens = field(default_factory=RandomImages)

    def task(self, name: str, batch: int, *sizes: Any, about: str = "") -> Task:
        """Return the task of this name with these sizes, in the order of ``varies``."""
        config = {**self.fixed, **dict(zip(self.varies, sizes, strict=True))}
        is_image = isinstance(self.samples, RandomImages)
        return Task(
            name,
            partial(build_published, self.architecture, config),
            self.samples,
            image_loss if is_image else token_loss,
            batch,
            "images" if is_image else "sequences",
            f"{about}{self.about}",
        )


_RESNET = _Family(
    "ResNetForImageClassification",
    " (He et al. 2016) on random 224x224 images",
    ("depths", "layer_type", "hidden_sizes"),
    {"num_labels": 1000},
)
_VIT = _Family(
    "ViTForImageClassification",
    " (Dosovitskiy et al. 2021) on random 224x224 images",
    ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    {"num_labels": 1000, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
)
_GPT2 = _Family(
    "GPT2LMHeadModel",
    "GPT-2 (Radford et al. 2019), a causal language model on random tokens",
    ("n_layer", "n_embd", "n_head"),
    dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    RandomTokens(1024, 50_257, 1024),
)
_LLAMA3 = _Family(
    "LlamaForCausalLM",
    "Llama 3 (Grattafiori et al. 2024), a causal language model on random tokens",
    ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    {
        "vocab_size": 128_256,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
    RandomTokens(2048, 128_256, 8192),
)
_MIXTRAL = _Family(
    "MixtralForCausalLM",
    "Mixtral 8x7B (Jiang et al. 2024): of 8 experts, the 2 that a token goes to compute",
    (),
    {
        "vocab_size": 32_000,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    },
    RandomTokens(2048, 32_000, 32_768),
)
_T5 = _Family(
    "T5ForConditionalGeneration",
    "T5-Base (Raffel et al. 2020) on random pairs of sequences",
    (),
    {
        "vocab_size": 32_128,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 3072,
        "num_layers": 12,
        "num_heads": 12,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    },
    RandomTokens(512, 32_128),
)
_BASIC, _BOTTLENECK = ("basic", [64, 128, 256, 512]), ("bottleneck", [256, 512, 1024, 2048])

PUBLISHED_TASKS = (
    _RESNET.task("resnet18", 64, [2, 2, 2, 2], *_BASIC, about="ResNet-18"),
    _RESNET.task("resnet101", 64, [3, 4, 23, 3], *_BOTTLENECK, about="ResNet-101"),
    _RESNET.task("resnet152", 64, [3, 8, 36, 3], *_BOTTLENECK, about="ResNet-152"),
    _VIT.task("vit-b", 64, 12, 768, 12, 3072, about="ViT-B/16"),
    _VIT.task("vit-l", 32, 24, 1024, 16, 4096, about="ViT-L/16"),
    _GPT2.task("gpt2", 8, 12, 768, 12),
    _GPT2.task("gpt2-medium", 4, 24, 1024, 16),
    _GPT2.task("gpt2-large", 2, 36, 1280, 20),
    _GPT2.task("gpt2-xl", 1, 48, 1600, 25),
    _LLAMA3.task("llama3-8b", 1, 32, 4096, 32, 14_336),
    _LLAMA3.task("llama3-70b", 1, 80, 8192, 64, 28_672),
    _MIXTRAL.task("mixtral-8x7b", 1),
    _T5.task("t5", 8),
)

# By name, in the order in which they are listed.
TASKS = {
    task.name: task for task in (*SURVEY_TASKS, *SMALL_TASKS, *PUBLISHED_TASKS, *CLASSIC_TASKS)
}
