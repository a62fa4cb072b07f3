"""`Unbalanced`: the plain intersection, a filter that is kept and grows, and peers that do not follow the protocol."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.secure.encrypted import Paillier
from atoll.secure.psi import AlignmentPlan, TagFilter, Unbalanced
from atoll.secure.psi.protocol import intersect_keys
from atoll.testing import killed_and_resumed
from tests.support.alignment import align, program_of, recorded, shared_keys, tables

LARGE = [f"u{i}" for i in range(30)]
SETS = tables({"bank": ["u2", "u3", "x"], "shop": LARGE})
KEYS = st.lists(st.integers(0, 12).map(str), max_size=12)


@settings(max_examples=15)
@given(KEYS, KEYS, st.integers(0, 3))
def test_it_is_the_plain_intersection_in_one_order(left, right, seed):
    data = tables({"bank": left, "shop": right})
    found = align(Unbalanced(), data, seed=seed)
    assert found["bank"]["names"] == found["shop"]["names"] == shared_keys(data, seed)


@pytest.mark.every(4)  # each value of both axes once
@pytest.mark.parametrize("learners", [("bank", "shop"), ("bank",), ("shop",)])
@pytest.mark.parametrize("result", ["ids", "count", "sum"])
def test_each_role_learns_and_says_what_the_contract_says(monkeypatch, result, learners):
    more = {"column": "amount", "holder": "shop"} if result == "sum" else {}
    data = {**SETS, "shop": {"id": LARGE, "amount": list(range(30))}}
    keys = Paillier(2048).make_keys(Secret(0))
    monkeypatch.setattr(Paillier, "make_keys", lambda scheme, secret: keys)
    with recorded(monkeypatch) as said:
        found = align(Unbalanced(), data, result=result, learners=learners, **more)
    plan = AlignmentPlan(columns=("id",), roles=("bank", "shop"), result=result, learners=learners, **more)
    contract = Unbalanced().contract(plan, {"bank": 3, "shop": 30})
    assert contract.compare_recorded(said) == []
    for name in data:
        learns = name in learners
        assert found[name]["count"] == (2 if learns or result == "sum" else None)
        assert found[name]["total"] == (5 if learns and result == "sum" else None)
        assert (found[name]["names"] is not None) == (learns and result == "ids")
    assert {one.who for one in contract.learns if one.kind == "ids"} == (set(learners) if result == "ids" else set())


def _twice(data, change):
    """Two alignments of one job, with a change of the tables in between."""
    program = program_of(Unbalanced(), list(data))

    async def run(fed):
        first = await program(fed)
        change()
        roles = {name: (name, intersect_keys.with_args(me=name, **program.args)) for name in data}
        return first, await fed.session(roles, at="again")

    return atoll.simulate(run, data, engine="inline", progress=False)


@pytest.mark.parametrize(("larger", "tags"), [([*LARGE, "x", "y"], 2), (LARGE, 0), ([*LARGE[1:], "x"], 30)])
def test_the_filter_is_kept_and_grows(monkeypatch, larger, tags):
    """Only tags of new keys are sent again; if a key is gone, the tags of all, under a new exponent."""
    data = {name: {"id": list(table["id"])} for name, table in SETS.items()}
    with recorded(monkeypatch) as said:
        first, second = _twice(data, lambda: data["shop"].update(id=larger))
    assert sorted(first["bank"]["names"]) == ["u2", "u3"]
    assert second["bank"]["names"] == second["shop"]["names"] == shared_keys(data)
    assert [len(message) for _, _, channel, message in said if channel == "filter"] == [30, tags][: 1 + (tags > 0)]


def test_a_changed_small_set_is_refused():
    data = {name: {"id": list(table["id"])} for name, table in SETS.items()}
    with pytest.raises(AtollError, match="bank comes with another set than before"):
        _twice(data, lambda: data["bank"].update(id=["u2", "u3", "u4"]))


def test_a_site_does_not_go_on_below_its_least_overlap(monkeypatch):
    for name in SETS:
        with recorded(monkeypatch) as said, pytest.raises(AtollError, match="fewer than 3 keys are shared"):
            align(Unbalanced(), SETS, policy={name: SitePolicy(min_aligned=3)})
        assert not [1 for source, _, channel, _ in said if source == name and channel in ("order", "tags")]


@pytest.mark.parametrize(
    ("source", "channel", "spoil", "says"),
    [
        ("bank", "asked", lambda m: np.full_like(m, 255), "stands twice|invalid point"),
        ("bank", "asked", lambda m: m[:2], r"\(2, 32\) in 'asked'"),
        ("bank", "told", lambda m: np.full_like(m, 1), "shared keys of 3"),
        ("shop", "growth", lambda m: np.full_like(m, 1), "tags of 30 keys"),
        ("shop", "filter", lambda m: np.concatenate([m, m]), r"\(60, 12\) in 'filter'"),
        ("shop", "answered", lambda m: np.repeat(m[:1], 3, axis=0), "stands twice"),
        ("shop", "order", lambda m: np.zeros_like(m), "names a place twice"),
    ],
)
def test_a_peer_that_does_not_follow_the_protocol_is_refused(monkeypatch, source, channel, spoil, says):
    def change(who, at, message):
        return spoil(message) if (who, at) == (source, channel) else message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match=says):
        align(Unbalanced(), SETS)


def test_tags_that_share_eight_bytes_are_told_apart():
    tags = np.zeros((4, 12), dtype=np.uint8)
    tags[:, 11] = [3, 1, 2, 7]
    tags[3, 0] = 1
    held = TagFilter(tags[:0]).grow(tags)
    assert held.tags[:, 11].tolist() == [1, 2, 3, 7]
    asked = tags.copy()
    asked[0, 11] = 9
    assert held.find(asked).tolist() == [-1, 0, 1, 3]
    assert held.find(tags[:0]).tolist() == []


def test_a_killed_alignment_goes_on_to_the_same_result(tmp_path):
    def make_world(folder, resume):
        return World(Community(dict(SETS)), ENGINES["inline"](1), folder=folder, resume=resume)

    life = killed_and_resumed(make_world, program_of(Unbalanced(), ["bank", "shop"]), tmp_path, points=8, exact_spending=False)  # fmt: skip
    assert life.result["bank"]["names"] == life.result["shop"]["names"] == shared_keys(SETS)
