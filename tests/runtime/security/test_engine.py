"""A site's job process that sends the engine whatever it likes: its job ends naming it, or goes on without it; nothing of it is summed.

The sites are scripts that write frames by hand, on channels of lines over mutual TLS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Parts, Sum
from atoll.core.errors import MessageError, TaskError
from atoll.core.message import ArraySpec, ScalarSpec
from atoll.core.requests.request import PartialSum, Reply, TaskResult
from atoll.core.requests.task import TaskSchema, task
from atoll.core.requests.wire import pack_error, pack_folded, pack_ran
from tests.support.scripted_sites import (
    Frames,
    Script,
    folded,
    frame,
    honest,
    number,
    play,
    ran,
    step,
)

pytestmark = pytest.mark.both_carriers


@task(schema=TaskSchema({"n": ScalarSpec(int)}, {"x": Sum(ArraySpec("float64", (3,)))}))
def declared(island: Any, message: Any) -> Any:
    """Never runs; the request says what a reply is like."""
    raise NotImplementedError


@task
async def talk(island: Any, peers: Any) -> Any:
    """A role that never runs."""
    raise NotImplementedError


# ---------------------------------------------------------------------- what an honest site says


def total(order: dict[str, Any], position: int, **changes: Any) -> dict[str, Any]:
    """The same with changes inside its total."""
    made = folded(order, position)
    made["folded"]["totals"]["x"] |= changes
    return made


def role_ran(**changes: Any) -> Any:
    return pack_ran(TaskResult(Reply(1, 5.0, nbytes=8))) | changes


# ---------------------------------------------------------------------- the world around them


async def summed(fed: Any) -> Any:
    got = await fed.sum(fed.parties, step, {"n": 1})
    return got["x"].tolist(), got.n, got.silent.names + sorted(got.rejected)


async def asked(fed: Any) -> Any:
    got = await fed.ask_all(fed.parties, step, {"n": 1}, quorum=1)
    return got.values, len(got), got.silent.names


def test_honest_scripts_are_believed() -> None:
    assert play(summed, honest) == ([2.0] * 3, 2, [])
    assert play(asked, honest) == ([5.0, 5.0], 2, [])


# ---------------------------------------------------------------------- sums


def changed(**fields: Any) -> Script:
    return lambda order, position: [folded(order, position) | fields]


def deep(order: dict[str, Any], position: int) -> Frames:
    made: Any = 1.0
    for _ in range(60):
        made = [made]
    return [folded(order, position, made)]


def parts(order: dict[str, Any], position: int, **fields: Any) -> dict[str, Any]:
    one = np.array([position])
    packed: Any = pack_folded(PartialSum({"x": Parts(np.ones(3)).total()}, one, one))
    packed["totals"]["x"]["value"][0] |= fields
    return frame("folded", order, position, folded=packed)


BAD_SUMS: dict[str, tuple[Script, str]] = {
    "no mapping": (lambda order, position: [["folded"]], "TypeError"),
    "a number": (lambda order, position: [5], "TypeError"),
    "nothing": (lambda order, position: [None], "TypeError"),
    "no op": (lambda order, position: [{"id": 1}], "KeyError: 'op'"),
    "an unknown op": (changed(op="lost"), "answers 'lost', but was asked for 'folded'"),
    "a word of the engine's own": (changed(op="summed"), "answers 'summed'"),
    "another form than asked for": (lambda order, position: [ran(order, position)], "answers 'ran'"),
    "done, where the sum is wanted": (changed(op="done"), "answers 'done'"),
    "no id": (lambda order, position: [{"op": "folded", "party": position}], "'id' is None"),
    "an id that is a list": (changed(id=["x"]), "'id' is a list of 1"),
    "no party": (changed(party=None), "'party' is None and must be a whole number"),
    "a party that is not a number": (changed(party=math.nan), "'party' is nan and must be a whole number"),
    "a party that is true": (changed(party=True), "'party' is True and must be"),
    "a party from the end": (changed(party=-1), "there is no party number -1"),
    "a party that is not there": (changed(party=10**30), "there is no party number 1000"),
    "another's party": (changed(party=0), "answered for 'client-0', who lives at 'north'"),
    "no summand": (changed(folded=None), "TypeError"),
    "a summand that lacks all": (changed(folded={}), "KeyError"),
    "a sender elsewhere": (lambda o, p: [folded(o, p, senders=np.array([0]))], "names senders \\[0\\]"),
    "two senders": (lambda o, p: [folded(o, p, senders=np.array([p, 0]))], "names senders \\[1, 0\\]"),
    "the same sender twice": (lambda o, p: [folded(o, p, senders=np.array([p, p]))], "names senders \\[1, 1\\]"),
    "senders not numbers": (lambda o, p: [folded(o, p, senders=np.array([math.nan]))], "names senders \\[nan\\]"),
    "no senders": (lambda o, p: [folded(o, p, senders=np.zeros(0, int), nbytes=np.zeros(0, int))], "without a sender"),
    "sizes below zero": (lambda o, p: [folded(o, p, nbytes=np.array([-5]))], "sizes of the wrong form"),
    "another one rejected": (lambda o, p: [folded(o, p, rejected=[[0, "bad"]])], "says that the reply of party"),
    "another one's error": (lambda o, p: [folded(o, p, errors=[[0, pack_error(TaskError("no"))]])], "says that the reply of party"),
    "private states": (
        lambda o, p: [folded(o, p, left={"main": {"singles": [[0, {"w": 1}]], "blocks": []}})],
        "or private states",
    ),
    "not a number": (lambda o, p: [folded(o, p, np.array([1.0, math.nan, 1.0]))], "'x' is not finite"),
    "infinite": (lambda o, p: [folded(o, p, np.array([1.0, math.inf, 1.0]))], "'x' is not finite"),
    "words": (lambda o, p: [folded(o, p, np.array(["a", "b", "c"]))], "which is not a number"),
    "dates": (lambda o, p: [folded(o, p, np.zeros(3, "datetime64[s]"))], "which is not a number"),
    "nothing in an array's place": (lambda o, p: [total(o, p, value=None)], "not a number"),
    "a shape that would spread": (lambda o, p: [folded(o, p, np.ones((1000, 3)))], r"of shape \(1000, 3\), but"),
    "a number for an array": (lambda o, p: [folded(o, p, 1.0)], r"of shape \(\), but the sum .* of shape \(3,\)"),
    "a longer array": (lambda o, p: [folded(o, p, np.ones(4))], r"of shape \(4,\), but"),
    "a tree for an array": (lambda o, p: [folded(o, p, {"w": np.ones(3)})], "'x' is a dict of 1, but"),
    "a deep tree": (deep, "'x' is a list of 1, but"),
    "complex numbers": (lambda o, p: [folded(o, p, np.ones(3, complex))], "of complex128, but"),
    "another aggregate": (lambda o, p: [total(o, p, kind="vote")], "'x' is a vote .update., but"),
    "an unknown aggregate": (lambda o, p: [total(o, p, kind="all")], "a total of kind 'all'"),
    "many replies in one": (lambda o, p: [total(o, p, n=1000)], "of 1000 replies"),
    "a replies' number that is none": (lambda o, p: [total(o, p, n=math.nan)], "of nan replies"),
    "a weight not a number": (lambda o, p: [total(o, p, weight=math.nan)], "has the weight nan"),
    "an infinite weight": (lambda o, p: [total(o, p, weight=math.inf)], "has the weight inf"),
    "an array for a weight": (lambda o, p: [total(o, p, weight=np.ones(3))], "has the weight an array"),
    "a measurement, and then not": (lambda o, p: [total(o, p, role="metric")], "'x' is a sum .metric., but"),
    "single replies for a sum": (lambda o, p: [parts(o, p)], "'x' is a parts .update., but"),
    "a part of another": (lambda o, p: [parts(o, p, sender=0)], "signed by 0"),
    "events that are none": (changed(events=None), "'events' is None"),
    "events of another's": (
        changed(events=[{"event": {"kind": "non-private"}, "party": "client-0", "request": "r"}]),
        "an event names party 'client-0', in a reply of 'client-1'",
    ),
    "an unknown event": (
        changed(events=[{"event": {"kind": "free"}, "party": "client-1", "request": "r"}]),
        "unknown privacy event",
    ),
    "an event that is not one": (
        changed(events=[{"event": {"kind": "laplace", "epsilon": "none"}, "party": "client-1", "request": "r"}]),
        "TypeError",
    ),
    "a failure without words": (changed(op="failed", error=None), "a failure without an error"),
    "a failure that is no error": (changed(op="failed", error={"kind": []}), "KeyError"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SUMS)
def test_a_summand_that_makes_no_sense_ends_the_job_and_names_the_site(name: str) -> None:
    script, words = BAD_SUMS[name]
    with pytest.raises(TaskError, match=words) as found:
        play(summed, script)
    assert found.value.where == "site south"
    assert found.value.remedy


@pytest.mark.parametrize("name", BAD_SUMS)
def test_or_the_job_goes_on_without_the_site_and_nothing_of_it_is_summed(name: str) -> None:
    script, _ = BAD_SUMS[name]
    ledger: list[Any] = []
    value, n, out = play(summed, script, "drop", ledger)
    assert (value, n, out) == ([1.0] * 3, 1, ["client-1"])
    assert ledger == []


def test_the_first_in_the_cohort_is_looked_at_as_closely() -> None:
    """It has nobody before it to be compared with: numbers they must be all the same."""

    async def turned(fed: Any) -> Any:
        got = await fed.sum(fed.parties[::-1], step, {"n": 1})
        return got["x"].tolist(), got.n

    for bad in (np.array([math.nan] * 3), np.array(["a"] * 3), np.zeros(3, "m8[s]")):
        with pytest.raises(TaskError, match=r"'x'.* \(in site south\)"):
            play(turned, lambda o, p, bad=bad: [folded(o, p, bad)])
        assert play(turned, lambda o, p, bad=bad: [folded(o, p, bad)], "drop") == ([1.0] * 3, 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(4), r"found shape \(4\), expected shape \(3\), in reply/x"),
        (np.ones(3, "f4"), "found an array of float32, expected an array of float64"),
        ({"w": np.ones(3)}, "found a dict, expected an array of float64"),
    ],
)
def test_the_request_sets_the_form_and_not_the_first_reply(value: Any, words: str) -> None:
    """South answers first in the cohort: without a schema its form would be everybody's, and north would be the one to go."""

    async def turned(fed: Any) -> Any:
        got = await fed.sum(fed.parties[::-1], declared, {"n": 1})
        return got["x"].tolist(), got.senders.names

    def script(order: dict[str, Any], position: int) -> Frames:
        return [folded(order, position, value)]

    with pytest.raises(TaskError, match=words) as found:
        play(turned, script)
    assert "site south" in str(found.value)
    assert play(turned, script, "drop") == ([1.0] * 3, ["client-0"])


