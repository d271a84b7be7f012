"""The models that are known by name, as tasks: nothing is downloaded.

The survey's three are built by transformers and run on random data, two small ones learn from real
data, two are from before attention, and the others are those of later papers: each of these is a
configuration of transformers with the sizes of its paper or of the published file of weights.
Dropout is off everywhere. Where vocabularies are published padded, they are padded here too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
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


def _resnet(name: str, depths: list[int], block: str, widths: list[int]) -> Task:
    sizes = {"depths": depths, "layer_type": block, "hidden_sizes": widths, "num_labels": 1000}
    about = f"{name.replace('resnet', 'ResNet-')} (He et al. 2016) on random 224x224 images"
    return _images(name, "ResNetForImageClassification", sizes, 64, about)


def _vit(name: str, layers: int, width: int, heads: int, batch: int) -> Task:
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "num_labels": 1000,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    about = f"ViT-{name[-1].upper()}/16 (Dosovitskiy et al. 2021) on random 224x224 images"
    return _images(name, "ViTForImageClassification", sizes, batch, about)


def _gpt2(name: str, layers: int, width: int, heads: int, batch: int) -> Task:
    sizes = {
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    about = "GPT-2 (Radford et al. 2019), a causal language model on random tokens"
    return _tokens(name, "GPT2LMHeadModel", sizes, batch, 1024, 1024, 50_257, about)


def _llama3(name: str, layers: int, width: int, heads: int, inner: int) -> Task:
    sizes = {
        "vocab_size": 128_256,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    about = "Llama 3 (Grattafiori et al. 2024), a causal language model on random tokens"
    return _tokens(name, "LlamaForCausalLM", sizes, 1, 2048, 8192, 128_256, about)


def _mixtral() -> Task:
    sizes = {
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
    }
    about = "Mixtral 8x7B (Jiang et al. 2024): of 8 experts, the 2 that a token goes to compute"
    name = "mixtral-8x7b"
    return _tokens(name, "MixtralForCausalLM", sizes, 1, 2048, 32_768, 32_000, about)


def _t5() -> Task:
    sizes = {
        "vocab_size": 32_128,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 3072,
        "num_layers": 12,
        "num_heads": 12,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }
    about = "T5-Base (Raffel et al. 2020) on random pairs of sequences"
    return _tokens("t5", "T5ForConditionalGeneration", sizes, 8, 512, None, 32_128, about)


def _images(name: str, architecture: str, sizes: dict[str, Any], batch: int, about: str) -> Task:
    build = partial(build_published, architecture, sizes)
    return Task(name, build, RandomImages(), image_loss, batch, "images", about)


def _tokens(
    name: str,
    architecture: str,
    sizes: dict[str, Any],
    batch: int,
    sequence: int,
    longest: int | None,
    vocabulary: int,
    about: str,
) -> Task:
    build = partial(build_published, architecture, sizes)
    samples = RandomTokens(sequence, vocabulary, longest)
    return Task(name, build, samples, token_loss, batch, "sequences", about)


PUBLISHED_TASKS = (
    _resnet("resnet18", [2, 2, 2, 2], "basic", [64, 128, 256, 512]),
    _resnet("resnet101", [3, 4, 23, 3], "bottleneck", [256, 512, 1024, 2048]),
    _resnet("resnet152", [3, 8, 36, 3], "bottleneck", [256, 512, 1024, 2048]),
    _vit("vit-b", 12, 768, 12, 64),
    _vit("vit-l", 24, 1024, 16, 32),
    _gpt2("gpt2", 12, 768, 12, 8),
    _gpt2("gpt2-medium", 24, 1024, 16, 4),
    _gpt2("gpt2-large", 36, 1280, 20, 2),
    _gpt2("gpt2-xl", 48, 1600, 25, 1),
    _llama3("llama3-8b", 32, 4096, 32, 14_336),
    _llama3("llama3-70b", 80, 8192, 64, 28_672),
    _mixtral(),
    _t5(),
)

# By name, in the order in which they are listed.
TASKS = {
    task.name: task for task in (*SURVEY_TASKS, *SMALL_TASKS, *PUBLISHED_TASKS, *CLASSIC_TASKS)
}
