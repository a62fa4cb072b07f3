"""Errors that leave a site: what they quote of its data stays here, in the site's own log.

Atoll's own errors mark such values (`atoll.core.redaction`). The text of any other library's error, or of a job's own code, may quote a
row anywhere. Only its kind leaves.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

from atoll.core.errors import AtollError, TaskError
from atoll.core.redaction import private, redacted
from atoll.runs.log import logger

__all__ = ["leaving", "trace_of"]

_MARKED = re.compile("(«[^»]*(?:»|$))")
_STAYS = "the site's own log has the words"


def leaving(error: Exception) -> AtollError:
    """Return the error as it may leave this site; if that is less than it says, write all of it to the log.

    Args:
        error: one of Atoll's own, or any other, of which only the kind leaves.
    """
    known = getattr(error, "_leaves", None)
    if known is not None:
        return known  # type: ignore[no-any-return]  # it was asked before: one line in the log is enough
    found = error if isinstance(error, AtollError) else _of_kind(error)
    what, where, remedy = (_mark_repeated(text, error) for text in (found.what, found.where, found.remedy))
    told = tuple(None if text is None else redacted(text) for text in (what, where, remedy))
    if told == (what, where, remedy):
        return found
    logger.error("%s", type(found)(what or "", where=where, remedy=remedy))
    hint = _STAYS if not told[2] else told[2] if _STAYS in told[2] else f"{told[2]}; {_STAYS}"
    error._leaves = type(found)(told[0] or "", where=told[1], remedy=hint)  # type: ignore[attr-defined]
    return error._leaves  # type: ignore[attr-defined, no-any-return]


def _of_kind(error: Exception) -> TaskError:
    text = str(error)
    what = f"{type(error).__name__}: {private(text)}" if text else type(error).__name__
    return TaskError(what, remedy="see the log of the site")


def _mark_repeated(text: str | None, error: BaseException) -> str | None:
    """Mark what an error repeats of the errors that it comes from, unless these are Atoll's own."""
    if text is None:
        return None
    for cause in _causes(error):
        said = str(cause)
        part = next((part for part in (said, said.partition("\n")[0]) if part and part in text), "")
        if part and not isinstance(cause, AtollError):
            text = _outside(text, part)
    return text


def _outside(text: str, part: str) -> str:
    """Mark a part of a text wherever it stands outside of marks."""
    pieces = _MARKED.split(text)
    return "".join(piece if piece.startswith("«") else piece.replace(part, private(part)) for piece in pieces)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found = error.__cause__ or error.__context__
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def trace_of(error: BaseException) -> list[str]:
    """Return the lines of a traceback in which each error's text is marked, so that it stays at the site."""
    lines: list[str] = []
    for found in [*reversed([*_causes(error)]), error]:
        lines += [line for entry in traceback.format_tb(found.__traceback__) for line in entry.splitlines()]
        text = str(found)
        lines.append(f"{type(found).__name__}: {private(text)}" if text else type(found).__name__)
    return lines
