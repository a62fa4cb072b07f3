"""What every engine and every transport must do, however it carries requests; and a program that uses every verb of a federation."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.errors import ConfigError, QuorumError, SessionError, TaskError
from atoll.core.federation.federation import Federation, run_program
from atoll.core.federation.reducer import TreeReducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Parties
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.results import Free, Plan
from atoll.core.requests.task import Task
from atoll.core.time.clock import run
from atoll.core.time.deadline import Prospects
from atoll.core.world import World
from atoll.testing.crash import Killed, killed_and_resumed, live
from atoll.testing.timetable import Timetable

from . import tasks as K
from .laws import close, refuses, require, same

__all__ = ["ENGINE_CHECKS", "SIZE", "check_engine", "every_verb", "letters"]

SIZE = 7
"""Clients of the population that it runs with."""


async def every_verb(fed: Federation) -> Any:
    """Run a program that uses all verbs, with a checkpoint after each."""
    everyone = fed.parties
    state = await fed.restore({})
    steps: dict[str, Callable[[], Any]] = {
        "ask": lambda: fed.ask("client-2", K.echo.with_args(tag="one"), {"x": [1, "two", b"3"]}),
        "hub": lambda: fed.ask("hub", K.echo, None),
        "ask_all": lambda: _values(fed.ask_all(everyone[::-1], K.echo, np.arange(3), deadline=4.5)),
        "sum": lambda: _sums(fed.sum(everyone, K.scale, {"w": np.arange(3.0) - 1})),
        "again": lambda: _sums(fed.sum(everyone[2:], K.scale, {"w": np.ones(3)}, uplink=[K.Dither(0.5)])),
        "tree": lambda: _sums(fed.sum(everyone, K.scale, {"w": np.ones(2)}, reducer=TreeReducer(2))),
        "parts": lambda: _sums(fed.sum(everyone, K.count, {"round": 1})),
        "exchange": lambda: letters(fed),
        "relay": lambda: fed.relay(everyone[1:4], K.pass_on, []),
        "session": lambda: fed.session({"caller": ("client-0", K.caller), "responder": ("client-3", K.responder)}),
        "flight": lambda: _flight(fed),
        "scope": lambda: _sums(fed.scope("inner", everyone[:3]).sum(everyone[:3], K.count, {"round": 2})),
        "nest": lambda: fed.nest("hub", _sum_nested, everyone[3:], {"w": np.ones(2)}),
        "release": lambda: _runs(fed),
    }
    for name, step in steps.items():
        if name not in state:
            state = {**state, name: await step()}
            fed.record({"step": name})
            await fed.checkpoint(state)
    return state


async def _values(asked: Any) -> Any:
    return (await asked).by_name()


async def _sums(asked: Any) -> Any:
    got = await asked
    values = {k: [p.value for p in v] if isinstance(v, list) else v for k, v in got.value.items()}
    return {"value": values, "n": got.n, "weight": got.weight, "who": got.senders.names}


async def letters(fed: Federation) -> Any:
    """Let every party write letters; deliver those of some."""
    names = fed.parties.names
    first = await fed.exchange(fed.parties, K.letters, names[:4])
    mail = first.mail.only_from(set(names[1:6]))
    second = await fed.exchange(fed.parties[:4], K.gather, mail=mail)
    return {"read": second.by_name(), "notes": first.notes, "routes": mail.routes}


async def _flight(fed: Federation) -> Any:
    await fed.send(fed.parties, K.count, {"round": 3}, version=3)
    await fed.send(fed.parties[:2], K.echo, {"round": 4}, version=4)
    first = await fed.arrivals(count=3)
    values = await first.results()
    rest = await fed.arrivals(count=SIZE + 2)
    combined = await _sums(fed.combine([h for h in rest.handles() if h.version == 3]))
    others = [await h.result() for h in rest.handles() if h.version == 4]
    return {"first": [sorted(v) for v in values], "when": first.time, "rest": combined, "others": others}


async def _sum_nested(edge: Federation, message: Any) -> Any:
    return await _sums(edge.sum(edge.parties, K.scale, message))


async def _runs(fed: Federation) -> Any:
    return [reply["runs"] for reply in await fed.ask_all(fed.parties, K.release)]


# ---------------------------------------------------------------- what every engine and every transport must do

MakeEngine = Callable[[], Any]


def _people() -> Community:
    data = [float(i + 1) for i in range(SIZE)]
    return Community(data, others={"hub": "its own data"})


def _world(make: MakeEngine, **more: Any) -> World:
    return World(_people(), make(), **more)


def _run(make: MakeEngine, program: Any, **more: Any) -> Any:
    return run(run_program(_world(make, **more), program))[0]


def _inline() -> Any:
    from atoll.engines import Inline

    return Inline()


def _slow() -> Timetable:
    return Timetable({"client-1": 2.0, "client-4": 3.0, "client-5": 3.0}, latency=0.25)


def verbs(make: MakeEngine, tolerance: float) -> None:
    """Check that every verb gives what the inline engine gives, and takes as long."""
    ours = live(_world(make, cost=_slow()), every_verb)
    reference = live(_world(_inline, cost=_slow()), every_verb)
    close(ours.result, reference.result, "results", tolerance)
    same(ours.clock, reference.clock, "clock")
    same(ours.bytes, reference.bytes, "bytes")


def repeats(make: MakeEngine, tolerance: float) -> None:
    """Check that the same seed gives the same result, to the bit, and another seed does not."""
    del tolerance
    first, second = (live(_world(make, cost=_slow(), seed=5), every_verb) for _ in range(2))
    same(first.result, second.result, "a repeated run")
    same(first.links, second.links, "bytes of a repeated run")
    other = live(_world(make, cost=_slow(), seed=6), every_verb)
    require(not np.array_equal(first.result["ask"]["draw"], other.result["ask"]["draw"]), "the seed changes nothing")


def survives(make: MakeEngine, tolerance: float, *, points: int = 12) -> None:
    """Check that a run killed at any step and resumed gives the same result; what must not run twice does not."""
    del tolerance

    def world(folder: Path, resume: bool) -> World:
        return _world(make, cost=_slow(), folder=folder, resume=resume)

    with tempfile.TemporaryDirectory() as folder:
        killed_and_resumed(world, every_verb, Path(folder), points=points)


def never_twice(make: MakeEngine, tolerance: float, *, points: int = 15) -> None:
    """Check that a task that drew secrets or spent budget runs once, wherever it is killed: single replies, sums and ended sessions."""
    del tolerance

    async def program(fed: Federation) -> Any:
        done = await fed.restore(0)
        for number in range(done, 2):
            await fed.ask_all(fed.parties[:3], K.release)
            await fed.sum(fed.parties[2:5], K.release_sum)
            await fed.checkpoint(number + 1)
        return [reply["runs"] for reply in await fed.ask_all(fed.parties, K.release)]

    def world(folder: Path, resume: bool) -> World:
        return _world(make, folder=folder, resume=resume)

    with tempfile.TemporaryDirectory() as folder:
        whole = killed_and_resumed(world, program, Path(folder), points=points, deaths=2)
    same(whole.result, [3, 3, 5, 3, 3, 1, 1], "runs of tasks that must not run twice")


def halves(make: MakeEngine, tolerance: float) -> None:
    """Check that a reducer's half gives what it gives on the inline engine, with or without a ``many``: sums, states, rejections, bytes."""

    async def program(fed: Federation) -> Any:
        found = []
        for half in ("hand_on", "hand_on_alone"):
            for uplink in ((), (K.Dither(0.01),)):
                message = {"w": np.array([1.0, np.nan if uplink else -2.0])}
                for who in (fed.parties[:5], fed.parties):
                    got = await fed.sum(who, K.scale, message, reducer=K.HalfSum(half), uplink=uplink, quorum=0)
                    found.append([got.value, got.senders.names, sorted(got.rejected), got.bytes_up])
        return found

    ours, reference = (live(_world(each), program) for each in (make, _inline))
    close(ours.result, reference.result, "sums of halves", tolerance)
    same(ours.bytes, reference.bytes, "bytes of halves")


