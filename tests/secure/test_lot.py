"""A public lot: uniform, the same after a crash, and nobody's choice, whatever one party or the server does."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from atoll.core import message as M
from atoll.core.errors import ConfigError, PolicyError, QuorumError, TaskError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import task
from atoll.core.sealing import RealSealing
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure import Lot, accept_lot, draw_lot
from atoll.secure import lot as protocol
from atoll.testing import Killed, Timetable, killed_and_resumed, live
from atoll.testing.lying.sites import Rehearsal

NAMES = [f"client-{i}" for i in range(5)]
LIAR = NAMES[3]
COMMIT, REVEAL = protocol.commit.run, protocol.reveal.run


def world_of(engine=None, n=5, **more):
    remote = isinstance(engine, Rehearsal)
    more = {"clock": Clock(virtual=False), "sealing": "real", **more} if remote else more
    return World(Community(list(range(n))), engine or Inline(), **more)


def played(program, engine=None, n=5, **more):
    made = world_of(engine, n, **more)
    return run(run_program(made, program), virtual=made.clock.virtual)[0]


async def one(fed, **more):
    return await draw_lot(fed, fed.parties, at="committee", **more)


def lot_of(value):
    """A lot of two parties whose bytes follow from a number."""
    reveals = {name: bytes([i, value & 255, value >> 8]) + bytes(61) for i, name in enumerate(("a", "b"))}
    commitments = {name: protocol._digest("commitment", "main/lot@0", 0, name, said) for name, said in reveals.items()}
    return Lot("main/lot@0", 0, 0, ("a", "b"), 2, commitments, reveals)


def chi_square(counts, cells):
    """In standard deviations above its mean: the statistic over ``cells`` equally likely outcomes."""
    expected = sum(counts.values()) / cells
    found = sum((counts.get(cell, 0) - expected) ** 2 / expected for cell in range(cells))
    return (found - (cells - 1)) / np.sqrt(2 * (cells - 1))


# ---------------------------------------------------------------------- what a lot is


@pytest.mark.parametrize("fixed", [False, True], ids=["honest", "one-party-always-the-same"])
def test_lots_are_uniform(fixed, monkeypatch):
    """Bytes of 100 lots, 3200 of 256 kinds; one party may send the same bytes in each."""
    if fixed:
        monkeypatch.setattr(protocol, "commit", commit_always_the_same)

    async def many(fed):
        return [(await draw_lot(fed, fed.parties, at=i)).value for i in range(100)]

    found = played(many, n=3, secret_seed=7)
    assert len(set(found)) == 100
    assert abs(chi_square(Counter(b"".join(found)), 256)) < 4


def test_orders_and_choices_are_uniform_and_do_not_depend_on_the_order_of_the_names():
    names = ["p", "q", "r", "s"]
    orders = {order: i for i, order in enumerate(permutations(names))}
    lots = [lot_of(value) for value in range(2400)]
    assert abs(chi_square(Counter(orders[tuple(lot.order(names))] for lot in lots), 24)) < 4
    chosen = Counter(name for lot in lots for name in lot.choose(names, 2, "committee"))
    assert max(abs(count - 1200) for count in chosen.values()) < 4 * np.sqrt(2400 / 4)
    first = lots[0]
    assert first.order(names) == first.order(names[::-1])
    assert first.choose(names, 3) == first.order(names)[:3]
    assert [lot.order(names) for lot in lots[:20]] != [lot.order(names, "another use") for lot in lots[:20]]
    assert len({lot.rng.key for lot in lots}) == 2400


def test_names_that_occur_twice_and_choices_of_too_many_are_refused():
    with pytest.raises(ConfigError, match="'p' occurs twice in a lot"):
        lot_of(0).order(["p", "q", "p"])
    with pytest.raises(ConfigError, match="3 of 2 names"):
        lot_of(0).choose(["p", "q"], 3)


def test_a_lot_is_a_message_and_every_field_counts():
    lot = lot_of(3)
    assert Lot.of(M.decode(M.encode(lot.message()))) == lot
    other = lot.message()
    other["reveals"] = {**other["reveals"], "b": bytes(64)}
    with pytest.raises(PolicyError, match="b revealed other bytes than it committed to"):
        Lot.of(other)
    for name, value in {
        "path": "main/lot@1",
        "attempt": 1,
        "retries": -1,
        "invited": ["a"],
        "least": 3,
        "reveals": {},
        "commitments": 7,
    }.items():
        with pytest.raises(PolicyError, match="a lot"):
            Lot.of({**lot.message(), name: value})
    swapped = {"a": lot.commitments["b"], "b": lot.commitments["a"]}
    with pytest.raises(PolicyError, match="a revealed other bytes"):
        Lot.of({**lot.message(), "commitments": swapped, "reveals": {"a": lot.reveals["b"], "b": lot.reveals["a"]}})


def test_the_bytes_of_every_party_decide():
    lot = lot_of(3)
    others = [replace(lot, reveals={**lot.reveals, name: bytes(64)}) for name in lot.parties]
    others += [replace(lot, path="main/lot@1"), replace(lot, attempt=1), replace(lot, invited=("a", "b", "c"))]
    assert len({each.value for each in (lot, *others)}) == 6
    assert replace(lot, reveals=dict(reversed(lot.reveals.items()))).value == lot.value


@pytest.mark.parametrize("engine", [None, "network"])
def test_everybody_takes_part_and_confirms(engine):
    lot = played(one, engine and Rehearsal(5))
    assert lot.parties == lot.confirmed == lot.invited == tuple(NAMES)
    assert (lot.attempt, lot.left_out) == (0, {})
    assert Lot.of(lot.message()).value == lot.value
    assert len(lot.value) == 32


def test_who_is_away_from_the_beginning_is_left_out_without_another_attempt():
    lot = played(one, cost=Timetable(lost={"atoll.secure.lot:commit/@0": [NAMES[1]]}))
    assert (lot.attempt, lot.left_out) == (0, {NAMES[1]: "did not commit"})
    assert lot.parties == lot.confirmed == tuple(name for name in NAMES if name != NAMES[1])


def test_bad_settings_and_a_second_draw_are_refused():
    async def twice(fed):
        await one(fed)
        await one(fed)

    with pytest.raises(ConfigError, match="the lot 'committee' was drawn before"):
        played(twice)
    for settings in ({"retries": -1}, {"least": 1}, {"least": 6}):
        with pytest.raises(ConfigError, match="for a lot of 5 parties"):
            played(lambda fed, settings=settings: one(fed, **settings))


# ---------------------------------------------------------------------- one lying party


@task
def commit_always_the_same(island, message):
    if island.name != NAMES[0]:
        return COMMIT(island, message)
    path, attempt = protocol._place_of(island)
    island.state = {"attempt": attempt, "secret": bytes(64), "terms": message}
    return protocol._digest("commitment", path, attempt, island.name, bytes(64))


@task
def reveal_wrongly(island, message):
    said = REVEAL(island, message)
    return bytes(64) if island.name == LIAR else said


@task
def withhold(island, message):
    said = REVEAL(island, message)
    return None if island.name == LIAR else said


@task
def reveal_a_list(island, message):
    said = REVEAL(island, message)
    return [1, 2] if island.name == LIAR else said


@task
def fail_to_reveal(island, message):
    if island.name == LIAR:
        raise ValueError("no")
    return REVEAL(island, message)


@pytest.mark.parametrize(
    ("network", "lie", "why"),
    [
        (False, reveal_wrongly, "revealed other bytes than it committed to"),
        pytest.param(True, reveal_wrongly, "revealed other bytes than it committed to", marks=pytest.mark.network),
        (False, withhold, "revealed other bytes than it committed to"),
        (False, reveal_a_list, "revealed other bytes than it committed to"),
        pytest.param(True, fail_to_reveal, "did not reveal (ValueError: no)", marks=pytest.mark.network),
    ],
)
def test_who_lies_or_withholds_is_named_and_left_out_and_the_lot_is_drawn_anew(network, lie, why, monkeypatch):
    monkeypatch.setattr(protocol, "reveal", lie)
    lot = played(one, Rehearsal(5) if network else None)
    assert (lot.attempt, lot.left_out) == (1, {LIAR: why})
    assert lot.confirmed == lot.parties == tuple(name for name in NAMES if name != LIAR)


def test_who_is_lost_before_it_reveals_is_left_out_and_an_attempt_is_spent():
    cost = Timetable(lost={"atoll.secure.lot:reveal/@0": [LIAR]})
    lot = played(one, cost=cost)
    assert (lot.attempt, lot.left_out) == (1, {LIAR: "did not reveal"})
    with pytest.raises(QuorumError, match=f"no lot after 1 attempts: {LIAR} did not reveal"):
        played(lambda fed: one(fed, retries=0), cost=cost)
    with pytest.raises(QuorumError, match="no lot after 1 attempts"):  # one party is no lot
        played(one, n=2, cost=Timetable(lost={"atoll.secure.lot:reveal/@0": [NAMES[1]]}))


def test_a_party_cannot_commit_to_what_another_has_committed_to():
    """A commitment is its party's: the same bytes, copied with the salt, do not open under another name or in another attempt."""
    lot = lot_of(5)
    for path, attempt, name in (("main/lot@0", 0, "b"), ("main/lot@0", 1, "a"), ("main/lot@1", 0, "a")):
        assert not protocol._opens(path, attempt, name, lot.commitments["a"], lot.reveals["a"])
    assert protocol._opens("main/lot@0", 0, "a", lot.commitments["a"], lot.reveals["a"])


