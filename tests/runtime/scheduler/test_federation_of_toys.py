"""Whatever happens to servers, sites and lines: nothing is oversubscribed, no job is lost, every job ends, everything is freed."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atoll.runtime.resources import Resources
from atoll.runtime.store.records import TERMINAL
from tests.runtime.scheduler.federation_of_toys import Server, World

SITES = ["a", "b", "c"]
resources = st.fixed_dictionaries(
    {"cpus": st.sampled_from([0.5, 1.0, 2.0, 3.0]), "memory": st.integers(0, 3), "gpus": st.integers(0, 2)}
)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Terms of a job; some name a site that there never is."""
    sites = draw(st.one_of(st.just("all"), st.lists(st.sampled_from([*SITES, "ghost"]), min_size=1, unique=True)))
    most = 3 if sites == "all" else len(sites)
    return {
        "name": "j",
        "sites": sites,
        "min_sites": draw(st.one_of(st.none(), st.integers(1, most))),
        "on_lost": draw(st.sampled_from(["fail", "drop"])),
        "patience": draw(st.sampled_from([10.0, 600.0])),
        "attempts": draw(st.integers(1, 3)),
        "resources": draw(resources),
    }


class Toys(RuleBasedStateMachine):
    """Any order of events; at the end everything that is owed happens."""

    servers = 1

    @initialize(
        totals=st.fixed_dictionaries(
            {
                site: st.builds(Resources, st.sampled_from([1.0, 2.0, 3.0]), st.integers(1, 3), st.integers(0, 2))
                for site in SITES
            }
        ),
        most=st.one_of(st.none(), st.integers(1, 2)),
        overtakes=st.integers(0, 2),
    )
    def begin(self, totals: dict[str, Resources], most: int | None, overtakes: int) -> None:
        self.world = World(totals, self.servers, max_jobs=most, overtakes=overtakes)
        self.submitted = 0

    def pick(self, number: int) -> Server:
        return self.world.servers[number % self.servers]

    @rule(which=st.integers(0, 1), spec=specs())
    def submit(self, which: int, spec: dict[str, Any]) -> None:
        self.pick(which).submit(spec)
        self.submitted += 1

    @precondition(lambda self: self.world.messages())
    @rule(which=st.integers(0, 30), more=st.integers(1, 4))
    def deliver(self, which: int, more: int) -> None:
        for _ in range(more):
            if waiting := self.world.messages():
                self.world.deliver(*waiting[which % len(waiting)])
                self.world.check()

    @rule(which=st.integers(0, 1), site=st.sampled_from(SITES))
    def connect(self, which: int, site: str) -> None:
        self.pick(which).reconnect(site)

    @rule(which=st.integers(0, 1), site=st.sampled_from(SITES))
    def cut(self, which: int, site: str) -> None:
        if self.pick(which).lines[site].up:
            self.pick(which).cut(site)

    @rule(site=st.sampled_from(SITES))
    def kill_site(self, site: str) -> None:
        self.world.sites[site].die()
        for server in self.world.servers:
            server.site_died(site)

    @rule(which=st.integers(0, 1))
    def kill_server(self, which: int) -> None:
        self.pick(which).die()

    @rule(
        which=st.integers(0, 1),
        job=st.integers(0, 5),
        what=st.sampled_from(["advance", "abort", "crashed", "progress"]),
    )
    def act(self, which: int, job: int, what: str) -> None:
        server = self.pick(which)
        jobs = server.store.jobs()
        if job < len(jobs):
            name = jobs[job].id
            server.crashed(name, progress=True) if what == "progress" else getattr(server, what)(name)

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        for server in self.world.servers:
            server.tick()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle()
        records = [record for server in self.world.servers for record in server.store.jobs()]
        assert len(records) == self.submitted
        assert all(record.state in TERMINAL for record in records)
        assert all(not site.manager.held for site in self.world.sites.values())
        assert all(server.scheduler.next_wake() is None for server in self.world.servers)
        for record in records:  # every life is one of legal moves, and its reasons are told
            assert record.state != "failed" or record.error is not None or record.reason == "an attempt died"


class TwoServers(Toys):
    """The same sites serve two servers, which know nothing of each other."""

    servers = 2


OPTIONS = settings(max_examples=60, stateful_step_count=30, deadline=None)
Toys.TestCase.settings = OPTIONS
TwoServers.TestCase.settings = OPTIONS
TestOneServer = Toys.TestCase
TestTwoServers = TwoServers.TestCase


def test_two_servers_that_want_the_same_sites_do_not_meet_for_ever() -> None:
    """Each job needs both sites whole, and whenever both servers ask at one time each wins one of the sites: the worst that can be."""
    world = World({"a": Resources(1.0), "b": Resources(1.0)}, servers=2)
    first, second = world.servers
    for server in world.servers:
        for site in world.sites:
            server.reconnect(site)
        server.submit({"name": "j", "sites": ["a", "b"]})
    rounds = 0
    while not (first.scheduler.deployed or second.scheduler.deployed):
        rounds += 1
        assert rounds < 20
        for server, site in ((first, "a"), (second, "b"), (first, "b"), (second, "a")):
            while server.lines[site].down_to_site:
                server.deliver_to_site(site)
        while waiting := world.messages():
            world.deliver(*waiting[-1])
        if not (first.scheduler.deployed or second.scheduler.deployed):
            world.now = min(wake for server in world.servers if (wake := server.scheduler.next_wake()) is not None)
            first.tick()
            second.tick()
    assert rounds > 1  # they did meet
    world.settle()
    assert [server.store.jobs()[0].state for server in world.servers] == ["finished", "finished"]


def test_many_jobs_at_once_use_the_whole_site() -> None:
    """Forty jobs of one core on a site of eight: eight run together, in the order of their age."""
    world = World({"a": Resources(8.0)})
    (server,) = world.servers
    server.reconnect("a")
    for _ in range(40):
        server.submit({"name": "j", "sites": "all"})
    while waiting := world.messages():
        world.deliver(*waiting[0])
    assert len(server.scheduler.deployed) == 8
    assert sorted(server.scheduler.deployed) == [record.id for record in server.store.jobs()[:8]]
    world.settle()
    assert {record.state for record in server.store.jobs()} == {"finished"}
