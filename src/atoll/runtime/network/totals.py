"""What can be added up: each total of a reply is checked, and whether it fits those before it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import ROLES, Total, Totals, finite
from atoll.core.errors import MessageError

from .frames import LONGEST, describe_value, wrong

__all__ = ["form_of", "require_fit", "require_total"]

_KINDS = ("mean", "sum", "vote", "parts")


def require_total(name: str, total: Total, position: int) -> None:
    """Refuse a total that is not of one reply of this party, or holds anything but finite numbers.

    Raises:
        MessageError: the total is refused; the message says why.
    """
    if not isinstance(name, str) or len(name) > LONGEST or not name.isprintable():
        raise wrong(f"a total called {describe_value(name)}")
    words = isinstance(total.kind, str) and isinstance(total.role, str)
    if not words or total.kind not in _KINDS or total.role not in ROLES or type(total.n) is not int or total.n != 1:
        raise wrong(f"{name!r} is a total of kind {describe_value(total.kind)} of {describe_value(total.n)} replies")
    if not _real(total.weight):
        raise wrong(f"{name!r} has the weight {describe_value(total.weight)}")
    _require_whole(name, total.kind, total.weight)
    if total.kind != "parts":
        _require_numbers(name, total.value)
        return
    if len(total.value) != 1:
        raise wrong(f"{name!r} has {len(total.value)} parts")
    part = total.value[0]
    known = isinstance(part.of, str) and part.of in _KINDS
    if type(part.sender) is not int or part.sender not in (-1, position) or not known:
        raise wrong(f"a part of {name!r} is signed by {describe_value(part.sender)}")
    if not _real(part.weight):
        raise wrong(f"a part of {name!r} has the weight {describe_value(part.weight)}")
    _require_whole(name, part.of, part.weight)
    if part.of == "parts":
        _require_finite(name, part.value)
    else:
        _require_numbers(name, part.value)


def _require_whole(name: str, kind: str, weight: Any) -> None:
    """Refuse a weight below 0, and one other than 1 where replies have none: it would count a party twice or take others away."""
    if weight < 0 or (kind in ("sum", "vote") and weight != 1):
        raise wrong(f"{name!r}, a {kind}, has the weight {float(weight):.6g}")


def _require_numbers(name: str, value: Any) -> None:
    """Check that a value holds only finite numbers."""
    for path, leaf in T.items(value):
        array = isinstance(leaf, np.ndarray | np.generic)
        if not (leaf.dtype.kind in "biufc" if array else isinstance(leaf, Number)):
            raise wrong(f"{_at(name, path)} holds {describe_value(leaf)}, which is not a number")
    _require_finite(name, value)


def _require_finite(name: str, value: Any) -> None:
    for path, leaf in T.items(value):
        number = isinstance(leaf, np.ndarray | np.generic | float | complex)
        if number and not finite(leaf):
            raise wrong(f"{_at(name, path)} is not finite")


def require_fit(sums: Totals, part: Mapping[str, Total]) -> None:
    """Refuse totals that cannot be added to those before them entry by entry.

    Kinds, structures and shapes must be the same. So must dtypes, except that real numbers of any width fit each other,
    as they do in a simulation.

    Raises:
        MessageError: they differ; the message names the total and the difference.
    """
    for name, total in part.items():
        known = sums.get(name)
        if known is None:
            continue
        if (known.kind, known.role) != (total.kind, total.role):
            raise _differs(name, f"a {total.kind} ({total.role})", f"a {known.kind} ({known.role})")
        if total.kind != "parts":
            _require_alike(name, known.value, total.value)


def form_of(totals: Mapping[str, Total]) -> Any:
    """Return the form of some totals, to compare: equal forms fit each other."""
    return tuple(
        (name, total.kind, total.role, None if total.kind == "parts" else _form(total.value))
        for name, total in sorted(totals.items())
    )


def _form(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _form(each)) for key, each in sorted(value.items()))
    if isinstance(value, list | tuple):
        return (len(value), *map(_form, value))
    return (np.shape(value), np.asarray(value).dtype.kind == "c")


def _require_alike(name: str, known: Any, value: Any) -> None:
    """Require the same structure, shapes and kinds of numbers from here downwards."""
    if isinstance(known, dict) and isinstance(value, dict) and known.keys() == value.keys():
        pairs: list[tuple[Any, Any, Any]] = [(key, known[key], value[key]) for key in known]
    elif isinstance(known, list | tuple) and isinstance(value, list | tuple) and len(known) == len(value):
        pairs = [(i, *both) for i, both in enumerate(zip(known, value, strict=True))]
    elif isinstance(known, dict | list | tuple) or isinstance(value, dict | list | tuple):
        raise _differs(name, describe_value(value), describe_value(known))
    else:
        _require_same_sort(name, known, value)
        return
    for key, ours, theirs in pairs:
        _require_alike(f"{name}/{key}", ours, theirs)


def _require_same_sort(name: str, known: Any, value: Any) -> None:
    if np.shape(known) != np.shape(value):
        raise _differs(name, f"of shape {np.shape(value)}", f"of shape {np.shape(known)}")
    one, other = np.asarray(known).dtype, np.asarray(value).dtype
    if one != other and "c" in (one.kind, other.kind):
        raise _differs(name, f"of {other}", f"of {one}")


def _real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool) and finite(value)


def _at(name: str, path: str) -> str:
    return repr(f"{name}/{path}" if path and path != "." else name)


def _differs(name: str, said: str, known: str) -> MessageError:
    return wrong(f"{name!r} is {said}, but the sum of those before it is {known}")
