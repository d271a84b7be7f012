"""The survey's three models on random data, built from transformers without a download."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.workloads.tasks import Batch, Task, like_parameters

# As published, and not padded. Scripts that train BERT on GPUs round it up to a multiple of 8, for
# matrices that are faster there; the rows that this adds are never looked up.
BERT_VOCABULARY = 30_522
SENTENCE_TOKENS = 64


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
    return F.cross_entropy(module(like_parameters(module, images)).logits, labels)


def _sentence_loss(module: nn.Module, batch: Batch) -> Tensor:
    tokens, labels, follows = batch
    loss: Tensor = module(input_ids=tokens, labels=labels, next_sentence_label=follows).loss
    return loss


_BERT_BASE = partial(_bert, layers=12, hidden=768, heads=12)
_BERT_LARGE = partial(_bert, layers=24, hidden=1024, heads=16)

SURVEY_TASKS = (
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
)  # fmt: skip