# ---------------------------------------------------------------------- a lying server


class Between(World):
    """Parties in this process that take their server for another organisation's."""

    def executor(self, *args, **more):
        return replace(super().executor(*args, **more), remote=True)


@task
def use_lot(island, message):
    """A task that uses a lot, under the name that the party knows."""
    return accept_lot(island, message, at="committee").value


class Server:
    """A server that asks as it likes; sets and letters are its own."""

    def __init__(self, fed):
        self.fed, self.scope = fed, fed.scope("lot@committee")
        self.terms = protocol._Terms(2, tuple(NAMES), 2)

    async def ask(self, what, message, names=NAMES, attempt=0, mail=None):
        """Ask each of some parties alone: by name, what they answered or the words of their refusal."""
        said, letters = {}, Mailboxes()
        for name in names:
            try:
                told = await self.scope.exchange(
                    self.fed.parties.named(name), what, message, at=attempt, mail=mail, quorum=0
                )
            except (PolicyError, TaskError) as error:
                said[name] = error
            else:
                said.update(told.by_name())
                letters |= told.mail
            self.scope._labels._ranges.clear()
        return said, letters

    async def commit(self, attempt=0, names=NAMES):
        return (await self.ask(protocol.commit, self.terms.message(), names, attempt))[0]


SECOND = "has bound itself to something else|has answered otherwise before"
"""A second answer, refused by the lot's own promises or by the record of requests."""


