"""One model has the options: functions, commands and refusals follow from it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import evercount
import signatures
from evercount.cli.release_command import release as release_command
from evercount.cli.spelling import command_options, option_of
from evercount.errors import ParameterError, UnknownName
from evercount.front_door.options import (
    DeclareOptions,
    Options,
    ReleaseOptions,
    describe,
    is_python_only,
    is_repeatable,
    is_run_option,
)

FUNCTIONS: dict[str, tuple[Callable[..., Any], type[Options]]] = {
    "declare": (evercount.declare, DeclareOptions),
    "plan": (evercount.plan, DeclareOptions),
    "release": (evercount.release, ReleaseOptions),
}


def command_parameters() -> dict[str, Any]:
    """The options of `evercount release`, by their parameters."""
    app = typer.Typer()
    app.command()(release_command)
    return {one.name: one for one in typer.main.get_command(app).params}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_options_of_its_model(name: str) -> None:
    function, model = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    named = {one.name: one for one in parameters.values() if one.kind is one.KEYWORD_ONLY}
    assert list(named) == list(model.model_fields)
    text = " ".join((function.__doc__ or "").split())
    for option, field in model.model_fields.items():
        assert field.description
        assert named[option].default is field.default
        assert f" {option}: {field.description} " in text
        assert named[option].annotation in inspect.getsource(sys.modules[model.__module__])


def test_signatures_are_what_the_models_say() -> None:
    assert signatures.update(write=False) == []


def test_a_stale_signature_is_written_again() -> None:
    """A type, a default, a description and a whole option that differ."""
    for file, functions in signatures.FUNCTIONS.items():
        source = (signatures.FOLDER / file).read_text(encoding="utf-8")
        for written, planted in (
            ("    zone: str | None = None,\n", "    zone: str = 'UTC',\n"),
            ("    bins: int | None = None,\n", ""),
            ("        low: Smallest legal value.\n", "        low: Smallest value.\n"),
            ("        high: Largest legal value.\n", ""),
        ):
            assert written in source
            stale = source.replace(written, planted)
            assert signatures.with_options(stale, functions) == source != stale


def test_the_command_has_the_options_of_the_model() -> None:
    parameters = command_parameters()
    for name, field in ReleaseOptions.model_fields.items():
        if is_python_only(field):
            assert name not in parameters
            continue
        option = parameters[name]
        assert option.opts == [option_of(name)]
        assert option.multiple == is_repeatable(field)
        assert option.is_flag == (field.annotation is bool)
        assert option.required is False
    assert parameters["views"].opts == ["--view"]
    assert {name for name in parameters if parameters[name].multiple} == {"key", "views", "notes"}
    typed = inspect.signature(release_command).parameters
    kinds = {"bins": int, "epsilon": float, "start": str, "horizon": str, "period": str, "out": str}
    for name, kind in kinds.items():
        assert get_args(typed[name].annotation)[0] == kind | None
    assert parameters["rejects"].help == describe("rejects")
    assert ReleaseOptions.model_fields.keys() - command_options() == {"secret", "progress"}


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    wrong: dict[str, Any] = {"epsilom": 1}
    for call in (
        lambda: evercount.declare(**wrong),
        lambda: evercount.plan(**wrong),
        lambda: evercount.release([], **wrong),
    ):
        with pytest.raises(UnknownName, match="unknown option 'epsilom'") as refusal:
            call()
        assert refusal.value.nearest == "epsilon"


def test_none_is_the_default() -> None:
    options = ReleaseOptions.of({"skip_bad": None, "carry_caps": None, "out": None})
    assert (options.skip_bad, options.carry_caps, options.out) == (False, False, None)
    assert options == ReleaseOptions.of({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("out", 5),
        ("db", b"s.db"),
        ("check", "no"),
        ("check", 1),
        ("secret", "5a"),
        ("delimiter", 1),
        ("progress", 1),
    ],
)
def test_a_wrong_type_is_refused_without_the_value(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=f"`{name}` must be a .*, e.g. ") as refusal:
        ReleaseOptions.of({name: value})
    example = (ReleaseOptions.model_fields[name].examples or [""])[0]
    assert str(refusal.value).endswith(f"e.g. {example}, got {type(value).__name__}")
    assert refusal.value.__cause__ is refusal.value.__context__ is None


def test_a_path_may_be_any_path() -> None:
    assert ReleaseOptions.of({"out": Path("a.csv")}).out == Path("a.csv")


def test_options_of_a_run_are_told_from_those_of_a_stream() -> None:
    assert is_run_option("out")
    assert not is_run_option("epsilon")
    assert not is_run_option("epsilom")


def test_the_package_is_imported_without_the_model() -> None:
    program = (
        "import evercount, sys; help(evercount.release); "
        "print('pydantic' in sys.modules, 'evercount.front_door.options' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"
    assert describe("rejects") in done.stdout
