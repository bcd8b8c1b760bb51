"""What tells the code of two encoders apart, for keys of noise: names alone do not, as two lambdas
of one line show.

The digest covers bytecode with its constants, defaults and closures, not what is reached by global
names. Another version of Python may give another one: a stream that begins again there on the same
secret has other noise, which costs a second budget and reveals nothing; one that goes on from its
snapshot keeps its noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from types import CodeType, FunctionType, MethodType
from typing import Any

OWN_PACKAGES = ("evercount", "abc", "typing")
CONSTANTS = (bool, int, float, complex, str, bytes, tuple, frozenset)


def digest_of_function(function: Callable[..., Any]) -> str:
    """A digest of the code of a function, or of an object that is called like one."""
    return _digest(_Code().of(function))


def digest_of_class(kind: type) -> str:
    """A digest of the code of a class and of its bases outside of this package."""
    code = _Code()
    return _digest([code.of_class(one) for one in kind.__mro__ if not _is_own(one)])


def _is_own(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in OWN_PACKAGES


def _digest(facts: Any) -> str:
    text = repr(facts).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


class _Code:
    """Code as lists of texts. Functions that refer to each other are written once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def of(self, value: Any) -> Any:
        """Describe a value: a function by its code, others by their text."""
        if isinstance(value, MethodType | partial | FunctionType):
            return self._of_callable(value)
        if isinstance(value, tuple | list):
            return [type(value).__name__, self.all(value)]
        if isinstance(value, set | frozenset):  # their order is another one in the next process
            return [type(value).__name__, sorted(map(repr, value))]
        # an array's repr leaves out its middle
        if hasattr(value, "tobytes") and hasattr(value, "shape"):
            return ["array", str(value.dtype), value.shape, value.tobytes().hex()]
        if callable(value) and not isinstance(value, type):
            return self._of_object(value)
        return repr(value)

    def _of_callable(self, value: MethodType | partial[Any] | FunctionType) -> Any:
        """Describe a function, also one with an object or with arguments of its own."""
        if isinstance(value, MethodType):
            return ["method", self.of(value.__func__), self._of_object(value.__self__)]
        if isinstance(value, FunctionType):
            return self._of_function(value)
        return [
            "partial",
            self.of(value.func),
            self.all(value.args),
            self.all(sorted(value.keywords.items())),
        ]

    def all(self, values: Iterable[Any]) -> list[Any]:
        return [self.of(value) for value in values]

    def of_class(self, kind: type) -> list[Any]:
        facts = []
        for name, member in sorted(vars(kind).items()):
            if isinstance(member, property):
                facts.append([name, self.of(member.fget)])
            elif isinstance(member, cached_property):
                facts.append([name, self.of(member.func)])
            elif isinstance(member, staticmethod | classmethod):
                facts.append([name, self.of(member.__func__)])
            elif isinstance(member, FunctionType) or (
                isinstance(member, CONSTANTS) and not name.startswith("__")
            ):
                facts.append([name, self.of(member)])
        return facts

    def _of_function(self, function: FunctionType) -> Any:
        if id(function) in self._seen:
            return function.__qualname__
        self._seen.add(id(function))
        defaults = [
            *(function.__defaults__ or ()),
            *sorted((function.__kwdefaults__ or {}).items()),
        ]
        return [self._of_code(function.__code__), self.all(defaults), self._of_closure(function)]

    def _of_closure(self, function: FunctionType) -> list[Any]:
        variables = []
        for cell in function.__closure__ or ():
            try:
                variables.append(self.of(cell.cell_contents))
            except ValueError:  # not bound yet
                variables.append(None)
        return variables

    def _of_code(self, code: CodeType) -> list[Any]:
        constants = [
            self._of_code(one) if isinstance(one, CodeType) else self.of(one)
            for one in code.co_consts
        ]
        return [code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]

    def _of_object(self, value: Any) -> list[Any]:
        """Describe an object that is called, or whose method is: its class, its code and its
        attributes."""
        if id(value) in self._seen:
            return [type(value).__qualname__]
        self._seen.add(id(value))
        kind = type(value)
        attributes = sorted(getattr(value, "__dict__", {}).items())
        code = [self.of_class(one) for one in kind.__mro__ if not _is_own(one)]
        return [f"{kind.__module__}:{kind.__qualname__}", code, self.all(attributes)]
