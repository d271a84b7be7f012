"""Effective bandwidth: the lines through the quoted messages, and what is measured here."""

import pytest

from ddlnb.survey.published import quoted
from ddlnb.survey.sec2_message_size import (
    NETWORKS,
    TIME_ROUNDING,
    bandwidth_table,
    bert_large_example,
    beside_quoted,
    fits,
    measure_bandwidth,
    quoted_findings,
    quoted_fits,
    quoted_table,
)


@pytest.mark.item("A14", "A15")
def test_the_line_through_the_quoted_messages_and_what_they_say():
    fitted = quoted_fits()
    assert fitted.loc["10GbE", "latency_us"] == pytest.approx(95.02, abs=0.01)
    assert fitted.loc["100GbE", "gigabits_per_second"] == pytest.approx(17.2, abs=0.01)
    assert fitted.loc["100GbIB", "half_peak_KiB"] == pytest.approx(69.1, abs=0.1)
    said = quoted_findings()
    assert "16.5 Gb/s on 100GbE" in said
    assert "saturates near 17 Gb/s: 1.9 times" in said
    assert quoted_table().loc["10GbE", "latency between"] == "90.40 and 99.65"


@pytest.mark.item("A14", "A15")
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("quote", "text", "size"), [("A14", "1 MB", 2**20), ("A15", "16 KB", 2**14)]
)
def test_the_line_gives_the_quoted_times_and_rates_back(network, quote, text, size):
    line = quoted_fits().loc[network]
    seconds = line["latency_us"] * 1e-6 + 8 * size / (line["gigabits_per_second"] * 1e9)
    time = quoted(quote, f"time of a {text} message over {network}") * 1e-3
    rate = quoted(quote, f"rate of a {text} message over {network}")
    assert seconds == pytest.approx(time, abs=1e-3 * TIME_ROUNDING[quote, network])
    assert 8 * size / seconds / 1e9 == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("name", ["latency_us", "gigabits_per_second"])
def test_values_of_the_line_lie_in_their_ranges(name):
    fitted = quoted_fits()
    assert fitted[name].between(fitted[f"{name}_low"], fitted[f"{name}_high"]).all()


@pytest.mark.item("A12", "A13", "A17")
def test_the_bert_large_example_gives_the_quoted_speed_up():
    example = bert_large_example()
    assert example.loc["speed-up without overlap", "computed"] == pytest.approx(1.08, abs=0.005)
    assert example.loc["rate of a link of the ring (GB/s)", "computed"] == pytest.approx(
        4.57, abs=0.01
    )
    everything_hidden = example.loc["speed-up with everything hidden"]
    assert everything_hidden["published"] < everything_hidden["computed"]  # nothing hides all


@pytest.mark.ranks
def test_measured_rows_stand_beside_the_quoted_ones():
    measured = measure_bandwidth([1024, 1 << 20], workers=2, repetitions=2)
    assert (measured["seconds"] > 0).all()
    rows = beside_quoted(measured)
    assert set(rows["source"]) == {"measured", "published"}
    assert len(fits(rows)) == 5
    assert bandwidth_table(measured).shape == (2, 2)
