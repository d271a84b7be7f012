"""Intensity and C2C, and the parameter counts of the survey (A06 to A09, A16)."""

import pytest
import torch

from ddlnb.errors import InputError
from ddlnb.survey.published import quoted
from ddlnb.workloads import models as survey_models
from ddlnb.workloads.models import _bert
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import c2c, intensity

SURVEY_MODELS = ("resnet50", "bert-base", "bert-large")


def test_intensity_does_not_depend_on_the_batch():
    assert intensity(trace("small-conv", 8)) == intensity(trace("small-conv", 1))
    assert intensity(trace("small-conv"), 2) == 2 * intensity(trace("small-conv"))
    with pytest.raises(InputError, match="1 or 2 FLOPs"):
        intensity(trace("small-conv"), 3)


@pytest.mark.item("A07", "A08", "A09")
def test_communication_per_computation_has_the_quoted_ratios():
    resnet, base, large = (quoted("A06", f"intensity of {model}") for model in SURVEY_MODELS)
    assert c2c(base, 64) / c2c(resnet, 64) == pytest.approx(2, abs=0.15)  # A08: "about 2x"
    assert c2c(large, 8) / c2c(base, 64) == pytest.approx(8, abs=0.05)  # A09: "about 8x"
    assert c2c(base, 64, traffic=2) == 2 * c2c(base, 64)
    with pytest.raises(InputError, match="batch 0"):
        c2c(base, 0)


@pytest.mark.item("A10", "A16")
def test_the_parameter_counts_and_size_are_the_quoted_ones():
    workloads = {model: trace(model) for model in SURVEY_MODELS}
    for model, workload in workloads.items():
        assert workload.parameters == pytest.approx(
            quoted("A16", f"parameters of {model}"), rel=0.003
        )
    assert workloads["bert-large"].gradient_bytes / 1e9 == pytest.approx(
        quoted("A10", "fp32 size of bert-large"), abs=0.006
    )


@pytest.mark.parametrize(("layers", "hidden"), [(12, 768), (24, 1024)], ids=["base", "large"])
def test_the_vocabulary_is_not_padded_which_would_hardly_add_parameters(
    monkeypatch, layers, hidden
):
    def shapes():
        with torch.device("meta"):
            return dict(_bert(layers, hidden, heads=hidden // 64).named_parameters())

    published, words = shapes(), survey_models.BERT_VOCABULARY
    assert published["bert.embeddings.word_embeddings.weight"].shape == (30_522, hidden)
    padded = -(-words // 8) * 8
    monkeypatch.setattr(survey_models, "BERT_VOCABULARY", padded)
    sizes = [sum(one.numel() for one in found.values()) for found in (published, shapes())]
    added = sizes[1] - sizes[0]
    assert added == (padded - words) * (hidden + 1) == 6 * (hidden + 1)  # a row and a bias each
    assert added / sizes[0] < 1e-4


@pytest.mark.item("A01")
def test_bert_xlarge_has_more_than_a_billion_parameters():
    with torch.device("meta"):
        xlarge = _bert(24, hidden=2048, heads=16)
    assert sum(parameter.numel() for parameter in xlarge.parameters()) > 1e9
