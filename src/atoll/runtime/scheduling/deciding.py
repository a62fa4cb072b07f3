"""The decisions of a scheduler: which job asks, which starts, which gives up its sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

from atoll.core.errors import ConfigError, JobError

from .waiting import Asking, SiteView, Waiting, list_sites
from .wants import Action, Deploy, Offer, Refuse, Release, Wait

__all__ = ["SchedulerState"]


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
            waiting.note_refusal(now, "; ".join(asking.noes.values()))
            if all(site in waiting.barred for site in asking.noes):  # each refused for good: the job need not wait
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
