"""`Ecdh`: the plain intersection, what each role sees, and peers that do not follow the protocol."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, ConfigError, LetterError, PolicyError
from atoll.core.execution.session import LocalPeers
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.secure.encrypted import Paillier
from atoll.secure.encrypted.paillier import to_number
from atoll.secure.psi import AlignmentPlan, Ecdh, RowKeys, ecdh
from atoll.secure.psi.ecdh import _members
from atoll.secure.psi.protocol import AlignmentSide, intersect_keys
from atoll.testing import killed_and_resumed
from tests.support.alignment import align, program_of, recorded, shared_keys, tables

SETS = tables({"bank": ["u1", "u2", "u2", "u3"], "shop": ["u2", "u2", "u3", "u9", None]})
KEYS = st.lists(st.integers(0, 12).map(str), max_size=12)


@settings(max_examples=15)
@given(KEYS, KEYS, st.integers(0, 3))
def test_it_is_the_plain_intersection_in_one_order(left, right, seed):
    data = tables({"bank": left, "shop": right})
    found = align(Ecdh(), data, seed=seed)
    wanted = shared_keys(data, seed)
    assert found["bank"]["names"] == found["shop"]["names"] == wanted
    assert found["bank"]["count"] == found["shop"]["count"] == len(wanted)


def test_repeats_are_one_key_and_null_matches_nothing():
    found = align(Ecdh(), SETS)
    assert sorted(found["bank"]["names"]) == ["u2", "u3"]


@pytest.mark.parametrize("result", ["ids", "count"])
def test_one_learner_is_the_only_one_who_learns(result):
    found = align(Ecdh(), SETS, result=result, learners=("bank",))
    assert found["bank"]["count"] == 2
    assert (found["bank"]["names"] is not None) == (result == "ids")
    assert found["shop"]["count"] is None
    assert found["shop"]["names"] is None


@pytest.mark.parametrize("learners", [("bank", "shop"), ("shop",)])
@pytest.mark.parametrize("result", ["ids", "count"])
def test_what_is_said_is_what_the_contract_says(monkeypatch, result, learners):
    sizes = []
    for shared in (0, 3):  # equal sizes, other overlaps: the same frames
        data = tables({"bank": [f"a{i}" for i in range(5)], "shop": [f"a{i}" for i in range(5 - shared, 9 - shared)]})
        plan = AlignmentPlan(columns=("id",), roles=("bank", "shop"), result=result, learners=learners)
        with recorded(monkeypatch) as said:
            align(Ecdh(), data, result=result, learners=learners)
        assert Ecdh().contract(plan, {"bank": 5, "shop": 4}).compare_recorded(said) == []
        sizes.append(sorted((source, channel, message.shape) for source, _, channel, message in said))
    assert sizes[0] == sizes[1]


def test_a_frame_that_the_contract_does_not_name_is_found(monkeypatch):
    plan = AlignmentPlan(columns=("id",), roles=("bank", "shop"), result="count")
    with recorded(monkeypatch) as said:
        align(Ecdh(), SETS, result="ids")
    wrong = Ecdh().contract(plan, {"bank": 3, "shop": 3}).compare_recorded(said)
    assert sorted(line.split(",")[0] for line in wrong) == [f"24 bytes of 'order' from {a} to {b}" for a, b in (("bank", "shop"), ("shop", "bank"))]  # fmt: skip


def _invalid(message):
    return np.full_like(message, 255)


def _neutral(message):
    return np.zeros_like(message)


def _repeated(message):
    return np.repeat(message[:1], len(message), axis=0)


def _longer(message):
    return np.concatenate([message, message])


@pytest.mark.parametrize(
    ("channel", "spoil", "says"),
    [
        ("blinded", _invalid, "stands twice|invalid point"),
        ("blinded", _neutral, "stands twice|invalid point"),
        ("blinded", _repeated, "stands twice"),
        ("blinded", _longer, r"\(6, 32\) in 'blinded'"),
        ("twice", _invalid, "stands twice|invalid point"),
        ("twice", _repeated, "stands twice"),
        ("twice", lambda message: message[:2], r"\(2, 32\) in 'twice'"),
        ("order", lambda message: np.zeros_like(message), "names a place twice"),
        ("sizes", lambda message: message.astype(np.int64), "int64"),
        (
            "sizes",
            lambda message: np.where(np.arange(16) < 8, np.uint8(9), message),
            "announces 651061555542690057 keys",
        ),
    ],
)
def test_a_peer_that_does_not_follow_the_protocol_is_refused(monkeypatch, channel, spoil, says):
    def change(source, at, message):
        return spoil(message) if (source, at) == ("shop", channel) else message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match=says) as caught:
        align(Ecdh(), SETS)
    assert "bank" in str(caught.value) or isinstance(caught.value, LetterError)


@pytest.mark.parametrize("wrong", [0, 255])
@pytest.mark.parametrize("at", ["blinded", "twice"])
def test_one_wrong_point_among_valid_ones_is_refused(monkeypatch, at, wrong):
    def change(source, channel, message):
        if (source, channel) == ("shop", at):
            message = message.copy()
            message[0] = wrong
        return message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match="invalid point"):
        align(Ecdh(), SETS)


def test_roles_with_different_settings_are_refused():
    program = program_of(Ecdh(), list(SETS))
    plan = {**program.args["plan"], "seed": 1}

    async def apart(fed):
        args = {"bank": program.args, "shop": {**program.args, "plan": plan}}
        return await fed.session({name: (name, intersect_keys.with_args(me=name, **args[name])) for name in SETS})

    with pytest.raises(AtollError, match="aligns with other settings"):
        atoll.simulate(apart, SETS, engine="inline", progress=False)


def test_a_site_refuses_a_result_that_tells_too_much():
    policy = {"shop": SitePolicy(learned=("sizes", "count"))}
    assert align(Ecdh(), SETS, policy=policy, result="count")["bank"]["count"] == 2
    align(Ecdh(), SETS, policy=policy, learners=("shop",), show=False)  # it is the shop that learns
    with pytest.raises(PolicyError, match="tells the program which keys all share"):
        align(Ecdh(), SETS, policy=policy, learners=("shop",))
    with pytest.raises(PolicyError, match="tells bank which of its own keys shop has too"):
        align(Ecdh(), SETS, policy=policy)


def test_a_site_does_not_go_on_below_its_least_overlap(monkeypatch):
    assert align(Ecdh(), SETS, policy={"shop": SitePolicy(min_aligned=2)})["bank"]["count"] == 2
    with recorded(monkeypatch) as said, pytest.raises(AtollError, match="fewer than 3 keys are shared"):
        align(Ecdh(), SETS, policy={"shop": SitePolicy(min_aligned=3)})
    assert not [1 for source, _, channel, _ in said if (source, channel) == ("shop", "order")]
    for result in ("ids", "count"):
        with recorded(monkeypatch) as said, pytest.raises(AtollError, match="does not learn how many keys are shared"):
            align(Ecdh(), SETS, policy={"shop": SitePolicy(min_aligned=2)}, learners=("bank",), result=result)
        assert not [1 for source, *_ in said if source == "shop"]  # not even what tells the bank the count


@pytest.mark.parametrize("result", ["ids", "count"])
def test_a_party_that_sends_back_what_it_receives_does_not_seem_to_share_all(monkeypatch, result):
    """It has no key of the bank, waits for the bank's points in each step, and sends these, or what it can make of them, as its own."""
    data, heard, send = tables({"bank": ["u1", "u2", "u3"], "shop": ["a", "b", "c"]}), {}, LocalPeers.send

    async def echo(self, role, message, channel=""):
        if self.me == "bank":
            heard[channel] = message
        elif channel in ("blinded", "bound", "twice", "opening"):
            while channel not in heard:
                await asyncio.sleep(0)
            message = heard[channel]
        heard.setdefault((self.me, channel), message)
        await send(self, role, message, channel)

    monkeypatch.setattr(LocalPeers, "send", echo)
    with pytest.raises(AtollError, match="other points from shop than it had bound itself to"):
        align(Ecdh(), data, result=result)
    assert ("bank", "order") not in heard