def test_a_single_reply_that_is_not_what_the_task_declares_names_its_site() -> None:
    async def numbers(fed: Any) -> Any:
        got = await fed.ask_all(fed.parties, number, quorum=1)
        return got.values, got.senders.names

    def script(order: dict[str, Any], position: int) -> Frames:
        return [frame("ran", order, position, ran=pack_ran(TaskResult(Reply(position, "five", nbytes=8))))]

    with pytest.raises(TaskError, match="found a str, expected a float") as found:
        play(numbers, script)
    assert "site south" in str(found.value)
    assert play(numbers, script, "drop") == ([5.0], ["client-0"])


def test_real_numbers_of_any_width_go_together_as_in_a_simulation() -> None:
    assert play(summed, lambda o, p: [folded(o, p, np.ones(3, np.float32))]) == ([2.0] * 3, 2, [])


def test_what_nobody_asked_for_and_what_comes_twice_is_forgotten() -> None:
    def noisy(order: dict[str, Any], position: int) -> Frames:
        other = {"request": {"id": "main/step/99"}}
        return [
            {"op": "answer", "number": 7, "names": ["x"]},
            {"op": "pulse"},
            folded(other, position, np.full(3, 1e9)),
            {"op": "pass", "session": 12, "source": "a", "target": "b", "message": 1, "time": 0.0},
            folded(order, position),
            folded(order, position, np.full(3, 1e9)),
            folded(order, position, np.full(3, 1e9)),
        ]

    async def twice(fed: Any) -> Any:
        return await summed(fed), await summed(fed)

    once = ([2.0] * 3, 2, [])
    assert play(twice, noisy) == (once, once)


