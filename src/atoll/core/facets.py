"""Facets: what a part tells those who need more of it than its contract.

Three nouns:

* a **facet** is a class of functions and constants about one concern, such as labels or privacy. Its own bodies are the defaults.
* a part **carries** a facet if its class inherits it: ``class Semi(FedAvg, Labelled)`` overrides what it has to say, and the defaults hold for the rest.
* a **wrapper** is a part around another, its `base`. It passes each facet on: what its class does not override is what the base says.

``facet(part, Labelled)`` is how everybody asks: it returns the part itself if it carries the facet, otherwise what is inside, otherwise the defaults. So a
new concern is one file: its facet, and those who ask. No contract and no wrapper has to know it.

    class Coloured(Facet):
        def colour(self) -> str:
            return "grey"

    facet(Upcycled(base=Red()), Coloured).colour()  # "red"
"""

from __future__ import annotations

import functools
import warnings
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["Facet", "Wrapper", "changes", "default_of", "facet", "keep_old_form"]

F = TypeVar("F", bound="Facet")


class Facet(metaclass=ABCMeta):
    """Base class of all facets. A direct subclass is a facet, and a part that inherits one carries it.

    Functions, properties and constants without a leading underscore are what the facet says. A default may read other attributes of the part; declare
    them in the facet by an annotation. It asks for another name of a facet, its own too, by ``facet(self, Kind)``, since the part may not carry it.
    """

    _part: Any  # only of a bare facet: the part that does not carry it, and for which its defaults answer

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if Facet in cls.__bases__:
            for name in names_of(cls):
                setattr(cls, name, _passing_on(cls, name, vars(cls)[name]))


class Wrapper:
    """A part around another: its class says ``base``, the part inside. Every facet passes through it."""

    base: Any


def facet(part: object, kind: type[F]) -> F:
    """Return what a part says of a concern: the part itself, the outermost part inside it that carries the facet, or the facet's defaults."""
    while not isinstance(part, kind):
        if not isinstance(part, Wrapper):
            said = kind()
            said._part = part
            return said
        part = part.base
    return part


def names_of(kind: type[Facet]) -> list[str]:
    """Return the names that a facet gives a meaning."""
    return [name for name in vars(kind) if not name.startswith("_")]


def default_of(kind: type[Facet], name: str) -> Any:
    """Return a facet's own body for a name, for a wrapper that must not pass on what its base says."""
    return vars(kind)[name].__wrapped__


def changes(part: type, contract: type, *names: str) -> bool:
    """Return whether a class of parts has a body of its own for one of these names. For a wrapper, a default in place of what the base says is one.

    Args:
        part: the class.
        contract: the class that it is compared with: the contract of all such parts, or that of all wrappers.
        names: functions of the contract or of facets.
    """
    return any(_body(part, name, contract) is not _body(contract, name, contract) for name in names)


def _body(part: type, name: str, contract: type) -> Any:
    """Return what a class has under a name; ``None`` for a facet's default, and where it has nothing."""
    below = (vars(base)[name] for base in part.__mro__ if name in vars(base))
    found = next((body for body in below if not isinstance(body, _Former)), None)
    if isinstance(found, _Default | _Constant) or getattr(found, "passes_on", False):
        return None
    return None if getattr(found, "is_default", False) and not issubclass(contract, Wrapper) else found


# ------------------------------------------------------------------ defaults that pass through wrappers


def _passing_on(kind: type[Facet], name: str, said: Any) -> Any:
    """Return a facet's default as its class has it: on a wrapper, it asks the base, and a bare facet answers for the part that does not carry it."""

    def inside(part: Wrapper) -> Any:
        return getattr(facet(part.base, kind), name)

    def whose(part: Any) -> Any:
        return part._part if type(part) is kind else part

    if isinstance(said, property):
        return _Default(lambda part: inside(part) if isinstance(part, Wrapper) else said.__get__(whose(part)), said)
    if not callable(said):
        return _Constant(said, inside)

    @functools.wraps(said)
    def default(part: Any, *given: Any, **named: Any) -> Any:
        return inside(part)(*given, **named) if isinstance(part, Wrapper) else said(whose(part), *given, **named)

    default.passes_on = True  # type: ignore[attr-defined]
    said.is_default = True
    return default


