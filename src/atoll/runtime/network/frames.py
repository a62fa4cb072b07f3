"""Reads fields from a site's frame, and refuses a frame that is malformed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from atoll.core.errors import LetterError, MessageError

__all__ = ["LONGEST", "describe_value", "names_in", "read", "text_in", "whole_in", "wrong"]

T = TypeVar("T")
LONGEST = 1000
"""Characters of a name, at most."""
_MOST_NAMES = 1_000_000


def whole_in(frame: Any, name: str) -> int:
    """Return a whole number in a frame.

    Raises:
        MessageError: it is missing, or not a whole number.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if type(found) is not int:
        raise wrong(f"{name!r} is {describe_value(found)} and must be a whole number")
    return found


def text_in(frame: Any, name: str) -> str:
    """Return a word in a frame.

    Raises:
        MessageError: it is missing, not text, or too long.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, str) or len(found) > LONGEST:
        raise wrong(f"{name!r} is {describe_value(found)} and must be a word")
    return found


def names_in(frame: Any, name: str) -> list[str]:
    """Return a list of words in a frame.

    Raises:
        MessageError: it is missing, or holds something else.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, list) or len(found) > _MOST_NAMES:
        raise wrong(f"{name!r} is {describe_value(found)} and must be a list of words")
    return [text_in({name: each}, name) for each in found]


def read(reader: Callable[[], T]) -> T:
    """Read a part of a frame; whatever that raises, the frame has the wrong form.

    Raises:
        MessageError: the frame has the wrong form.
    """
    try:
        return reader()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, LetterError) as error:
        raise wrong(f"{type(error).__name__}: {error!s:.300}") from error


def describe_value(value: Any) -> str:
    """Describe a foreign value in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}{list(value.shape)}"
    if isinstance(value, dict | list | tuple | bytes):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:80] if isinstance(value, str) else value)


def wrong(what: str) -> MessageError:
    """Return the error for a malformed frame."""
    return MessageError(what, where="a reply", remedy="check what runs there; use the same version of Atoll everywhere")
