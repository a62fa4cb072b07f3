"""What is read from a frame of a site, and how a frame that makes no sense is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from atoll.core.errors import LetterError, MessageError

__all__ = ["LONGEST", "names_in", "read", "shown", "text_in", "whole_in", "wrong"]

T = TypeVar("T")
LONGEST = 1000
"""Characters of a name, at most."""
_MOST_NAMES = 1_000_000


def whole_in(frame: Any, name: str) -> int:
    """A whole number of a frame.

    Raises:
        MessageError: it is not there, or no whole number.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if type(found) is not int:
        raise wrong(f"{name!r} is {shown(found)} and must be a whole number")
    return found


def text_in(frame: Any, name: str) -> str:
    """A word of a frame.

    Raises:
        MessageError: it is not there, no text, or too long.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, str) or len(found) > LONGEST:
        raise wrong(f"{name!r} is {shown(found)} and must be a word")
    return found


def names_in(frame: Any, name: str) -> list[str]:
    """A list of words of a frame.

    Raises:
        MessageError: it is not there, or holds something else.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, list) or len(found) > _MOST_NAMES:
        raise wrong(f"{name!r} is {shown(found)} and must be a list of words")
    return [text_in({name: each}, name) for each in found]


def read(reader: Callable[[], T]) -> T:
    """Read a part of a frame; whatever that raises, the frame is of another form.

    Raises:
        MessageError: it is.
    """
    try:
        return reader()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, LetterError) as error:
        raise wrong(f"{type(error).__name__}: {error!s:.300}") from error


def shown(value: Any) -> str:
    """A value from far away in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}{list(value.shape)}"
    if isinstance(value, dict | list | tuple | bytes):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:80] if isinstance(value, str) else value)


def wrong(what: str) -> MessageError:
    """What to raise of a frame that makes no sense."""
    return MessageError(
        what, where="a reply", remedy="look at what runs there; use the same version of Atoll everywhere"
    )