def refused_by(said, words):
    return [name for name, error in said.items() if isinstance(error, PolicyError) and re.search(words, str(error))]


def same_or_refused(first, again):
    return all(each == first[name] or refused_by({name: each}, SECOND) for name, each in again.items())


def on_both(lie, world=Between):
    """Run a lying server against parties in this process, and against site processes."""

    async def program(fed):
        return await lie(Server(fed))

    people = Community(list(range(5)))
    run(run_program(world(people, Inline(), sealing="real"), program), virtual=True)
    played(program, Rehearsal(5))


@pytest.mark.network
def test_a_server_that_shows_parties_different_commitments_gets_no_reveal():
    async def lie(server):
        made = await server.commit()
        ours = protocol._digest("commitment", server.scope.slot, 0, LIAR, bytes(64))
        first, second = {"commitments": made}, {"commitments": {**made, LIAR: ours}}
        honest = [name for name in NAMES if name != LIAR]
        _, one = await server.ask(protocol.vote, first, honest[:2])
        _, other = await server.ask(protocol.vote, second, honest[2:])
        for shown, names in ((first, honest[:2]), (second, honest[2:])):
            said, _ = await server.ask(protocol.reveal, shown, names, mail=one | other)
            assert refused_by(said, "2 of 5 parties were shown the same commitments, fewer than 4") == names
        for shown, names in ((second, honest[:2]), (first, honest[2:])):  # and no party goes over to the other set
            for what, words in ((protocol.vote, SECOND), (protocol.reveal, "has bound itself to something else")):
                said, _ = await server.ask(what, shown, names, mail=one | other)
                assert refused_by(said, words) == names

    on_both(lie)


