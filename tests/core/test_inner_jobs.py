"""`Federation.run`: a job inside a program has the answer that it has alone in its scope, and a task belongs to the object that asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError, PolicyError
from atoll.core.event import Laplace
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.request import Request
from atoll.core.requests.task import Task, register_tasks, resolve, tasks_of
from atoll.core.requests.wire import pack_request, unpack_request
from atoll.core.time.clock import Clock
from atoll.core.world import World
from atoll.engines import Inline
from atoll.rounds import Hooks, ProgramJob
from atoll.runs import yaml
from atoll.testing import killed_and_resumed, live
from atoll.topology import Gossip, RandomWalk

ENGINES = ["inline", "batched", pytest.param("processes", marks=pytest.mark.slow), "socket"]


def rows(seed: int, n: int) -> atoll.data.Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return atoll.data.Dataset({"x": x, "y": (x[:, 0] > x[:, 1]).astype(np.int64)}, task="classification", classes=2)


CLIENTS = {f"client-{i}": rows(i, 6 + i) for i in range(5)}
ISLANDS = atoll.data.Islands.from_datasets(CLIENTS, test=rows(99, 20))
# The same clients among others, at other positions.
AMONG = atoll.data.Islands.from_datasets(
    {"first": rows(50, 9), **dict(list(CLIENTS.items())[:2]), "middle": rows(51, 4), **dict(list(CLIENTS.items())[2:])},
    test=rows(99, 20),
)
A = atoll.Training(
    model=atoll.models.linear(3, 2), algorithm=atoll.FedAvg(lr=0.3), selection=atoll.Uniform(3), rounds=3
)
B = A.replace(algorithm=atoll.algorithms.FedProx(lr=0.1, mu=0.1), model=atoll.models.linear(3, 2, l2=0.5))


@atoll.task
def noisy(island: Any, message: Any) -> Any:
    island.spend(Laplace(epsilon=1.0))
    island.state = (island.state or 0) + 1
    return {"times": atoll.Sum(np.int64(island.state)), "drawn": atoll.Sum(island.rng.generator().random())}


@atoll.task
def secret(island: Any, message: Any) -> Any:
    return {"token": atoll.Sum(np.int64(island.secret.bytes(1)[0])), "rows": atoll.Sum(np.int64(len(island.data)))}


@atoll.task
def counted_rows(island: Any, message: Any) -> Any:
    return {"rows": atoll.Mean(np.float64(len(island.data)), examples=1)}


async def counting(fed: Any) -> Any:
    state = await fed.restore({"found": []})
    while len(state["found"]) < 3:
        got = await fed.sum(fed.parties, noisy)
        fed.record({"drawn": float(got["drawn"])})
        await asyncio.sleep(0)  # whoever runs beside it goes on
        state = {"found": [*state["found"], [int(got["times"]), float(got["drawn"])]]}
        await fed.checkpoint(state)
    return state["found"]


async def without_checkpoints(fed: Any, turns: int = 1) -> Any:
    count = int((await fed.sum(fed.parties, secret))["rows"])
    for _ in range(turns):
        await asyncio.sleep(0)
    return [count, [float((await fed.sum(fed.parties, noisy))["drawn"])]]


KINDS: dict[str, Any] = {
    "Training": A,
    "Trees": atoll.trees.Trees(rounds=2, max_depth=2),
    "Fit": atoll.fitting.Fit(model=atoll.fitting.KMeans(clusters=2)),
    "Statistics": atoll.statistics.Statistics(bins=4),
    "program": counting,
    "ProgramJob": ProgramJob(without_checkpoints),
}


def plain(outcome: Any) -> Any:
    """An outcome as a message."""
    if hasattr(outcome, "margins"):
        return outcome.margins(np.asarray(ISLANDS.test.x))
    if hasattr(outcome, "history"):
        return {"params": dict(outcome.params), "rows": list(outcome.history), "devices": outcome.devices.packed()}
    if hasattr(outcome, "params"):
        return dict(outcome.params)
    return outcome.plain() if hasattr(outcome, "plain") else outcome


def running(jobs: dict[str, Any], names: Any = None) -> Any:
    async def program(fed: Any) -> Any:
        found = await asyncio.gather(*(fed.run(job, names, scope=scope) for scope, job in jobs.items()))
        return dict(zip(jobs, map(plain, found), strict=True))

    return program


def simulated(program: Any, engine: str = "inline", islands: Any = ISLANDS, **more: Any) -> Any:
    workers = {"workers": 2} if engine != "inline" else {}
    return atoll.simulate(program, islands, engine=engine, progress=False, **workers, **more)


def by_hand(jobs: dict[str, Any]) -> Any:
    """The jobs in scopes, as one wrote it before there was `fed.run`."""
    ready = {scope: job.prepare(ISLANDS) for scope, job in jobs.items()}

    async def program(fed: Any) -> Any:
        found = await asyncio.gather(*(ready[scope].program(fed.scope(scope)) for scope in jobs))
        return {scope: plain(ready[scope].outcome(one)) for scope, one in zip(jobs, found, strict=True)}

    program.tasks = [task for one in ready.values() for task in one.tasks]  # type: ignore[attr-defined]
    return program


# ---------------------------------------------------------------------- the law


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_has_the_answer_that_it_has_alone_in_its_scope(kind, engine):
    job, jobs = KINDS[kind], {"a": KINDS[kind], "b": B}
    beside = simulated(running(jobs), engine)
    assert M.equal(beside["a"], simulated(running({"a": job}), engine)["a"])
    if hasattr(job, "prepare"):
        assert M.equal(beside["a"], simulated(by_hand({"a": job}), engine)["a"])
    assert M.equal(beside["b"], simulated(by_hand({"b": B}), engine)["b"])


PARTS = {**KINDS, "Gossip": A.replace(topology=Gossip(), selection=atoll.selection.Everyone()), "RandomWalk": A.replace(topology=RandomWalk(), selection=atoll.selection.Everyone())}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", PARTS)
def test_some_parties_have_the_answer_of_a_federation_of_their_own(kind):
    job = PARTS[kind]
    found = simulated(running({"a": job, "b": B}, list(CLIENTS)[::-1]), islands=AMONG)["a"]
    assert M.equal(found, simulated(running({"a": job}))["a"])


def test_random_numbers_follow_the_scope():
    found = simulated(running({"a": A, "b": A}))
    assert not M.equal(found["a"]["params"], found["b"]["params"])


# ---------------------------------------------------------------------- whose task it is


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_trainings_with_tasks_of_the_same_names_get_their_own(engine, order):
    """Parameters were off by .13 to 1.2 without a word on every engine whose workers look tasks up by name."""
    jobs = {"a": A, "b": B}
    found = simulated(by_hand({scope: jobs[scope] for scope in order}), engine)
    for scope, job in jobs.items():
        assert M.equal(found[scope], simulated(by_hand({scope: job}), engine)[scope])


class Adder:
    def __init__(self, much: int) -> None:
        self.task = Task("toys:add", self.add)
        self.much = much

    def add(self, island: Any, message: Any) -> Any:
        return island.data + self.much


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_belongs_to_the_object_that_asked(engine):
    adders = [Adder(10), Adder(20), Adder(30)]

    async def program(fed: Any) -> Any:
        return [(await fed.ask_all(fed.parties, one.task)).values for one in adders]

    program.tasks = [one.task for one in adders]  # type: ignore[attr-defined]
    assert simulated(program, engine, {"p": 1, "q": 2}) == [[11, 12], [21, 22], [31, 32]]


def test_a_task_of_none_of_the_objects_is_refused():
    adders = [Adder(10), Adder(20)]

    async def program(fed: Any) -> Any:
        return await fed.ask_all(fed.parties, Adder(30).task)

    program.tasks = [one.task for one in adders]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="several objects of this program have a task 'toys:add'"):
        simulated(program, islands={"p": 1})


def test_a_job_may_not_ask_for_a_task_of_the_program_around_it():
    adder = Adder(10)

    async def inner(fed: Any) -> Any:
        return await fed.ask_all(fed.parties, adder.task)

    async def program(fed: Any) -> Any:
        return await fed.run(inner, scope="a")

    program.tasks = [adder.task]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no task named 'toys:add'"):
        simulated(program, islands={"p": 1})


def test_a_request_of_an_unknown_owner_is_refused():
    known: dict[str, Any] = {}
    register_tasks(known, [Adder(10).task])
    register_tasks(known, [Adder(20).task], "main/a")
    mine = tasks_of(known, "toys:add", "main/a")[0]
    packed = pack_request(Request("main/a/toys:add/0", mine, None, "main/a", 1), [])
    assert unpack_request(packed, known).task.run == mine.run
    packed["task"]["owner"] = "main/b"
    with pytest.raises(ConfigError, match=r"the task 'toys:add' of 'main/b' is not known here"):
        unpack_request(packed, known)


def test_tasks_of_one_object_are_registered_once():
    known: dict[str, Any] = {}
    adder = Adder(1)
    register_tasks(known, [adder.task, Task("toys:add", adder.add), Adder(2).task])
    assert [one.run.__self__.much for one in tasks_of(known, "toys:add")] == [1, 2]
    assert resolve("toys:add", known).run == adder.add


@pytest.mark.parametrize("engine", ["batched", pytest.param("processes", marks=pytest.mark.slow), "socket"])
def test_a_job_that_begins_when_workers_are_at_work_is_known_to_them(engine):
    """Workers inherit what is known when they start; others replace them for a job that comes later."""

    async def program(fed: Any) -> Any:
        first = plain(await fed.run(A, scope="a"))
        later = [fed.run(B.replace(rounds=n), scope=f"b{n}") for n in (1, 2)]
        return [first, *map(plain, await asyncio.gather(*later))]

    found = simulated(program, engine)
    alone = [{"a": A}, {"b1": B.replace(rounds=1)}, {"b2": B.replace(rounds=2)}]
    for one, jobs in zip(found, alone, strict=True):
        assert M.equal(one, *simulated(running(jobs), engine).values())


# ---------------------------------------------------------------------- resuming


async def everything(fed: Any) -> Any:
    state = await fed.restore({})
    if "first" not in state:
        first = await asyncio.gather(
            fed.run(A, scope="a"),
            fed.run(counting, fed.parties[1:4], scope="b"),
            fed.run(without_checkpoints, scope="c"),
        )
        state = {"first": [plain(one) for one in first]}
        await fed.checkpoint(state)

    async def own() -> None:
        nonlocal state
        for number in range(state.get("number", 0), 2):
            await fed.sum(fed.parties, noisy, at=(number, "own"))
            await fed.run(without_checkpoints, scope="ef"[number])
            state = {**state, "number": number + 1}
            await fed.checkpoint(state)  # in the middle of what runs in d
            await asyncio.sleep(0)

    _, last, drawn = await asyncio.gather(
        own(), fed.run(counting, scope="d"), fed.run(ProgramJob(without_checkpoints, {"turns": 8}), scope="g")
    )  # what g draws before the program's checkpoint must be the same after a crash
    return {**state, "last": last, "drawn": drawn, "bytes": fed.bytes()}


everything.jobs = {"a": A}  # type: ignore[attr-defined]


@pytest.mark.parametrize("points", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_killed_program_goes_on_in_all_its_jobs(tmp_path, points):
    def make(folder: Path, resume: bool) -> World:
        return World(ISLANDS, Inline(), folder=folder, resume=resume)

    whole = killed_and_resumed(make, everything, tmp_path, points=points)
    assert [len(whole.records[slot]) for slot in ("main/a", "main/b", "main/d")] == [3, 3, 3]
    assert [times for times, _ in whole.result["last"]] == [5, 10, 15]  # its state is its own, and counted once


def test_a_checkpoint_of_the_program_holds_no_state_of_a_job(tmp_path):
    """A job goes on from its own checkpoint or begins anew: half of it in another generation would be neither."""

    async def program(fed: Any) -> Any:
        async def later() -> None:
            await fed.sum(fed.parties, noisy)
            await fed.checkpoint({})

        await asyncio.gather(fed.run(ProgramJob(without_checkpoints), scope="a"), later())
        return {slot: sorted(content["homes"]) for slot, content in fed.world.checkpoints.slots.items()}

    assert simulated(program, folder=tmp_path) == {"main": ["main"]}


def test_a_scope_that_resumes_on_a_real_clock_waits_for_nothing(tmp_path):
    """The clock of a new process begins at 0. A scope waited until the moment of its checkpoint: for as long as the first process had run."""

    async def inner(fed: Any) -> Any:
        done = await fed.restore(None)
        if done is None:
            fed.clock.set(3600.0)
            await fed.checkpoint("done")
        return fed.clock.now()

    async def program(fed: Any) -> Any:
        async with asyncio.timeout(20):
            return await fed.run(inner, scope="a")

    for resume in (False, True):
        world = World(ISLANDS, Inline(), folder=tmp_path, resume=resume, clock=Clock(virtual=False))
        assert live(world, program).result >= 3600.0


def test_killed_and_resumed_knows_the_tasks_of_a_program(tmp_path):
    adders = [Adder(10), Adder(20)]

    async def program(fed: Any) -> Any:
        state = await fed.restore([])
        while len(state) < 2:
            state = [*state, (await fed.ask_all(fed.parties, adders[len(state)].task)).values]
            await fed.checkpoint(state)
        return state

    program.tasks = [one.task for one in adders]  # type: ignore[attr-defined]

    def make(folder: Path, resume: bool) -> World:
        return World(Community([1, 2]), Inline(), folder=folder, resume=resume)

    assert killed_and_resumed(make, program, tmp_path, points=6).result == [[11, 12], [21, 22]]


# ---------------------------------------------------------------------- what a job keeps to itself


class Enough(Hooks):
    def evaluated(self, number: int, row: Any) -> None:
        raise atoll.StopRun("enough")


class Listening(Hooks):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def round_begins(self, number: int) -> None:
        self.steps.append(number)


def test_what_ends_one_job_does_not_end_another():
    listening = Listening()
    jobs = {"a": A.replace(callbacks=[Enough()]), "b": B.replace(callbacks=[listening]), "c": B}
    found = simulated(running(jobs))
    assert [len(found[scope]["rows"]) for scope in jobs] == [1, 3, 3]
    assert listening.steps == [1, 2, 3]


def test_a_job_counts_what_it_has_released_itself():
    private = A.replace(
        privacy=atoll.mechanisms.CentralDP(noise=2.0, clip=1.0, accountant="rdp"),
        selection=atoll.selection.Everyone(),
    )
    alone = simulated(running({"a": private}), secret_seed=3)["a"]
    beside = simulated(running({"b": private, "a": private}), secret_seed=3)["a"]
    assert alone["rows"][-1]["epsilon"] > 0
    assert M.equal(alone, beside)


def test_a_job_inside_a_program_is_admitted_by_the_policies():
    with pytest.raises(PolicyError, match="may not run here"):
        simulated(running({"a": B}), policy=SitePolicy(allow=("program", "*:*", "FedAvg")))
    simulated(running({"a": A}), policy=SitePolicy(allow=("program", "*:*", "FedAvg")))


def test_a_program_in_a_scope_may_run_jobs_itself():
    async def inner(fed: Any) -> Any:
        return plain(await fed.run(A, scope="deep"))

    async def outer(fed: Any) -> Any:
        return await asyncio.gather(fed.run(inner, scope="a"), fed.run(inner, scope="b"))

    first, second = simulated(outer)
    assert not M.equal(first, second)
    inner.jobs = {"deep": A}  # type: ignore[attr-defined]
    assert M.equal(simulated(outer)[0], first)


# ---------------------------------------------------------------------- errors


async def twice(fed: Any) -> Any:
    await fed.run(counting, scope="a")
    await fed.run(counting, scope="a")


async def by_name(fed: Any) -> Any:
    await fed.scope("a").sum(fed.parties, noisy)
    await fed.run(counting, scope="a")


def at(choose: Any, job: Any = counting) -> Any:
    async def program(fed: Any) -> Any:
        await fed.run(job, choose(fed), scope="a")

    program.others = {"hub": "hub"}  # type: ignore[attr-defined]
    return program


def elsewhere() -> Any:
    return World(Community([1, 2]), Inline()).roster.all()


MASKED = A.replace(reducer=atoll.reducers.TwoServers())
ERRORS: dict[str, tuple[Any, str]] = {
    "twice": (twice, "the scope 'a' is used by a second job"),
    "by hand before": (by_name, "the scope 'a' is used by a second job"),
    "unknown party": (at(lambda fed: ["client-0", "client-7"]), "no party is named 'client-7'"),
    "a helper": (at(lambda fed: ["client-0", "hub"]), "'hub' is not one of this federation's parties"),
    "another federation": (at(lambda fed: elsewhere()), "of another federation"),
    "a party twice": (at(lambda fed: ["client-0", "client-0"]), "1 parties are named twice"),
    "nobody": (at(lambda fed: fed.parties[:0]), "it has no parties"),
    "one name": (at(lambda fed: "client-0"), "parties='client-0'"),
    "no helper": (at(lambda fed: None, MASKED), "needs '.*' as .*, and nobody plays it here"),
    "no job": (at(lambda fed: None, 3), "3 is neither a job nor a program"),
    "a class": (at(lambda fed: None, ProgramJob), "is neither a job nor a program"),
}


def test_a_program_brings_the_party_that_its_reducer_needs():
    class Counted:
        reducer = atoll.reducers.TwoServers()

        async def __call__(self, fed):
            return float((await fed.sum(fed.parties, counted_rows, reducer=self.reducer))["rows"])

    for found in (atoll.simulate(Counted(), ISLANDS), atoll.simulate(ProgramJob(Counted), ISLANDS).outcome):
        assert found == pytest.approx(np.mean(ISLANDS.sizes))


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_run_is_refused(name):
    program, words = ERRORS[name]
    with pytest.raises(AtollError, match=words):
        simulated(program)


def test_parties_outside_a_scope_are_refused():
    async def program(fed: Any) -> Any:
        await fed.scope("inner", fed.parties[:2]).run(counting, ["client-3"], scope="a")

    with pytest.raises(ConfigError, match="'client-3' is not one of this federation's parties"):
        simulated(program)


def test_declared_jobs_bring_their_helpers():
    program = running({"a": MASKED})
    program.jobs = {"a": MASKED}
    assert len(simulated(program)["a"]["rows"]) == 3


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ({"a": B}, "has declared another job for this scope"),
        ({"a": (A, ["client-0", "client-1", "client-2"])}, "has declared other parties for this scope"),
        ({"a": 3}, "jobs: int for the scope 'a'"),
        ([A], "jobs: list for the scope ''"),
        ({"a": (A, ["client-9"])}, "no party of the federation is named 'client-9'"),
    ],
)
def test_what_is_run_is_what_was_declared(jobs, words):
    program = running({"a": A})
    program.jobs = jobs
    with pytest.raises(ConfigError, match=words):
        simulated(program)


def test_between_organisations_a_job_is_declared():
    class Live(Inline):
        live = True

    with pytest.raises(ConfigError, match="the sites do not know Training"):
        live(World(ISLANDS, Live()), running({"a": A}))


# ---------------------------------------------------------------------- what it says of itself


def test_a_program_explains_the_jobs_that_it_declares():
    program = running({"a": MASKED})
    program.jobs = {"a": MASKED}
    found = ProgramJob.of(program).explain(ISLANDS)
    inner = MASKED.explain(ISLANDS)
    assert {one.who for one in found.exposures} >= {f"a: {one.who}" for one in inner.exposures}
    assert found.costs == {f"a: {name}": value for name, value in inner.costs.items()}
    assert set(MASKED.others(5)) <= set(ProgramJob.of(program).others(5))


def test_ones_own_kind_of_job_says_what_its_reducer_shows():
    from dataclasses import dataclass

    from atoll.core.job import Job

    @dataclass(frozen=True)
    class Own(Job):
        reducer: Any

    found = Own(atoll.reducers.SecureAggregation()).explain(clients=4)
    assert found.exposures[:1] == atoll.reducers.SecureAggregation().exposures(4)[:1]


def declaring(**jobs: Any) -> ProgramJob:
    program = running(jobs)
    program.jobs = jobs
    return ProgramJob.of(program)


def test_a_program_needs_of_a_site_what_its_jobs_need():
    statistics, trees = KINDS["Statistics"], KINDS["Trees"]
    found = [declaring(), declaring(a=A), declaring(a=statistics), declaring(a=A, b=trees)]
    assert [job.one_form for job in found] == [False, True, False, True]
    assert [job.reads for job in found] == ["dataset", "dataset", statistics.reads, "dataset"]
    assert [job.missing_features for job in found] == [False, False, True, True]
    with pytest.raises(ConfigError, match="read a site's tables in two ways"):
        _ = declaring(a=A, b=statistics).reads


def test_a_program_releases_what_its_jobs_release():
    private = A.replace(privacy=atoll.mechanisms.CentralDP(noise=2.0, clip=1.0), selection=atoll.selection.Everyone())  # fmt: skip
    alone = private.prepare(ISLANDS)
    program = running({"a": private, "b": private})
    program.jobs = {"a": private, "b": private}
    assert ProgramJob.of(program).prepare(ISLANDS).most(9) is None  # nobody can say what its own program releases
    program.releases = (Laplace(epsilon=1.0),)
    found = ProgramJob.of(program).prepare(ISLANDS)
    assert found.most(9) == [Laplace(epsilon=1.0), *alone.most(9), *alone.most(9)]
    assert found.entrusted(9) == [*alone.entrusted(9), *alone.entrusted(9)]


def test_a_run_folder_has_the_settings_of_the_jobs_inside(tmp_path):
    program = running({"a": A}, ["client-0", "client-2", "client-3"])
    program.jobs = {"a": (A, ["client-0", "client-2", "client-3"])}
    simulated(program, folder=tmp_path / "run")
    kept = yaml.read(tmp_path / "run" / "config.yaml")["jobs"]["a"]
    assert (kept["job"], kept["rounds"], kept["algorithm"]["name"]) == ("training", 3, "FedAvg")
    assert kept["parties"] == ["client-0", "client-2", "client-3"]