def halves_never_twice(make: MakeEngine, tolerance: float, *, points: int = 10) -> None:
    """Check that a half that drew secrets or spent budget runs once for each sum, wherever it is killed."""
    del tolerance

    async def program(fed: Federation) -> Any:
        state = await fed.restore({"runs": []})
        while len(state["runs"]) < 2:
            got = await fed.sum(fed.parties, K.scale, {"w": np.ones(2)}, reducer=K.HalfSum("hide"))
            state = {"runs": [*state["runs"], float(got["runs"])]}
            await fed.checkpoint(state)
        return state["runs"]

    def world(folder: Path, resume: bool) -> World:
        return _world(make, folder=folder, resume=resume)

    with tempfile.TemporaryDirectory() as folder:
        whole = killed_and_resumed(world, program, Path(folder), points=points, deaths=2)
    same(whole.result, [float(SIZE), 2.0 * SIZE], "runs of halves that must not run twice")


def errors(make: MakeEngine, tolerance: float) -> None:
    """Check that an error names its request, party, task, arguments and message, and that other replies are not lost."""
    del tolerance
    broken = K.boom.with_args(at="client-3", number=42)
    words = ("boom 42", "ValueError", "client-3", "conformance.tasks:boom", "number=42", "round 9", "w:float64[2]")
    message = {"w": np.ones(2)}

    async def asks(fed: Federation) -> None:
        await fed.ask_all(fed.parties, broken, message, at="round 9")

    async def sums(fed: Federation) -> None:
        await fed.sum(fed.parties, broken, message, at="round 9")

    for program in (asks, sums):
        with refuses(TaskError, f"a task that raises in {program.__name__}", *words):
            _run(make, program)

    async def drops(fed: Federation) -> Any:
        got = await fed.sum(fed.parties, broken, message)
        replies = await fed.ask_all(fed.parties, broken, message)
        return got.n, got["x"], sorted(got.errors), sorted(replies.errors), replies.senders.names

    n, total, first, second, senders = _run(make, drops, errors="drop")
    require((n, total) == (SIZE - 1, SIZE - 1.0), f"dropping one error left {n} replies with sum {total}")
    require(first == second == ["client-3"] and "client-3" not in senders, f"errors of {first} and {second}")

    async def too_few(fed: Federation) -> None:
        await fed.ask_all(fed.parties, broken, quorum=SIZE)

    with refuses(QuorumError, "a quorum that errors break", "boom 42"):
        _run(make, too_few, errors="drop")