@pytest.mark.network
def test_a_server_that_asks_for_reveals_before_it_has_all_commitments_gets_none_of_the_set_that_it_makes_then():
    async def lie(server):
        first = NAMES[:4]
        said, _ = await server.ask(protocol.reveal, {"commitments": {}}, first)
        assert refused_by(said, "has not committed in attempt 0") == first
        made = await server.commit(names=first)
        _, mail = await server.ask(protocol.vote, {"commitments": made}, first)
        said, _ = await server.ask(protocol.reveal, {"commitments": made}, first[:1], mail=mail)
        assert isinstance(said[NAMES[0]], bytes)
        whole = {"commitments": {**made, **(await server.commit(names=NAMES[4:]))}}
        said, _ = await server.ask(protocol.vote, whole, first)
        assert refused_by(said, SECOND) == first
        said, _ = await server.ask(protocol.reveal, whole, NAMES[4:], mail=mail)
        assert refused_by(said, "1 of 5 parties were shown the same commitments") == NAMES[4:]

    on_both(lie)


@pytest.mark.network
def test_a_server_that_leaves_a_party_out_or_puts_another_commitment_in_its_place_gets_nothing_from_it():
    async def lie(server):
        made = await server.commit()
        for commitments in (
            {name: made[name] for name in NAMES[1:]},
            {**made, NAMES[0]: made[NAMES[1]]},
        ):
            for what in (protocol.vote, protocol.reveal):
                said, _ = await server.ask(what, {"commitments": commitments}, NAMES[:1])
                assert refused_by(said, f"the commitment of {NAMES[0]} is not in the set") == NAMES[:1]
        for commitments in (
            {**made, "stranger": made[NAMES[1]]},
            {NAMES[0]: made[NAMES[0]]},
            {**made, NAMES[1]: b"short"},
        ):
            said, _ = await server.ask(protocol.vote, {"commitments": commitments}, NAMES[:1])
            assert refused_by(said, "a lot of ") == NAMES[:1]

    on_both(lie)


@pytest.mark.network
def test_a_server_that_asks_twice_gets_the_same_bytes_or_a_refusal():
    async def lie(server):
        made = await server.commit()
        shown = {"commitments": made}
        assert same_or_refused(made, await server.commit())
        other = replace(server.terms, invited=tuple(NAMES[:3]))
        said, _ = await server.ask(protocol.commit, other.message(), NAMES[:3])
        assert refused_by(said, SECOND) == NAMES[:3]
        _, mail = await server.ask(protocol.vote, shown)
        first, _ = await server.ask(protocol.reveal, shown, mail=mail)
        again, _ = await server.ask(protocol.reveal, shown, mail=mail)
        assert same_or_refused(first, again)
        assert all(isinstance(each, bytes) for each in first.values())
        # It draws anew as if somebody had withheld: from then on the first attempt is void, and there are no more than agreed.
        second = await server.commit(1)
        longer = replace(server.terms, retries=9)
        said, _ = await server.ask(protocol.commit, longer.message(), NAMES, 2)
        assert refused_by(said, "has bound itself to something else in 'terms of the lot") == NAMES
        await server.commit(2)
        said, _ = await server.ask(protocol.vote, {"commitments": second}, attempt=1)
        assert refused_by(said, "has not committed in attempt 1") == NAMES
        said, _ = await server.ask(protocol.commit, server.terms.message(), NAMES, 3)
        assert refused_by(said, "attempt 3 of 3") == NAMES
        lot = Lot(server.scope.slot, 0, **vars(server.terms), commitments=made, reveals=first)
        said, _ = await server.ask(use_lot, lot.message())
        assert refused_by(said, "has bound itself to something else") == NAMES

    on_both(lie)


