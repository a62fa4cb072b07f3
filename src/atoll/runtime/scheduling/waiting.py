"""The scheduler's state of a job that waits, and of a job that asks sites."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

from atoll.core.errors import JobError, nearest

from .wants import Want

__all__ = ["Asking", "SiteView", "Waiting", "list_sites"]

_FIRST, _LONGEST = 1.0, 60.0
"""Seconds until a refused job asks again: doubled with every refusal, up to a minute."""


@dataclass(frozen=True)
class SiteView:
    """The sites of a job.

    Attributes:
        all: how many there are.
        allowed: those that may take it, in the order of its attempts.
        present: those of them that can be asked.
        absent: the other ones, in words.
        unknown: a hint if the server knows no site of that name: probably a typo, but such a site may join later.
    """

    all: int
    allowed: list[str]
    present: list[str]
    absent: str
    unknown: str = ""


@dataclass
class Waiting:
    """A job in the queue.

    Attributes:
        want: what it needs.
        barred: site -> why it never takes the job.
        overtaken: how many later jobs have started on sites that it could have used.
        refusals: in a row.
        retry: when it may ask again, unless something changes earlier.
        absent: since when too few sites are connected; None while there are enough.
        why: why it waits.
    """

    want: Want
    barred: dict[str, str] = field(default_factory=dict)
    overtaken: int = 0
    refusals: int = 0
    retry: float = float("-inf")
    absent: float | None = None
    why: str = ""

    def may_use(self, site: str) -> bool:
        """Tell whether the job has not excluded a site."""
        return self.want.sites is None or site in self.want.sites or site in self.want.helpers

    def view(
        self, known: Set[str], connected: Set[str], revoked: Callable[[str], bool] = lambda site: False
    ) -> SiteView:
        """Return the sites that it may use now."""
        named = sorted(known) if self.want.sites is None else list(self.want.sites)
        allowed = [site for site in named if site not in self.barred]
        present = [site for site in allowed if site in connected]
        away = set(allowed) - set(present)
        gone = {site for site in away if revoked(site)}
        hint = f"; the certificate of {list_sites(gone)} was revoked" if gone else ""
        hint += _unknown(set(allowed) - known - gone, known)
        return SiteView(max(1, len(named)), allowed, present, list_sites(away), hint)

    def missing(self, connected: Set[str]) -> list[str]:
        """The helpers that cannot be asked."""
        return [site for site in self.want.helpers if site not in connected]

    def note_refusal(self, now: float, why: str) -> None:
        """Wait before asking again: longer every time, and differently for each job, so that two servers do not collide for ever."""
        seed = hashlib.sha256(f"{self.want.job}/{self.refusals}".encode()).digest()[0] / 256
        self.retry = now + min(_LONGEST, _FIRST * 2.0 ** min(self.refusals, 10)) * (0.5 + seed)
        self.refusals += 1
        self.why = why

    def woken(self, now: float) -> None:
        """Allow the job to ask again: something has changed at its sites."""
        self.retry, self.refusals = now, 0

    def impossible(self, quorum: int) -> JobError:
        """Return the error that says why it can never run."""
        return JobError(
            f"it needs {quorum} sites, but too few have what it asks for: {'; '.join(self.barred.values())}",
            where=f"job {self.want.job}, reservation",
            remedy="ask for less under resources:, or for fewer sites with min_sites:",
        )

    def forsaken(self, why: str) -> JobError:
        """Why it never runs without a helper."""
        return JobError(
            f"it needs each of its helpers, and {why}",
            where=f"job {self.want.job}, reservation",
            remedy="start `atoll site` there and submit again; or ask for less under resources:",
        )

    def lonely(self, view: SiteView, quorum: int) -> JobError:
        """Return the error that says why it was given up."""
        return JobError(
            f"for {self.want.patience:g} s fewer than {quorum} of its sites were connected; {view.absent} did not connect{view.unknown}",
            where=f"job {self.want.job}, reservation",
            remedy="start `atoll site` there and submit again, or accept fewer sites with min_sites:",
        )


@dataclass
class Asking:
    """A job with open offers.

    Attributes:
        quorum: how many sites must take it, helpers not counted.
        deadline: until when they may answer.
        pending: site -> ticket of the offer.
        held: sites that hold the resources.
        noes: site -> why not.
        helpers: those of the sites that it needs beside the quorum.
    """

    quorum: int
    deadline: float
    pending: dict[str, int]
    held: set[str] = field(default_factory=set)
    noes: dict[str, str] = field(default_factory=dict)
    helpers: frozenset[str] = frozenset()

    @property
    def hopeless(self) -> bool:
        """Whether too few sites hold it or may yet, or a helper does not."""
        left = {*self.pending, *self.held}
        return len(left - self.helpers) < self.quorum or not self.helpers <= left

    @property
    def sites(self) -> list[str]:
        """Return the sites where something is or may become held."""
        return sorted({*self.pending, *self.held})

    def asks(self, sites: Iterable[str]) -> bool:
        """Tell whether one of these sites has an offer of this job."""
        return any(site in self.pending or site in self.held for site in sites)

    def drop(self, site: str, why: str) -> bool:
        """Drop a site that will not take the job; return whether it was asked."""
        asked = site in self.pending or site in self.held
        self.pending.pop(site, None)
        self.held.discard(site)
        if asked:
            self.noes[site] = why
        return asked


def list_sites(sites: Iterable[str], most: int = 5) -> str:
    """``site 'a'``, ``sites 'a', 'b' and 7 more``."""
    names = sorted(sites)
    text = ", ".join(map(repr, names[:most]))
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"site{'s' if len(names) != 1 else ''} {text or '(none is known)'}{rest}"


def _unknown(names: Set[str], known: Set[str]) -> str:
    """Return a hint about sites that are unknown, if others are known."""
    if not names or not known:
        return ""
    hint = nearest(min(names), known)
    return f"; the server knows no {list_sites(names)}{'.' if hint else ''}{hint}"