def test_a_long_array_is_looked_at_to_its_end() -> None:
    def long(order: dict[str, Any], position: int) -> Frames:
        values = np.zeros(3_000_000)
        values[-1] = math.nan
        return [folded(order, position, values)]

    with pytest.raises(TaskError, match="'x' is not finite"):
        play(summed, long)


# ---------------------------------------------------------------------- single replies, generations, conversations


BAD_REPLIES: dict[str, tuple[dict[str, Any], str]] = {
    "another's reply": ({"party": 0}, "names party 0"),
    "nobody's reply": ({"party": None}, "names party None"),
    "a size below zero": ({"nbytes": -1}, "a size of -1"),
    "an aggregate of an unknown kind": ({"value": {"aggregates": {"x": {"kind": "all"}}}}, "KeyError"),
    "no value": ({"value": None}, "TypeError"),
    "a private state": ({"left": {"main": {"w": 1.0}}}, "a private state, which never leaves"),
    "what stages remember": ({"left": {"main//train/": {"w": 1.0}}}, "a private state, which never leaves"),
    "a time that never comes": ({"time": math.inf}, "a time of inf"),
    "letters of another form": ({"mail": [1, 2]}, "AttributeError"),
    "a letter that is none": ({"mail": {"south/1": {"from": "south"}}}, "a dict is not a letter"),
    "notes of another form": ({"notes": 5}, "notes of the wrong form"),
    "an error that is none": ({"error": 5}, "TypeError"),
}


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_reply_that_makes_no_sense(name: str) -> None:
    changes, words = BAD_REPLIES[name]
    with pytest.raises(TaskError, match=words) as found:
        play(asked, lambda o, p: [ran(o, p, **changes)])
    assert found.value.where == "site south"


