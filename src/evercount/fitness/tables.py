"""The report of fitness as tables for a terminal."""

from __future__ import annotations

from evercount._validate import aligned
from evercount.fitness.report import (
    ALL_CAPS,
    CapShares,
    Fitness,
    Lateness,
    SmallKeys,
    UnknownKeys,
)

PRIVATE = "For you alone: exact, do not publish."
LEAST_TREND = 0.01  # a change of the share that caps drop, from which on it looks like a trend


def show_fitness(fitness: Fitness) -> str:
    """Write the report in paragraphs, the warning first."""
    paragraphs = [
        [PRIVATE],
        _files(fitness),
        _rows(fitness),
        _unknown_keys(fitness.unknown),
        _late(fitness.late),
        *map(_small_keys, fitness.small),
        _caps(fitness.caps),
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def _files(fitness: Fitness) -> list[str]:
    """List the files, and those that are there twice."""
    table = [["file", "rows", "bad", "repeated", "first", "last"]]
    for file in fitness.files:
        table.append(
            [
                file.file,
                f"{file.rows:,}",
                f"{file.bad:,}",
                f"{file.repeated:,}",
                file.first or "-",
                file.last or "-",
            ]
        )
    lines = [line.rstrip() for line in aligned(table, left=1)]
    for name, first in fitness.linked.items():
        same = "is named twice" if name == first else f"is the same file as {first}"
        lines.append(f"{name} {same}: read once here, and refused by `release`.")
    for name, first in fitness.equal.items():
        lines.append(f"{name} has the same rows as {first}: omit one, or all its rows count twice.")
    return lines


def _rows(fitness: Fitness) -> list[str]:
    """List what is wrong with rows; a row may be on several lines."""
    table = [["rows", f"{fitness.rows:,}", ""]]
    wrong = [
        (fitness.repeated, "equal to an earlier row in every column: they count again"),
        (fitness.future, f"after {fitness.now}: they wait for their tick"),
        (fitness.before_start, "before the start of the stream: bad rows"),
        (fitness.after_end, "after the last tick of the stream: they never count"),
        (fitness.no_person or 0, "without a person: bad rows"),
    ]
    for number, what in wrong:
        if number:
            table.append(["", f"{number:,}", what])
    lines = [line.rstrip() for line in _three_columns(table)]
    if fitness.bad:
        lines.append("bad rows, by the reason that `release` gives (--skip-bad leaves them out):")
        lines += [f"  {number:,}  {reason}" for reason, number in fitness.bad.items()]
    return lines


def _three_columns(table: list[list[str]]) -> list[str]:
    """Align a name, a number at its right, and a text at its left."""
    numbers = aligned([row[:2] for row in table], left=1)
    return [f"{number}  {row[2]}" for number, row in zip(numbers, table, strict=True)]


def _unknown_keys(unknown: UnknownKeys | None) -> list[str]:
    """List the most frequent keys that are not declared."""
    if unknown is None or not unknown.rows:
        return []
    becomes = "bad rows; --unknown other counts them as 'other'"
    if unknown.counted_as_other:
        becomes = "counted as 'other'"
    lines = [
        f"keys that are not in the list: {unknown.keys:,}, in {unknown.rows:,} rows ({becomes})"
    ]
    lines += [f"  {rows:,}  {key}" for key, rows in unknown.first.items()]
    return lines + _rest(unknown.keys, len(unknown.first))


def _rest(number: int, listed: int) -> list[str]:
    """Say how many more there are."""
    if number <= listed:
        return []
    return [f"  and {number - listed:,} more"]


def _late(late: Lateness) -> list[str]:
    """List when late rows happened and where they count."""
    if not late.rows:
        return []
    lines = [
        f"late rows: {late.rows:,}, if rows stand in the order in which they arrived and each tick "
        "is published as soon as it closes",
        f"the rule: {late.rule}",
    ]
    table = [["rows", "of", "count in"]]
    for begin, counted_in, rows in late.moves:
        table.append([f"{rows:,}", begin, counted_in or "nothing"])
    return lines + [f"  {line}".rstrip() for line in aligned(table)]


def _small_keys(small: SmallKeys) -> list[str]:
    """List the keys that drown in the noise of a view."""
    if not small.below:
        return []
    lines = [
        f"{small.view}: {small.below:,} of {small.keys:,} keys have on average fewer events than "
        f"the std of {small.std:.3g}"
    ]
    lines += [f"  {mean:,.3g}  {key}" for key, mean in small.smallest.items()]
    return lines + _rest(small.below, len(small.smallest))


def _caps(caps: CapShares | None) -> list[str]:
    """Show true and counted sums of each month next to each other, and the trend between them."""
    if caps is None or not caps.months:
        return []
    alone = [name for name in caps.counted if name != ALL_CAPS]
    table = [["month", "events", "counted", "difference", *(f"{name} alone" for name in alone)]]
    shares = caps.share_dropped(ALL_CAPS)
    columns = [shares, *map(caps.share_dropped, alone)]
    for place, month in enumerate(caps.months):
        differences = [f"{0 - column[place]:.1%}" for column in columns]
        numbers = (caps.events[place], caps.counted[ALL_CAPS][place])
        table.append([month, *(f"{number:,}" for number in numbers), *differences])
    lines = [
        "caps: what happened, and what the published numbers are about",
        *aligned(table, left=1),
    ]
    change = shares[-1] - shares[0]
    if abs(change) >= LEAST_TREND:
        word = "fall" if change > 0 else "rise"
        lines.append(
            f"A false trend: published sums {word} by {abs(change):.1%} of the events from "
            f"{caps.months[0]} to {caps.months[-1]} through the caps alone. Shorter periods "
            "(`period` 1d) make none."
        )
    return lines
