"""Asymmetric alignment: one party learns who is shared, the other a superset of its own keys, by lot, in one order of both."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.errors import AtollError, LetterError, PolicyError
from atoll.core.requests.island import Secret
from atoll.core.requests.policy import SitePolicy
from atoll.secure.psi import Alignment, AlignmentPlan, Ecdh, Oprf, Unbalanced
from atoll.secure.psi.protocol import intersect_keys, send_superset
from tests.support.alignment import align, die_and_resume, program_of, recorded, send_seeds_openly, tables

ROLES = ("bank", "shop")
BOTH = pytest.mark.parametrize("protocol", [Ecdh(), Oprf()], ids=["Ecdh", "Oprf"])


@pytest.fixture(autouse=True)
def open_seeds(monkeypatch):
    send_seeds_openly(monkeypatch)


@atoll.task
def look(island, message):
    return island.state["aligned"]["rows"], island.state["aligned"]["names"]


def rows_of(protocol, data, turns=1, **more):
    """The rows of both parties, and the names that each learned, after each turn."""
    plan = AlignmentPlan(columns=("id",), roles=ROLES, **more)
    args = {"protocol": protocol.spec(), "plan": plan.spec()}

    async def program(fed):
        found = []
        for _ in range(turns):
            await fed.session({name: (name, intersect_keys.with_args(me=name, **args)) for name in ROLES})
            found.append({name: await fed.ask(name, look) for name in ROLES})
        return found

    return atoll.simulate(program, dict(data), engine="inline", progress=False)


@BOTH
@settings(max_examples=5, deadline=None)
@given(
    st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.sampled_from(ROLES), st.sampled_from([0.01, 0.8, 1.0])
)
def test_the_learner_has_the_shared_rows_among_those_of_the_other(protocol, left, right, learner, share):
    data = tables({"bank": sorted(left), "shop": sorted(right)})
    (other,) = (name for name in ROLES if name != learner)
    size = math.ceil(share * len(data[other]["id"]))
    if len(left & right) > size:
        with pytest.raises(AtollError, match="more keys are shared than"):
            rows_of(protocol, data, learners=(learner,), superset=share)
        return
    (found,) = rows_of(protocol, data, learners=(learner,), superset=share)
    mine, theirs = found[learner][0], found[other][0]
    assert len(mine) == len(theirs) == len(set(theirs.tolist())) == size
    keys = [
        (data[learner]["id"][i], data[other]["id"][j])
        for i, j in zip(mine.tolist(), theirs.tolist(), strict=True)
        if i >= 0
    ]
    assert sorted(one for one, _ in keys) == sorted(left & right)
    assert all(one == two for one, two in keys)
    assert set(found[learner][1].tolist()) == {str(key) for key in left & right}
    assert not len(found[other][1])


@BOTH
def test_frames_follow_from_sizes_alone_and_all_keys_say_nothing(monkeypatch, protocol):
    seen = []
    for start in (0, 6, 50):
        data = tables({"bank": range(7), "shop": range(start, start + 11)})
        with recorded(monkeypatch) as said:
            align(protocol, data, learners=("bank",), superset=1.0)
        seen.append([(*one[:3], one[3].shape) for one in said])
        assert [one[3].tolist() for one in said if one[2] == "superset"] == [[[255], [7]]]
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(seen[2])
    plan = AlignmentPlan(columns=("id",), roles=ROLES, learners=("bank",), superset=1.0)
    frames = protocol.contract(plan, {"bank": 7, "shop": 11}).frames
    assert [(one.source, one.target, one.nbytes) for one in frames if one.name == "superset"] == [("bank", "shop", 2)]


def test_supersets_of_equal_size_are_equally_likely_whoever_is_shared():
    """The other's view is which of its keys are in the superset: of 6 keys with 2 shared, each of the 6 supersets of 4 (chi-square)."""
    plan = AlignmentPlan(columns=("id",), roles=ROLES, learners=("bank",), superset=0.6)
    names = np.arange(6, dtype=np.uint8).reshape(6, 1)
    for shared in ({0, 1}, {2, 5}):
        seen: Counter = Counter()
        for seed in range(300):
            kept: dict = {}

            async def done(*_):
                pass

            side = SimpleNamespace(plan=plan, other="shop", island=SimpleNamespace(secret=Secret(seed)), recall=kept.get, remember=kept.update, keep=done, send_rows=done)  # fmt: skip
            genuine = np.isin(np.arange(6), list(shared))
            seen[tuple(asyncio.run(send_superset(side, genuine, names)).tolist())] += 1
        possible = [chosen for chosen in combinations(range(6), 4) if shared <= set(chosen)]
        assert set(seen) == set(possible)
        assert stats.chisquare([seen[chosen] for chosen in possible]).pvalue > 1e-3


