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
        step: what was checked.
        state: ok, problem, warning for what works and could be safer, or skipped if an earlier problem leaves nothing to
            check.
        said: what was found, with the node it is about.
        remedy: what to do next (problems and warnings).
    """

    step: str
    state: Literal["ok", "problem", "warning", "skipped"]
    said: str
    remedy: str | None = None

    @classmethod
    def ok(cls, step: str, said: str) -> Finding:
        """Return a finding that all is well."""
        return cls(step, "ok", said)

    @classmethod
    def problem(cls, step: str, said: str, remedy: str) -> Finding:
        """Return a finding that needs action."""
        return cls(step, "problem", said, remedy)

    @classmethod
    def warning(cls, step: str, said: str, remedy: str) -> Finding:
        """Return a finding that all works and could be safer."""
        return cls(step, "warning", said, remedy)

    @classmethod
    def skip_step(cls, step: str, why: str) -> Finding:
        """Return a finding that nothing could be checked."""
        return cls(step, "skipped", why)


Step = Iterator[Finding]


def attempt(step: str, look: Callable[[], str]) -> Finding:
    """Check one thing; an ``AtollError`` is a problem with its own remedy."""
    try:
        return Finding.ok(step, look())
    except AtollError as error:
        place = f" (in {error.where})" if error.where else ""
        return Finding.problem(step, f"{error.what}{place}", error.remedy or "see the documentation")