@pytest.mark.network
def test_a_party_uses_one_lot_of_a_name_and_none_of_another():
    async def lie(server):
        fed = server.fed
        lot = await draw_lot(fed, fed.parties[:3], at="committee")
        other = await draw_lot(fed, fed.parties[3:], at="another")
        said, _ = await server.ask(use_lot, other.message())
        assert refused_by(said, "the lot 'main/lot@another' in place of 'committee'") == NAMES
        said, _ = await server.ask(use_lot, lot.message(), attempt=1)  # who did not take part is bound too
        assert list(said.values()) == [lot.value] * 5
        path, terms = lot.path, {"retries": lot.retries, "invited": lot.invited, "least": lot.least}
        reveals = {name: bytes(64) for name in lot.invited}
        for attempt in (0, 1):  # made up by those who took part, as if it had been drawn again
            made = {name: protocol._digest("commitment", path, attempt, name, bytes(64)) for name in reveals}
            forged = Lot(path, attempt, **terms, reveals=reveals, commitments=made)
            said, _ = await server.ask(use_lot, forged.message(), NAMES[3:], attempt=2)
            assert refused_by(said, "has bound itself to something else") == NAMES[3:]

    on_both(lie, World)


@pytest.mark.network
def test_a_party_that_has_committed_uses_no_lot_with_another_commitment_of_its_own():
    async def lie(server):
        await server.commit()
        path, reveals = server.scope.slot, {name: bytes(64) for name in NAMES}
        made = {name: protocol._digest("commitment", path, 0, name, bytes(64)) for name in NAMES}
        said, _ = await server.ask(
            use_lot, Lot(path, 0, **vars(server.terms), reveals=reveals, commitments=made).message()
        )
        assert refused_by(said, "has bound itself to something else in 'commitment 0 of the lot") == NAMES

    on_both(lie)


@pytest.mark.network
def test_a_party_that_was_shown_a_set_uses_no_lot_of_another():
    async def lie(server):
        made = await server.commit()
        shown = {"commitments": made}
        _, mail = await server.ask(protocol.vote, shown)
        said, _ = await server.ask(protocol.reveal, shown, mail=mail)
        path, lie = server.scope.slot, bytes(64)
        other = {**made, LIAR: protocol._digest("commitment", path, 0, LIAR, lie)}
        lot = Lot(path, 0, **vars(server.terms), commitments=other, reveals={**said, LIAR: lie})
        honest = [name for name in NAMES if name != LIAR]
        said, _ = await server.ask(use_lot, lot.message(), honest)
        assert refused_by(said, "has bound itself to something else in 'set 0 of the lot") == honest

    on_both(lie)


@pytest.mark.network
def test_votes_count_for_the_terms_that_a_party_was_told():
    """Told of a smaller cohort, a party would need fewer votes: those who were told of others vote for something else."""

    async def lie(server):
        few = replace(server.terms, invited=tuple(NAMES[:3]))
        made, _ = await server.ask(protocol.commit, few.message(), NAMES[:1])
        made |= (await server.ask(protocol.commit, server.terms.message(), NAMES[1:3]))[0]
        shown = {"commitments": made}
        _, mail = await server.ask(protocol.vote, shown, NAMES[:3])
        said, _ = await server.ask(protocol.reveal, shown, NAMES[:1], mail=mail)
        assert refused_by(said, "1 of 3 parties were shown the same commitments, fewer than 2") == NAMES[:1]

    on_both(lie)


