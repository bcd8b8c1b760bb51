"""The example on real flights: what it prints follows from what it released."""

from __future__ import annotations

import re

import destinations
import pytest

from evercount.errors import MissingExtra
from evercount.examples.flights import flights

pytestmark = pytest.mark.slow


def test_the_example_tells_signal_from_noise() -> None:
    try:
        ticks = destinations.days(flights())[:60]
    except MissingExtra:
        pytest.skip("the flights of 2013 are not installed: pip install 'evercount[examples]'")
    text = destinations.report(ticks)
    rows = re.findall(r"^(\w{3,5}) +([\d,]+) +(-?[\d,]+) +(\d+) ", text, re.MULTILINE)
    assert {"total", "other"} < {row[0] for row in rows}
    for _, true, published, std in rows:
        assert abs(int(true.replace(",", "")) - int(published.replace(",", ""))) < 6 * int(std)
    truth = destinations.true_counts(ticks)
    assert "ATL" in text
    assert min(truth, key=lambda key: truth[key]) not in text, (
        "a destination with a handful of flights stays hidden"
    )
    assert "10 events" in text
