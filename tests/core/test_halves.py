"""A reducer's half in blocks: the same sums, states, rejections, events and journal as client by client, and what it wraps runs in blocks indeed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.algebra.aggregate import Mean, Parts, Sum, Total, Vote
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, PolicyError
from atoll.core.event import Laplace
from atoll.core.execution.executor import Executor
from atoll.core.execution.host import Host
from atoll.core.federation.reducer import Reducer
from atoll.core.persistence.state_table import StateTable
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Roster
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.request import Mailboxes, Reduced, Request
from atoll.core.requests.stage import Seeds, Stage, derive_seeds
from atoll.core.requests.task import Batch, Task, task
from atoll.core.sealing import Letter
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.simulation import run_in
from atoll.stages import Clip, ErrorFeedback, GaussianNoise, TopK
from atoll.testing.conformance import check_task_many
from atoll.testing.conformance.laws import close
from atoll.testing.conformance.tasks import Dither

SIZE = 7
ISLANDS = Community([float(i + 1) for i in range(SIZE)])

# ---------------------------------------------------------------------- what is wrapped


def _reply(island, message):
    """A mean, a sum, a vote and a metric; NaN at ``nan``, and raises at ``boom``."""
    if island.name in message.get("boom", ()):
        raise ValueError(f"no reply from {island.name}")
    runs = np.float64((island.state or {"runs": 0.0})["runs"] + 1)
    island.state = {"runs": runs}
    x = island.data * message["w"] + island.rng.generator().random(2)
    if island.name in message.get("nan", ()):
        x = x * np.nan
    return {
        "w": Mean({"a": x, "b": x.sum(keepdims=True)}, examples=island.data),
        "s": Sum({"x": x * runs}),
        "v": Vote({"x": x - 1}),
        "metric/n": Sum(runs, role="metric"),
    }


def _reply_many(cohort, message):
    """Three clients a block, from the last to the first."""
    names, bad = cohort.parties.names, {}
    boom = [i for i in range(len(cohort)) if names[i] in message.get("boom", ())]
    others = np.array([i for i in range(len(cohort)) if i not in boom], dtype=np.int64)
    if boom:
        errors = {i: ValueError(f"no reply from {names[i]}") for i in boom}
        yield Batch(others[:0], {}, errors=errors)
    for start in reversed(range(0, len(others), 3)):
        at = others[start : start + 3]
        data = np.array([cohort.shard(int(i)) for i in at])
        draws = np.array([Rng(int(k)).generator().random(2) for k in cohort.keys[at]])
        x = data[:, None] * message["w"] + draws
        for row, i in enumerate(at):
            if names[i] in message.get("nan", ()):
                x[row] = np.nan
        runs = np.array([(cohort.state(int(i)) or {"runs": 0.0})["runs"] + 1 for i in at])
        reply = {
            "w": Mean({"a": x, "b": x.sum(1, keepdims=True)}, examples=data),
            "s": Sum({"x": x * runs[:, None]}),
            "v": Vote({"x": x - 1}),
            "metric/n": Sum(runs, role="metric"),
        }
        yield Batch(at, reply, {"runs": runs}, dict(bad))


WORK = Task("halves:work", _reply, many=_reply_many)

# ---------------------------------------------------------------------- halves


async def _idle(island, message):
    return {name: Sum(total.value, role=total.role) for name, total in (await island.totals()).items()}


def _idle_many(cohort, message):
    for block in cohort.totals():
        reply = {name: Sum(total.value, role=total.role) for name, total in block.totals.items()}
        yield Batch(block.positions, reply)


async def _counting(island, message):
    """A state of its own, rows that depend on the half's random key, and one client that it rejects by a NaN of its own."""
    totals = await island.totals()
    count = np.float64((island.state or {"count": 0.0})["count"] + 1)
    island.state = {"count": count}
    own = np.nan if island.name == message else island.rng.generator().random()
    return {
        "s": Sum(totals["s"].value["x"] * count + own),
        "weight": Mean(np.float64(own), examples=totals["w"].weight),
    }


