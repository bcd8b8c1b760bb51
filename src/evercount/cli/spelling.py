"""How commands spell the options of Python: in their own options, and in messages."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


@cache
def command_options() -> dict[str, FieldInfo]:
    """Return the fields of `ReleaseOptions` that the command `evercount release` has."""
    from evercount.front_door.options import ReleaseOptions, is_python_only

    return {
        name: field
        for name, field in ReleaseOptions.model_fields.items()
        if not is_python_only(field)
    }


def option_of(name: str) -> str:
    """Spell an option as the command does.

    >>> option_of("skip_bad"), option_of("views")
    ('--skip-bad', '--view')
    """
    from evercount.front_door.options import command_name

    return f"--{command_name(name)}".replace("_", "-")


def as_options(message: str) -> str:
    """Spell the options in a message of the library as the command does.

    >>> as_options("omit `views` and `new_noise_stream`; `x` stays")
    'omit --view and --new-noise-stream; `x` stays'
    """

    def spelled(match: re.Match[str]) -> str:
        if match[1] in command_options():
            return option_of(match[1])
        return match[0]

    return re.sub(r"`(\w+)`", spelled, message)
