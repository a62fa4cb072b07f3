"""What a scheduler needs to know about a job, and the actions that it returns."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core.errors import JobError

from .amounts import Resources
from .resources import Answer

__all__ = ["Action", "Answer", "Deploy", "Offer", "Refuse", "Release", "Wait", "Want"]


@dataclass(frozen=True, kw_only=True)
class Want:
    """A job that waits for sites.

    Attributes:
        job: its id; jobs are served in the order of their ids.
        need: what it asks of every site.
        sites: the only sites that it may use; None for all of the project, absent ones included.
        quorum: how many sites it needs at least; None for all that it may use.
        floor: how many are enough after waiting ``patience`` for absent ones; None for the quorum.
        patience: seconds to wait for absent sites.
        helpers: sites without clients. The job needs every one of them, and they count for no quorum.
    """

    job: str
    need: Resources
    sites: tuple[str, ...] | None = None
    quorum: int | None = None
    floor: int | None = None
    patience: float = 600.0
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """Ask a site whether it takes a job; a yes holds the resources there. The answer goes to ``Scheduler.take_answer`` with the ticket."""

    job: str
    site: str
    need: Resources
    ticket: int


@dataclass(frozen=True)
class Release:
    """Tell a site to hold nothing for a job any more. It must not overtake an offer that was sent before it."""

    job: str
    site: str


@dataclass(frozen=True)
class Deploy:
    """Start an attempt: every one of these sites holds the resources now. Call ``Scheduler.end_job`` when it has ended."""

    job: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Refuse:
    """The job cannot run: it has failed with this error. The scheduler has forgotten it."""

    job: str
    error: JobError


@dataclass(frozen=True)
class Wait:
    """Why the job waits, in words, whenever that changes."""

    job: str
    why: str


Action = Offer | Release | Deploy | Refuse | Wait
"""The actions that a scheduler asks for, in order."""