class _Default(property):
    """A property of a facet."""

    def __init__(self, read: Callable[[Any], Any], said: property) -> None:
        super().__init__(read, doc=said.__doc__)
        self.__wrapped__ = said


class _Constant:
    """A constant of a facet: of a class as it stands, of a wrapper what its base has."""

    def __init__(self, value: Any, inside: Callable[[Any], Any]) -> None:
        self.__wrapped__, self._inside = value, inside

    def __get__(self, part: Any, owner: type) -> Any:
        return self._inside(part) if isinstance(part, Wrapper) else self.__wrapped__


# ------------------------------------------------------------------ the form of before


def keep_old_form(contract: type, *kinds: type[Facet]) -> None:
    """For one version, let facets be written and read as if they were still functions of the contract itself.

    A class that overrides one without carrying the facet carries it from then on, and its names answer on every part. Each class, and each name that is read so,
    says the new form once in a ``DeprecationWarning``.

    Args:
        contract: the base class of the parts.
        kinds: the facets whose names the contract had.
    """
    homes = {name: kind for kind in kinds if not issubclass(contract, kind) for name in names_of(kind)}
    for name, kind in homes.items():
        setattr(contract, name, _Former(contract, kind, name))

    def adopt(cls: type, **more: Any) -> None:
        super(contract, cls).__init_subclass__(**more)  # type: ignore[arg-type]
        beside = (
            base
            for base in cls.__mro__
            if not issubclass(base, Facet) and (base is cls or not issubclass(base, contract))
        )
        said = [name for base in (cls, *beside) for name in vars(base) if name in homes]
        for kind in dict.fromkeys(homes[name] for name in said):
            if not issubclass(cls, kind):
                shown = ", ".join(f"`{name}`" for name in dict.fromkeys(said) if homes[name] is kind)
                bases = ", ".join(base.__name__ for base in cls.__bases__)
                warnings.warn(
                    f"{cls.__module__}:{cls.__qualname__} overrides {shown}, of the facet {kind.__name__}: write class {cls.__name__}({bases}, {kind.__name__}),"
                    f" with {kind.__name__} of {kind.__module__}",
                    DeprecationWarning,
                    stacklevel=3,  # past the `__new__` of ABCMeta, which makes all parts
                )
                kind.register(cls)

    contract.__init_subclass__ = classmethod(adopt)  # type: ignore[assignment, arg-type]


class _Former:
    """A name of a facet that was one of the contract."""

    def __init__(self, contract: type, kind: type[Facet], name: str) -> None:
        self._contract, self._kind, self._name, self._told = contract, kind, name, False

    def __set__(self, part: Any, value: Any) -> None:
        """Keep what an object says of itself; its class carries the facet then, or nobody would ask it."""
        if not isinstance(part, self._kind):
            self._say(
                f"{type(part).__name__} sets `{self._name}`, of the facet {self._kind.__name__}: let its class inherit"
            )
            self._kind.register(type(part))
        vars(part)[self._name] = value

    def _say(self, what: str) -> None:
        where = f"{self._kind.__name__} of {self._kind.__module__}"
        warnings.warn(f"{what} {where}", DeprecationWarning, stacklevel=3)

    def __get__(self, part: Any, owner: type) -> Any:
        said = vars(self._kind)[self._name]
        if part is None:
            return said.__get__(None, owner)
        if self._name in vars(part):
            return vars(part)[self._name]
        carrier = facet(part, self._kind)
        if carrier is part:
            # Its class leaves this name alone, or asks above itself by ``super()``: go on behind the contract.
            further = owner.__mro__[owner.__mro__.index(self._contract) + 1 :]
            body = next((vars(base)[self._name] for base in further if self._name in vars(base)), said)
            return body.__get__(part, owner)
        if not self._told:
            self._told = True
            self._say(f"`{self._name}` is read by facet(part, {self._kind.__name__}) of atoll.core.facets, with")
        return getattr(cast(Any, carrier), self._name)
