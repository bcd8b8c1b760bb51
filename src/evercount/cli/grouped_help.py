"""Help in groups: the options of a command with many of them, and the commands themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from typer.core import TyperCommand

RESEARCH = ("reproduce", "bench", "example", "audit")
"""Commands for those who want to see for themselves; all others are for those who publish."""


class GroupedCommand(TyperCommand):
    """A command whose help shows examples first, and then its options group by group."""

    examples: ClassVar[Mapping[str, str]] = {}
    """Commands, by what they do; lines of them end where the terminal's do."""

    @classmethod
    def groups(cls) -> Mapping[str, Iterable[str]]:
        """Name the parameters of each group; the last group has those that are in none."""
        from evercount.front_door.options import GROUPS

        groups = {title: list(names) for title, names in GROUPS.items()}
        first = next(iter(groups))
        groups[first] = ["streams", "stream", *groups[first]]
        return groups

    def format_options(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Examples"):
            for what, command in self.examples.items():
                formatter.write_text(f"{what}:")
                lines = command.splitlines()
                formatter.write("".join(f"    {line}\n" for line in lines))
        parameters = {parameter.name: parameter for parameter in self.get_params(ctx)}
        arguments = [name for name, one in parameters.items() if one.param_type_name == "argument"]
        groups = {"Arguments": arguments, **self.groups()}
        in_a_group = {name for names in groups.values() for name in names}
        last = list(groups)[-1]
        groups[last] = [*groups[last], *(name for name in parameters if name not in in_a_group)]
        for title, names in groups.items():
            shown = [parameters[name] for name in names if name in parameters]
            rows = [row for one in shown if (row := one.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def grouped_as(
    help_class: type[GroupedCommand],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the help of this class."""

    def mark(command: Callable[..., None]) -> Callable[..., None]:
        command.command_class = help_class  # type: ignore[attr-defined]
        return command

    return mark


def write_commands(commands: Mapping[str, Any], formatter: Any) -> None:
    """Write the list of commands, those for research in a group of their own."""
    width = formatter.width - 6 - max(map(len, commands))
    groups: dict[str, list[tuple[str, str]]] = {"Commands": [], "Research": []}
    for name, command in commands.items():
        group = "Research" if name in RESEARCH else "Commands"
        groups[group].append((name, command.get_short_help_str(width)))
    longest = max(map(len, commands))
    for title, rows in groups.items():
        padded = [(name.ljust(longest), text) for name, text in rows]
        with formatter.section(title):
            formatter.write_dl(padded)
