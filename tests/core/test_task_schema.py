"""A task declares its message and reply, and both ends hold it to that: the program before anyone is asked, the party before it sends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean, Parts, Sum, Vote
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, MessageError
from atoll.core.federation.reducer import Reducer
from atoll.core.message import ArraySpec, Each, ScalarSpec, Schema
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import Batch, Summed, Task, TaskSchema, task
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.simulation import run_in
from atoll.stages import QSGD, Clip, ErrorFeedback, RandomK, TopK
from atoll.testing.lying.sites import Rehearsal

ISLANDS = Community([float(i + 1) for i in range(6)])
ENGINES_AND_SITES = {**{k: v for k, v in ENGINES.items() if k != "ray"}, "network": Rehearsal}
VECTOR = ArraySpec("float64", (2,))
MESSAGE = {"w": VECTOR, "tag": ScalarSpec(str)}
REPLY = {
    "w": Mean({"a": VECTOR}),
    "n": Sum(ScalarSpec(float), role="metric"),
    "v": Vote(ArraySpec("int64", (1,))),
}
GOOD = {"w": np.zeros(2), "tag": "x"}


def _value(island, message):
    """A reply that fits, or one that does not in the way that the tag names, at one party."""
    bad = message["tag"] if island.name == "client-3" else ""
    return {
        "w": Mean({"a": np.ones(3 if bad == "shape" else 2, dtype="f4" if bad == "dtype" else "f8")}, examples=2.0),
        "n": Sum(island.data, role="update" if bad == "role" else "metric"),
        **({} if bad == "name" else {"v": (Sum if bad == "kind" else Vote)(np.array([1]))}),
    }


@task(schema=TaskSchema(MESSAGE, REPLY))
def sums(island, message):
    return _value(island, message)


@task(schema=TaskSchema(ScalarSpec(int), {"x": ArraySpec("float64", (2,), finite=True)}))
def single(island, message):
    bad = {1: np.zeros(3), 2: np.array([np.nan, 0.0])}.get(message) if island.name == "client-3" else None
    return {"x": np.zeros(2) if bad is None else bad}


@task(schema=TaskSchema(reply=ScalarSpec(int)))
async def speaks(island, peers, fits=True):
    return 5 if fits else 5.0


def world(engine="inline", population=ISLANDS, **more):
    return World(population, ENGINES_AND_SITES[engine](2), **more)


def live(program, engine="inline", **more):
    return run_in(world(engine, **more), program)[0]


BAD = {
    "shape": r"found shape \((\d, )?3\), expected shape \((any, )?2\) \(in reply/w/a",
    "dtype": r"found an array of float32, expected an array of float64 \(in reply/w/a",
    "role": r"found a sum of role 'update', expected a sum of role 'metric' \(in reply/n",
    "name": r"found no 'v', expected \['n', 'v', 'w'\]",
    "kind": r"found a sum of role 'update', expected a vote of role 'update' \(in reply/v",
}

# ---------------------------------------------------------------------- both ends, on every engine


@pytest.mark.parametrize("engine", ENGINES_AND_SITES)
def test_a_wrong_message_is_refused_before_anyone_is_asked(engine):
    async def program(fed):
        for verb in (fed.ask_all, fed.sum, fed.exchange, fed.send):
            with pytest.raises(
                MessageError, match=r"found shape \(3\), expected shape \(2\) \(in message/w of .*:sums"
            ):
                await verb(fed.parties, sums, {**GOOD, "w": np.zeros(3)})
        with pytest.raises(MessageError, match="no key 'tag'"):
            await fed.ask("client-1", sums, {"w": np.zeros(2)})
        return fed.bytes()["messages_down"], fed.bytes()["bytes_down"]

    assert live(program, engine) == (0, 0)


@pytest.mark.parametrize("engine", ENGINES_AND_SITES)
def test_what_fits_passes(engine):
    async def program(fed):
        got = await fed.sum(fed.parties, sums, GOOD, uplink=[Clip(1.0)])
        asked = await fed.ask_all(fed.parties, single, 0)
        talk = await fed.session({"a": ("client-0", speaks), "b": ("client-1", speaks)})
        return got.n, float(got["n"]), len(asked), talk

    assert live(program, engine) == (6, 21.0, 6, {"a": 5, "b": 5})


@pytest.mark.parametrize("engine", ENGINES_AND_SITES)
@pytest.mark.parametrize("bad", ["shape", "kind"])
def test_a_reply_that_does_not_fit_is_not_sent_and_its_party_is_named(engine, bad):
    async def program(fed):
        with pytest.raises(MessageError, match=BAD[bad] + ".*client-3"):
            await fed.sum(fed.parties, sums, {**GOOD, "tag": bad})

    live(program, engine)

    async def goes_on(fed):
        got = await fed.sum(fed.parties, sums, {**GOOD, "tag": bad})
        asked = await fed.ask_all(fed.parties, single, 1, quorum=1)
        return got.n, sorted(got.errors), sorted(asked.errors)

    assert live(goes_on, engine, errors="drop") == (5, ["client-3"], ["client-3"])


@pytest.mark.parametrize("bad", BAD)
def test_every_way_in_which_a_reply_may_not_fit_is_told(bad):
    async def program(fed):
        with pytest.raises(MessageError, match=BAD[bad]) as found:
            await fed.sum(fed.parties, sums, {**GOOD, "tag": bad})
        assert found.value.remedy == "send what the task's schema describes"

    live(program)


def test_single_replies_may_be_asked_to_be_finite_and_what_is_said_in_sessions_to_fit():
    async def program(fed):
        with pytest.raises(MessageError, match=r"not finite.*client-3"):
            await fed.ask_all(fed.parties, single, 2)
        roles = {"a": ("client-0", speaks.with_args(fits=False)), "b": ("client-1", speaks)}
        with pytest.raises(MessageError, match=r"found a float, expected a int .*client-0"):
            await fed.session(roles)

    live(program)


# ---------------------------------------------------------------------- blocks, sums and halves


def _many(cohort, message):
    """Blocks of two; every client of a block has the same form."""
    for start in range(0, len(cohort), 2):
        at = np.arange(start, min(start + 2, len(cohort)))
        size, bad = len(at), message["tag"]
        n = np.array([cohort.shard(int(i)) for i in at])
        w = np.ones((size, 3 if bad == "shape" else 2), dtype="f4" if bad == "dtype" else "f8")
        yield Batch(
            at,
            {
                "w": Mean({"a": w}, examples=np.full(size, 2.0)),
                "n": Sum(n, role="update" if bad == "role" else "metric"),
                **({} if bad == "name" else {"v": (Sum if bad == "kind" else Vote)(np.ones((size, 1), int))}),
            },
        )


def _sums(cohort, message):
    """The same, added up."""
    parts = list(_many(cohort, message))
    one = parts[0].reply
    totals = {name: one[name].block_sum() for name in one}
    for part in parts[1:]:
        totals = {name: total.merge(part.reply[name].block_sum()) for name, total in totals.items()}
    return Summed(totals, np.arange(len(cohort)))


def _summands(cohort, message):
    """The same, by client."""
    whole = {}
    for part in _many(cohort, message):
        for name, aggregate in part.reply.items():
            whole.setdefault(name, []).append(aggregate.block_totals())
    totals = {
        name: replace(
            rows[0],
            value={"a": np.concatenate([r.value["a"] for r in rows])}
            if name == "w"
            else np.concatenate([r.value for r in rows]),
            weight=np.concatenate([r.weight for r in rows]),
        )
        for name, rows in whole.items()
    }
    return Summed(totals, np.arange(len(cohort)))


def _as_run(island, message):
    return _value(island, {**message, "tag": ""})


FAST = {
    "many": {"many": _many},
    "sums": {"many": _many, "sums": _sums},
    "summands": {"many": _many, "summands": _summands},
}


@task
async def halves(island, message):
    return {name: Sum(total.value, role=total.role) for name, total in (await island.totals()).items()}


@dataclass(frozen=True)
class ByHalf(Reducer):
    secure: ClassVar[bool] = False

    async def reduce(self, reduction):
        return await reduction.fold(halves)


@pytest.mark.parametrize("below", [False, True], ids=["alone", "below a half"])
@pytest.mark.parametrize("bad", ["", *BAD])
@pytest.mark.parametrize("path", FAST)
def test_blocks_are_looked_at_too(path, bad, below):
    if below and path == "sums":
        return
    fast = Task("schema:fast", _as_run, schema=TaskSchema(MESSAGE, REPLY), **FAST[path])

    async def program(fed):
        more = {"reducer": ByHalf()} if below else {}
        return (await fed.sum(fed.parties, fast, {**GOOD, "tag": bad}, **more)).n

    there = world("batched", registry={fast.name: fast})
    if not bad:
        assert run_in(there, program)[0] == 6
    else:
        with pytest.raises(MessageError, match=BAD[bad]):
            run_in(there, program)


def test_a_message_is_looked_at_once_for_a_cohort():
    """A model that must be finite is not read again for each of its clients."""
    seen = []

    class Counted(TaskSchema):
        def require_message(self, message):
            seen.append(message)
            super().require_message(message)

    counted = Task("schema:counted", sums.run, schema=Counted(MESSAGE, REPLY))

    async def program(fed):
        await fed.sum(fed.parties, counted, GOOD)
        await fed.ask_all(fed.parties, counted, GOOD)

    run_in(world(registry={counted.name: counted}), program)
    assert len(seen) <= 2 * 3


# ---------------------------------------------------------------------- what arrives where replies are added up


def totals_of(reply, chain=None, public=()):
    chain = Chain() if chain is None else chain
    return {
        name: chain.send(a, public, Rng(3).child(name), chain.fresh({"": a}).get("", {})).total
        for name, a in chain.leaving(reply).items()
    }


STAGES = {
    "none": (),
    "clip": (Clip(1.0),),
    "shared random k": (RandomK(0.5, shared=True),),
    "top k with memory": (ErrorFeedback(TopK(0.5)),),
    "eight bits": (QSGD(7),),
}
ENCODED = TaskSchema(reply={"w": Mean({"a": ArraySpec("float32", (8,))}), "n": Sum(ScalarSpec(float), role="metric")})


def encoded(size, chain, public, **changes):
    reply = {
        "w": Mean({"a": np.linspace(1, 2, size, dtype="f4")}, examples=3.0),
        "n": Sum(1.0, role="metric"),
        **changes,
    }
    return totals_of(reply, chain, public)


@pytest.mark.parametrize("stages", STAGES)
def test_the_request_sets_the_form_of_what_stages_have_encoded(stages):
    chain = Chain(STAGES[stages], "t")
    public = tuple(chain.public(Rng(1)))
    ENCODED.require_totals(encoded(8, chain, public), ENCODED.find_sent_forms(chain, public))
    with pytest.raises(MessageError, match=r"in reply/w/"):
        ENCODED.require_totals(encoded(12, chain, public), ENCODED.find_sent_forms(chain, public))
    with pytest.raises(MessageError, match="an unexpected 'x'"):
        ENCODED.require_totals(encoded(8, chain, public, x=Sum(np.ones(8))), ENCODED.find_sent_forms(chain, public))
    with pytest.raises(MessageError, match=r"found an array of int64.*\(in reply/n\)"):
        ENCODED.require_totals(
            encoded(8, chain, public, n=Sum(1, role="metric")), ENCODED.find_sent_forms(chain, public)
        )


def test_sizes_that_a_schema_leaves_open_are_not_looked_at():
    schema = TaskSchema(reply={"w": Mean({"a": ArraySpec("float64", (None, 2))})})
    for rows in (1, 5):
        schema.require_totals(totals_of({"w": Mean({"a": np.zeros((rows, 2))}, examples=1.0)}))
    with pytest.raises(MessageError, match=r"shape \(5, 3\), expected shape \(any, 2\)"):
        schema.require_totals(totals_of({"w": Mean({"a": np.zeros((5, 3))}, examples=1.0)}))
    clip = Chain((Clip(1.0),))
    schema.require_totals(
        totals_of({"w": Mean({"a": np.ones((5, 2))}, examples=1.0)}, clip, (None,)),
        schema.find_sent_forms(clip, (None,)),
    )


def test_single_replies_in_sums_are_looked_at():
    schema = TaskSchema(reply={"x": Parts({"id": ScalarSpec(int)})})
    schema.require_totals(totals_of({"x": Parts({"id": 1})}))
    with pytest.raises(MessageError, match="found a float, expected a int"):
        schema.require_totals(totals_of({"x": Parts({"id": 1.0})}))
    with pytest.raises(MessageError, match="found a sum of role"):
        schema.require_totals(totals_of({"x": Sum({"id": 1})}))


def test_means_of_whole_numbers_add_up_as_floats():
    schema = TaskSchema(reply={"x": Mean(ArraySpec("int64", (2,))), "y": Mean(ScalarSpec(int))})
    reply = {"x": Mean(np.array([1, 2]), examples=2.0), "y": Mean(3, examples=2.0)}
    schema.require_reply(reply)
    schema.require_totals(totals_of(reply))


# ---------------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TaskSchema(message=3), "a int is not a spec"),
        (lambda: TaskSchema(reply={"x": 3}), "a int is not a spec"),
        (lambda: TaskSchema(reply={"x": Sum(3)}), "a int is not a spec"),
        (
            lambda: TaskSchema(reply={"x": Sum(VECTOR), "y": VECTOR}),
            "some values .* are aggregates, but others are not",
        ),
        (lambda: TaskSchema(reply={"x": Sum(Each(VECTOR))}), "a list of any length cannot be added up"),
        (lambda: TaskSchema(reply={"x": Sum(ScalarSpec(str))}), "a str cannot be added up"),
    ],
)
def test_schemas_that_make_no_sense(make: Any, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_forms_may_be_schemas_of_examples():
    schema = TaskSchema(Schema.of(GOOD), {"w": Mean(Schema.of({"a": np.zeros(2)}))})
    schema.require_message(GOOD)
    schema.require_reply({"w": Mean({"a": np.ones(2)}, examples=4.0)})
    with pytest.raises(MessageError, match="found a dict, expected a dict of aggregates"):
        schema.require_reply({"w": np.zeros(2)})
    plain = TaskSchema(reply=Schema.of(1))
    with pytest.raises(MessageError, match="found a dict of aggregates"):
        plain.require_block({"w": Sum(np.zeros(3))})
