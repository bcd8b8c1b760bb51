"""Some things that make code dense stay out of the package; `tools/house.py` prints where they are.

Each rule must catch what is planted here, and pass the sound code next to it.
"""

from __future__ import annotations

from functools import cache

import pytest

import house_rules
from house_rules import Module, Package, Rule

LIMITS = {  # lower them as the package gets better; all but the concepts should be 0
    "nested_conditionals": 0,
    "starred_constructors": 0,
    "text_times_bool": 1,
    "walrus_in_conditionals": 0,
    "home_questions": 0,
    "repeated_classes": 0,
    "concepts": 73,  # aim: 48
}

FOUR_FIELDS = "class Four:\n    a: int\n    b: int\n    c: int\n    d: int\n"
THREE_FIELDS = "class Three:\n    a: int\n    b: int\n    c: int\n"
FLAGS = "class Flags:\n    verbose: bool\n    width: int\n"

RULES: dict[Rule, tuple[tuple[str, ...], tuple[str, ...]]] = {
    house_rules.nested_conditionals: (
        (
            "x = 1 if a else 2 if b else 3",
            "x = (1 if b else 2) if a else 3",
            "x = f(1 if b else 2) if a else 3",
            "x = 1 if (b if c else d) else 3",
        ),
        ("x = 1 if a else 2", "x = (1 if a else 2) + (3 if b else 4)"),
    ),
    house_rules.walrus_in_conditionals: (
        ("x = y if (y := f()) else 2", "x = a if b else (y := 2)"),
        ("if (y := f()) is not None:\n    x = y", "x = [y for z in w if (y := f(z))]"),
    ),
    house_rules.starred_constructors: (
        (
            FOUR_FIELDS + "x = Four(*values)",
            FOUR_FIELDS + "x = Four(1, *f(values))",
            FOUR_FIELDS + "x = module.Four(*a, *b)",
            FOUR_FIELDS + "    @classmethod\n    def read(cls):\n        return cls(*values)",
            FOUR_FIELDS + "class Five(Four):\n    e: int\nx = Five(*values)",
            "class Four:\n    def __init__(self, a, b, c, d): ...\nx = Four(*values)",
            "x = Anything(*(1, 2, 3, 4))",
        ),
        (
            THREE_FIELDS + "x = Three(*values)",
            FOUR_FIELDS + "x = Four(1, 2, 3, 4)",
            FOUR_FIELDS + "x = Four(**values)",
            "x = f(*values)",
            "x = Path(*parts)",
        ),
    ),
    house_rules.text_times_bool: (
        (
            "x = 's' * (n > 1)",
            "x = f'{n} row{\"s\" * (n != 1)}'",
            "x = (n > 1) * 's'",
            "x = f', {a}' * bool(b)",
            "x = 'a' * (not b)",
            "x = ('a' + b) * (c is None)",
            "x = 'a' * (b > 1 and c > 1)",
            "x = 'a' * isinstance(b, int)",
            "x = 'a' * b.startswith('c')",
            "def f(flag: bool):\n    return 'a' * flag",
            "def f(n):\n    many = n > 1\n    return 'a' * many",
            FLAGS + "x = 'a' * options.verbose",
        ),
        (
            "x = '=' * 20",
            "x = ' ' * width",
            "x = ' ' * len(text)",
            "x = ' ' * (width - len(text))",
            "x = ' ' * max(0, width)",
            "x = 3 * (n > 1)",
            "def f(depth: int):\n    return ' ' * depth",
            "def f(n):\n    depth = n > 1\n    depth = 4\n    return ' ' * depth",
            FLAGS + "x = ' ' * options.width",
        ),
    ),
    house_rules.home_questions: (
        (
            "if home is None: ...",
            "x = run.home is not None and y",
            "x = job.db is None",
            "x = None is not self.db",
            "if isinstance(keeper, StateFile): ...",
            "if isinstance(keeper, (Other, store_keeper.StoreKeeper)): ...",
            "if isinstance(keeper, StateFile | StoreKeeper): ...",
            "if type(keeper) is StateFile: ...",
        ),
        ("if place is None: ...", "x = isinstance(keeper, Keeper)", "home = StoreKeeper(job)"),
    ),
    house_rules.concepts: (
        ("class One: ...", "class _Private: ...", "def f():\n    class Inner: ..."),
        ("One = int", "def f(): ..."),
    ),
}

BAD = [(rule, text) for rule, (bad, _) in RULES.items() for text in bad]
SOUND = [(rule, text) for rule, (_, sound) in RULES.items() for text in sound]


def hits(rule: Rule, package: Package) -> list[str]:
    return [f"{one.path}:{line}" for one in package.modules for line in rule(package, one)]


def package_of(text: str, path: str = "files/planted.py") -> Package:
    return Package((Module(path, text),))


@cache
def source() -> Package:
    package = Package.read()
    assert len(package.modules) > 100, "the package is not where it was"
    return package


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_follows_a_rule(rule: Rule) -> None:
    places = hits(rule, source())
    assert len(places) <= LIMITS[rule.__name__], "\n".join(places)


def test_a_class_name_has_one_meaning() -> None:
    names = house_rules.repeated_classes(source())
    assert len(names) <= LIMITS["repeated_classes"], names


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_a_rule_catches_what_is_planted(rule: Rule, text: str) -> None:
    assert len(hits(rule, package_of(text))) == 1


@pytest.mark.parametrize(("rule", "text"), SOUND)
def test_a_rule_passes_sound_code(rule: Rule, text: str) -> None:
    assert hits(rule, package_of(text)) == []


@pytest.mark.parametrize("path", house_rules.KEEPERS)
def test_a_keeper_may_ask_for_homes(path: str) -> None:
    text = "if isinstance(keeper, StateFile): ..."
    assert hits(house_rules.home_questions, package_of(text, path)) == []


def test_concepts_are_counted_in_four_rooms() -> None:
    text = "class One: ..."
    rooms = ("files", "store", "declarations", "front_door", "engine")
    counted = [hits(house_rules.concepts, package_of(text, f"{room}/a.py")) for room in rooms]
    assert [len(places) for places in counted] == [1, 1, 1, 1, 0]


def test_a_class_name_with_two_meanings_is_caught() -> None:
    one, inner = "class One: ...", "def f():\n    class One: ..."
    private = "class _One: ..."
    for first, second in ((one, one), (one, inner), (private, private)):
        package = Package((Module("files/a.py", first), Module("store/b.py", second)))
        assert list(house_rules.repeated_classes(package).values()) == [
            ["files/a.py", "store/b.py"]
        ]
    package = Package((Module("files/a.py", one), Module("store/b.py", private)))
    assert house_rules.repeated_classes(package) == {}
    package = Package((Module("files/a.py", one), Module("store/b.py", "One = int")))
    assert house_rules.repeated_classes(package) == {}
    assert list(house_rules.repeated_names(package)) == ["One"]