def _views(monkeypatch, data, learner, runs=60):
    """For each run of a count: where the learner finds the shared key, and which of its own keys it would guess it to be."""
    seen = []

    def members(found, twice):
        held = _members(found, twice)
        seen.append((int(np.flatnonzero(_members(twice, found))[0]), int(np.flatnonzero(held)[0])))
        return held

    orders, keep = {}, AlignmentSide.keep

    async def kept(side, **state):
        orders[side.me] = state.get("order", orders.get(side.me))
        await keep(side, **state)

    places, guesses = np.zeros(4), np.zeros(4)
    monkeypatch.setattr(ecdh, "_members", members)
    monkeypatch.setattr(AlignmentSide, "keep", kept)
    for secrets in range(runs):
        align(Ecdh(), data, secrets=secrets, result="count", learners=(learner,))
        place, at = seen.pop()
        places[place] += 1
        guesses[orders[learner][at]] += 1
    monkeypatch.undo()
    return places, guesses


def _chi_square(one, two):
    both = one + two
    expected = both[both > 0] / 2
    return (((one[both > 0] - expected) ** 2 + (two[both > 0] - expected) ** 2) / expected).sum()


def test_views_of_equal_outcomes_are_equally_distributed(monkeypatch):
    """Chi-square of two samples over four places against the .999 quantile of three degrees of freedom, 16.27.

    One key of four is shared, now the first in the order of u of both and now the last. Neither the place where the learner sees the match, nor the own key that it would take for
    the shared one, may depend on which it is.
    """
    keys = RowKeys.of({"id": list("abcdefg")}, "id").names
    first = tables({"bank": keys[:4], "shop": [keys[0], *keys[4:]]})
    last = tables({"bank": keys[3:], "shop": [*keys[:3], keys[-1]]})
    for learner in ("bank", "shop"):
        one, two = (_views(monkeypatch, data, learner) for data in (first, last))
        assert all(_chi_square(a, b) < 16.27 for a, b in zip(one, two, strict=True))