def _counting_many(cohort, message):
    for block in cohort.totals():
        at, names = block.positions, cohort.parties.names
        count = np.array([(cohort.state(int(i)) or {"count": 0.0})["count"] + 1 for i in at])
        own = np.array(
            [
                np.nan if names[i] == message else Rng(int(k)).generator().random()
                for i, k in zip(at, cohort.keys[at], strict=True)
            ]
        )
        s = Sum(block.totals["s"].value["x"] * count[:, None] + own[:, None])
        yield Batch(at, {"s": s, "weight": Mean(own, examples=block.totals["w"].weight)}, {"count": count})


def _word(total, island):
    """The sum as words modulo 2^64, with the mask of this island's own, and one of each letter."""
    word = np.round(total * 2**20).astype(np.int64).view(np.uint64) + island.secret.uint64(2)
    for letter in island.inbox.values():
        word = word - np.uint64(letter["mask"])
    return word


async def _masked(island, message):
    before = island.secret.uint64(1)[0] % np.uint64(1000)
    totals = await island.totals()
    island.spend(Laplace(epsilon=0.5))
    island.state = {"drawn": before}
    return {"word": Sum(_word(totals["s"].value["x"], island))}


def _masked_many(cohort, message):
    for block in cohort.totals():
        words = []
        for row, i in enumerate(block.positions.tolist()):
            island = cohort.island(i)
            before = island.secret.uint64(1)[0] % np.uint64(1000)
            island.spend(Laplace(epsilon=0.5))
            island.state = {"drawn": before}
            words.append(_word(block.totals["s"].value["x"][row], island))
        yield Batch(block.positions, {"word": Sum(np.stack(words))})


async def _waits(island, message):
    """Waits for other things too, before and after."""
    await asyncio.sleep(0)
    totals, again = await island.totals(), await island.totals()
    np.testing.assert_array_equal(again["s"].value["x"], totals["s"].value["x"])
    await asyncio.sleep(0)
    return {"s": Sum(totals["s"].value["x"])}


async def _sometimes(island, message):
    """Asks for its totals only where its number is odd, and raises at one of those."""
    if island.data % 2:
        totals = await island.totals()
        if island.data == 5.0:
            raise ValueError("five")
        return {"s": Sum(totals["s"].value["x"])}
    return {"s": Sum(np.zeros(2))}


async def _gathering(island, message):
    """Asks in a task of its own."""
    (totals,) = await asyncio.gather(island.totals())
    return {"s": Sum(totals["s"].value["x"])}


HALVES = {
    "idle": (_idle, _idle_many),
    "counting": (_counting, _counting_many),
    "masked": (_masked, _masked_many),
    "waits": (_waits, None),
    "sometimes": (_sometimes, None),
    "gathering": (_gathering, None),
}
CASES = [(name, with_many) for name, (_, many) in HALVES.items() for with_many in ([False, True] if many else [False])]


def half_of(name, with_many):
    run_one, many = HALVES[name]
    return Task(f"halves:{name}", run_one, many=many if with_many else None)


@dataclass(frozen=True)
class Breaks(Stage):
    """Makes what is above a number NaN: a reply that is no number only once it is encoded."""

    above: float = 6.0
    on: ClassVar[Any] = "summand"

    def encode(self, value, context):
        from atoll.core.algebra import tree as T

        return T.map(lambda leaf: np.where(np.abs(leaf) > 40 * self.above, np.nan, leaf), value)


CHAINS = {
    "none": (),
    "clip": (Clip(1.0),),
    "memory": (ErrorFeedback(TopK(0.5)),),
    "summand": (Clip(5.0), Dither(0.01)),
    "secret": (Clip(1.0), GaussianNoise(multiplier=0.5)),
    "breaks": (Breaks(),),
}

