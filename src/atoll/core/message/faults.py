"""Errors that name their place in the tree."""

from __future__ import annotations

from atoll.core.errors import MessageError

__all__ = ["ROOT", "enter", "fault", "finish", "label", "shown_key"]

ROOT = "the root of the message"
_LONGEST_STEP = 60


def fault(what: str, remedy: str) -> MessageError:
    """Return a MessageError; the containers around it fill in its place (`enter`)."""
    return MessageError(what, where="", remedy=remedy)


def label(key: str) -> str:
    """Return a dict key as one step of a path, without control characters and of bounded length."""
    step = key if key.isprintable() and key else ascii(key)
    return step if len(step) <= _LONGEST_STEP else step[:_LONGEST_STEP] + "…"


def shown_key(key: object) -> str:
    """Return a dict key, which may have a wrong type, for a path."""
    if isinstance(key, str):
        return key
    if isinstance(key, int) and key.bit_length() > 64:  # Python refuses to print very large ones
        return "a large int"
    plain = key is None or isinstance(key, int | float | bytes | tuple)
    return repr(key) if plain else f"a {type(key).__name__}"


def enter(error: MessageError, step: str | int) -> None:
    """Prefix the place of ``error`` with one step: a dict key, or a position in a list or tuple."""
    head = f"[{step}]" if isinstance(step, int) else label(step)
    rest = error.where or ""
    error.where = head + (rest if not rest or rest.startswith("[") else "/" + rest)


def finish(error: MessageError) -> MessageError:
    """Name the root if no container added a place."""
    error.where = error.where or ROOT
    return error