def test_a_set_is_bound_under_each_name_of_its_key():
    """Columns twice or in another order, or a role under another name, would be further keys, under which a set could be changed."""
    data = {name: {**table, "n": [1] * len(table["id"])} for name, table in SETS.items()}
    with pytest.raises(ConfigError, match="name each column of the key once"):
        align(Ecdh(), data, columns=("id", "id"))
    one, other = (program_of(Ecdh(), list(data), columns=columns) for columns in (("id", "n"), ("n", "id")))

    async def both(fed):
        await one(fed)
        roles = {name: (name, intersect_keys.with_args(me=name, **other.args)) for name in data}
        return await fed.session(roles, at="again")

    with pytest.raises(AtollError, match="comes with another set than before"):
        atoll.simulate(both, data, engine="inline", progress=False)

    async def renamed(fed):
        plan = {**one.args["plan"], "roles": ["bank", "mill"], "learners": []}
        args = {**one.args, "plan": plan}
        places = {"bank": "bank", "mill": "shop"}
        return await fed.session({me: (at, intersect_keys.with_args(me=me, **args)) for me, at in places.items()})

    with pytest.raises(AtollError, match="the role 'mill' at 'shop'"):
        atoll.simulate(renamed, data, engine="inline", progress=False)


def test_no_key_and_no_secret_is_in_a_text_of_a_side():
    keys = RowKeys.of({"id": ["planted-id"]}, "id")
    plan = AlignmentPlan(columns=("id",), roles=("bank", "shop"))
    side = AlignmentSide(None, None, "bank", plan, keys, state={"scalar": b"planted-scalar"})
    assert "planted" not in repr(side) + repr(keys)


@pytest.mark.parametrize("changed", [False, True])
def test_probing_by_changed_sets_is_refused(changed):
    """A role that comes a second time in the job has the set of the first time, by the other's own record."""
    data = {name: {"id": list(table["id"])} for name, table in SETS.items()}
    program = program_of(Ecdh(), list(data))

    async def twice(fed):
        first = await program(fed)
        data["shop"]["id"] = ["u9", "u2", "u3" if not changed else "u1"]  # in another order, and with another key
        return first, await fed.session(
            {name: (name, intersect_keys.with_args(me=name, **program.args)) for name in data}, at="again"
        )

    if changed:
        with pytest.raises(AtollError, match="shop comes with another set than before"):
            atoll.simulate(twice, data, engine="inline", progress=False)
    else:
        first, second = atoll.simulate(twice, data, engine="inline", progress=False)
        assert first["bank"]["names"] == second["bank"]["names"]


def test_a_killed_alignment_goes_on_to_the_same_result(tmp_path):
    def make_world(folder, resume):
        return World(Community(dict(SETS)), ENGINES["inline"](1), folder=folder, resume=resume)

    life = killed_and_resumed(
        make_world, program_of(Ecdh(), ["bank", "shop"]), tmp_path, points=8, exact_spending=False
    )
    assert life.result["bank"]["names"] == life.result["shop"]["names"] == shared_keys(SETS)


# ---------------------------------------------------------------------- sums

SALES = {"bank": {"id": ["u1", "u2", "u2", "u3"]}, "shop": {"id": ["u2", "u2", "u3", "u9", ""]}}