LETTERS = {
    "client-2": {"client-1": {"mask": 5}, "client-3": {"mask": 2**63}},
    "client-0": {"client-6": {"mask": 11}},
}


def mail():
    return Mailboxes(
        {
            to: {sender: Letter(sender, to, "before", 0, content=content) for sender, content in box.items()}
            for to, box in LETTERS.items()
        }
    )


@pytest.mark.every(5)  # a third of a second each; each chain and each case is among them
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("name", "with_many"), CASES)
def test_a_half_in_blocks_is_the_half_client_by_client(name, with_many, chain):
    names = [f"client-{i}" for i in range(SIZE)]
    message = {"w": np.array([1.0, -2.0]), "nan": names[3:4], "boom": names[5:6]}
    uplink = Chain(CHAINS[chain], "chain")
    half = half_of(name, with_many)
    letters = mail() if name == "masked" else None
    check_task_many(WORK, ISLANDS, message, uplink=uplink, half=half, told="client-4", mail=letters)


@settings(max_examples=max(1, settings.default.max_examples // 3))  # each is eight folds on two paths
@given(
    case=st.sampled_from(CASES),
    chain=st.sampled_from(sorted(CHAINS)),
    nan=st.sets(st.integers(0, SIZE - 1), max_size=3),
    boom=st.sets(st.integers(0, SIZE - 1), max_size=2),
    own=st.integers(0, SIZE),
    seed=st.integers(0, 2**32),
)
def test_whoever_is_kept_out_the_two_paths_agree(case, chain, nan, boom, own, seed):
    message = {"w": np.array([1.0, -2.0]), "nan": [f"client-{i}" for i in nan], "boom": [f"client-{i}" for i in boom]}
    uplink = Chain(CHAINS[chain], "chain")
    check_task_many(WORK, ISLANDS, message, uplink=uplink, half=half_of(*case), told=f"client-{own}", seed=seed)


# ---------------------------------------------------------------------- that it is taken


def fold(half, work=WORK, *, fast=True, policy=None, replay=None, message=None, events=None, mail=None):
    executor = Executor(Roster(ISLANDS.names), ISLANDS, vectorised=fast, secret_seed=1)
    if policy is not None:
        executor = replace(executor, policy=policy)
    inner = Request("work", work, {"w": np.ones(2), **(message or {})}, "s", Rng.of(1).key)
    request = Request("half", half, None, "s//half", Rng.of(2).key, wraps=inner, mail=mail)
    tables = {slot: StateTable() for slot in request.slots}

    def spend(event, party, at):
        if events is not None:
            events.append((party, at))

    return run(executor.fold(request, np.arange(SIZE), tables, replay, spend))


def counted():
    """The work, and how often it ran for one client and for a block."""
    calls = {"run": 0, "many": 0}

    def one(island, message):
        calls["run"] += 1
        return _reply(island, message)

    def many(cohort, message):
        calls["many"] += 1
        yield from _reply_many(cohort, message)

    return Task("halves:counted", one, many=many), calls


@pytest.mark.parametrize(("name", "with_many"), [c for c in CASES if c[0] not in ("gathering",)])
def test_what_is_wrapped_runs_once_for_all(name, with_many):
    work, calls = counted()
    fold(half_of(name, with_many), work, mail=mail() if name == "masked" else None)
    assert calls == {"run": 0, "many": 1}


def test_a_half_that_asks_in_a_task_of_its_own_is_answered_alone():
    work, calls = counted()
    fold(half_of("gathering", False), work)
    assert calls == {"run": SIZE, "many": 0}


def test_only_those_who_ask_do_the_work_and_pay_for_it():
    seen = []

    def many(cohort, message):
        seen.extend(cohort.parties.names)
        yield from _reply_many(cohort, message)

    fold(half_of("sometimes", False), Task("halves:seen", _reply, many=many))
    assert seen == ["client-0", "client-2", "client-4", "client-6"]


def test_a_policy_that_looks_at_single_replies_goes_client_by_client():
    class Looks(SitePolicy):
        single: ClassVar[bool] = True

    work, calls = counted()
    fold(half_of("idle", True), work, policy=Looks())
    assert calls == {"run": SIZE, "many": 0}


@pytest.mark.parametrize("with_many", [True, False])
@pytest.mark.parametrize("name", ["idle", "masked"])
def test_a_site_policy_limits_the_replies_of_a_half(name, with_many):
    policy = {"client-1": SitePolicy(largest_reply=10), "client-2": SitePolicy(tasks=("halves:work",))}
    fast, slow = (fold(half_of(name, with_many), policy=policy, fast=each) for each in (True, False))
    assert fast.senders.tolist() == slow.senders.tolist() == [0, 3, 4, 5, 6]
    assert fast.rejected.keys() == slow.rejected.keys() == {1, 2}
    assert "larger than 10" in fast.rejected[1]
    assert "may not run here" in fast.rejected[2]


def test_replies_in_the_journal_are_not_made_again_and_give_the_same_sum():
    events: list[Any] = []
    half = half_of("masked", True)
    first = fold(half, events=events)
    assert {ran.reply.party for ran in first.kept} == set(range(SIZE))
    assert len(events) == SIZE
    known = {ran.reply.party: ran for ran in first.kept if ran.reply.party != 2}
    again = fold(half, replay=known.get, events=events)
    np.testing.assert_array_equal(again.totals["word"].value, first.totals["word"].value)
    assert again.senders.tolist() == first.senders.tolist()
    assert [ran.reply.party for ran in again.kept] == [2]
    assert events[SIZE:] == [("client-2", "half#0")]
    everything = fold(half, replay={ran.reply.party: ran for ran in first.kept}.get, events=events)
    np.testing.assert_array_equal(everything.totals["word"].value, first.totals["word"].value)
    assert len(events) == SIZE + 1
    assert everything.kept == []


def test_words_without_a_sign_add_modulo_two_to_the_64():
    words = np.array([[2**64 - 1, 2**63], [3, 2**63], [1, 1]], dtype=np.uint64)
    total = Sum(words).block_sum(np.array([1.0, 1.0, 0.0]))
    assert total.value.dtype == np.uint64
    assert total.value.tolist() == [2, 0]
    assert Sum(words).block_sum().value.tolist() == [3, 1]


def test_whole_numbers_of_a_block_stay_whole():
    numbers = np.array([[2**60 + 1], [2**60], [-3]])
    assert Sum(numbers).block_sum().value.tolist() == [2**61 - 2]


# ---------------------------------------------------------------------- single replies


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", [name for name in HALVES if name != "gathering"])
def test_single_replies_of_a_half_are_those_of_one_client_after_another(name, chain):
    """Also where the protocol wants the words of each party: what is wrapped runs once for all of them."""
    half, uplink = half_of(name, False), Chain(CHAINS[chain], "chain")
    message = {"w": np.array([1.0, -2.0]), "nan": ["client-3"], "boom": ["client-5"]}
    found = []
    for fast in (True, False):
        events: set[Any] = set()
        work, calls = counted()
        executor = Executor(Roster(ISLANDS.names), ISLANDS, vectorised=fast, secret_seed=1)
        inner = Request("work", work, message, "s", Rng.of(1).key, uplink, tuple(uplink.public(Rng.of(3))))
        if uplink.secret:
            inner = replace(inner, seeds=Seeds(np.arange(SIZE), derive_seeds(executor.keys(inner, np.arange(SIZE)), 7)))
        request = Request("half", half, "nobody", "s//half", Rng.of(2).key, wraps=inner, mail=mail())
        rans = run(
            executor.run(
                request,
                np.arange(SIZE),
                {slot: StateTable() for slot in request.slots},
                lambda event, who, at, into=events: into.update(
                    (w, repr(event), at) for w in ([who] if isinstance(who, str) else who)
                ),
            )
        )
        assert calls["many"] == fast
        assert bool(calls["run"]) != fast
        found.append((rans, events))
    (mine, ours), (alone, theirs) = found
    assert ours == theirs
    for a, b in zip(mine, alone, strict=True):
        assert (a.reply.party, a.sealed, a.opened) == (b.reply.party, b.sealed, b.opened)
        assert (type(a.reply.error), bool(a.reply.rejected)) == (type(b.reply.error), bool(b.reply.rejected))
        if b.reply.usable:
            sent, wanted = ({k: v.value for k, v in ran.reply.value.items()} for ran in (a, b))
            close(sent, wanted, "a reply", 1e-9)
            close(a.left, b.left, "what it leaves", 1e-9)
            assert a.reply.nbytes == b.reply.nbytes


# ---------------------------------------------------------------------- what is refused


def _all(half, work=WORK):
    return fold(half, work).errors


def test_single_replies_are_refused_by_name():
    work = Task(
        "halves:parts",
        lambda island, message: {"x": Parts(np.float64(1.0))},
        many=lambda cohort, message: iter([Batch(np.arange(len(cohort)), {"x": Parts(np.ones(len(cohort)))})]),
    )
    for with_many in (True, False):
        errors = _all(half_of("idle", with_many), work)
        assert set(errors) == set(range(SIZE))
        assert all(
            isinstance(error, CompositionError) and "'x' is a single reply" in str(error) for error in errors.values()
        )


def test_totals_are_asked_for_once_and_only_by_halves():
    def twice(cohort, message):
        list(cohort.totals())
        yield from _idle_many(cohort, message)

    error = _all(Task("halves:twice", _idle, many=twice))[0]
    assert isinstance(error, ConfigError)
    assert "requested twice" in str(error)

    def plain(cohort, message):
        with pytest.raises(ConfigError, match="only the half of a reducer, or a task with islands=True, sees islands"):
            cohort.island(0)
        yield from cohort.totals()

    executor = Executor(Roster(ISLANDS.names), ISLANDS, vectorised=True)
    request = Request("r", Task("halves:plain", _idle, many=plain), None, "s", 1)
    errors = run(executor.fold(request, np.arange(SIZE), {"s": StateTable()})).errors
    assert "this request wraps no other" in str(errors[0])


def test_a_client_that_many_forgets_is_an_error_of_the_task():
    def forgets(cohort, message):
        for batch in _reply_many(cohort, message):
            yield batch.part(batch.positions != 4)

    errors = _all(half_of("idle", False), Task("halves:forgets", _reply, many=forgets))
    assert set(errors) == {4}
    assert "returned nothing for client-4" in str(errors[4])


@pytest.mark.parametrize(("name", "with_many"), [c for c in CASES if c[0] not in ("gathering", "masked", "sometimes")])
def test_a_client_that_the_task_itself_rejects_is_in_no_sum(name, with_many):
    """Its reply is finite and must not count: ``Batch.rejected`` holds below a half as under the plain reducer."""

    def rejects(cohort, message):
        for batch in _reply_many(cohort, message):
            yield replace(batch, rejected={4: "its loss went up"} if 4 in batch.positions else {})

    work = Task("halves:rejects", _reply, many=rejects)
    found, honest = (
        fold(half_of(name, with_many), work),
        fold(half_of(name, with_many), Task("halves:others", _reply, many=_without_fourth)),
    )
    assert found.rejected == {4: "its loss went up"}
    assert found.senders.tolist() == [0, 1, 2, 3, 5, 6]
    for key, total in honest.totals.items():
        close(found.totals[key].value, total.value, key, 1e-9)


def _without_fourth(cohort, message):
    """The replies of the others, as if the fourth had raised."""
    for batch in _reply_many(cohort, message):
        kept = batch.part(batch.positions != 4)
        yield replace(kept, errors={**kept.errors, 4: ValueError("gone")}) if 4 in batch.positions else kept


def test_what_is_raised_for_no_single_client_is_everybodys():
    def breaks(cohort, message):
        raise RuntimeError("out of order")
        yield

    for with_many in (True, False):
        errors = _all(half_of("idle", with_many), Task("halves:breaks", _reply, many=breaks))
        assert set(errors) == set(range(SIZE))
        assert all("out of order" in str(error) for error in errors.values())


# ---------------------------------------------------------------------- on engines


@task(many=_idle_many)
async def idle_half(island, message):
    return await _idle(island, message)


@task
async def waiting_half(island, message):
    return {k: v for k, v in (await _idle(island, message)).items() if await asyncio.sleep(0) is None}


@task(many=_masked_many)
async def masked_half(island, message):
    return await _masked(island, message)


@dataclass(frozen=True)
class By(Reducer):
    """Adds up what a half of this module says."""

    half: str = "idle_half"

    async def reduce(self, reduction):
        return await reduction.fold(globals()[self.half])


@task
async def word_half(island, message):
    """A single reply, with the letters of the step before."""
    return _word((await island.totals())["s"].value["x"], island)


@task
def sends(island, names):
    island.post(names[0], {"mask": 7})


@dataclass(frozen=True)
class Singly(Reducer):
    """Sees the words of each party."""

    async def reduce(self, reduction):
        first = await reduction.exchange(reduction.parties, sends, reduction.parties.names)
        second = await reduction.exchange(first.senders, word_half, mail=first.mail, wraps=True)
        total = sum(second.values, np.uint64(0))
        return Reduced({"word": Total("sum", total, len(second), len(second))}, second.senders.positions)


@task(many=_reply_many)
def work(island, message):
    return _reply(island, message)


@pytest.mark.parametrize("half", ["idle_half", "waiting_half"])
@pytest.mark.parametrize("engine", ["batched", "processes", "socket"])
def test_engines_agree(engine, half):
    message = {"w": np.array([0.5, 2.0]), "nan": ["client-3"]}

    async def program(fed):
        sums = [await fed.sum(fed.parties, work, message, reducer=By(half), uplink=[Clip(2.0)]) for _ in range(2)]
        return [[s["s"]["x"], s.senders.names, dict(s.rejected)] for s in sums]

    mine, reference = (run_in(World(ISLANDS, ENGINES[e](2)), program)[0] for e in (engine, "inline"))
    for (a, *who), (b, *others) in zip(mine, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
        assert who == others


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_single_words_agree_on_engines(engine):
    message = {"w": np.array([0.5, 2.0]), "nan": ["client-3"]}

    async def program(fed):
        sums = [await fed.sum(fed.parties, work, message, reducer=Singly()) for _ in range(2)]
        return [[s["word"], s.senders.names, dict(s.rejected), s.bytes_up] for s in sums]

    def world(name):
        return World(ISLANDS, ENGINES[name](2), secret_seed=5)

    mine, reference = (run_in(world(name), program)[0] for name in (engine, "inline"))
    for (a, *who), (b, *others) in zip(mine, reference, strict=True):
        np.testing.assert_array_equal(a, b)
        assert who == others


class Slow:
    """Says that a cohort is worth workers."""

    choices: ClassVar[dict[str, Any]] = {}
    seconds: ClassVar[dict[str, float]] = {}

    def recall(self, choices):
        pass

    def prepare(self, cohort, message, cores=1):
        return 1.0


WORTH = Task("halves:worth", _reply, many=_reply_many, tuning=Slow())


@pytest.mark.network
@pytest.mark.parametrize("half", ["idle_half", "waiting_half", "masked_half"])
def test_workers_of_the_batched_engine_share_a_half(half):
    """The same sums as in this process, as often as they are repeated; letters reach the workers, and secrets come back into the journal."""
    message = {"w": np.array([0.5, 2.0]), "nan": ["client-3"]}

    async def program(fed):
        sums = [await fed.sum(fed.parties, WORTH, message, reducer=By(half), uplink=[Clip(2.0)]) for _ in range(2)]
        return [[s.value, s.senders.names, dict(s.rejected)] for s in sums], len(fed.world.engine.host.journal)

    def world(engine):
        return World(ISLANDS, engine, registry={WORTH.name: WORTH}, secret_seed=3)

    engine = ENGINES["batched"](2)
    (mine, kept), (reference, _) = (run_in(world(e), program)[0] for e in (engine, ENGINES["inline"](1)))
    assert engine.choices["tasks"][WORTH.name]["workers"] == 2
    assert kept == (12 if half == "masked_half" else 0)
    for (a, *who), (b, *others) in zip(mine, reference, strict=True):
        for name in b:
            np.testing.assert_allclose(
                np.asarray(_first(a[name]), float), np.asarray(_first(b[name]), float), rtol=1e-12
            )
        assert who == others


def _first(value):
    return next(iter(value.values())) if isinstance(value, dict) else value


@pytest.mark.network
def test_a_resumed_sum_of_workers_asks_nobody_twice(tmp_path):
    """Killed between the workers' replies and the checkpoint: the journal has the words, and the sum is the same to the bit."""
    from atoll.testing import killed_and_resumed

    async def program(fed):
        state = await fed.restore({"words": []})
        while len(state["words"]) < 2:
            got = await fed.sum(fed.parties, WORTH, {"w": np.ones(2)}, reducer=By("masked_half"))
            state = {"words": [*state["words"], got["word"]]}
            await fed.checkpoint(state)
        return state["words"]

    def resumed(folder, resume):
        registry = {WORTH.name: WORTH}
        return World(ISLANDS, ENGINES["batched"](2), folder=folder, resume=resume, registry=registry, secret_seed=3)

    killed_and_resumed(resumed, program, tmp_path, points=4)


def test_a_block_that_fails_leaves_nobody_both_in_the_sum_and_in_error():
    """One party used its island before the task failed for the others: its secrets are drawn, so its reply stays, and it alone."""

    def many(cohort, message):
        cohort.island(1).secret.bytes(8)
        yield Batch(np.arange(2), {"x": Sum(np.array([[1.0], [2.0]]))})
        raise ValueError("the rest failed")

    def run(island, message):
        return {"x": Sum(np.array([3.0]))}

    work = Task("t:half-failed", run, many=many, islands=True)
    host = Host(Executor(Roster(ISLANDS.names), ISLANDS, vectorised=True))
    found = asyncio.run(host.fold(Request("main/x/0", work, None, "main", 1), np.arange(4)))
    assert found.senders.tolist() == [1]
    assert found.totals["x"].value.tolist() == [2.0]
    assert sorted(found.errors) == [0, 2, 3]
    assert not found.rejected


def test_a_policy_that_refuses_inside_a_block_is_a_refusal_and_no_error():
    """As with single replies: the party is named among the rejected, and the sum of the others goes on."""

    def many(cohort, message):
        yield Batch(np.array([0, 2]), {"x": Sum(np.array([[1.0], [2.0]]))}, errors={1: PolicyError("no more")})

    work = Task("t:refused-in-a-block", lambda island, message: {"x": Sum(np.array([3.0]))}, many=many)
    host = Host(Executor(Roster(ISLANDS.names), ISLANDS, vectorised=True))
    found = asyncio.run(host.fold(Request("main/x/0", work, None, "main", 1), np.arange(3)))
    assert (found.senders.tolist(), found.totals["x"].value.tolist(), found.errors) == ([0, 2], [3.0], {})
    assert list(found.rejected) == [1]
    assert "refused by its policy: no more" in found.rejected[1]