def states(make: MakeEngine, tolerance: float) -> None:
    """Check that private state belongs to a party and a scope, and stays between requests; a party drawn twice works once and counts twice."""
    del tolerance

    async def program(fed: Federation) -> Any:
        inner = fed.scope("inner")
        asked = (fed, fed, inner, fed, inner)
        totals = [(await one.sum(fed.parties[:3], K.count, {"x": 1}))["runs"] for one in asked]
        return [*totals, (await fed.sum(fed.parties[2:4], K.count))["runs"]], await _drawn_twice(fed.scope("twice"))

    totals, drawn = _run(make, program)
    same(totals, [3.0, 6.0, 3.0, 9.0, 6.0, 5.0], "sums of private counters")
    same(drawn, [(3, 3.0, 3.0), (3, 6.0, 3.0), [3.0, 3.0, 3.0], (1, 4.0, 1.0)], "a party that is drawn twice")


async def _drawn_twice(fed: Federation) -> list[Any]:
    """Return replies, runs and senders when a draw with replacement names a party twice."""
    drawn = fed.parties[np.array([0, 0, 2])]
    sums = [await fed.sum(drawn, K.count), await fed.sum(drawn, K.count, deadline=60.0)]
    asked = await fed.ask_all(drawn, K.count)
    sums.append(await fed.sum(fed.parties[:1], K.count))
    told = [(got.n, got["runs"], float(len(got.senders))) for got in sums]
    return [*told[:2], [reply["runs"].value for reply in asked], told[2]]