@pytest.mark.parametrize("names", [None, "all", [1], [None], {"a": 1}, ["x" * 5000]])
def test_names_of_segments_that_are_none(names: Any) -> None:
    async def saved(fed: Any) -> Any:
        await fed.restore({})
        await fed.sum(fed.parties, step, {"n": 1})
        await fed.world.engine.commit("main", 1)

    def script(order: dict[str, Any], position: int) -> Frames:
        return (
            honest(order, position) if position >= 0 else [{"op": "answer", "number": order["number"], "names": names}]
        )

    with pytest.raises(TaskError, match="'names' is") as found:
        play(saved, script)
    assert found.value.where == "site south"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"op": "pass", "source": "a", "target": "b", "message": 1, "time": 0.0}, "answered for 'client-0'"),
        ({"op": "waits", "role": "a", "for": []}, "answered for 'client-0'"),
        ({"op": "pass", "source": "b", "target": "nobody", "message": 1, "time": 0.0}, "has no role 'nobody'"),
        ({"op": "pass", "source": "nobody", "target": "a", "message": 1, "time": 0.0}, "has no role 'nobody'"),
        ({"op": "pass", "source": "b", "target": "a", "message": 1, "time": math.nan}, "a frame of time nan"),
        ({"op": "pass", "source": "b", "target": "a", "message": 1, "time": -1.0}, "a frame of time -1"),
        ({"op": "pass", "source": "b", "target": "a"}, "KeyError: 'time'"),
        ({"op": "waits", "role": "b", "for": [["a", "many"]]}, "'had' is 'many'"),
        ({"op": "waits", "role": "b", "for": 5}, "TypeError"),
        ({"op": "waits", "role": ["b"], "for": []}, "'role' is a list"),
        ({"op": "answer", "ran": None, "events": []}, "TypeError"),
        ({"op": "answer", "ran": role_ran(ending="lost"), "events": []}, "a role that ended 'lost' gives a result"),
        ({"op": "answer", "ran": role_ran(ending="well"), "events": []}, "a role that ended 'well'"),
        (
            {"op": "answer", "ran": role_ran(error=pack_error(TaskError("no"))), "events": []},
            "ended '' gives no result",
        ),
        ({"op": "answer", "events": []}, "KeyError: 'ran'"),
        ({"op": "answer", "error": 5}, "TypeError"),
    ],
)
def test_a_role_that_speaks_for_another_or_makes_no_sense(said: dict[str, Any], words: str) -> None:
    async def conversation(fed: Any) -> Any:
        return await fed.session({"a": ("client-0", talk), "b": ("client-1", talk)})

    def script(order: dict[str, Any], position: int) -> Frames:
        if order["op"] != "role":
            return []
        return [said | ({"number": order["number"]} if said["op"] == "answer" else {"session": order["session"]})]

    with pytest.raises(TaskError, match=words) as found:
        play(conversation, script)
    assert found.value.where == "site south"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (None, "must hold the keys of its own roles"),
        ({"a": {"b": bytes(32)}}, "must hold the keys of its own roles"),
        ({"b": {}}, "the keys of role 'b' must be one for each other role"),
        ({"b": {"a": bytes(31)}}, "a key of role 'b' is not a key"),
        ({"b": {"a": "no bytes"}}, "a key of role 'b' is not a key"),
    ],
)
def test_keys_of_a_session_that_are_none_or_of_others(keys: Any, words: str) -> None:
    async def conversation(fed: Any) -> Any:
        return await fed.session({"a": ("client-0", talk), "b": ("client-1", talk)})

    def script(order: dict[str, Any], position: int) -> Frames:
        return [{"op": "answer", "number": order["number"], "neighbours": [], "keys": keys}]

    with pytest.raises(TaskError, match=words) as found:
        play(conversation, script)
    assert found.value.where == "site south"


