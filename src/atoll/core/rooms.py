"""What rooms bring that configurations and commands can name: kinds of jobs, kinds of parts, reproductions.

A room says it in a module ``room.py`` of its own, and is known because that module is there: there is no table of all rooms. The module loads
nothing but the waist; what it names is loaded when somebody asks for it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Named",
    "Own",
    "PartKind",
    "any_of",
    "gives",
    "is_class",
    "job_kinds",
    "loaded",
    "part_kinds",
    "reproductions",
]


@dataclass(frozen=True)
class Named:
    """The annotation ``Annotated[Any, Named("model")]``: a configuration names a part of this kind there."""

    kind: str


@dataclass(frozen=True)
class Own:
    """The annotation ``Annotated[Any, Own("loss")]``: a word there may be ``module:name``, something of the user's own.

    Attributes:
        kind: what it is, for errors.
        always: no other word will do.
    """

    kind: str
    always: bool = False


@dataclass(frozen=True)
class PartKind:
    """A kind of parts: classes or functions that a configuration can name.

    A part is configurable because it is there: its home lists it in ``__all__``. Nothing is written down twice.

    Attributes:
        kind: the field's word for it: algorithm, selection, ...
        homes: modules whose ``__all__`` is looked through; one that is not installed is passed over.
        fits: whether an object is a part of this kind.
        text: what it does, in a sentence.
        holds: name of the base class: a setting that is annotated with it takes a part of this kind.
        given: first arguments that the run supplies, not the configuration.
        own: settings that belong to the place and not to the part, such as a corruption's share of the clients.
        instead: what a name that is none means elsewhere, and what to do: ``(what, remedy)``.
        later: takes what makes the part; gives the part, or what makes it if each use needs a fresh one.
        costly: a part is made only when the job runs, not to check a configuration.
    """

    kind: str
    homes: tuple[str, ...]
    fits: Callable[[Any], bool]
    text: str
    holds: str = ""
    given: int = 0
    own: tuple[str, ...] = ()
    instead: Callable[[str], tuple[str, str] | None] = lambda name: None
    later: Callable[[Callable[[], Any]], Any] = lambda make: make()
    costly: bool = False


@functools.cache
def _rooms() -> tuple[Any, ...]:
    """The modules ``room`` of all rooms."""
    here = Path(__file__).parent.parent
    names = sorted(file.parent.name for file in here.glob("*/room.py"))
    return tuple(importlib.import_module(f"{__package__.rpartition('.')[0]}.{name}.room") for name in names)


@functools.cache
def part_kinds() -> dict[str, PartKind]:
    """Every kind of parts, by its name."""
    return {part.kind: part for room in _rooms() for part in getattr(room, "PARTS", ())}


@functools.cache
def job_kinds() -> dict[str, str]:
    """Every kind of job, by what ``job:`` says -> ``module:Class``."""
    return {kind: where for room in _rooms() for kind, where in getattr(room, "JOBS", {}).items()}


def reproductions() -> dict[str, str]:
    """Every reproduction, by name -> the module whose ``ENTRY`` it is."""
    return {name: module for room in _rooms() for name, module in getattr(room, "reproductions", dict)().items()}


def loaded(where: str) -> Any:
    """What stands under ``module:name``.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has no such name.
    """
    module, _, name = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split(".") if name else []:
        found = getattr(found, part)
    return found


def is_class(base: str, *, itself: bool = False) -> Callable[[Any], bool]:
    """Whether something is a class below ``module:Class``, or that class itself where it can be used as it is."""

    def test(found: Any) -> bool:
        parent = loaded(base)
        return inspect.isclass(found) and issubclass(found, parent) and (itself or found is not parent)

    return test


def any_of(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether one of these tests is passed."""
    return lambda found: any(test(found) for test in tests)


def gives(*names: str, takes: str | None = None) -> Callable[[Any], bool]:
    """Whether something is a function that returns one of these types and first takes another."""

    def test(found: Any) -> bool:
        if not inspect.isfunction(found) or str(found.__annotations__.get("return")) not in names:
            return False
        first = next(iter(inspect.signature(found).parameters.values()), None)
        return takes == (str(first.annotation) if first is not None and takes is not None else None)

    return test
