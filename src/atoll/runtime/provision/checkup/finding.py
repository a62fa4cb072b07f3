"""What one step of a check found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from atoll.core.errors import AtollError

__all__ = ["Finding", "Step", "attempt"]


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Attributes:
        step: what was looked at.
        state: ok, problem, or skipped when an earlier problem leaves nothing to look at.
        said: what was found, with the node it is about.
        remedy: what to do next (problems).
    """

    step: str
    state: Literal["ok", "problem", "skipped"]
    said: str
    remedy: str | None = None

    @classmethod
    def ok(cls, step: str, said: str) -> Finding:
        """All is well."""
        return cls(step, "ok", said)

    @classmethod
    def problem(cls, step: str, said: str, remedy: str) -> Finding:
        """Something has to be done."""
        return cls(step, "problem", said, remedy)

    @classmethod
    def skipped(cls, step: str, why: str) -> Finding:
        """Nothing could be looked at."""
        return cls(step, "skipped", why)


Step = Iterator[Finding]


def attempt(step: str, look: Callable[[], str]) -> Finding:
    """Look at one thing; an ``AtollError`` is a problem with its own remedy."""
    try:
        return Finding.ok(step, look())
    except AtollError as error:
        place = f" (in {error.where})" if error.where else ""
        return Finding.problem(step, f"{error.what}{place}", error.remedy or "see the documentation")
