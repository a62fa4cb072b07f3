"""Checks of settings: Atoll checks settings from Python as carefully as settings from a file."""

from __future__ import annotations

import functools
import inspect
import sys
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import index
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from .calls import KINDS, is_real, misfit, shown
from .errors import AtollError, CompositionError, ConfigError, nearest

__all__ = [
    "Checked",
    "is_real",
    "listed_words",
    "numbers",
    "pairs",
    "require_kinds",
    "require_parts",
    "require_words",
    "whole_rows",
]


def require_kinds(part: Any) -> None:
    """Refuse settings that do not match the fields of a dataclass, for fields of plain kinds: integers, numbers (not NaN), Booleans, text, None.

    Raises:
        ConfigError: names the first such setting.
    """
    own: Any = type(part)
    for name, kinds in _plain(own):
        value = getattr(part, name)
        if not any(KINDS[kind][0](value) for kind in kinds):
            words = " or ".join(KINDS[kind][1] for kind in kinds)
            raise ConfigError(f"{name}={shown(value)}", where=type(part).__name__, remedy=f"use {words}")


def require_words(part: Any) -> None:
    """Refuse words that are none of those that the annotation of their field lists, such as ``Literal["mean", "median"]``.

    Raises:
        ConfigError: names the first such setting, and the nearest word.
    """
    own: Any = type(part)
    for name, (words, others) in listed_words(own).items():
        value = getattr(part, name)
        if _is_one_of(value, words) or any(KINDS[kind][0](value) for kind in others):
            continue
        known = [*map(str, words), *(KINDS[kind][1] for kind in others)]
        hint = nearest(value, [word for word in words if isinstance(word, str)]) if isinstance(value, str) else ""
        raise ConfigError(f"{name}={shown(value)} is not known.{hint}", where=own.__name__, remedy=f"use {' or '.join(filter(None, [', '.join(known[:-1]), known[-1]]))}")  # fmt: skip


def _is_one_of(value: Any, words: Sequence[Any]) -> bool:
    """Whether a value is one of some words or numbers; ``True`` is not 1."""
    plain = isinstance(value, str | int | np.integer | np.bool_)
    truth = isinstance(value, bool | np.bool_)
    return plain and any(value == word and truth == isinstance(word, bool) for word in words)


def require_parts(
    whole: Any,
    single: Mapping[str, tuple[Any, str]],
    several: Mapping[str, tuple[Any, str]] | None = None,
    optional: Mapping[str, tuple[Any, str]] | None = None,
) -> None:
    """Refuse parts of the wrong kind.

    Args:
        whole: the object whose attributes are checked.
        single: maps the name of a part to its base class and an example.
        several: maps the name of a list of parts to their base class and an example.
        optional: as ``single``, for parts that may be ``None``.

    Raises:
        CompositionError: names the first such part.
    """
    kind = type(whole).__name__
    lists = several or {}
    slots = {**single, **lists, **(optional or {})}
    given = {name: part for name, part in (optional or {}).items() if getattr(whole, name) is not None}
    for name, (base, example) in {**single, **given}.items():
        value = getattr(whole, name)
        if not isinstance(value, base):
            what = (
                f"{value.__name__} is a class"
                if isinstance(value, type)
                else f"{value!r} is not an instance of {base.__name__}"
            )
            remedy = _place_of(value, name, slots, lists) or f"use for example {example}"
            raise CompositionError(f"{name}: {what}", where=f"{kind}.{name}", remedy=remedy)
    for name, (base, example) in lists.items():
        value = getattr(whole, name)
        parts = value if isinstance(value, Sequence) else [value]
        if parts is not value or not all(isinstance(part, base) for part in parts):
            wrong = next((part for part in parts if not isinstance(part, base)), None)
            raise CompositionError(
                f"{name}={value!r} is not a list of {base.__name__}",
                where=f"{kind}.{name}",
                remedy=_place_of(wrong, name, slots, lists) or f"use for example [{example}]",
            )


def _place_of(value: Any, name: str, slots: Mapping[str, tuple[Any, str]], lists: Mapping[str, Any]) -> str:
    """Return where a part belongs that is in the wrong slot; empty if it belongs into none."""
    own = value if isinstance(value, type) else type(value)
    home = next((slot for slot, (base, _) in slots.items() if inspect.isclass(base) and issubclass(own, base)), "")
    if not home or (home == name and own is not value):
        return ""
    made = f"{own.__name__}(...)" if own is value or inspect.signature(own).parameters else f"{own.__name__}()"
    made = f"[{made}]" if home in lists else made
    return f"make one: {home}={made}" if home == name else f"it belongs elsewhere: {home}={made}"