@pytest.mark.parametrize("on_lost", ["fail", "drop"])
def test_a_site_that_never_answers_a_question_is_given_up(on_lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pulses have stopped, and the other site's go on."""

    async def saved(fed: Any) -> Any:
        fed.world.engine.patience = 1.0
        return await fed.world.engine.commit("main", 1)

    def script(order: dict[str, Any], position: int) -> Frames:
        return []

    monkeypatch.setattr(
        "tests.support.scripted_sites.honest", lambda o, p: [{"op": "answer", "number": o["number"], "names": ["a"]}]
    )
    if on_lost == "drop":
        assert play(saved, script, on_lost) == ["a@north"]
        return
    with pytest.raises(TaskError, match=r"no progress for 1 seconds \(in site south\)"):
        play(saved, script, on_lost)


def test_the_error_of_a_site_names_the_site() -> None:
    """Replies that come when they come are fetched when they are used: they may fail then, or not fit."""

    async def chosen(fed: Any) -> Any:
        await fed.send(fed.parties, step, {"n": 1})
        got = await fed.combine(await fed.arrivals(2))
        return got["x"].tolist(), got.n, sorted(got.rejected)

    def late(said: Callable[[dict[str, Any], int], dict[str, Any]]) -> Script:
        return lambda o, p: [frame("done", o, p)] if o["op"] == "launch" else [said({"request": o}, p)]

    failing = late(lambda o, p: frame("failed", o, p, error=pack_error(MessageError("it is gone"))))
    with pytest.raises(MessageError, match=r"it is gone \(in site south\)"):
        play(chosen, failing)
    shapes = late(lambda o, p: folded(o, p, np.ones(4)))
    with pytest.raises(TaskError, match=r"shape \(4,\).* \(in site south\)"):
        play(chosen, shapes)
    assert play(chosen, shapes, "drop") == ([1.0] * 3, 1, ["client-1"])
    again = late(lambda o, p: frame("done", o, p))
    with pytest.raises(TaskError, match=r"answers 'done', but was asked for 'folded' \(in site south\)"):
        play(chosen, again)
