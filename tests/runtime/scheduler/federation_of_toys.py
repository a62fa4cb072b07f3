"""Servers, sites and the lines between them, without time or network: everything that may happen to jobs, in any order.

A line delivers in order, or loses everything when an end of it dies. Sites have true resource managers, servers true schedulers and stores; a
site's processes are a set of names.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from atoll.core.requests.wire import pack_error
from atoll.runtime.resources import Answer, ResourceManager, Resources
from atoll.runtime.scheduler import Scheduler
from atoll.runtime.store.records import JobState, Submission, after_crash
from atoll.runtime.terms import Action, Deploy, Offer, Refuse, Release, Wait, read_terms
from tests.support.memory_store import MemoryStore

S = JobState


class Site:
    """A site's front: its resources, shared by all servers."""

    def __init__(self, name: str, total: Resources) -> None:
        self.name, self.total = name, total
        self.manager = ResourceManager(total, site=name)

    def holding(self, server: str) -> list[str]:
        return [job.removeprefix(f"{server}/") for job in self.manager.held if job.startswith(f"{server}/")]

    def die(self) -> None:
        self.manager = ResourceManager(self.total, site=self.name)


@dataclass
class Line:
    """Between a server and a site."""

    up: bool = False
    down_to_site: deque[Any] = field(default_factory=deque)
    to_server: deque[Any] = field(default_factory=deque)

    def lose(self) -> None:
        self.up = False
        self.down_to_site.clear()
        self.to_server.clear()


