"""Parts by name: what a configuration may name. The rooms list their parts (see `atoll.core.rooms`)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from atoll.core.addresses import load_object
from atoll.core.errors import ConfigError, MissingExtraError, nearest
from atoll.core.rooms import PartKind, part_kinds

from .schema import SettingsSchema, schema_of

__all__ = ["HOME", "Registry", "imported", "register", "registry"]


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


HOME: ContextVar[str] = ContextVar("HOME", default="the working folder")
"""Where the user's own modules are looked up, as a remedy words it."""


def imported(name: str, kind: str, *, where: str | None = None) -> Any:
    """Import the user's own object, named as ``module:name``.

    Args:
        name: ``module:name``.
        kind: what the object is meant to be, for errors.
        where: the setting that names it, for errors.

    Raises:
        ConfigError: it cannot be imported, or is neither a class nor a function.
    """
    try:
        found = load_object(name)
    except Exception as error:  # the module is the user's own and may raise anything
        why, remedy = _not_imported(name, kind, error)
        raise ConfigError(f"{name!r} cannot be imported: {why}", where=where, remedy=remedy) from error
    if not callable(found):
        raise ConfigError(f"{name!r} is a {type(found).__name__}", where=where, remedy="name a class or a function")
    return found


def _not_imported(name: str, kind: str, error: Exception) -> tuple[str, str]:
    """Why an object cannot be imported, and the remedy: its module is missing, fails, or lacks the name."""
    module, _, attribute = name.partition(":")
    if isinstance(error, ModuleNotFoundError) and error.name and not f"{module}.".startswith(f"{error.name}."):
        lacking = error.name.partition(".")[0]
        return (
            f"it imports {error.name}, which is not installed here",
            f"install {lacking!r}, or put it into {HOME.get()}",
        )
    made = sys.modules.get(module)
    if isinstance(error, AttributeError) and made is not None and error.obj is made:
        offered = [key for key, value in vars(made).items() if callable(value) and not key.startswith("_")]
        return f"{error}.{nearest(attribute, offered)}", f"correct the name, or define it in {module}"
    if isinstance(error, ImportError | AttributeError | ValueError):
        return str(error), f"name your own {kind} as module:name, with the module in {HOME.get()} or installed"
    return f"{type(error).__name__}: {error}", f"correct module {module}, which raises this error on import"


@dataclass
class Registry:
    """The parts of one kind.

    Attributes:
        of: the kind.
        extra: parts that `register` added, by name.
    """

    of: PartKind
    extra: dict[str, Any] = field(default_factory=dict)
    _known: dict[str, Any] | None = None
    _found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def parts(self) -> dict[str, Any]:
        """Map names to the classes and functions that a configuration can express."""
        if self._known is None:
            self._known = self._those(self.of.homes, lambda name: True)
        return {**self._known, **self.extra}

    def _those(self, homes: Iterable[str], wanted: Callable[[str], bool]) -> dict[str, Any]:
        """Load the parts whose names are wanted, and no others."""
        found: dict[str, Any] = {}
        for home in homes:
            parent = home.rpartition(".")[0]
            if importlib.util.find_spec(parent) is None or importlib.util.find_spec(home) is None:
                continue
            module = importlib.import_module(home)
            members = {name: self._loaded(module, name) for name in getattr(module, "__all__", ()) if wanted(name)}
            found.update({name: part for name, part in members.items() if self.of.fits(part)})
        return {n: p for n, p in found.items() if schema_of(p, self.of.given).configurable}

    def _loaded(self, module: Any, name: str) -> Any:
        """Load a part.

        Raises:
            MissingExtraError: it needs a library that is not installed.
        """
        try:
            return getattr(module, name)
        except ImportError as error:
            if not self.of.extra or not error.name or error.name.partition(".")[0] == __package__.partition(".")[0]:
                raise
            raise MissingExtraError(
                f"{self.of.kind} {name!r} needs {error.name.partition('.')[0]}, which is not installed",
                remedy=f'pip install "atoll[{self.of.extra}]"',
            ) from error

    def find(self, name: str) -> tuple[str, Any]:
        """Return the canonical name and the part; ``module:attribute`` finds the user's own.

        Raises:
            ConfigError: there is no such part.
        """
        if ":" in name:
            return name, imported(name, self.of.kind)
        found = self._named(_plain(name))
        if found:
            return list(found.items())[-1]
        other = self.of.instead(name)
        if other is not None:
            raise ConfigError(f"{name!r} is {other[0]}", remedy=other[1])
        parts, further = self.parts(), {home: importlib.import_module(home).__all__ for home in self.of.further}
        more = f", one of {' or '.join(further)}" if further else ""
        raise ConfigError(
            f"{name!r} is not a known {self.of.kind}.{nearest(name, [*parts, *(n for names in further.values() for n in names)])}",
            remedy=f"use one of {', '.join(sorted(parts))}{more}, or your own as module:name",
        )

    def _named(self, plain: str) -> dict[str, Any]:
        """The parts with this name, ignoring case and hyphens."""
        if plain not in self._found:
            homes = (self.of.homes, self.of.further)
            each = (self._those(some, lambda name: _plain(name) == plain) for some in homes)
            self._found[plain] = next(filter(None, each), {})
        return {**self._found[plain], **{n: p for n, p in self.extra.items() if _plain(n) == plain}}

    def schema(self, part: Any) -> SettingsSchema:
        """The settings of a part."""
        return schema_of(part, self.of.given)


@functools.cache
def registry(kind: str) -> Registry:
    """The registry of a kind."""
    return Registry(part_kinds()[kind])


def register(kind: str, name: str, part: Any) -> None:
    """Make a part of your own configurable by a short name.

    Args:
        kind: one of `atoll.core.rooms.part_kinds`.
        name: the name for configurations.
        part: a class or function whose annotated arguments are its settings.

    Raises:
        ConfigError: there is no such kind, or another part has the name.
    """
    kinds = part_kinds()
    if kind not in kinds:
        raise ConfigError(f"no kind of part {kind!r}.{nearest(kind, kinds)}", remedy=f"use one of {', '.join(kinds)}")
    taken = registry(kind).parts().get(name)
    if taken is not None and taken is not part:
        raise ConfigError(f"there is already a {kind} {name!r}", remedy="choose another name")
    registry(kind).extra[name] = part
