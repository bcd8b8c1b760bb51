"""Tables for people who read them: post-processed views, no more digits than the error allows, and a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.engine.release_table import ReleaseTable
from evercount.privacy.guarantee_text import tick_word

SHORT = 1e15  # numbers beyond this, in size, keep their digits: ten times them is no whole double

TITLES = {
    "tick": ("Number of the tick", "integer", "the last one that the number counts, from 1"),
    "start": ("Start", "datetime", "when the time that the number counts begins"),
    "first": ("First tick", "integer", "the first one that the number counts"),
    "as_of": ("As of tick", "integer", "the tick after which the number was published"),
    "revisions_left": ("Revisions to come", "integer", "how often it will still be published again; 0: final"),
    "note": ("Note", "string", "what the publisher says about the time that the number counts"),
    "cell": ("Key", "string", "what is counted: a region, a group, or the total"),
    "value": ("Number, with noise", "number", "the published number: the true one plus random noise"),
    "std": ("Standard error", "number", "the standard deviation of the noise, before post-processing"),
    "low": ("Interval from", "number", "the lower end of the interval"),
    "high": ("Interval to", "number", "the upper end of the interval"),
}
"""Title, data type and description of each column."""


def postprocess_table(table: ReleaseTable, names: Sequence[str], *, counts: bool) -> ReleaseTable:
    """The numbers of a view made nonnegative or whole. `counts`: the true numbers cannot be below zero.

    **Guarantee.** Post-processing. An interval holds its true number at least as often as before: it is cut at zero
    only where no true number lies below, and else only widened. Test:
    tests/engine/test_press_table.py::test_postprocessed_intervals_hold_as_often.
    """
    if not names:
        return table
    value, std, low, high = (table.numbers[:, part] for part in range(4))
    if "nonnegative" in names:
        value = np.maximum(value, 0.0)
        if counts:
            low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
    if "integer" in names:
        value, low, high = np.rint(value), np.floor(low), np.ceil(high)
    numbers = np.stack([value, std, np.minimum(low, value), np.maximum(high, value)], axis=1)
    return replace(table, numbers=numbers + 0.0)


def round_table(table: ReleaseTable) -> ReleaseTable:
    """The table with two digits of each std, and as many decimals of the number next to it; whole places stay. Ends of
    intervals are rounded outwards and stds upwards, so that they hold as stated. A number is a function of its own
    value, std and ends, so every way to a table gives the same one."""
    value, std, low, high = (table.numbers[:, part] for part in range(4))
    scale = _scale(np.where(np.isnan(std), (high - low) / 4, std))
    sides = [(value, np.rint), (std, np.ceil), (low, np.floor), (high, np.ceil)]
    rounded = [np.where(np.abs(side) < SHORT, way(side * scale) / scale, side) for side, way in sides]
    return replace(table, numbers=np.stack(rounded, axis=1) + 0.0)


def _scale(std: FloatArray) -> FloatArray:
    """10 to the number of decimals: one where the std has one digit before the point, none where it has more."""
    known = np.isfinite(std) & (std > 0)
    size = np.floor(np.log10(np.where(known, std, 1.0)))
    return np.where(known, 10.0 ** np.clip(1 - size, 0, 15), 1e15)


def describe_csv(url: str, columns: Sequence[str], facts: Mapping[str, Any], level: float) -> dict[str, Any]:
    """What a reader of a CSV must know, as CSV on the Web has it: titles of the columns, and the promise."""
    described, word = [], tick_word(facts["tick"])
    for name in columns:
        title, kind, text = TITLES.get(name, (name, "string", ""))
        title = title.replace("tick", word)
        if name in ("low", "high"):
            text += f": it holds the true number with probability {level:g} or more"
        described.append({"name": name, "titles": title, "datatype": kind, "dc:description": text})
    interval = (
        f"Each interval holds the true number of counted events with probability {level:g} or more. It is about the "
        "noise that protects people, not about events that never reached the data."
    )
    return {
        "@context": ["http://www.w3.org/ns/csvw", {"@language": "en"}],
        "url": url,
        "dc:description": facts["guarantee"],
        "tableSchema": {"columns": described},
        "notes": [{**facts, "interval": interval}],
    }
