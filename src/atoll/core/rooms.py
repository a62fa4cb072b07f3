"""What a room adds that configurations and commands can name: kinds of jobs, kinds of parts.

A room lists it in its own module ``room.py``, and is found because that module exists: there is no table of all rooms. The module loads
only the waist; what it names is loaded on request.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .addresses import load_object

__all__ = [
    "Named",
    "Own",
    "PartKind",
    "any_of",
    "gives",
    "is_class",
    "job_kinds",
    "part_kinds",
    "own_jobs",
    "part_names",
    "ready_modules",
    "room_tables",
]


@dataclass(frozen=True)
class Named:
    """The annotation ``Annotated[Any, Named("model")]``: a configuration names a part of this kind here."""

    kind: str


@dataclass(frozen=True)
class Own:
    """The annotation ``Annotated[Any, Own("loss")]``: a word here may be ``module:name``, an object of the user's own.

    Attributes:
        kind: what the object is, for errors.
        always: whether no other word is allowed.
    """

    kind: str
    always: bool = False


@dataclass(frozen=True)
class PartKind:
    """A kind of parts: classes or functions that a configuration can name.

    A part needs no registration: its home module lists it in ``__all__``.

    Attributes:
        kind: the field's term: algorithm, selection, ...
        homes: modules whose ``__all__`` is searched; a module that is not installed is skipped.
        fits: whether an object is a part of this kind.
        text: what it does, in a sentence.
        holds: name of the base class: a setting annotated with it takes a part of this kind.
        given: number of first arguments that the run supplies, not the configuration.
        own: settings that belong to the place and not to the part, such as a corruption's share of the clients.
        instead: maps an unknown name to its meaning elsewhere and what to do: ``(what, remedy)``.
        later: takes the function that makes the part; returns the part, or that function if each use needs a new part.
        costly: whether to make the part only when the job runs, not to check a configuration.
        further: modules that are searched by name alone, after the homes, since loading all of their parts takes seconds.
        pure: whether making a part by a function is cheap and without side effects, so that a configuration is checked by making it.
        extra: the extra that installs what its modules load, if a part cannot be loaded without it.
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
    further: tuple[str, ...] = ()
    pure: bool = False
    extra: str = ""


@functools.cache
def _rooms() -> tuple[Any, ...]:
    """The modules ``room`` of all rooms."""
    here = Path(__file__).parent.parent
    names = sorted(file.parent.name for file in here.glob("*/room.py"))
    return tuple(importlib.import_module(f"{__package__.rpartition('.')[0]}.{name}.room") for name in names)


@functools.cache
def part_kinds() -> dict[str, PartKind]:
    """All kinds of parts, by name."""
    return {part.kind: part for room in _rooms() for part in getattr(room, "PARTS", ())}


@functools.cache
def part_names(kind: str) -> tuple[str, ...]:
    """The names of all parts of a kind, also of those that no configuration can express; modules that are searched by name alone give all of their names."""
    part, found = part_kinds()[kind], []
    for home in (*part.homes, *part.further):
        module = importlib.import_module(home)
        names = list(getattr(module, "__all__", ()))
        found += names if home in part.further else [name for name in names if part.fits(getattr(module, name))]
    return tuple(found)


@functools.cache
def job_kinds() -> dict[str, str]:
    """All kinds of jobs: maps the value of ``job:`` to ``module:Class``."""
    return {kind: where for room in _rooms() for kind, where in getattr(room, "JOBS", {}).items()}


@functools.cache
def room_tables() -> tuple[frozenset[str], ...]:
    """The columns of tables that jobs of a room read as they are: a site needs to name neither a target nor keys of them."""
    return tuple(frozenset(columns) for room in _rooms() for columns in getattr(room, "TABLES", ()))


@functools.cache
def own_jobs(role: str) -> dict[str, str]:
    """The kinds of jobs that a site or an analyst may submit alone: maps the value of ``job:`` to the setting that must name the signer; empty for none, and with ``?`` at its end for one that may be left out.

    Args:
        role: "site" or "analyst".
    """
    return {kind: setting for room in _rooms() for kind, setting in getattr(room, "OWN_JOBS", {}).get(role, {}).items()}


@functools.cache
def ready_modules(kind: str) -> tuple[str, ...]:
    """The modules that a process loads which waits for a job of a kind; none for kinds whose jobs last long beside the start of their processes.

    Args:
        kind: the value of ``job:``.
    """
    return tuple(name for room in _rooms() for name in getattr(room, "READY", {}).get(kind, ()))


def is_class(base: str, *, itself: bool = False) -> Callable[[Any], bool]:
    """Return a test for subclasses of ``module:Class``, and with ``itself`` for that class too."""

    def test(found: Any) -> bool:
        parent = load_object(base)
        return inspect.isclass(found) and issubclass(found, parent) and (itself or found is not parent)

    return test


def any_of(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test that passes if any of these tests does."""
    return lambda found: any(test(found) for test in tests)


def gives(*names: str, takes: str | None = None) -> Callable[[Any], bool]:
    """Return a test for functions that return one of these types, and whose first argument has another."""

    def test(found: Any) -> bool:
        if not inspect.isfunction(found) or str(found.__annotations__.get("return")) not in names:
            return False
        first = next(iter(inspect.signature(found).parameters.values()), None)
        return takes == (str(first.annotation) if first is not None and takes is not None else None)

    return test
