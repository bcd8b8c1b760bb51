"""What makes code dense, as rules: each goes through a module and yields the lines of its hits.

`tools/house.py` prints what they count, and tests/docs/test_house.py keeps some of them at zero.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src/evercount"
CONCEPT_ROOMS = ("files", "store", "declarations", "front_door")
KEEPERS = tuple(
    f"files/{name}.py" for name in ("state_file", "store_keeper", "open_keeper", "keeper")
)
KEEPER_CLASSES = ("StateFile", "StoreKeeper")
# a bad row, a file of events, and where a stream is kept
NO_CARRIERS = ("Reject", "Source", "Keeper", *KEEPER_CLASSES)
RUN_ROOMS = ("files", "front_door")
MOST_STARRED, FEWEST_CARRIED = 3, 5
BOOL_CALLS = {"bool", "isinstance", "issubclass", "hasattr", "callable", "any", "all"}
BOOL_METHODS = {"startswith", "endswith", "exists", "is_file", "is_dir", "any", "all"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A module of the package, by its path inside it."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def room(self) -> str:
        return self.path.split("/")[0]

    def lines_of_code(self) -> int:
        """Count the lines that are not blank, comments or docstrings."""
        docstrings: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
                docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        numbered = enumerate(map(str.strip, self.text.splitlines()), 1)
        return sum(
            bool(line) and not line.startswith("#") and number not in docstrings
            for number, line in numbered
        )


@dataclass(frozen=True)
class Package:
    """All modules, and what one has to know of all of them to judge one."""

    modules: tuple[Module, ...]

    @classmethod
    def read(cls, folder: Path = PACKAGE) -> Package:
        paths = sorted(folder.rglob("*.py"))
        return cls(
            tuple(Module(p.relative_to(folder).as_posix(), p.read_text("utf-8")) for p in paths)
        )

    @cached_property
    def classes(self) -> dict[str, list[tuple[Module, ast.ClassDef]]]:
        """The classes by name, private and inner ones included."""
        classes: dict[str, list[tuple[Module, ast.ClassDef]]] = defaultdict(list)
        for module in self.modules:
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append((module, node))
        return classes

    @cached_property
    def bool_attributes(self) -> set[str]:
        """The names of fields and properties that are bool wherever the package declares them."""
        types: dict[str, set[str]] = defaultdict(set)
        for _, one in (pair for pairs in self.classes.values() for pair in pairs):
            for node in one.body:
                if isinstance(node, ast.AnnAssign):
                    types[ast.unparse(node.target)].add(ast.unparse(node.annotation))
                elif isinstance(node, Function) and node.returns is not None:
                    types[node.name].add(ast.unparse(node.returns))
        return {name for name, annotations in types.items() if annotations == {"bool"}}

    def fields(self, name: str) -> int:
        """Count the values that the constructor of a class takes; 0 for a foreign class."""
        counts = [0]
        for _, one in self.classes.get(name, []):
            own = [node for node in one.body if isinstance(node, Function)]
            starts = [node.args for node in own if node.name in ("__init__", "__new__")]
            inherited = sum(self.fields(ast.unparse(base)) for base in one.bases)
            declared = sum(isinstance(node, ast.AnnAssign) for node in one.body)
            counts.append(len(starts[0].args) - 1 if starts else declared + inherited)
        return max(counts)


Rule = Callable[[Package, Module], Iterator[int]]


def conditional_expressions(_: Package, module: Module) -> Iterator[int]:
    """`x if y else z`, each."""
    return (node.lineno for node in module.nodes if isinstance(node, ast.IfExp))


def tuple_assignments(_: Package, module: Module) -> Iterator[int]:
    """`a, b = x, y`: two thoughts on a line."""
    for node in module.nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(), *_], value=ast.Tuple()):
                yield node.lineno


def long_lines(_: Package, module: Module) -> Iterator[int]:
    """Lines over 100 columns, also those that the linter lets pass."""
    return (n for n, line in enumerate(module.text.splitlines(), 1) if len(line) > 100)


def nested_conditionals(_: Package, module: Module) -> Iterator[int]:
    """A conditional expression with another one anywhere inside."""
    return _conditionals_with(module, ast.IfExp)


def walrus_in_conditionals(_: Package, module: Module) -> Iterator[int]:
    """A conditional expression that assigns a variable on its way."""
    return _conditionals_with(module, ast.NamedExpr)


def _conditionals_with(module: Module, kind: type[ast.expr]) -> Iterator[int]:
    for node in module.nodes:
        if isinstance(node, ast.IfExp):
            inner = [part for part in ast.walk(node) if part is not node]
            if any(isinstance(part, kind) for part in inner):
                yield node.lineno


def starred_constructors(package: Package, module: Module) -> Iterator[int]:
    """Calls `Thing(*values)` that fill more than three fields: nobody sees which is which."""
    for node, inside in _with_class(module.tree, None):
        if not isinstance(node, ast.Call):
            continue
        stars = [one.value for one in node.args if isinstance(one, ast.Starred)]
        name = ast.unparse(node.func).split("[")[0].split(".")[-1]
        name = inside if name == "cls" and inside is not None else name
        values = package.fields(name) - len(node.keywords)
        if stars and all(isinstance(star, ast.Tuple | ast.List) for star in stars):
            inner = sum(len(star.elts) for star in stars if isinstance(star, ast.Tuple | ast.List))
            values = len(node.args) - len(stars) + inner if name[:1].isupper() else 0
        if stars and values > MOST_STARRED:
            yield node.lineno


def _with_class(node: ast.AST, inside: str | None) -> Iterator[tuple[ast.AST, str | None]]:
    """All nodes, each with the name of the class whose body it is in."""
    for child in ast.iter_child_nodes(node):
        yield child, inside
        yield from _with_class(child, child.name if isinstance(child, ast.ClassDef) else inside)


def text_times_bool(package: Package, module: Module) -> Iterator[int]:
    """`"s" * (n > 1)`: a text that is there or not. `"=" * 20` and `" " * width` are none."""
    functions = [node for node in module.nodes if isinstance(node, Function)]
    for node in module.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors = [
                factor
                for text, factor in ((node.left, node.right), (node.right, node.left))
                if _is_text(text)
            ]
            around = [
                one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0)
            ]
            if any(_is_bool(package, factor, around) for factor in factors):
                yield node.lineno


def _is_bool_name(package: Package, name: str, function: Function) -> bool:
    """Whether a function annotates a name as bool, or only ever gives it one."""
    arguments = function.args
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        if one.arg == name:
            return one.annotation is not None and ast.unparse(one.annotation) == "bool"
    values: list[ast.expr] = []
    for node in ast.walk(function):
        match node:
            case ast.AnnAssign(target=ast.Name(id=target)) if target == name:
                return ast.unparse(node.annotation) == "bool"
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                values.append(node.value)
            case ast.AugAssign(target=ast.Name(id=target)) if target == name:
                return False
    return bool(values) and all(_is_bool(package, value, []) for value in values)


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_bool(package: Package, node: ast.expr, around: list[Function]) -> bool:
    """Whether an expression is surely a bool."""
    surely = False
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=True | False):
            surely = True
        case ast.Name(id=name):
            surely = any(_is_bool_name(package, name, function) for function in around)
        case ast.Attribute(attr=name):
            surely = name in package.bool_attributes
        case ast.BoolOp(values=values):
            surely = all(_is_bool(package, value, around) for value in values)
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr(), left=left, right=right):
            surely = all(_is_bool(package, one, around) for one in (left, right))
        case ast.Call(func=ast.Name(id=name)):
            surely = name in BOOL_CALLS
        case ast.Call(func=ast.Attribute(attr=name)):
            surely = name in BOOL_METHODS | package.bool_attributes
    return surely


def home_questions(_: Package, module: Module) -> Iterator[int]:
    """Lines that ask whether a stream is kept in a state file or in a store; keepers may."""
    if module.path in KEEPERS:
        return iter(())
    expressions = [node for node in module.nodes if isinstance(node, ast.expr)]
    return iter(sorted({node.lineno for node in expressions if _asks_home(node)}))


def _asks_home(node: ast.expr) -> bool:
    """Whether an expression compares a home or a database with None, or asks a keeper's class."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        return _names_keeper(node.args[-1])
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    if any(isinstance(one, ast.Constant) and one.value is None for one in sides):
        return any(_is_home(one) for one in sides)
    return any(ast.unparse(one).startswith("type(") for one in sides) and _names_keeper(node)


