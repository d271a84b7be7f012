"""The survey's three models on random data, built from transformers without a download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddlnb.workloads.random_samples import RandomImages
from ddlnb.workloads.tasks import Batch, Task, like_parameters

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