def large_messages(make: MakeEngine, tolerance: float) -> None:
    """Check that megabytes go down, up, into sums and through sessions."""
    del tolerance
    big = {"a": np.arange(600_000.0), "b": np.ones((3, 100_000), dtype=np.float32)}

    async def program(fed: Federation) -> Any:
        back = await fed.ask("client-1", K.forward, big)
        pair = {"caller": ("client-0", K.caller.with_args(size=300_000)), "responder": ("client-1", K.responder)}
        talked = await fed.session(pair)
        summed = await fed.sum(fed.parties[:3], K.scale, {"w": big["a"]})
        return back, talked["caller"]["total"][-1], summed["w"]["w"][-1]

    back, talked, summed = _run(make, program)
    same(back, {name: leaf * 2 for name, leaf in big.items()}, "a large reply")
    require(talked == 2.0 * sum(range(5)), f"a large session gave {talked}")
    require(abs(summed - 599_999 * (2 + 6 + 12) / 9) < 1e-6, f"a large sum gave {summed}")


def sessions(make: MakeEngine, tolerance: float) -> None:
    """Check that the longest chain clocks a session; roles that fail, end early or name an unknown role get an error, and others go on."""
    del tolerance

    async def program(fed: Federation) -> Any:
        pair = {"caller": ("client-0", K.caller), "responder": ("client-3", K.responder)}
        good = await fed.session(pair)
        failing = {**pair, "caller": ("client-0", K.caller.with_args(fail_at=2))}
        with refuses(TaskError, "a role that raises", "the caller gives up", "client-0", "caller"):
            await fed.session(failing)
        with refuses(TaskError, "a role that waits for one that has ended", "'caller' has ended"):
            await fed.session({"caller": ("client-0", K.never), "other": ("client-1", K.thirsty)})
        with refuses(ConfigError, "a message to nobody", "no role 'responder'"):
            await fed.session({"caller": ("client-0", K.caller), "reponder": ("client-1", K.never)})
        again = await fed.session(pair)
        side = [fed.scope(str(i)) for i in range(3)]
        talks = await asyncio.gather(*(s.session(pair) for s in side))
        return good, again, talks

    good, again, talks = _run(make, program, cost=Timetable(latency=0.5))
    for talk in (good, again, *talks):
        same(talk["caller"]["total"], np.full(4, 4.0 * sum(range(5))), "what was said")


class _ByTurn(Timetable):
    """A timetable for each session, by the turn that its label says."""

    def session(self, parties: Parties, plans: Sequence[Plan], until: float) -> Prospects | None:
        base = Timetable(work={"client-0": 4.0}, latency=0.25, notice=0.125)
        more: Any = [
            *({"words": {"client-0": n}} for n in (0, 3, 4)),
            {"words": {"client-3": 2}}, {"lost": {"worker": ["client-0"]}}, {},
        ]  # fmt: skip
        return replace(base, **more[plans[0].turn % len(more)]).session(parties, plans, until)


def session_outcomes(make: MakeEngine, tolerance: float) -> None:
    """Check that a session that loses a role or is late ends as on the inline engine, and leaves nothing; with a quorum the others go on."""
    del tolerance
    roles = {"worker": ("client-0", K.worker), "watcher": ("client-3", K.watcher)}
    terms: list[dict[str, Any]] = [
        {},
        {"quorum": 1},
        {"deadline": 3.5},
        {"deadline": 3.5, "quorum": 1},
        {"deadline": 60.0},
    ]

    async def program(fed: Federation) -> Any:
        told: list[Any] = []
        for turn in range(6):
            for way, more in enumerate(terms):
                try:
                    told.append(await fed.session(roles, at=(turn, way), **more))
                except SessionError as error:
                    told.append(str(error))
                told.append(fed.clock.now())
                told.append((await fed.ask_all(fed.parties[:4], K.state, at=(turn, way))).by_name())
        return told

    cost = _ByTurn(latency=0.25)
    ours, reference = (live(_world(one, cost=cost), program) for one in (make, _inline))
    same(ours.result, reference.result, "what sessions that lose roles give")
    same(ours.clock, reference.clock, "clock after sessions that lose roles")
    same(ours.bytes, reference.bytes, "bytes of sessions that lose roles")
    require(sum(isinstance(told, str) for told in ours.result) == 18, "sessions that end with an error")


