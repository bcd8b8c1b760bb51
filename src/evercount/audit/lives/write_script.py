"""write_script: a find as a short Python program, which shows it to anyone who has evercount."""

from __future__ import annotations

from evercount.audit.lives.verdict import Find


def write_script(find: Find) -> str:
    """About ten lines. They run the life in both worlds and print what is wrong.

    Test: tests/audit/test_lives.py::test_a_script_shows_the_find.
    """
    life = find.life
    steps = ", ".join(f"({step.name!r}, {step.argument!r})" for step in life.steps)
    rows = "".join(f"    {tuple(event)!r},\n" for event in life.history)
    lines = [
        "# " + find.reason[:300].replace("\n", " "),
        "from evercount.audit.lives.attack import show",
        f"declaration = {dict(life.declaration)!r}",
        "# rows: second since 1970, person, key, value, second of arrival (0: at once)",
        f"rows = [\n{rows}]",
    ]
    if find.neighbour is None:
        lines.append("neighbour = None")
    else:
        other = "".join(f"    {tuple(event)!r},\n" for event in find.neighbour)
        lines.append(f"neighbour = [\n{other}]")
    lines.append(
        f"show({life.way!r}, declaration, rows, neighbour, [{steps}], total={life.total!r}, "
        f"seed={life.seed!r})"
    )
    return "\n".join(lines)
