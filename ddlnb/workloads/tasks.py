"""What can be trained: the survey's three models, two small ones with real data, and yours.

A task says how to build a module, draw a batch and compute a loss. Tasks travel to other processes
by pickle, so everything in one is a module-level function or a functools.partial. Losses are means
over samples: the mean of the gradients of n equal batches is the gradient of the joined batch.
These tasks are trained for their speed; those on which learning is judged, with test data, are in
`ddlnb.training.tasks`.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ddlnb.errors import InputError, ModelError, UnknownName, require_whole
from ddlnb.paths import SURVEY_NOTES
from ddlnb.workloads.workload import Workload

Batch = tuple[Tensor, ...]

BERT_VOCABULARY = 30_522
SENTENCE_TOKENS = 64
BYTE_VALUES = 256
CONTEXT_BYTES = 64


@dataclass(frozen=True)
class Task:
    """Something to train. ``batch(local_batch, seed)`` depends on its two arguments only.

    ``build()`` returns a new module, ``loss(module, batch)`` the mean loss over the batch.
    ``local_batch`` is the default number of samples, counted in ``unit``. ``recorded`` is the
    workload of a task that replays one (see replay.py), in real seconds. `ddlnb.task` makes one of
    a module of yours.

    >>> from ddlnb.workloads.tasks import TASKS
    >>> small = TASKS["small-conv"]
    >>> module, batch = small.build(), small.batch(4, seed=0)
    >>> small.loss(module, batch).shape
    torch.Size([])
    """

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    batch: Callable[[int, int], Batch] = field(repr=False)
    loss: Callable[[nn.Module, Batch], Tensor] = field(repr=False)
    local_batch: int
    unit: str
    about: str = field(repr=False)
    recorded: Workload | None = field(default=None, repr=False)


def get_task(task: str | Task) -> Task:
    """Return the task of that name, or the task itself. Raises UnknownName.

    >>> get_task("small-conv")
    Task(name='small-conv', local_batch=64, unit='images')
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, nn.Module):
        raise ModelError(
            f"model {type(task).__name__} comes without data; wrap it with "
            f"ddlnb.task(module, batch=..., loss=...)"
        )
    if task not in TASKS:
        raise UnknownName("model", task, TASKS)
    return TASKS[task]


def task(
    module: nn.Module,
    *,
    batch: Callable[[int, int], Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    name: str | None = None,
    local_batch: int = 32,
) -> Task:
    """Return a task around your own module; every build is a deep copy of it as it is then.

    ``batch(local_batch, seed)`` returns a tuple of tensors, others for every seed: each worker
    and step has its own. ``loss(module, batch)`` is their mean loss. Both must be picklable.
    Raises ModelError for what cannot be trained.

    >>> import ddlnb
    >>> def draw(local_batch, seed):
    ...     generator = torch.Generator().manual_seed(seed)
    ...     return (torch.randn(local_batch, 4, generator=generator),)
    >>> def loss(module, batch):
    ...     return module(batch[0]).square().mean()
    >>> mine = ddlnb.task(nn.Linear(4, 2), batch=draw, loss=loss, name="mine", local_batch=8)
    >>> ddlnb.trace(mine)
    Workload('mine', batch=1, 2 gradients, 40 B, 0 us)
    """
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"model {module!r} is a {type(module).__name__}, not a torch.nn.Module; "
            f"pass a module instance, such as torch.nn.Linear(4, 2)"
        )
    name = name or type(module).__name__
    require_trainable(module, name)
    for what, function in (("batch", batch), ("loss", loss)):
        if not callable(function):
            raise ModelError(
                f"{what} of model {name!r} is {function!r}, not a function; "
                f"pass batch(local_batch, seed) and loss(module, batch)"
            )
    require_whole(local_batch=local_batch)
    return Task(name, partial(copy.deepcopy, module), batch, loss, local_batch, "samples", name)


def require_trainable(module: nn.Module, name: str) -> None:
    """Raise ModelError unless the module has parameters that want a gradient, and allows hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"model {name!r} is a TorchScript module, whose layers cannot be watched; "
            f"pass the module that was scripted or traced"
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
        raise ModelError(
            f"model {name!r} has lazy parameters without a size yet; "
            f"call the module once on a batch before making a task of it"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            f"model {name!r} has no trainable parameter, so there is no gradient to exchange; "
            f"give it an nn.Parameter or set requires_grad=True on one it has"
        )


def build_on_meta(task: Task) -> nn.Module:
    """Build the task's module without values.

    Tied parameters stay tied, which ``.to("meta")`` breaks.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        module = task.build()
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def _like_parameters(module: nn.Module, inputs: Tensor) -> Tensor:
    """The inputs in the module's own floating type, so that ``module.double()`` just works."""
    return inputs.to(next(module.parameters()).dtype)


# The survey's models, built from transformers without downloading anything.


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


def _random_images(local_batch: int, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(local_batch, 3, 224, 224, generator=draw)
    return images, torch.randint(1000, (local_batch,), generator=draw)


def _random_sentences(local_batch: int, seed: int) -> Batch:
    # Every token carries a label: means over equally many tokens average to the joined mean.
    draw = torch.Generator().manual_seed(seed)
    shape = (local_batch, SENTENCE_TOKENS)
    tokens = torch.randint(BERT_VOCABULARY, shape, generator=draw)
    labels = torch.randint(BERT_VOCABULARY, shape, generator=draw)
    return tokens, labels, torch.randint(2, (local_batch,), generator=draw)


def _image_loss(module: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(module(_like_parameters(module, images)).logits, labels)


def _sentence_loss(module: nn.Module, batch: Batch) -> Tensor:
    tokens, labels, follows = batch
    loss: Tensor = module(input_ids=tokens, labels=labels, next_sentence_label=follows).loss
    return loss


# A small convolutional network on scikit-learn's handwritten digits.


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
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return F.interpolate(images, scale_factor=2), torch.tensor(labels)


def _draw_digits(local_batch: int, seed: int) -> Batch:
    images, labels = _digits()
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(images), (local_batch,), generator=draw)
    return images[chosen], labels[chosen]


def _digit_loss(module: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(module(_like_parameters(module, images)), labels)


# A small transformer that predicts the next byte of a frozen text of this project.


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


UNIFORM_TEXT_LOSS = math.log(BYTE_VALUES)  # what guessing every byte alike would score

_BERT_BASE = partial(_bert, layers=12, hidden=768, heads=12)
_BERT_LARGE = partial(_bert, layers=24, hidden=1024, heads=16)

_CATALOGUE = (
    Task(
        "resnet50", _resnet50, _random_images, _image_loss, 64, "images",
        "ResNet-50 on random 224x224 images; batch normalisation is per rank, as in the survey",
    ),
    Task(
        "bert-base", _BERT_BASE, _random_sentences, _sentence_loss, 64, "sentences",
        "BERT-Base pre-training on random sentences of 64 tokens, without dropout",
    ),
    Task(
        "bert-large", _BERT_LARGE, _random_sentences, _sentence_loss, 8, "sentences",
        "BERT-Large pre-training on random sentences of 64 tokens, without dropout",
    ),
    Task(
        "small-conv", small_conv, _draw_digits, _digit_loss, 64, "images",
        "six convolutions on scikit-learn's handwritten digits",
    ),
    Task(
        "small-transformer", SmallTransformer, _draw_text, _text_loss, 16, "sentences",
        "a causal transformer that predicts the next byte of this project's own text",
    ),
)  # fmt: skip
TASKS = {entry.name: entry for entry in _CATALOGUE}
