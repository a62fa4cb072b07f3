"""Every error that Atoll raises on purpose: what was wrong, where, and what to do.

```
AtollError                      1
├── ConfigError (ValueError)    2   a setting or an argument that cannot be used
├── DataError (ValueError)      3   data, a partition or a model that does not fit it
├── CompositionError (ValueError) 4 parts that cannot be combined soundly
├── MessageError (ValueError)   5   bytes that are not a message, or a value that cannot become one
├── TaskError (RuntimeError)    6   a task raised at a party
├── QuorumError (RuntimeError)  7   too few parties answered in time
├── CheckpointError (RuntimeError) 8 a checkpoint or run folder that cannot be read or written
├── MissingExtraError (ImportError) 9 an optional dependency that is not installed
├── PolicyError (PermissionError) 10 an island refused to release something
├── IdentityError (PermissionError) 11 a party is not who it must be
├── JobError (RuntimeError)     12  a job that cannot be taken, found, changed or carried out
├── BundleError (ValueError)    13  a job's signed bundle that was altered, or must not be opened
├── LetterError (PermissionError) 14 a sealed letter that is not what it says it is
└── SessionError (RuntimeError) 15  a session that lost a role or missed its deadline
```

The number is the exit code of the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

__all__ = [
    "AtollError",
    "BundleError",
    "CheckpointError",
    "CompositionError",
    "ConfigError",
    "DataError",
    "IdentityError",
    "JobError",
    "LetterError",
    "MessageError",
    "MissingExtraError",
    "PolicyError",
    "QuorumError",
    "SessionError",
    "TaskError",
    "nearest",
]


class AtollError(Exception):
    """An error that names the value, the place and the remedy.

    Args:
        what: what was wrong, with the offending value.
        where: the place: a round, party, task, file, column or key.
        remedy: what to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        # A text that ends with a "Did you mean" hint already has its full stop.
        what = self.what[:-1] if self.what.endswith(".") and not self.what.endswith("..") else self.what
        text = what if self.where is None else f"{what} (in {self.where})"
        end = "" if text.endswith("?") else "."
        return text if self.remedy is None else f"{text}{end} Remedy: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(kind: type[AtollError], what: str, where: str | None, remedy: str | None) -> AtollError:
    return kind(what, where=where, remedy=remedy)


class ConfigError(AtollError, ValueError):
    """A setting or an argument that cannot be used."""

    exit_code = 2


class DataError(AtollError, ValueError):
    """Data, a partition, or a model that does not fit the data."""

    exit_code = 3


class CompositionError(AtollError, ValueError):
    """Parts that cannot be combined soundly; raised before anyone is contacted."""

    exit_code = 4


class MessageError(AtollError, ValueError):
    """Bytes that are not a valid message, or a value that a message cannot carry."""

    exit_code = 5


class TaskError(AtollError, RuntimeError):
    """A task raised at a party."""

    exit_code = 6


class QuorumError(AtollError, RuntimeError):
    """Too few parties answered in time.

    Attributes:
        combined: what was asked, sent and received before the sum failed: a ``Combined`` without values and weights.
    """

    exit_code = 7
    combined: Any = None


class CheckpointError(AtollError, RuntimeError):
    """A checkpoint or run folder that cannot be read or written."""

    exit_code = 8


class MissingExtraError(AtollError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 9


class PolicyError(AtollError, PermissionError):
    """An island's own policy refused to release something."""

    exit_code = 10


class IdentityError(AtollError, PermissionError):
    """A party is not who it must be: its certificate is unreadable, of another role or project, or revoked."""

    exit_code = 11


class JobError(AtollError, RuntimeError):
    """A job that cannot be accepted, found, changed or run."""

    exit_code = 12


class BundleError(AtollError, ValueError):
    """A job's signed bundle that was altered, was signed by someone else, or must not be opened."""

    exit_code = 13


class LetterError(AtollError, PermissionError):
    """A sealed letter that does not match its envelope: altered, from another sender or request, for another party, or delivered twice."""

    exit_code = 14


class SessionError(AtollError, RuntimeError):
    """A session that lost a role or missed its deadline; what its roles left does not take effect.

    ``peers.recv`` raises it in a role that waits for a role that ended in this way.
    """

    exit_code = 15


def nearest(wrong: Any, valid: Iterable[Any]) -> str:
    """Return ``" Did you mean 'x'?"`` for the valid word nearest to ``wrong``, or ``""``: also if ``wrong`` is no word, such as a place in a list."""
    words = [word for word in valid if isinstance(word, str)]
    plain = wrong.strip().casefold() if isinstance(wrong, str) else ""
    same = [word for word in words if plain and word.strip().casefold() == plain]  # AGE is as near to age as can be
    close = same or (difflib.get_close_matches(wrong, words, n=1, cutoff=0.5) if isinstance(wrong, str) else ())
    return f" Did you mean {str(close[0])!r}?" if close else ""  # the word, not the name of an enumeration
