"""Which job runs where, and when: the decisions alone, without a clock, a network or a thread.

Events go in, actions come out (``wants``). A job asks all of its sites at once, and a yes holds resources there. If
enough sites say yes, the job starts; otherwise everything held is released: no job holds resources while it waits for
more. At most one job asks a site at any time, and earlier jobs first, so the jobs of one server never collide. Jobs of
two servers wait for different, growing times before they ask again.

Jobs are served in order of age. A later job may start on sites that an earlier one cannot use yet, but only
``overtakes`` times. Then those sites take no later job until the earlier one has started.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from atoll.core.errors import ConfigError, JobError, nearest

from .terms import Action, Answer, Deploy, Offer, Refuse, Release, Wait, Want

__all__ = ["Asking", "Scheduler", "SchedulerState", "SiteView", "Waiting", "list_sites", "place_helpers"]


# ------------------------------------------------------------------ the scheduler's state of a job that waits, and of a job that asks sites


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
        refusals: site -> why not.
        helpers: those of the sites that it needs beside the quorum.
    """

    quorum: int
    deadline: float
    pending: dict[str, int]
    held: set[str] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)
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
            self.refusals[site] = why
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


# ------------------------------------------------------------------ the decisions of a scheduler: which job asks, which starts, which gives up its sites


