"""Which job runs where, and when: the decisions alone, without a clock, a network or a thread.

Events go in, actions come out (``wants``). A job asks all of its sites at once; a yes holds resources there, and either enough say yes and the
job begins, or everything held is let go: nobody holds something while waiting for more. At any time at most one job asks a site, and earlier jobs
first, so the jobs of one server never meet; those of two servers wait for different, growing times before they ask again.

Jobs are served in order of age. A later job may begin on sites that an earlier one cannot use yet, but only ``overtakes`` times: then those sites
take no later job until the earlier one has begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from atoll.core.errors import JobError

from .deciding import Decisions
from .waiting import Waiting
from .wants import Action, Answer, Release, Want

__all__ = ["Scheduler"]


class Scheduler(Decisions):
    """Decides. Every method takes the time in seconds on any clock that never goes back, and returns what is to be done, in order.

    All of it is to be done before the next method is called: what one call releases, the next may offer again.

    Args:
        max_jobs: most jobs at once, those included that ask sites; no limit by default.
        overtakes: how many later jobs may begin on the sites of an earlier one.
        answer_within: seconds after which a connected site that has not answered an offer counts as a no.
        known: sites of the project; those that connect become known, unless a list has left them out.
    """

    @property
    def queued(self) -> dict[str, str]:
        """Jobs that wait or ask, oldest first -> why."""
        return {job: self._queue[job].why for job in sorted(self._queue)}

    @property
    def deployed(self) -> dict[str, tuple[str, ...]]:
        """Jobs that were begun and have not ended -> their sites."""
        return dict(self._deployed)

    @property
    def connected(self) -> frozenset[str]:
        """Sites that can be asked."""
        return frozenset(self._connected)

    def submit(self, want: Want, now: float) -> list[Action]:
        """A job joins the queue, at the place of its id.

        Raises:
            JobError: it is here already.
        """
        if want.job in self._queue or want.job in self._deployed:
            raise JobError("it is scheduled already", where=f"job {want.job}", remedy="end its attempt first")
        self._queue[want.job] = Waiting(want)
        return self._decide(now)

    def know(self, sites: Iterable[str], now: float) -> list[Action]:
        """These are the sites of the project, and those that are connected: what ``all`` means from now on."""
        named = set(sites)
        self._dropped = (self._dropped | self._known) - named
        self._listed = named
        self._views.clear()
        return self._decide(now)

    def arrived(self, site: str, now: float, holding: Collection[str] | None = None) -> list[Action]:
        """A site can be asked.

        Args:
            site: its name.
            now: the time.
            holding: the jobs for which it holds something, as it says itself; None if it is the same process on a new connection.
        """
        actions: list[Action] = []
        if holding is not None:
            # Releases first: what is asked from here on must not be let go.
            actions += [Release(job, site) for job in sorted(holding) if site not in self._deployed.get(job, ())]
            actions += self._forget(site, now, "has begun anew")
        if site not in self._dropped:  # else one that was revoked would be waited for as soon as it is cut off
            self._listed.add(site)
        self._views.clear()
        if site not in self._connected or holding is not None:
            self._connected.add(site)
            self._wake([site], now)
        return actions + self._decide(now)

    def left(self, site: str, now: float) -> list[Action]:
        """A site cannot be asked for now. What runs there is left alone: whoever carries the attempts out knows when they end."""
        self._connected.discard(site)
        self._views.clear()
        return self._forget(site, now, "is not connected") + self._decide(now)

    def offered(self, job: str, site: str, ticket: int, answer: Answer, now: float) -> list[Action]:
        """A site's answer. One to an offer that was withdrawn meanwhile means nothing: the release is behind the offer."""
        asking = self._asking.get(job)
        if asking is None or asking.pending.get(site) != ticket:
            return []
        del asking.pending[site]
        if answer.ok:
            asking.held.add(site)
        else:
            asking.noes[site] = answer.why
        if answer.never:
            self._queue[job].barred[site] = answer.why
        return self._settle(job, now)

    def ended(self, job: str, now: float) -> list[Action]:
        """An attempt is over, or the job was aborted, wherever it was. To go on it is submitted once more."""
        sites = self._deployed.pop(job, ())
        self._queue.pop(job, None)
        asking = self._asking.pop(job, None)
        held = sites if asking is None else asking.sites
        self._wake(held, now)
        return [*(Release(job, site) for site in held), *self._decide(now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed. To be called at ``next_wake``."""
        actions: list[Action] = []
        for job, asking in list(self._asking.items()):
            if asking.deadline <= now and self._asking.get(job) is asking:
                silent = list(asking.pending)
                actions += [Release(job, site) for site in silent if asking.drop(site, f"{site!r} does not answer")]
                actions += self._settle(job, now)
        return actions + self._decide(now)

    def next_wake(self) -> float | None:
        """When something happens even if nothing else does."""
        times = [asking.deadline for asking in self._asking.values()]
        for job, waiting in self._queue.items():
            if job not in self._asking:
                times.append(waiting.retry)
                times += [] if waiting.absent is None else [waiting.absent + waiting.want.patience]
        return min((time for time in times if time > self._now), default=None)
