"""What a scheduler remembers of a job that waits, and of one that asks sites."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from atoll.core.errors import JobError, nearest

from .wants import Want

__all__ = ["Asking", "View", "Waiting", "listed"]

_FIRST, _LONGEST = 1.0, 60.0
"""Seconds until a refused job asks again: doubled with every refusal, up to a minute."""


@dataclass(frozen=True)
class View:
    """The sites of a job.

    Attributes:
        all: how many there are.
        allowed: those that may take it, in the order of its attempts.
        present: those of them that can be asked.
        absent: the others, in words.
        unknown: what to add where the project, as far as its server knows, has no site of such a name: most likely a slip, but one may join later.
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
        want: what it wants.
        barred: site -> why it never takes the job.
        overtaken: how many later jobs have begun on sites that it could have used.
        refusals: in a row.
        retry: not to ask again before this time, unless something changes.
        absent: since when too few sites are connected; None while there are enough.
        why: the last word on why it waits.
    """

    want: Want
    barred: dict[str, str] = field(default_factory=dict)
    overtaken: int = 0
    refusals: int = 0
    retry: float = float("-inf")
    absent: float | None = None
    why: str = ""

    def may_use(self, site: str) -> bool:
        """Whether the job has not excluded a site."""
        return self.want.sites is None or site in self.want.sites

    def view(self, known: Set[str], connected: Set[str]) -> View:
        """The sites that it may use as things are."""
        named = sorted(known) if self.want.sites is None else list(self.want.sites)
        allowed = [site for site in named if site not in self.barred]
        present = [site for site in allowed if site in connected]
        absent = listed(set(allowed) - set(present))
        return View(max(1, len(named)), allowed, present, absent, _unknown(set(allowed) - known, known))

    def refused(self, now: float, why: str) -> None:
        """Wait before asking again: longer every time, and for no two jobs equally long, so that two servers do not meet for ever."""
        seed = hashlib.sha256(f"{self.want.job}/{self.refusals}".encode()).digest()[0] / 256
        self.retry = now + min(_LONGEST, _FIRST * 2.0 ** min(self.refusals, 10)) * (0.5 + seed)
        self.refusals += 1
        self.why = why

    def woken(self, now: float) -> None:
        """Something has changed at its sites."""
        self.retry, self.refusals = now, 0

    def impossible(self, quorum: int) -> JobError:
        """Why it can never run."""
        return JobError(
            f"it needs {quorum} sites, and not so many have what it asks for: {'; '.join(self.barred.values())}",
            where=f"job {self.want.job}, reservation",
            remedy="ask for less under resources:, or for fewer sites with min_sites:",
        )

    def lonely(self, view: View, quorum: int) -> JobError:
        """Why it was given up."""
        return JobError(
            f"for {self.want.patience:g} s fewer than {quorum} of its sites were connected; {view.absent} did not come{view.unknown}",
            where=f"job {self.want.job}, reservation",
            remedy="start `atoll site` there and submit again, or let fewer suffice with min_sites:",
        )


@dataclass
class Asking:
    """A job whose offers are out.

    Attributes:
        quorum: how many sites must take it.
        deadline: until when they may answer.
        pending: site -> ticket of the offer.
        held: sites that hold the resources.
        noes: site -> why not.
    """

    quorum: int
    deadline: float
    pending: dict[str, int]
    held: set[str] = field(default_factory=set)
    noes: dict[str, str] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """Where something is or may become held."""
        return sorted({*self.pending, *self.held})

    def drop(self, site: str, why: str) -> bool:
        """A site that will not be of use; whether it was asked."""
        asked = site in self.pending or site in self.held
        self.pending.pop(site, None)
        self.held.discard(site)
        if asked:
            self.noes[site] = why
        return asked


def listed(sites: Iterable[str], most: int = 5) -> str:
    """``site 'a'``, ``sites 'a', 'b' and 7 more``."""
    names = sorted(sites)
    shown = ", ".join(map(repr, names[:most]))
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"site{'s' if len(names) != 1 else ''} {shown or '(none is known)'}{rest}"


def _unknown(names: Set[str], known: Set[str]) -> str:
    """What to say of sites that nobody has heard of, where others are known."""
    if not names or not known:
        return ""
    hint = nearest(min(names), known)
    return f"; the server knows no {listed(names)}{'.' if hint else ''}{hint}"