class SchedulerState:
    """The queue, the open offers and the started jobs; ``Scheduler`` has the events that change them."""

    def __init__(
        self,
        *,
        max_jobs: int | None = None,
        overtakes: int = 8,
        answer_within: float = 30.0,
        known: Iterable[str] = (),
        revoked: Callable[[str], bool] = lambda site: False,
    ) -> None:
        if (max_jobs is not None and max_jobs < 1) or overtakes < 0 or not answer_within > 0:
            raise ConfigError(
                f"max_jobs={max_jobs}, overtakes={overtakes}, answer_within={answer_within}",
                where="scheduler",
                remedy="let at least one job run, use overtakes from 0 and a time to answer above 0",
            )
        self._most = max_jobs
        self._overtakes = overtakes
        self._within = answer_within
        self._listed = set(known)
        self._revoked = revoked
        self._helpers: set[str] = set()
        self._dropped: set[str] = set()
        self._connected: set[str] = set()
        self._views: dict[tuple[tuple[str, ...] | None, frozenset[str]], SiteView] = {}
        self._queue: dict[str, Waiting] = {}
        self._worn: set[str] = set()
        self._asking: dict[str, Asking] = {}
        self._deployed: dict[str, tuple[str, ...]] = {}
        self._tickets = 0
        self._now = float("-inf")

    @property
    def _known(self) -> set[str]:
        """Return the sites of the project without helpers. A site that has left its list counts as long as it is connected."""
        return (self._listed | self._connected) - self._helpers

    def _decide(self, now: float) -> list[Action]:
        """Let every job ask that may, earlier ones first."""
        self._now = max(self._now, now)
        actions: list[Action] = []
        closed: set[str] = set()
        for job in sorted(self._queue.keys() - self._asking.keys()):
            actions += self._one(job, closed, now)
            if job in self._worn:
                closed |= self._closes(job)
        return actions

    def _add(self, job: str, now: float) -> list[Action]:
        """Let a job ask that has just come. Nothing else has changed, so no other job is looked at: this costs the same however many wait."""
        closed: set[str] = set().union(*(self._closes(earlier) for earlier in self._worn if earlier < job))
        return list(self._one(job, closed, now))

    def _one(self, job: str, closed: Set[str], now: float) -> Iterator[Action]:
        waiting, before = self._queue[job], self._queue[job].why
        if self._most is not None and len(self._deployed) + len(self._asking) >= self._most:
            waiting.why = f"waits: {self._most} jobs run, which is the most that this server runs at once"
        else:
            yield from self._consider(job, waiting, closed, now)
        if job in self._queue and waiting.why != before:
            yield Wait(job, waiting.why)

    def _closes(self, job: str) -> Set[str]:
        """Return the sites that take no later job, because too many have overtaken this one there."""
        waiting = self._queue.get(job)
        if waiting is None or job in self._asking or waiting.absent is not None:
            return frozenset()
        return frozenset((*self._view(waiting).allowed, *waiting.want.helpers))

    def _view(self, waiting: Waiting) -> SiteView:
        """Return the sites of a job; most jobs share one view."""
        key = (waiting.want.sites, frozenset(waiting.barred))
        if key not in self._views:
            self._views[key] = waiting.view(self._known, self._connected, self._revoked)
        return self._views[key]

    def _consider(self, job: str, waiting: Waiting, closed: Set[str], now: float) -> Iterator[Action]:
        view = self._view(waiting)
        quorum = waiting.want.quorum or view.all
        least = waiting.want.floor or quorum
        barred = next((waiting.barred[site] for site in waiting.want.helpers if site in waiting.barred), None)
        if barred is not None:
            yield self._refuse(job, waiting.forsaken(barred))
            return
        if len(view.allowed) < least and waiting.barred:
            yield self._refuse(job, waiting.impossible(least))
            return
        if waiting.want.floor is not None:  # a site that can never take it need not be waited for
            quorum = max(least, min(quorum, len(view.allowed)))
        missing = waiting.missing(self._connected)
        if missing or len(view.present) < quorum:
            waiting.absent = now if waiting.absent is None else waiting.absent
            waiting.why = f"waits for {view.absent} to connect{view.unknown}"
            if missing:
                waiting.why = f"waits for its helper at {list_sites(missing)} to connect"
            if now < waiting.absent + waiting.want.patience:
                return
            if missing:
                why = f"for {waiting.want.patience:g} s {list_sites(missing)} did not connect"
                yield self._refuse(job, waiting.forsaken(why))
                return
            if len(view.present) < least:
                yield self._refuse(job, waiting.lonely(view, least))
                return
            quorum = least
        else:
            waiting.absent = None
        there = [site for site in view.present if site not in closed] if closed else view.present
        yield from self._ask(job, waiting, closed, there, quorum, now)

    def _ask(
        self, job: str, waiting: Waiting, closed: Set[str], sites: list[str], quorum: int, now: float
    ) -> Iterator[Action]:
        helpers, clients = waiting.want.helpers, len(sites)
        sites = [*sites, *helpers]
        if clients < quorum or any(site in closed for site in helpers):
            waiting.why = "waits behind an earlier job for the same sites"
        elif any(asking.asks(sites) for asking in self._asking.values()):
            waiting.why = waiting.why or "waits until another job has asked the same sites"
        elif now >= waiting.retry:
            waiting.why = f"asks {list_sites(sites)}"
            tickets = {site: self._tickets + number for number, site in enumerate(sites, 1)}
            self._tickets += len(sites)
            self._asking[job] = Asking(quorum, now + self._within, dict(tickets), helpers=frozenset(helpers))
            for site, ticket in tickets.items():
                yield Offer(job, site, waiting.want.need, ticket)

    def _settle(self, job: str, now: float) -> list[Action]:
        """Start a job when enough sites hold it and all have answered; release its sites when enough no longer can."""
        asking, waiting = self._asking[job], self._queue[job]
        if asking.hopeless:
            del self._asking[job]
            waiting.note_refusal(now, "; ".join(asking.refusals.values()))
            if all(site in waiting.barred for site in asking.refusals):  # each refused for good: the job need not wait
                waiting.retry = now
            let_go = [Release(job, site) for site in asking.sites]
            return [*let_go, Wait(job, waiting.why), *self._decide(now)]
        if asking.pending:
            return []
        del self._asking[job]
        self._drop(job)
        clients = waiting.want.sites or sorted(asking.held - asking.helpers)
        self._deployed[job] = tuple(site for site in (*clients, *waiting.want.helpers) if site in asking.held)
        for earlier, other in self._queue.items():
            if earlier < job and other.absent is None and any(map(other.may_use, asking.held)):
                other.overtaken += 1
                if other.overtaken >= self._overtakes:
                    self._worn.add(earlier)
        return [Deploy(job, self._deployed[job]), *self._decide(now)]

    def _refuse(self, job: str, error: JobError) -> Refuse:
        self._drop(job)
        return Refuse(job, error)

    def _drop(self, job: str) -> None:
        self._queue.pop(job, None)
        self._worn.discard(job)

    def _forget(self, site: str, now: float, why: str) -> list[Action]:
        """Drop everything that a site has offered."""
        actions: list[Action] = []
        for job, asking in list(self._asking.items()):
            if self._asking.get(job) is asking and asking.drop(site, f"site {site!r} {why}"):
                actions += [Release(job, site), *self._settle(job, now)]
        return actions

    def _wake(self, sites: Iterable[str], now: float) -> None:
        """Let jobs that may use these sites ask again."""
        there = set(sites)
        for waiting in self._queue.values():
            if any(map(waiting.may_use, there)):
                waiting.woken(now)