@pytest.fixture(scope="module")
def keys():
    return Paillier(2048).make_keys(Secret(0))


@pytest.fixture
def one_key(keys, monkeypatch):
    """Keys take half a second to make, so one pair serves all tests."""
    monkeypatch.setattr(Paillier, "make_keys", lambda scheme, secret: keys)


def _with_sales(values):
    return {**SALES, "shop": {**SALES["shop"], "amount": np.array(values)}}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([0.1, 0.2, -1e9, 7.0, 9.0], math.fsum([0.1, 0.2, -1e9])),
        ([1, 2, -(2**62), 5, 6], 3 - 2**62),
        ([1e300, math.nan, 1e-80, 0.0, 0.0], 1e300),
    ],
)
def test_a_sum_is_exact(values, wanted, one_key):
    found = align(Ecdh(), _with_sales(values), result="sum", column="amount", holder="shop")
    assert [found[name]["total"] for name in SALES] == [wanted, wanted]
    assert [found[name]["count"] for name in SALES] == [2, 2]


@pytest.mark.parametrize("learner", list(SALES))
def test_a_sum_goes_to_its_learner_alone_and_is_said_as_declared(monkeypatch, learner, one_key):
    more = {"result": "sum", "column": "amount", "holder": "shop", "learners": (learner,)}
    with recorded(monkeypatch) as said:
        found = align(Ecdh(), _with_sales([1, 2, 3, 4, 5]), **more)
    assert {name: found[name]["total"] for name in SALES} == {name: 6 if name == learner else None for name in SALES}
    plan = AlignmentPlan(columns=("id",), roles=tuple(SALES), **more)
    contract = Ecdh().contract(plan, {"bank": 3, "shop": 3})
    assert contract.compare_recorded(said) == []
    assert {one.who for one in contract.learns if one.kind == "sum"} == ({"bank"} if learner == "bank" else set())


@pytest.mark.parametrize(
    ("values", "more", "says"),
    [
        ([1.0, 2.0, math.inf, 0.0, 0.0], {}, "an infinity in row 2"),
        ([1.0, 2.0, 1e-200, 0.0, 0.0], {}, "below 2.-400 in row 2"),
        ([1e308, 1e308, 1e308, 0.0, 0.0], {}, "beyond float64"),
        (["a", "b", "c", "d", "e"], {}, "holds text"),
        ([1, 2, 3, 4, 5], {"min_count": 3}, "fewer than 3 keys are shared"),
        ([1, 2, 3, 4, 5], {"column": "price"}, "no column 'price'"),
    ],
)
def test_a_sum_that_would_mislead_or_tell_too_much_is_refused(values, more, says, one_key):
    with pytest.raises(AtollError, match=says):
        align(Ecdh(), _with_sales(values), **{"result": "sum", "column": "amount", "holder": "shop", **more})


@pytest.mark.parametrize(
    ("source", "channel", "says"),
    [("shop", "key", "key of 2041 bits"), ("shop", "cells", "invalid ciphertext"), ("bank", "sealed sum", "invalid ciphertext")],
)  # fmt: skip
def test_a_wrong_key_or_ciphertext_is_refused(monkeypatch, source, channel, says, one_key):
    def change(who, at, message):
        if (who, at) == (source, channel):
            message = message.copy()
            message[:, 255 if at == "key" else slice(None)] = 1 if at == "key" else 0
        return message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match=says):
        align(Ecdh(), _with_sales([1, 2, 3, 4, 5]), result="sum", column="amount", holder="shop")


def test_a_holder_that_does_not_learn_the_sum_sees_a_mask(monkeypatch, keys, one_key):
    """Neither the number that it opens is the sum, nor can it find its own cells in the ciphertext: their product has noise that it did not draw."""
    with recorded(monkeypatch) as said:
        align(Ecdh(), _with_sales([1, 2, 3, 4, 5]), result="sum", column="amount", holder="shop", learners=("bank",))
    frames = {channel: message for _, _, channel, message in said}
    n = to_number(keys[0]["n"])
    masked = to_number(frames["masked sum"].tobytes())
    assert masked != 6 << 400
    total = to_number(frames["sealed sum"].tobytes())
    cells = [to_number(row.tobytes()) for row in frames["cells"]]
    pairs = [a * b for i, a in enumerate(cells) for b in cells[:i]]
    assert all(total * pow(pair, -1, n * n) % n != 1 for pair in pairs)