def results(make: MakeEngine, tolerance: float) -> None:
    """Check that a named result stays at its party: a single task, a sum and a role leave it, and the next job reads it there."""
    del tolerance

    async def first(fed: Federation) -> None:
        await fed.ask_all(fed.parties[:2], K.keeps, "one")
        await fed.sum(fed.parties[2:4], K.keeps, "two")
        roles = {"caller": ("client-4", K.keeper), "other": ("client-5", K.keeper)}
        await fed.session(roles)

    async def second(fed: Federation) -> Any:
        return (await fed.ask_all(fed.parties[:6], K.kept)).values

    with tempfile.TemporaryDirectory() as folder:
        _run(make, first, folder=Path(folder) / "first")
        told = _run(make, second, results=Path(folder) / "first" / "results")
    wanted = [
        {"said": said, "x": np.full(3, float(i + 1))} for i, said in enumerate(["one"] * 2 + ["two"] * 2 + ["role"] * 2)
    ]
    same(told, wanted, "named results")


def deadlocks(make: MakeEngine, tolerance: float) -> None:
    """Check that roles in a deadlock learn which waits for which; a slow role is waited for, and others go on."""
    del tolerance
    lock = {"a": ("client-0", K.hears.with_args(names=["b"])), "b": ("client-1", K.hears.with_args(names=["a"]))}
    told = ("wait for each other", "'a' at client-0 waits for a message of 'b'", "'b' at client-1 waits", "send before")
    ring = {
        "a": ("client-0", K.hears.with_args(names=["b", "c"])),
        "b": lock["b"],
        "c": ("client-2", K.thinks.with_args(name="a")),
    }
    slow = {"a": ("client-0", K.hears.with_args(names=["b"])), "b": ("client-1", K.thinks.with_args(name="a"))}

    async def program(fed: Federation) -> Any:
        with refuses(TaskError, "two roles that wait for each other", *told):
            await fed.session(lock)
        with refuses(
            TaskError,
            "a role that waits for two, of whom one never speaks",
            "'a' at client-0 waits for a message of 'b';",
        ):
            await fed.session(ring)
        pair = {"caller": ("client-0", K.caller), "responder": ("client-3", K.responder)}
        side = [fed.scope(str(i)) for i in range(2)]
        talks: list[Any] = await asyncio.gather(side[0].session(lock), side[1].session(slow), return_exceptions=True)
        stuck, heard = talks
        require(isinstance(stuck, TaskError), f"a deadlock beside another session gave {stuck!r}")
        return heard, await fed.session(pair)

    heard, good = _run(make, program)
    require(not isinstance(heard, Exception) and heard["a"] == [sum(range(100_000))], f"a slow role gave {heard!r}")
    same(good["caller"]["total"], np.full(4, 4.0 * sum(range(5))), "a session after a deadlock")


def mail(make: MakeEngine, tolerance: float) -> None:
    """Check that letters come from the chosen senders, in order of name, and reach their recipients."""
    del tolerance

    async def program(fed: Federation) -> Any:
        return await letters(fed)

    got = _run(make, program, cost=Free())
    require(list(got["read"]) == [f"client-{i}" for i in range(4)], f"readers {list(got['read'])}")
    for reader, box in got["read"].items():
        require(list(box) == [f"client-{i}" for i in range(1, 6)], f"{reader} has letters of {list(box)}")
        for sender, letter in box.items():
            require((letter["from"], letter["to"]) == (sender, reader), f"{reader} got {letter}")