# ------------------------------------------------------------------ which helper of a project plays which part of a job


def place_helpers(
    needed: Mapping[str, str], plays: Mapping[str, str], *, there: Collection[str] = (), before: Collection[str] = ()
) -> dict[str, str]:
    """Give every party a helper of its own, which plays its role: one of its name, else one that is connected, else the first by name.

    Of the sites of an earlier attempt the same parties get the same helpers again.

    Args:
        needed: party -> role.
        plays: helper -> what it plays.
        there: sites that are connected.
        before: the sites of the job's earlier attempts; then no others are taken.

    Returns:
        Party -> helper.

    Raises:
        ConfigError: the project has too few helpers of a role.
    """
    found: dict[str, str] = {}
    for role in dict.fromkeys(needed.values()):
        parties = [party for party, wanted in sorted(needed.items()) if wanted == role]
        sites = [site for site, part in sorted(plays.items()) if part == role and (not before or site in before)]
        if len(sites) < len(parties):
            raise _too_few(role, parties, sites, plays)
        named = [party for party in parties if party in sites]
        free = sorted((site for site in sites if site not in named), key=lambda site: (site not in there, site))
        rest = [party for party in parties if party not in named]
        found |= dict(zip((*named, *rest), (*named, *sorted(free[: len(rest)])), strict=True))
    return found


def _too_few(role: str, parties: list[str], sites: list[str], plays: Mapping[str, str]) -> ConfigError:
    have = f"only {', '.join(map(repr, sites))} plays it" if sites else "nobody in the project plays it"
    hint = "" if sites else nearest(role, set(plays.values()))
    return ConfigError(
        f"the job needs a {role} for {', '.join(map(repr, parties))}, and {have}.{hint}",
        where="helpers",
        remedy=f"add `helpers: {{NAME: {role}}}` to project.yaml, run atoll provision, copy project-sites.txt to the server's "
        "kit, and start `atoll site` with the new kit",
    )


# ------------------------------------------------------------------ which job runs where, and when: the decisions alone, without a clock, a network or a thread