def _names_keeper(node: ast.AST) -> bool:
    return any(ast.unparse(part).split(".")[-1] in KEEPER_CLASSES for part in ast.walk(node))


def _is_home(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("home", "db")
    return isinstance(node, ast.Name) and node.id == "home"


def concepts(_: Package, module: Module) -> Iterator[int]:
    """The classes of the rooms in which a stream is declared, kept and released."""
    if module.room in CONCEPT_ROOMS:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                yield node.lineno


def repeated_classes(package: Package) -> dict[str, list[str]]:
    """The names of classes, private ones too, that several modules define, and these modules."""
    return _in_several(
        (name, module) for name, ones in package.classes.items() for module, _ in ones
    )


def repeated_names(package: Package) -> dict[str, list[str]]:
    """The names of classes and of type aliases that several modules define."""
    classes = [(name, module) for name, ones in package.classes.items() for module, _ in ones]
    aliases = [(name, module) for module in package.modules for name in _aliases(module.tree)]
    return _in_several([*classes, *aliases])


def _in_several(names: Iterable[tuple[str, Module]]) -> dict[str, list[str]]:
    modules: dict[str, set[str]] = defaultdict(set)
    for name, module in names:
        modules[name].add(module.path)
    return {name: sorted(paths) for name, paths in sorted(modules.items()) if len(paths) > 1}


def _aliases(tree: ast.Module) -> Iterator[str]:
    """The names in CamelCase that a module gives to types; type variables are none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and "TypeVar(" not in ast.unparse(node.value):
            target: ast.expr = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        name = ast.unparse(target)
        if name.isidentifier() and name.lstrip("_")[:1].isupper() and not name.isupper():
            yield name


def carriers(package: Package) -> dict[str, str]:
    """The classes that hand the options and the state of one run on, and their modules.

    They are classes with five fields or more of the front door and of the files' room that a
    function there takes or returns; what is released is no carrier.
    """
    modules = [module for module in package.modules if module.room in RUN_ROOMS]
    functions = [node for module in modules for node in module.nodes if isinstance(node, Function)]
    annotations = [note for function in functions for note in _annotations(function)]
    used = {
        node.id for note in annotations for node in ast.walk(note) if isinstance(node, ast.Name)
    }
    return {
        node.name: module.path
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and node.name in used - set(NO_CARRIERS)
        if package.fields(node.name) >= FEWEST_CARRIED
    }


def _annotations(function: Function) -> Iterator[ast.expr]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    notes = [*(one.annotation for one in every), function.returns]
    return (note for note in notes if note is not None)