class Server:
    """A server's front: it carries out what its scheduler says."""

    def __init__(self, name: str, world: World, **options: Any) -> None:
        self.name, self.world, self.options = name, world, options
        self.store = MemoryStore()
        self.lines = {site: Line() for site in world.sites}
        self.scheduler = Scheduler(**options)
        self.late: set[str] = set()

    def submit(self, spec: dict[str, Any]) -> None:
        token = f"{self.name}/{len(self.store.jobs())}"
        made = self.store.submit(
            Submission(name="j", submitter="ann", org="o", spec=spec, token=token), now=self.now, who="ann"
        )
        self.queue(made.id)

    @property
    def now(self) -> float:
        return self.world.now

    def queue(self, job: str) -> None:
        record = self.store.get(job)
        self.do(self.scheduler.submit(read_terms(dict(record.spec)).want(job, record.sites), self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Offer(job, site, need, ticket):
                    self.lines[site].down_to_site.append(("offer", job, need, ticket))
                case Release(job, site):
                    self.lines[site].down_to_site.append(("release", job))
                case Deploy(job, sites):
                    self.world.require_held(self.name, job, sites)
                    self.store.move(job, S.SCHEDULED, now=self.now, sites=sites)
                    self.store.move(job, S.DEPLOYING, now=self.now)
                case Refuse(job, error):
                    self.store.move(job, S.FAILED, now=self.now, error=pack_error(error))
                case Wait():
                    pass  # why it waits is the scheduler's to say

    # -- what may happen

    def deliver_to_site(self, name: str) -> None:
        line, site = self.lines[name], self.world.sites[name]
        match line.down_to_site.popleft():
            case ("offer", job, need, ticket):
                line.to_server.append((job, ticket, site.manager.offer(f"{self.name}/{job}", need)))
            case ("release", job):
                site.manager.release(f"{self.name}/{job}")

    def deliver_to_server(self, name: str) -> None:
        job, ticket, answer = self.lines[name].to_server.popleft()
        assert isinstance(answer, Answer)
        self.do(self.scheduler.take_answer(job, name, ticket, answer, self.now))

    def advance(self, job: str) -> None:
        """A step of a job that was deployed."""
        state = self.store.get(job).state
        if state is S.DEPLOYING:
            self.store.move(job, S.RUNNING, now=self.now)
        elif state is S.RUNNING:
            self.store.move(job, S.FINISHED, now=self.now)
            self.do(self.scheduler.end_job(job, self.now))

    def abort(self, job: str) -> None:
        if not self.store.get(job).state.terminal:
            self.store.move(job, S.ABORTED, now=self.now)
            self.do(self.scheduler.end_job(job, self.now))

    def crashed(self, job: str, progress: bool = False) -> None:
        """The attempt of a job died."""
        record = self.store.get(job)
        if record.state not in (S.DEPLOYING, S.RUNNING):
            return
        self.do(self.scheduler.end_job(job, self.now))
        barren = 0 if progress else record.barren + 1
        state = after_crash(barren, read_terms(dict(record.spec)).attempts)
        self.store.move(job, state, now=self.now, progress=progress, reason="an attempt died")
        if state is S.QUEUED:
            self.queue(job)

    def cut(self, site: str) -> None:
        """The network is gone; what was sent stays in the line."""
        self.lines[site].up = False
        self.do(self.scheduler.left(site, self.now))

    def connect(self, site: str, *, fresh: bool) -> None:
        self.lines[site].up = True
        holding = self.world.sites[site].holding(self.name) if fresh else None
        self.do(self.scheduler.add_site(site, self.now, holding))
        for job in [j for j, sites in self.scheduler.deployed.items() if fresh and site in sites]:
            self.crashed(job)

    def site_died(self, site: str) -> None:
        self.lines[site].lose()
        self.do(self.scheduler.left(site, self.now))
        self.late.add(site)

    def die(self) -> None:
        """kill -9 and again: the store is all that is left."""
        for site, line in self.lines.items():
            line.lose()
            self.late.add(site)
        self.scheduler = Scheduler(**self.options)
        for record in self.store.restart(now=self.now):
            self.queue(record.id)

    def tick(self) -> None:
        self.do(self.scheduler.tick(self.now))

    def reconnect(self, site: str) -> None:
        if not self.lines[site].up:
            self.connect(site, fresh=site in self.late)
            self.late.discard(site)


class World:
    """Some servers with the same sites."""

    def __init__(self, totals: dict[str, Resources], servers: int = 1, **options: Any) -> None:
        self.now = 0.0
        self.sites = {name: Site(name, total) for name, total in totals.items()}
        self.servers = [Server(f"s{i}", self, **options) for i in range(servers)]

    def require_held(self, server: str, job: str, sites: tuple[str, ...]) -> None:
        """What a job begins on holds its resources, wherever the site did not die meanwhile."""
        own = next(s for s in self.servers if s.name == server)
        for site in sites:
            if own.lines[site].up and site not in own.late:
                assert f"{server}/{job}" in self.sites[site].manager.held, (job, site)

    def check(self) -> None:
        """No site hands out more than it has; schedulers and stores agree about every job."""
        for site in self.sites.values():
            held = site.manager.held.values()
            assert sum(grant.need.memory for grant in held) <= site.total.memory
            assert sum(round(1000 * grant.need.cpus) for grant in held) <= 1000 * site.total.cpus
            gpus = [gpu for grant in held for gpu in grant.gpus]
            assert len(set(gpus)) == len(gpus) <= site.total.gpus
        for server in self.servers:
            queued, deployed = set(server.scheduler.queued), set(server.scheduler.deployed)
            by_state = {record.id: record.state for record in server.store.jobs()}
            assert queued == {job for job, state in by_state.items() if state is S.QUEUED}
            assert deployed == {job for job, state in by_state.items() if state in (S.DEPLOYING, S.RUNNING)}
            assert all(state is not S.SCHEDULED for state in by_state.values())

    def messages(self) -> list[tuple[Server, str, bool]]:
        """What can be delivered."""
        return [
            (server, site, down)
            for server in self.servers
            for site, line in server.lines.items()
            if line.up
            for down, queue in ((True, line.down_to_site), (False, line.to_server))
            if queue
        ]

    def deliver(self, server: Server, site: str, down: bool) -> None:
        if down:
            server.deliver_to_site(site)
        else:
            server.deliver_to_server(site)

    def settle(self, most: int = 5000) -> int:
        """Let everything that is owed happen, and nothing else: all sites come back, messages arrive, jobs compute, time passes."""
        for server in self.servers:
            for site in self.sites:
                server.reconnect(site)
        for steps in range(most):
            waiting = self.messages()
            running = [(server, job) for server in self.servers for job in server.scheduler.deployed]
            wakes = [wake for server in self.servers if (wake := server.scheduler.next_wake()) is not None]
            if waiting:
                self.deliver(*waiting[0])
            elif running:
                running[0][0].advance(running[0][1])
            elif wakes:
                self.now = min(wakes)
                for server in self.servers:
                    server.tick()
            else:
                return steps
            self.check()
        raise AssertionError("it does not come to rest")