class Scheduler(SchedulerState):
    """Decides which job runs where. Every method takes the time in seconds on any clock that never goes back, and returns the actions to take, in order.

    Take all of them before you call the next method: what one call releases, the next may offer again.

    Args:
        max_jobs: most jobs at once, including those that ask sites; no limit by default.
        overtakes: how many later jobs may start on the sites of an earlier one.
        answer_within: seconds after which an unanswered offer counts as a no.
        known: sites of the project; those that connect become known, unless a list has left them out.
        revoked: tells whether a site's certificate was revoked, for the words of a job that waits for it.
    """

    @property
    def queued(self) -> dict[str, str]:
        """Return jobs that wait or ask, oldest first -> why."""
        return {job: self._queue[job].why for job in sorted(self._queue)}

    def why(self, job: str) -> str:
        """Return why a job waits, in words; nothing if it does not."""
        waiting = self._queue.get(job)
        return "" if waiting is None else waiting.why

    @property
    def deployed(self) -> dict[str, tuple[str, ...]]:
        """Return started jobs that have not ended -> their sites."""
        return dict(self._deployed)

    @property
    def connected(self) -> frozenset[str]:
        """Return the sites that can be asked."""
        return frozenset(self._connected)

    def submit(self, want: Want, now: float) -> list[Action]:
        """Add a job to the queue, in the order of ids; this looks at no other job.

        Raises:
            JobError: it is already here.
        """
        if want.job in self._queue or want.job in self._deployed:
            raise JobError("it is scheduled already", where=f"job {want.job}", remedy="end its attempt first")
        self._queue[want.job] = Waiting(want)
        if self._overtakes == 0:
            self._worn.add(want.job)
        return self._add(want.job, now)

    def know(self, sites: Iterable[str], now: float) -> list[Action]:
        """Set the sites of the project: from now on, ``all`` means these and the connected ones."""
        named = set(sites)
        self._dropped = (self._dropped | self._known) - named
        self._listed = named
        self._views.clear()
        return self._decide(now)

    def add_site(
        self, site: str, now: float, holding: Collection[str] | None = None, *, helper: bool = False
    ) -> list[Action]:
        """Note that a site can be asked.

        Args:
            site: its name.
            now: the time.
            holding: the jobs for which it says that it holds something; None if it is the same process on a new
                connection.
            helper: whether it has no clients; a job for all sites does not mean it. It stays a helper from then on.
        """
        if helper:
            self._helpers.add(site)
        actions: list[Action] = []
        if holding is not None:
            # Releases first: an offer made from here on must not be released.
            actions += [Release(job, site) for job in sorted(holding) if site not in self._deployed.get(job, ())]
            actions += self._forget(site, now, "has restarted")
        # Otherwise a revoked site would be waited for as soon as it is cut off.
        if site not in self._dropped | self._helpers:
            self._listed.add(site)
        self._views.clear()
        if site not in self._connected or holding is not None:
            self._connected.add(site)
            self._wake([site], now)
        return actions + self._decide(now)

    def left(self, site: str, now: float) -> list[Action]:
        """Note that a site cannot be asked for now. What runs there is not affected: the caller knows when attempts end."""
        self._connected.discard(site)
        self._views.clear()
        return self._forget(site, now, "is not connected") + self._decide(now)

    def take_answer(self, job: str, site: str, ticket: int, answer: Answer, now: float) -> list[Action]:
        """Take a site's answer. An answer to a withdrawn offer is ignored: the release follows the offer."""
        asking = self._asking.get(job)
        if asking is None or asking.pending.get(site) != ticket:
            return []
        del asking.pending[site]
        if answer.ok:
            asking.held.add(site)
        else:
            asking.refusals[site] = answer.why
        if answer.never:
            self._queue[job].barred[site] = answer.why
        return self._settle(job, now)

    def end_job(self, job: str, now: float) -> list[Action]:
        """End an attempt or an aborted job, at any stage. To continue a job, submit it again."""
        sites = self._deployed.pop(job, ())
        self._drop(job)
        asking = self._asking.pop(job, None)
        held = sites if asking is None else asking.sites
        self._wake(held, now)
        return [*(Release(job, site) for site in held), *self._decide(now)]

    def tick(self, now: float) -> list[Action]:
        """Handle timeouts. Call this at ``next_wake``; earlier, it changes nothing."""
        wake = self.next_wake()
        if wake is None or wake > now:
            return []
        actions: list[Action] = []
        for job, asking in list(self._asking.items()):
            if asking.deadline <= now and self._asking.get(job) is asking:
                silent = list(asking.pending)
                actions += [Release(job, site) for site in silent if asking.drop(site, f"{site!r} does not answer")]
                actions += self._settle(job, now)
        return actions + self._decide(now)

    def next_wake(self) -> float | None:
        """Return when ``tick`` is due even if no event comes."""
        times = [asking.deadline for asking in self._asking.values()]
        for job, waiting in self._queue.items():
            if job not in self._asking:
                times.append(waiting.retry)
                times += [] if waiting.absent is None else [waiting.absent + waiting.want.patience]
        return min((time for time in times if time > self._now), default=None)