def numbers(where: str, name: str, value: Any) -> NDArray[np.float64]:
    """Return one or more numbers as an array.

    Raises:
        ConfigError: the value is anything else.
    """
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={shown(value)}", where=where, remedy="use a number, or a list of numbers") from None


def whole_rows(where: str, name: str, value: Any, remedy: str) -> tuple[tuple[int, ...], ...]:
    """Return lists of whole numbers.

    Raises:
        ConfigError: the value is anything else.
    """
    try:
        return tuple(tuple(index(i) for i in row) for row in value)
    except TypeError:
        raise ConfigError(f"{name}={shown(value)}", where=where, remedy=remedy) from None


def pairs(where: str, name: str, value: Any) -> tuple[tuple[int, int], ...]:
    """Return pairs of whole numbers.

    Raises:
        ConfigError: the value is anything else.
    """
    remedy = "give pairs of whole numbers, such as [(0, 1), (1, 2)]"
    found = whole_rows(where, name, value, remedy)
    if any(len(row) != 2 for row in found):
        raise ConfigError(f"{name}={shown(value)}", where=where, remedy=remedy)
    return tuple((a, b) for a, b in found)


@functools.cache
def _plain(kind: Any) -> list[tuple[str, list[str]]]:
    """The fields that a caller gives and whose annotation names only plain kinds."""
    found = {field.name: str(field.type).split(" | ") for field in fields(kind) if field.init}
    return [(name, kinds) for name, kinds in found.items() if set(kinds) <= set(KINDS)]


@functools.cache
def listed_words(kind: Any) -> dict[str, tuple[tuple[Any, ...], tuple[str, ...]]]:
    """Return the fields of a dataclass that a caller gives and whose annotation lists words: name -> the words, and the plain kinds that are allowed too."""
    found = {}
    for field in fields(kind):
        owner = next(one for one in kind.__mro__ if field.name in inspect.get_annotations(one))
        holder = type("_", (), {"__annotations__": {field.name: inspect.get_annotations(owner)[field.name]}})
        try:
            whole = get_type_hints(holder, vars(sys.modules[owner.__module__]))[field.name]
        except NameError:  # a class that only type checkers import
            continue
        parts = [whole] if get_origin(whole) is Literal or not get_args(whole) else list(get_args(whole))
        words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
        others = ["None" if part is NoneType else getattr(part, "__name__", "") for part in parts if get_origin(part) is not Literal]  # fmt: skip
        if field.init and words and set(others) <= set(KINDS):
            found[field.name] = (tuple(words), tuple(others))
    return found


class _Made(ABCMeta):
    """Raises a `ConfigError` when a class is called with unknown, missing or too many settings."""

    if not TYPE_CHECKING:  # type checkers look at the fields

        def __call__(cls, *given: Any, **settings: Any) -> Any:
            try:
                return super().__call__(*given, **settings)
            except TypeError as error:
                signature = inspect.signature(cls.__init__)
                try:
                    signature.bind(None, *given, **settings)
                except TypeError:
                    if cls.__init__ is not object.__init__:
                        raise misfit(signature, cls.__name__, settings, error) from None
                raise

        @property
        def __signature__(cls) -> inspect.Signature:
            whole = inspect.signature(cls.__init__)
            return whole.replace(parameters=[*whole.parameters.values()][1:])


class Checked(metaclass=_Made):
    """Base class of dataclasses. It checks settings of plain kinds before their own ``__post_init__``, which may then compare them. It checks words after it, so a class that knows a better remedy can give it.

    Raises:
        ConfigError: a setting does not match its field, see `require_kinds` and `require_words`, is unknown or is missing. Without a place of its own, its
            place is the class.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = cls.__dict__.get("__post_init__")
        if own is None:
            return

        @functools.wraps(own)
        def check_fields(self: Any) -> None:
            require_kinds(self)
            try:
                own(self)
            except AtollError as error:
                error.where = error.where or type(self).__name__
                raise
            except Exception:
                require_words(self)  # it may have looked up a word that nobody knows
                raise
            if (
                type(self).__post_init__ is check_fields
            ):  # else a class that inherits from this one has checks of its own to make
                require_words(self)

        cls.__post_init__ = check_fields  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        require_kinds(self)
        if type(self).__post_init__ is Checked.__post_init__:
            require_words(self)
