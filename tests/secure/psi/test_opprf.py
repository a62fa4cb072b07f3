"""`Opprf`: the plain intersection of several parties, and nothing of what only some share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, CompositionError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.secure.psi import AlignmentPlan, Ecdh, KeyValueTable, Opprf, opprf
from atoll.secure.psi.protocol import intersect_keys
from atoll.testing import killed_and_resumed
from tests.support.alignment import align, die_and_resume, program_of, recorded, shared_keys, tables

KEYS = st.lists(st.integers(0, 8).map(str), max_size=8)
SETS = tables(
    {"bank": ["u1", "u2", "u3", "b"], "shop": ["u2", "u3", "u4", "b", "x"], "mill": ["u3", "u2", "u1", "y", "z"]}
)


@settings(max_examples=12)
@given(st.lists(KEYS, min_size=2, max_size=4))
def test_it_is_the_plain_intersection_in_one_order(sets):
    data = tables({f"party-{i}": keys for i, keys in enumerate(sets)})
    found = align(Opprf(), data)
    assert [one["names"] for one in found.values()] == [shared_keys(data)] * len(data)


@pytest.mark.parametrize("learners", [(), ("shop",), ("bank", "mill")])
def test_each_role_learns_and_says_what_the_contract_says(monkeypatch, learners):
    with recorded(monkeypatch) as said:
        found = align(Opprf(), SETS, learners=learners)
    plan = AlignmentPlan(columns=("id",), roles=tuple(SETS), learners=learners)
    contract = Opprf().contract(plan, {"bank": 4, "shop": 5, "mill": 5})
    assert contract.compare_recorded(said) == []
    who = set(learners or SETS)
    assert {one.who for one in contract.learns if one.kind == "ids"} == who
    assert {name: one["names"] for name, one in found.items()} == {
        n: shared_keys(SETS) if n in who else None for n in SETS
    }


def test_no_intersection_of_some_shows(monkeypatch):
    """What the leader reads for a key that one other has looks like what it reads for a key that this one lacks: bits are set half of the time.

    20 runs of two keys at two others are 10,240 bits, with a deviation of 51; ten of them are 506.
    """
    seen, read = [], opprf._read_share

    def noted(table, keys, functions):
        made = read(table, keys, functions)
        seen.append(made[[i for i, key in enumerate(keys) if key in (b"u1", b"b")]])
        return made

    monkeypatch.setattr(opprf, "_read_share", noted)
    for secrets in range(20):
        align(Opprf(), SETS, learners=("bank",), secrets=secrets, show=False)
    bits = np.unpackbits(np.concatenate(seen).view(np.uint8))
    assert len(bits) == 10240
    assert abs(int(bits.sum()) - 5120) < 506


def test_a_party_with_a_least_overlap_must_lead():
    assert align(Opprf(), SETS, policy={"bank": SitePolicy(min_aligned=2)})["shop"]["count"] == 2
    with pytest.raises(AtollError, match="fewer than 3 keys are shared"):
        align(Opprf(), SETS, policy={"bank": SitePolicy(min_aligned=3)})
    with pytest.raises(AtollError, match="mill does not learn how many keys are shared"):
        align(Opprf(), SETS, policy={"mill": SitePolicy(min_aligned=2)})


@pytest.mark.parametrize(
    ("source", "channel", "spoil", "says"),
    [
        ("bank", "asked", lambda m: np.full_like(m, 255), "stands twice|invalid point"),
        ("shop", "answered", lambda m: np.repeat(m[:1], 4, axis=0), "stands twice"),
        ("mill", "table", lambda m: np.concatenate([m, m]), "in 'table' from mill"),
        ("bank", "seed", lambda m: m[:, :8], "in 'seed' from bank"),
    ],
)
def test_a_peer_that_does_not_follow_the_protocol_is_refused(monkeypatch, source, channel, spoil, says):
    def change(who, at, message):
        return spoil(message) if (who, at) == (source, channel) else message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match=says):
        align(Opprf(), SETS)


def test_other_protocols_and_results_are_refused():
    with pytest.raises(CompositionError, match="at most 2 parties, not 3"):
        align(Ecdh(), SETS)
    with pytest.raises(CompositionError, match="gives no count"):
        align(Opprf(), SETS, result="count")


@pytest.mark.parametrize("count", [0, 1, 2, 50, 3000])
def test_a_table_reads_its_values(count):
    secret = Secret(count)
    keys, values = [f"k{i}".encode() for i in range(count)], secret.uint64((count, 2))
    table = KeyValueTable.encode(keys, values, secret)
    assert len(table.cells) == KeyValueTable.cells_for(count)
    assert (table.decode(keys) == values).all()
    assert not (table.decode([key + b"'" for key in keys]) == values).any()


def test_a_killed_alignment_goes_on_to_the_same_result(tmp_path):
    def make_world(folder, resume):
        return World(Community(dict(SETS)), ENGINES["inline"](1), folder=folder, resume=resume)

    life = killed_and_resumed(make_world, program_of(Opprf(), list(SETS)), tmp_path, points=6, exact_spending=False)
    assert [one["names"] for one in life.result.values()] == [shared_keys(SETS)] * 3


@pytest.mark.parametrize("learners", [(), ("bank",)])
def test_after_a_crash_the_others_say_the_same_table(monkeypatch, tmp_path, learners):
    """Two tables under two functions would show the leader which keys one other has: both read the same share of zero there."""
    program = program_of(Opprf(), list(SETS), learners=learners)
    *lives, found = die_and_resume(monkeypatch, tmp_path, program, SETS, ("mill", "table"))
    kinds = ("answered", "places", "table")
    frames = [{(who, at): m.tobytes() for who, _, at, m in said if at in kinds} for said in lives]
    assert ("shop", "table") in frames[0]
    assert frames[0].items() <= frames[1].items()
    assert found["bank"]["names"] == shared_keys(SETS)


def test_after_a_crash_the_leader_has_heard_the_tables_and_asks_for_no_others(monkeypatch, tmp_path):
    """A party that dies when it learns the result cannot try out other keys: nothing is heard of its set again."""
    _, said, found = die_and_resume(monkeypatch, tmp_path, program_of(Opprf(), list(SETS)), SETS, ("bank", "shared"))
    assert {channel for *_, channel, _ in said} == {"shared"}
    assert found["mill"]["names"] == shared_keys(SETS)


def _twice(data, change, protocol):
    """Two alignments of one job, with a change of the tables in between."""
    program = program_of(protocol, list(data))

    async def run(fed):
        first = await program(fed)
        change()
        roles = {name: (name, intersect_keys.with_args(me=name, **program.args)) for name in data}
        return first, await fed.session(roles, at="again")

    return atoll.simulate(run, data, engine="inline", progress=False)


@pytest.mark.parametrize("changed", [None, "bank", "shop", "mill"])
def test_a_second_alignment_of_a_job_is_of_the_same_sets(monkeypatch, changed):
    data = {name: {"id": list(table["id"])} for name, table in SETS.items()}
    if changed is None:
        with recorded(monkeypatch) as said:
            first, second = _twice(data, lambda: data["mill"]["id"].reverse(), Opprf())
        assert first == second
        tables_of = [m.tobytes() for source, _, at, m in said if (source, at) == ("mill", "table")]
        assert len(set(tables_of)) == 1
        return
    with pytest.raises(AtollError, match="not those that it began to align in this job"):
        _twice(data, lambda: data[changed]["id"].__setitem__(1, "u7"), Opprf())


@pytest.mark.parametrize("who", ["bank", "shop", "mill"])
def test_another_set_of_another_is_refused(monkeypatch, who):
    """A party that changes its set and does not refuse: what it says differs, and the leader or the others notice."""
    data = {name: {"id": list(table["id"])} for name, table in SETS.items()}
    monkeypatch.setattr(opprf, "_digest_of", lambda side: b"")
    encode = opprf.AlignmentSide.recall

    def forget(self, name):
        return None if self.me == who and len(self.keys) and "u7" in self.keys.names else encode(self, name)

    monkeypatch.setattr(opprf.AlignmentSide, "recall", forget)
    with pytest.raises(AtollError, match=f"{who} comes with another set"):
        _twice(data, lambda: data[who]["id"].__setitem__(1, "u7"), Opprf())


@pytest.mark.parametrize(("who", "channel"), [("bank", "asked"), ("bank", "seed")])
def test_a_leader_gets_no_second_table_under_seeds_that_others_keep(monkeypatch, who, channel):
    """It changes its own seed, or asks in another order, and would read the shares of the others' seeds a second time."""
    seen = []

    def change(source, at, message):
        if (source, at) != (who, channel):
            return message
        seen.append(message)
        return message if len(seen) <= 2 else message[::-1].copy() if at == "asked" else message ^ 1

    with recorded(monkeypatch, change) as said, pytest.raises(AtollError, match="bank comes with another set"):
        _twice({name: {"id": list(table["id"])} for name, table in SETS.items()}, lambda: None, Opprf())
    assert len([1 for source, _, at, _ in said if (source, at) == ("shop", "table")]) == 1
