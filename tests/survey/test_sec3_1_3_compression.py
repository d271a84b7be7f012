"""Compressors measured: bits as serialised, losses within their bounds, residuals, quotes.

Statistical tests average with fixed seeds; tolerances are several standard errors.
"""

import math

import pandas as pd
import pytest
import torch

from ddlnb.compression.base import CONTRACTION, NONE, UNBIASED, Compressor
from ddlnb.compression.catalogue import COMPRESSORS, get_compressor
from ddlnb.compression.profile import FREE
from ddlnb.figures import compression_losses
from ddlnb.survey.sec3_1_3_compression import (
    COMPARED,
    compression_errors,
    compressor_table,
    digits_gradients,
    entropy_bits,
    message_bytes,
    normal_like,
    orderings_table,
    residual_growth,
    traffic_claims,
    traffic_of_resnet50,
)

DRAWS = 40
MATRIX = torch.randn(48, 96, generator=torch.Generator().manual_seed(3))


def compressor(name: str) -> Compressor:
    found = get_compressor(name)
    assert found is not None
    return found


def test_every_compressor_is_compared_and_ratios_are_quoted_but_for_scales():
    assert {compressor(name).name for name in COMPARED} == set(COMPRESSORS)
    table = compressor_table(profile=FREE, side=512)
    assert (table["encode (ms)"] == 0).all()
    for name, ratio in table["ratio"].items():
        quote = compressor(str(name)).quoted_ratio((512, 512))
        # Others are quoted of whole trainings with other codings.
        assert quote.tag == "[k]" or ratio == pytest.approx(quote.low, rel=0.015), name


def test_losses_are_within_bounds_cured_where_unbiased_and_drawn_as_they_are():
    gradient = digits_gradients(after=5, count=3)[0]
    names = (*COMPARED, "random-k(0.1, True)", "qsgd(4, 16)", "terngrad(2.5)")
    asked = {"digits": gradient, "normal": normal_like(gradient)}
    found = [compression_errors(one, name, names, DRAWS) for name, one in asked.items()]
    errors = pd.concat(found, ignore_index=True)
    drawing = errors["left"] < 0.999
    allowed = errors["bound"] * drawing.map({True: 1.05, False: 1 + 1e-6})
    assert (errors["loss"] <= allowed).all(), errors[errors["loss"] > allowed]
    for row in errors.to_dict("records"):
        if row["law"] == UNBIASED:
            assert row["left"] == pytest.approx(1 / DRAWS, rel=0.35), row
        elif "random-k" in row["compressor"]:
            assert row["left"] > 0.9
        elif "powersgd" not in row["compressor"] and row["law"] == CONTRACTION:
            assert row["left"] == pytest.approx(1.0)
    lines = {str(line.get_label()): line for line in compression_losses(errors).axes[0].lines}
    of_digits = errors[errors["on"] == "digits"].set_index("compressor")["loss"]
    assert list(lines["digits"].get_xdata()) == of_digits[errors["compressor"].unique()].tolist()


@pytest.mark.parametrize(
    ("name", "tensor", "loss"),
    [
        ("qsgd(2)", torch.ones(16), 2.0),
        ("qsgd(8)", torch.ones(16), 0.25),
        ("qsgd(2, 4)", torch.ones(16), 1.0),
        ("top-k(0.25)", torch.ones(16), 0.75),
        ("ef-sign", torch.tensor([1.0, -1.0, 1.0, 1.0]), 0.0),
        ("ef-sign", torch.tensor([1.0, 0.0, 0.0, 0.0]), 0.75),
        ("terngrad", torch.tensor([1.0, 0.5]), 0.2),
        ("random-k(0.25, True)", torch.ones(16), 3.0),
        ("powersgd(1)", torch.ones(4, 8), 0.875),
        ("powersgd(1)", torch.ones(8), 0.0),
        ("fp16", torch.ones(1), 2.0**-22),
    ],
)
def test_bounds_by_hand(name, tensor, loss):
    assert compressor(name).error_bound(tensor).loss == pytest.approx(loss)


def test_signs_alone_have_no_bound():
    assert compressor("signsgd").error_bound(MATRIX)[:2] == (math.inf, NONE)


@pytest.mark.parametrize("name", COMPARED)
def test_a_message_has_as_many_bytes_as_its_formula_says(name):
    one = compressor(name)
    asked = [request.bytes for request in one.traffic(tuple(MATRIX.shape), 2)]
    # As many come back down a tree as go up.
    assert message_bytes(one, MATRIX) == (asked[0] if one.name == "gtop-k" else sum(asked))


def test_entropy_is_that_of_the_codes():
    half = torch.tensor([1.0, -1.0] * 64)
    assert entropy_bits(compressor("ef-sign"), half) == pytest.approx(1.0)
    assert entropy_bits(compressor("ef-sign"), half.abs()) == 0.0
    assert math.isnan(entropy_bits(compressor("top-k(0.1)"), half))
    # Of qsgd with as many levels as sqrt(D): at most 2.8 bits with the paper's own coding.
    coded = entropy_bits(compressor("qsgd(256)"), torch.randn(256, 256))
    assert 1.0 < coded <= 2.8


def test_residuals_stay_within_the_bound_of_a_contraction_and_else_grow():
    """|e|^2 <= 4 (1 - d) / d^2 G^2 for a loss of at most 1 - d (Karimireddy et al., lemma 3)."""
    seeds = (torch.Generator().manual_seed(step) for step in range(200))
    stream = [torch.randn(400, generator=seed) for seed in seeds]
    table = residual_growth(["top-k(0.1)"], stream)
    norms = torch.stack(stream).norm(dim=1)
    scale, most = norms.square().mean().sqrt().item(), norms.max().item()
    bound = math.sqrt(4 * 0.9) / 0.1 * most / scale
    assert table["residual"].max() <= bound
    assert len(table) == 200
    stream = [MATRIX.flatten()] * 60
    table = residual_growth(["qsgd(7)", "qsgd(7, 49)"], stream)
    ends = table.groupby("compressor", sort=False)["residual"].last()
    assert ends["qsgd(7, None)"] > 100
    assert ends["qsgd(7, 49)"] < 1
    table = residual_growth(["qsgd(1)"], [torch.full((1 << 14,), 1e33)] * 400)
    assert 0 < len(table) < 400
    assert all(map(math.isfinite, table["residual"]))


def test_claims_about_traffic_come_out_of_the_requests_which_grow_where_gathered():
    for workers in (4, 8, 16, 32):
        table = traffic_claims(1_000_000, workers)
        assert table["computed"].tolist() == pytest.approx(table["expected"].tolist(), rel=1e-3)
    sent = traffic_of_resnet50([4, 32]).set_index(["compressor", "workers"])["bytes"]
    growth = sent.xs(32, level=1) / sent.xs(4, level=1)
    assert growth["top-k(0.01)"] > 1.9 * growth["none"]
    assert growth["random-k(0.001)"] == pytest.approx(growth["none"], abs=1e-3)


def test_one_seed_decides_no_ordering_and_stops_no_notebook():
    (row,) = orderings_table(pd.DataFrame({"seed": [0, 0], "test_loss": [1.0, 2.0]})).itertuples()
    assert "one seed" in row.verdict
