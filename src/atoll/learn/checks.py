"""What settings of algorithms must be (positive, counts, shares, words that are known), and models: finite."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from atoll.core.errors import AtollError, CompositionError, ConfigError, nearest
from atoll.core.tree import Tree

__all__ = [
    "require_choice",
    "require_count",
    "require_finite",
    "require_kinds",
    "require_parts",
    "require_positive",
    "require_share",
]


def require_positive(where: str, **values: float) -> None:
    """Refuse rates, penalties and bounds that are not positive and finite.

    Raises:
        ConfigError: names the first.
    """
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name}={value}", where=where, remedy="use a positive, finite number")


def require_count(where: str, **values: int) -> None:
    """Refuse counts below 1, and broken ones.

    Raises:
        ConfigError: names the first.
    """
    for name, value in values.items():
        if not _real(value) or value < 1 or not float(value).is_integer():
            raise ConfigError(f"{name}={value!r}", where=where, remedy="use a whole number of at least 1")


def require_share(where: str, **shares: float) -> None:
    """Refuse a factor of memory outside [0, 1).

    Raises:
        ConfigError: one is.
    """
    for name, value in shares.items():
        if not 0.0 <= value < 1.0:
            raise ConfigError(f"{name}={value}", where=where, remedy="use a number in [0, 1)")


def require_choice(where: str, name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not among those known.

    Raises:
        ConfigError: with the nearest one.
    """
    if value not in known:
        hint = nearest(str(value), known)
        raise ConfigError(f"{name}={value!r} is not known.{hint}", where=where, remedy=f"use one of {', '.join(known)}")


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float | np.floating) and not math.isnan(value))


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_whole, "a whole number"),
    "float": (_real, "a number"),
    "bool": (lambda value: isinstance(value, bool | np.bool_), "True or False"),
    "str": (lambda value: isinstance(value, str), "a word"),
    "None": (lambda value: value is None, "None"),
}
"""Annotation -> what fits it, and in words."""


def require_kinds(part: Any) -> None:
    """Refuse settings that are not what the fields of a dataclass say, for fields of plain kinds: whole numbers, numbers (never NaN), truths, words, None.

    A configuration file is read with the same care; this is for values that come from Python.

    Raises:
        ConfigError: names the first.
    """
    own: Any = type(part)
    for name, kinds in _plain(own):
        value = getattr(part, name)
        if not any(_KINDS[kind][0](value) for kind in kinds):
            words = " or ".join(_KINDS[kind][1] for kind in kinds)
            raise ConfigError(f"{name}={value!r}", where=type(part).__name__, remedy=f"use {words}")


def require_parts(whole: Any, single: Mapping[str, tuple[Any, str]], several: Mapping[str, tuple[Any, str]]) -> None:
    """Refuse parts of another kind than they are used as.

    Args:
        whole: whose attributes they are.
        single: name of a part -> its base, and an example.
        several: name of a list of parts -> the base of each, and an example.

    Raises:
        CompositionError: names the first.
    """
    kind = type(whole).__name__
    for name, (base, example) in single.items():
        value = getattr(whole, name)
        if not isinstance(value, base):
            what = f"{value.__name__} is a class" if isinstance(value, type) else f"{value!r} is no {base.__name__}"
            raise CompositionError(f"{name}: {what}", where=f"{kind}.{name}", remedy=f"use for example {example}")
    for name, (base, example) in several.items():
        value = getattr(whole, name)
        if not isinstance(value, Sequence) or not all(isinstance(part, base) for part in value):
            raise CompositionError(
                f"{name}={value!r} is no list of {base.__name__}",
                where=f"{kind}.{name}",
                remedy=f"use for example [{example}]",
            )


@functools.cache
def _plain(kind: Any) -> list[tuple[str, list[str]]]:
    """The fields that a caller gives and whose annotation names plain kinds alone."""
    found = {field.name: str(field.type).split(" | ") for field in fields(kind) if field.init}
    return [(name, kinds) for name, kinds in found.items() if set(kinds) <= set(_KINDS)]


def require_finite(
    params: Tree, number: int, *, whose: str = "the global model", rate: str = "the server's learning rate"
) -> None:
    """Refuse a model that has left the numbers.

    Args:
        params: its parameters by name.
        number: of the round.
        whose: model it is.
        rate: what to lower.

    Raises:
        AtollError: names the first parameter that is not finite.
    """
    for name, leaf in params.items() if isinstance(params, dict) else []:
        # One sum tells, unless it overflows.
        if isinstance(leaf, np.ndarray) and not math.isfinite(float(leaf.sum())) and not np.isfinite(leaf).all():
            raise AtollError(
                f"parameter {name!r} of {whose} is not finite",
                where=f"round {number}",
                remedy=f"lower {rate}; the last checkpoint is intact",
            )
