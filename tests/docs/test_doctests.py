"""Every example in a docstring runs: doctest over all modules of the package, as
`pytest --doctest-modules` would.

That public names have examples is checked in test_docstrings.py.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import evercount
from evercount.errors import MissingExtra
from soak_cases import soak_except

NOT_IMPORTED = {"evercount.__main__": "it runs the command line"}
ROOT = Path(evercount.__file__).parent
TEXTS = {
    ".".join(["evercount", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): path.read_text("utf-8")
    for path in sorted(ROOT.rglob("*.py"))
}


def examples(module):
    """The examples of one module, those that are only comments in text left out."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(module, module.__name__) if test.examples]


def load(name):
    if name in NOT_IMPORTED:
        pytest.skip(f"{name}: {NOT_IMPORTED[name]}")
    try:
        return importlib.import_module(name)
    except MissingExtra as error:
        pytest.skip(f"{name}: {error}")
    except ModuleNotFoundError as error:
        if (error.name or "evercount").partition(".")[0] == "evercount":
            raise  # a part of the package itself is missing
        pytest.skip(f"{name} needs the optional package {error.name}")


def test_every_module_can_be_imported():
    for name in TEXTS:
        try:
            load(name)
        except pytest.skip.Exception as reason:
            print(reason)
    assert len(TEXTS) > 200


FLIGHTS = "evercount.examples.flights"
"""It reads all flights of a year again and again; tests/queries/test_flight_examples.py reads them
in CI, too."""
WITH_EXAMPLES = [name for name, text in TEXTS.items() if ">>>" in text]


@pytest.mark.parametrize(
    "name", soak_except([name for name in WITH_EXAMPLES if name != FLIGHTS], WITH_EXAMPLES)
)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in examples(load(name)):
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


def test_a_wrong_example_is_caught():
    """The check above can fail: an example with a wrong result does."""
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "planted", None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=lambda text: None)
    assert runner.failures == 1
