"""What a scheduler is told of a job, and what it tells whoever carries it out."""

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
        floor: how many suffice once the absent ones have been waited for as long as ``patience``; None for the quorum.
        patience: seconds that absent sites are waited for.
    """

    job: str
    need: Resources
    sites: tuple[str, ...] | None = None
    quorum: int | None = None
    floor: int | None = None
    patience: float = 600.0


@dataclass(frozen=True)
class Offer:
    """Ask a site whether it takes a job; a yes holds the resources there. The answer goes to ``Scheduler.offered`` with the ticket."""

    job: str
    site: str
    need: Resources
    ticket: int


@dataclass(frozen=True)
class Release:
    """Tell a site that it need hold nothing for a job. It must not overtake an offer that was sent before it."""

    job: str
    site: str


@dataclass(frozen=True)
class Deploy:
    """Begin an attempt: every one of these sites holds the resources now. ``Scheduler.ended`` must follow some day."""

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
"""What a scheduler wants to be done, in this order."""
