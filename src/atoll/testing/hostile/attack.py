"""One way to misbehave: what a hostile site sends in place of what an honest one would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Attack", "Fate", "Garbage", "Silence", "folded", "kind_of", "retold", "totals"]

Fate = Literal["refused", "forgotten", "warned", "lost", "believed"]
Change = Callable[[dict[str, Any]], list[Any]]


@dataclass(frozen=True)
class Attack:
    """One way to misbehave.

    Attributes:
        name: a word or two.
        does: what the site does, in words.
        meets: what it meets, in words.
        fate: what becomes of it: ``refused``, the site is named and nothing of its reply is used; ``forgotten``, it changes nothing; ``warned``, its
            reply is used, and the server says that it stands far outside; ``lost``, the site is given up after the job's patience; ``believed``,
            nobody can tell.
        on: the kind of frame in whose place it sends something else: ``hello``, ``folded`` or ``pulse``.
        change: frame -> what the site sends instead.
    """

    name: str
    does: str
    meets: str
    fate: Fate
    on: str
    change: Change


@dataclass(frozen=True)
class Garbage:
    """Bytes that are no message."""

    content: bytes


class Silence:
    """Nothing, from now on: not even signs of life."""


def kind_of(frame: Any) -> str:
    """Return what a site's frame is: ``hello``, ``folded``, ``ran``, ``pulse``, ..."""
    if not isinstance(frame, Mapping):
        return ""
    return str(frame.get("op") or next(iter(frame), ""))


def retold(frame: Mapping[str, Any], *path: str, **changes: Any) -> dict[str, Any]:
    """Return a frame with other fields inside; arrays are shared, dicts are not.

    Args:
        frame: the honest frame.
        path: keys that lead to the fields.
        changes: the fields.
    """
    if not path:
        return {**frame, **changes}
    return {**frame, path[0]: retold(frame[path[0]], *path[1:], **changes)}


def folded(**changes: Any) -> Change:
    """Change fields of a summand."""
    return lambda frame: [retold(frame, "folded", **changes)]


def totals(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    """Change the totals of a summand: name -> kind, value, weight, number and role."""
    return lambda frame: [retold(frame, "folded", totals=change(dict(frame["folded"]["totals"])))]


def scaled(value: Any, factor: float) -> Any:
    """Return a tree of numbers times a factor."""
    if isinstance(value, dict):
        return {key: scaled(each, factor) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(scaled(each, factor) for each in value)
    return np.asarray(value) * np.asarray(value).dtype.type(factor)


def leafwise(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with each array changed."""
    if isinstance(value, dict):
        return {key: leafwise(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(leafwise(each, change) for each in value)
    return change(np.asarray(value))