def sealed_mail(make: MakeEngine, tolerance: float, *, points: int = 10) -> None:
    """Check that encrypted letters open at their recipients, are as large as virtual ones say, are never written twice, and open after a resume."""
    del tolerance

    async def program(fed: Federation) -> Any:
        state = await fed.restore({"mail": {}})
        if not state["mail"]:
            first = await fed.exchange(fed.parties, K.letters, fed.parties.names[:4])
            require(first.mail.encrypted, "letters that are not encrypted")
            state = {"mail": first.mail.sealed()}
            await fed.checkpoint(state)
        return (await fed.exchange(fed.parties[:4], K.gather, mail=Mailboxes(state["mail"]))).by_name()

    def world(folder: Path, resume: bool) -> World:
        return _world(make, folder=folder, resume=resume, sealing="real")

    with tempfile.TemporaryDirectory() as folder:
        life = killed_and_resumed(world, program, Path(folder), points=points, deaths=2)
    for reader, box in life.result.items():
        require(len(box) == SIZE, f"{reader} has letters of {list(box)}")
        require(all(letter["to"] == reader for letter in box.values()), f"{reader} got letters to others")

    async def sizes(fed: Federation) -> Any:
        await letters(fed)
        return fed.bytes()

    real, virtual = (_run(make, sizes, cost=Free(), sealing=kind) for kind in ("real", "virtual"))
    require(real == virtual, f"encrypted letters take {real}, and the simulation accounted {virtual}")


def unknown_task(make: MakeEngine, tolerance: float) -> None:
    """Check that a task that cannot be found by its name is refused, even if it could run here."""
    del tolerance

    async def program(fed: Federation) -> Any:
        await fed.ask_all(fed.parties, Task("atoll.testing:nowhere", lambda island, message: 1))

    with refuses(ConfigError, "a task that cannot travel", "atoll.testing:nowhere", "top level"):
        _run(make, program)


def rolls_back(make: MakeEngine, tolerance: float) -> None:
    """Check that private state rolls back with its checkpoint, and that an engine's choices are repeated."""
    del tolerance

    async def program(fed: Federation) -> Any:
        done = await fed.restore(0)
        for _ in range(done, 3):
            total = (await fed.sum(fed.parties, K.count))["runs"]
            done += 1
            await fed.checkpoint(done)
        return total

    with tempfile.TemporaryDirectory() as folder:
        steps = live(_world(make, folder=Path(folder) / "whole"), program).steps
        at = [i for i, name in enumerate(steps) if name == "before commit"][-1]
        first = _world(make, folder=Path(folder) / "killed")
        try:
            live(first, program, kill_at=at)
        except Killed:
            second = _world(make, folder=Path(folder) / "killed", resume=True)
            same(live(second, program).result, 3.0 * SIZE, "private counters after a crash")
            same(dict(second.engine.choices), dict(first.engine.choices), "choices of a resumed run")
        else:
            require(False, "the run was not killed")


ENGINE_CHECKS: Mapping[str, Callable[..., None]] = {
    check.__name__: check
    for check in (
        verbs, repeats, survives, never_twice, halves, halves_never_twice, errors, states, large_messages, sessions, session_outcomes, results, deadlocks, mail,
        sealed_mail, unknown_task, rolls_back,
    )
}  # fmt: skip
"""The laws by name, for parametrised tests: ``ENGINE_CHECKS[name](make_engine, tolerance)``; those that kill take ``points=``, the steps to kill at."""


def check_engine(make_engine: MakeEngine, *, tolerance: float = 1e-12) -> None:
    """Require an engine to keep every law in ``ENGINE_CHECKS``.

    Args:
        make_engine: makes a fresh engine.
        tolerance: how far its results may be from the inline engine's, relative to ``1 + |x|``: sums in another order differ by rounding.

    Raises:
        AssertionError: it breaks one.
    """
    for check in ENGINE_CHECKS.values():
        check(make_engine, tolerance)
