"""A table of a declaration: a frozen dataclass that pydantic checks, and that is refused in one sentence.

The types of its fields make the TOML and JSON forms, the schema of the HTTP API and the refusals. A field's description
completes the sentence "FIELD must be …".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from evercount.errors import ParameterError, UnknownName

T = TypeVar("T")


def _summary(schema: dict[str, Any]) -> None:
    """The HTTP API shows the first line of a docstring."""
    if "description" in schema:
        schema["description"] = schema["description"].partition("\n")[0]


CONFIG = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True, json_schema_extra=_summary)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def table(what: str, path: str = "") -> Callable[[type[T]], type[T]]:
    """The decorator of a table that messages call `what`; `path` comes before the names of its fields."""

    def decorate(cls: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, config=CONFIG)(cls)

        def checked(self: Any, /, *values: Any, **named: Any) -> None:
            try:
                made.__pydantic_validator__.validate_python(ArgsKwargs(values, named), self_instance=self)
            except ValidationError as error:
                raise _refusal(error, what, path, made.__pydantic_fields__) from None

        made.__init__ = checked
        return made  # type: ignore[no-any-return]

    return decorate


def _refusal(error: ValidationError, what: str, path: str, fields: dict[str, Any]) -> Exception:
    """Unknown fields first: a misspelt one is missing, too."""
    found = error.errors(include_url=False)
    for one in found:
        if one["type"] == "unexpected_keyword_argument":
            return UnknownName(f"field of {what}", one["loc"][0], fields)
    missing = [str(one["loc"][0]) for one in found if one["type"] == "missing"]
    if missing:
        described = [f"{name} ({text})" if (text := fields[name].description) else name for name in missing]
        return ParameterError(f"{what} lacks {' and '.join(described)}")
    first = found[0]
    context = first.get("ctx", {})
    cause: Exception = context.get("error", error)
    name = str(first["loc"][0]) if first["loc"] else ""
    if isinstance(cause, ParameterError) or name not in fields:
        return cause
    if first["type"] == "literal_error":
        return UnknownName(path + name, first["input"], re.findall("'(.*?)'", context["expected"]))
    plain = first["msg"].removeprefix("Input should be ").replace("valid integer", "whole number").replace("valid ", "")
    return ParameterError(f"{path}{name} must be {fields[name].description or plain}, got {first['input']!r:.80}")