@pytest.mark.network
def test_parties_whose_letters_have_one_key_are_one_organisation(monkeypatch):
    monkeypatch.setattr(RealSealing, "organisation", lambda self, party: "a hospital")

    async def lie(server):
        said, _ = await server.ask(protocol.reveal, {"commitments": await server.commit()})
        assert refused_by(said, "5 parties of 1 organisations, with at least 2") == NAMES

    on_both(lie)


@task
def vote_nonsense(island, message):
    for name in sorted(message["commitments"]):
        if name != island.name:
            island.post(
                name, np.arange(3) if island.name == LIAR else protocol._own_set(island, message["commitments"])[2]
            )


@pytest.mark.network
def test_a_party_that_votes_for_nonsense_stops_nobody(monkeypatch):
    monkeypatch.setattr(protocol, "vote", vote_nonsense)
    lot = played(one, Rehearsal(5))
    assert (lot.attempt, lot.parties) == (0, tuple(NAMES))


@pytest.mark.network
def test_a_party_denies_a_lot_that_has_words_put_into_its_mouth():
    """A server that never asked a party can make a commitment for it; the party sees that its own bytes are not there."""

    async def lie(server):
        path, reveals = server.scope.slot, {name: bytes(64) for name in NAMES}
        forged = Lot(
            path, 0, **vars(server.terms), reveals=reveals,
            commitments={name: protocol._digest("commitment", path, 0, name, bytes(64)) for name in NAMES},
        )  # fmt: skip
        said, _ = await server.ask(protocol.confirm, forged.message())
        assert list(said.values()) == [False] * 5

    on_both(lie)


# ---------------------------------------------------------------------- crashes


async def kept(fed):
    """A program that keeps its lot, and draws another after a checkpoint."""
    state = await fed.restore({"lot": None})
    if state["lot"] is None:
        state = {"lot": (await one(fed)).message()}
        await fed.checkpoint(state)
    return [Lot.of(state["lot"]).value, (await draw_lot(fed, fed.parties, at="next")).value]


def test_a_lot_is_the_same_after_a_crash_at_any_step(tmp_path):
    def make(folder, resume):
        return world_of(
            folder=folder, resume=resume, secret_seed=3, cost=Timetable(lost={"atoll.secure.lot:reveal/@0": [LIAR]})
        )

    killed_and_resumed(make, kept, tmp_path, points=12)


@pytest.mark.network
@pytest.mark.parametrize("last", ["commit", "vote", "reveal"])
def test_site_processes_that_were_killed_reveal_what_they_had_committed_to(last, tmp_path):
    """Without a seed: what a party has committed to follows from no number, and is the same in the next life. `live` compares the answers."""
    whole = live(world_of(Rehearsal(3), folder=tmp_path / "whole"), kept)
    steps, answers = [i for i, step in enumerate(whole.steps) if step == "after run"], {}
    place = ["commit", "vote", "reveal"].index(last)
    with pytest.raises(Killed, match="before run"):  # what has arrived is known, and the next superstep is not sent
        live(world_of(Rehearsal(3), folder=tmp_path / "killed"), kept, kill_at=steps[place] + 1, answers=answers)
    assert len([request for request in answers if f"lot:{last}/@0" in request]) == 5
    before = dict(answers)
    found = live(world_of(Rehearsal(3), folder=tmp_path / "killed", resume=True), kept, answers=answers).result
    assert {request: answers[request] for request in before} == before
    assert live(world_of(Rehearsal(3), folder=tmp_path / "killed", resume=True), kept).result[0] == found[0]