@BOTH
def test_a_job_has_one_superset(protocol):
    data = tables({"bank": range(7), "shop": range(5, 25)})
    first, second = rows_of(protocol, data, turns=2, learners=("bank",), superset=0.5)
    assert set(first["shop"][0].tolist()) == set(second["shop"][0].tolist())
    assert len(first["shop"][0]) == 10


@BOTH
def test_after_a_crash_it_is_sent_once(monkeypatch, tmp_path, protocol):
    data = tables({"bank": range(7), "shop": range(5, 25)})
    program = program_of(protocol, ROLES, learners=("bank",), superset=0.5)
    _, said, found = die_and_resume(monkeypatch, tmp_path, program, data, ("bank", "superset"))
    assert sum(channel == "superset" for _, _, channel, _ in said) == 1
    assert found["bank"]["count"] == 2


@BOTH
@pytest.mark.parametrize("lie", [lambda m: m ^ np.uint8(1), lambda m: np.full_like(m, 255), lambda m: m[:-1]])
def test_a_superset_of_another_size_is_refused(monkeypatch, protocol, lie):
    def change(source, channel, message):
        return lie(message) if channel == "superset" else message

    with (
        recorded(monkeypatch, change),
        pytest.raises(LetterError, match=r"keys in a superset of 10|in 'superset' from bank"),
    ):
        align(protocol, tables({"bank": range(7), "shop": range(5, 25)}), learners=("bank",), superset=0.5)


def test_what_the_other_learns_is_in_the_contract_and_a_policy_reads_it():
    data = tables({"bank": range(7), "shop": range(5, 25)})
    job = Alignment(to=["bank"], superset=0.5)
    told = {(one.who, one.kind) for one in job.protocol.contract(job.plan(ROLES), {"bank": 7, "shop": 20}).learns}
    assert told == {
        ("bank", "sizes"),
        ("shop", "sizes"),
        ("the program", "sizes"),
        ("bank", "ids"),
        ("shop", "superset"),
    }
    with pytest.raises(AtollError, match="among 50% of its keys"):
        atoll.simulate(job, data, policy={"bank": SitePolicy(learned=["sizes"])}, progress=False)


def test_supersets_that_make_no_sense_are_refused():
    for more in (
        {"superset": 0.5},
        {"superset": 1.5, "to": ["bank"]},
        {"superset": 0.5, "to": ["bank"], "result": "count"},
    ):
        with pytest.raises(AtollError, match="one party that learns it"):
            Alignment(**more).plan(ROLES)
    with pytest.raises(AtollError, match="Unbalanced hides no keys"):
        Alignment(protocol=Unbalanced(), superset=0.5, to=["bank"]).plan(ROLES)


def test_a_larger_superset_later_in_the_job_is_refused():
    kept = {"superset": np.zeros((2, 1), dtype=np.uint8)}
    plan = AlignmentPlan(columns=("id",), roles=ROLES, learners=("bank",), superset=1.0)

    async def done(*_):
        pass

    side = SimpleNamespace(plan=plan, other="shop", recall=kept.get, keep=done)
    with pytest.raises(PolicyError, match="a superset of 3 keys, and before one of 1"):
        asyncio.run(send_superset(side, np.zeros(3, dtype=bool), np.arange(3, dtype=np.uint8).reshape(3, 1)))
