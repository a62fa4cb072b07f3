"""Which job runs where, and when: the decisions alone, without a clock, a network or a thread.

Events go in, actions come out (``wants``). A job asks all of its sites at once, and a yes holds resources there. If
enough sites say yes, the job starts; otherwise everything held is released: no job holds resources while it waits for
more. At most one job asks a site at any time, and earlier jobs first, so the jobs of one server never collide. Jobs of
two servers wait for different, growing times before they ask again.

Jobs are served in order of age. A later job may start on sites that an earlier one cannot use yet, but only
``overtakes`` times. Then those sites take no later job until the earlier one has started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from atoll.core.errors import JobError

from .deciding import SchedulerState
from .waiting import Waiting
from .wants import Action, Answer, Release, Want

__all__ = ["Scheduler"]


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
            asking.noes[site] = answer.why
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
