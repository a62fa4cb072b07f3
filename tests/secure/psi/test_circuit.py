"""`Circuit`: counts, sums and shares of an intersection that nobody learns, what is said, and peers that do not follow the protocol."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, LetterError, PolicyError
from atoll.core.requests.policy import SitePolicy
from atoll.secure.oblivious import base, extension
from atoll.secure.psi import Alignment, AlignmentPlan, Circuit, Ecdh, align_parties, circuit, read_shares
from atoll.secure.psi.protocol import intersect_keys
from atoll.secure.shares import AdditiveComputation, AdditiveSharing, ObliviousDealer, WordRing, dot, opened
from tests.support.alignment import align, die_and_resume, program_of, recorded, send_seeds_openly, tables

ROLES = ("bank", "shop")


def valued(left, right):
    """Tables with a column each: whole numbers at the bank, quarters at the shop."""
    data = tables({"bank": left, "shop": right})
    data["bank"]["income"] = np.arange(len(left)) - 3
    data["shop"]["spend"] = np.arange(len(right)) / 4 - 1
    return data


def shares_of(data, payload=("bank.income", "shop.spend"), *, plan=None, **settings):
    """Both parties' shares, as they lie in their states; rows in the order of slots."""
    made = AlignmentPlan(columns=("id",), roles=tuple(data), result="shares", payload=payload, **(plan or {}))
    return left_of(Circuit(), made, data, **settings)


def left_of(protocol, plan, data, **settings):
    args = {"protocol": protocol.spec(), "plan": plan.spec()}

    async def program(fed):
        await fed.session({name: (name, intersect_keys.with_args(me=name, **args)) for name in data})
        return {name: await fed.ask(name, look) for name in data}

    return atoll.simulate(program, dict(data), engine="inline", progress=False, **settings)


@atoll.task
def look(island, message):
    return {name: island.state["aligned"][name] for name in ("shared", "values", "columns", "rows", "names", "count")}


def joined(found):
    shared, values = (sum(np.asarray(one[name]) for one in found.values()) for name in ("shared", "values"))
    return shared, values.view(np.int64) / 2**20


@pytest.fixture(autouse=True)
def open_seeds(monkeypatch):
    send_seeds_openly(monkeypatch)


KEYS = st.lists(st.integers(0, 12).map(str), max_size=12)


@settings(max_examples=6, deadline=None)
@given(KEYS, KEYS, st.sampled_from([("bank", "shop"), ("bank",), ("shop",)]), st.integers(0, 3))
def test_count_and_sum_are_the_plain_ones(left, right, learners, seed):
    """A key counts with all its rows, as by the other protocols; whoever does not learn the result learns nothing."""
    data = valued(left, right)
    counted = align(Circuit(), data, learners=learners, seed=seed, result="count")
    summed = align(Circuit(), data, learners=learners, seed=seed, result="sum", column="spend", holder="shop")
    total = sum(value for key, value in zip(right, data["shop"]["spend"], strict=True) if key in left)
    for name in data:
        assert counted[name] == {"size": len(set(data[name]["id"])), "count": len({*left} & {*right}) if name in learners else None, "total": None, "names": None}  # fmt: skip
        assert summed[name] == {**counted[name], "count": None, "total": total if name in learners else None}


@pytest.mark.parametrize(
    ("left", "right"), [(range(9), range(5, 20)), (range(30), range(20, 25)), (range(3), range(7, 9))]
)
def test_shares_join_to_the_rows_of_shared_keys_and_zeros(monkeypatch, left, right):
    monkeypatch.setattr(circuit, "_BLOCK", 64)
    data = valued(left, right)
    found = shares_of(data)
    shared, values = joined(found)
    common = sorted(set(left) & set(right))
    wanted = sorted(
        (data["bank"]["income"][list(left).index(i)], data["shop"]["spend"][list(right).index(i)]) for i in common
    )
    assert sorted(shared.tolist()) == [0] * (len(shared) - len(common)) + [1] * len(common)
    assert sorted(map(tuple, values[shared == 1].tolist())) == wanted
    assert not values[shared == 0].any()
    assert all(one["columns"] == ["bank.income", "shop.spend"] and not len(one["names"]) and one["count"] is None for one in found.values())  # fmt: skip


def test_what_is_said_is_what_the_contract_says_and_follows_from_sizes_alone(monkeypatch):
    payload = tuple(f"shop.{name}" for name in ["spend", *"abcdefgh"])
    plans = [
        {"result": "count", "learners": ("shop",)}, {"result": "shares", "payload": payload, "min_count": 2},
        {"result": "sum", "column": "spend", "holder": "shop", "learners": ("bank",)},
    ]  # fmt: skip
    for settings_ in plans:
        said = []
        for start in (2, 3):
            data = valued(range(5), range(start, start + 70))
            data["shop"] |= dict.fromkeys("abcdefgh", data["shop"]["spend"])
            plan = AlignmentPlan(columns=("id",), roles=ROLES, **settings_)
            with recorded(monkeypatch) as heard, monkeypatch.context() as patch:
                patch.setattr(extension, "send_seeds", base.send_seeds)
                patch.setattr(extension, "receive_seeds", base.receive_seeds)
                align(Circuit(), data, **settings_)
            assert Circuit().contract(plan, {"bank": 5, "shop": 70}).compare_recorded(heard) == []
            said.append(sorted((*one[:3], one[3].shape, str(one[3].dtype)) for one in heard))
        assert said[0] == said[1]


def test_an_empty_set_says_sizes_alone(monkeypatch):
    with recorded(monkeypatch) as said:
        assert align(Circuit(), valued([], range(9)), result="count")["shop"]["count"] == 0
        assert joined(shares_of(valued([], range(9))))[0].sum() == 0
    assert {channel for _, _, channel, _ in said} == {"sizes"}


def test_shares_and_frames_are_uniform_whoever_is_shared(monkeypatch):
    """Chi-square over all bytes of frames, and of each party's shares, where all and where none of the keys are shared."""
    for start in (0, 200):
        with recorded(monkeypatch) as said:
            found = shares_of(valued(range(200), range(start, start + 200)), secret_seed=1)
        views = [
            message.view(np.uint8).ravel() for _, _, channel, message in said if channel not in ("sizes", "points")
        ]
        views = [view for view in views if len(view) > 4000]
        parts = [
            np.ascontiguousarray(one[name]).view(np.uint8).ravel()
            for one in found.values()
            for name in ("shared", "values")
        ]
        for raw in (np.concatenate(views), *parts):
            assert stats.chisquare(np.bincount(raw, minlength=256)).pvalue > 1e-4


@atoll.task
async def fit(island, peers, me):
    """Least squares on shares of rows that nobody knows: only the normal equations are opened."""
    first = me == ROLES[0]
    dealer = await ObliviousDealer.begin(island.secret, peers, ROLES[first], first=first)
    it = AdditiveComputation(island, peers, ROLES, me, AdditiveSharing(WordRing(64), 2), dealer)
    shared, values = read_shares(island, it)
    return await opened(await dot(values.T, values)), await opened(shared.sum().reshape(1))


def test_training_on_shares_of_an_intersection_is_training_on_the_intersection():
    rng = np.random.default_rng(0)
    data = tables({"bank": range(40), "shop": range(15, 70)})
    data["bank"] |= {"x": np.rint(64 * rng.normal(size=40)) / 64, "one": np.ones(40)}
    z = np.rint(64 * rng.normal(size=55)) / 64
    data["shop"] |= {"z": z, "y": 3 * z - 1 + np.rint(64 * rng.normal(size=55)) / 64}
    job = Alignment(protocol=Circuit(), result="shares:bank.one, bank.x, shop.z, shop.y", min_count=20)

    async def program(fed):
        await align_parties(fed, ROLES, job.protocol, job.plan(ROLES))
        return await fed.session({me: (me, fit.with_args(me=me)) for me in ROLES})

    both = atoll.simulate(program, data, progress=False)
    gram, count = both["bank"]
    gram = gram / 2.0**40
    rows = np.stack([np.ones(25), data["bank"]["x"][15:], z[:25], data["shop"]["y"][:25]], axis=1)
    np.testing.assert_array_equal(gram, rows.T @ rows)
    assert count.tolist() == [25]


def test_fewer_than_min_count_stop_before_anything_is_opened(monkeypatch):
    data = valued(range(9), range(6, 20))  # three are shared
    for more in ({"result": "sum", "column": "spend", "holder": "shop"}, {"result": "shares"}):
        align(Circuit(), data, min_count=3, **more)
        with recorded(monkeypatch) as said, pytest.raises(AtollError, match="fewer than 4 keys are shared"):
            align(Circuit(), data, min_count=4, **more)
        assert "opened" not in {channel for _, _, channel, _ in said}


def test_a_site_that_requires_shared_keys_makes_the_job_check_them():
    data, careful = valued(range(9), range(6, 20)), {"shop": SitePolicy(min_aligned=3)}
    with pytest.raises(AtollError, match="give the job min_count=3"):
        align(Circuit(), data, policy=careful, result="shares")
    align(Circuit(), data, policy=careful, result="shares", min_count=3)
    assert align(Circuit(), data, policy=careful, result="count")["shop"]["count"] == 3
    with pytest.raises(AtollError, match="fewer than 4 keys"):
        align(Circuit(), data, policy=SitePolicy(min_aligned=4), result="count")


def test_what_the_program_is_told_is_what_a_party_learned():
    for result, wanted in (
        ("count", {"sizes", "count"}),
        ("sum:shop.spend", {"sizes", "sum"}),
        ("shares:shop.spend", {"sizes"}),
    ):
        job = Alignment(protocol=Circuit(), result=result, min_count=1 if result == "count" else 3, show=True)
        assert {one.kind for one in job.explain(clients=2).exposures if one.who == "the program"} == wanted


def test_a_sum_of_values_that_are_rounded_says_so_and_takes_more_bits():
    data = {"bank": {"id": [1, 2, 3]}, "shop": {"id": [1, 2, 4], "spend": [0.1, 0.7, 5.0]}}
    for bits in (20, 40, 4):
        run = atoll.simulate(Alignment(protocol=Circuit(), result="sum:shop.spend", fraction=bits, show=True), data, engine="inline", progress=False)  # fmt: skip
        assert run.outcome.sum == (round(0.1 * 2**bits) + round(0.7 * 2**bits)) / 2**bits
        assert f"multiples of 2^-{bits}" in " ".join(run.notices)
    exact = Alignment(result="sum:shop.spend")
    assert not exact.notices()
    with pytest.raises(ConfigError, match="fraction=41"):
        Alignment(protocol=Circuit(), result="sum:shop.spend", fraction=41)
    with pytest.raises(ConfigError, match="min_count=2 with result='count'"):
        Alignment(result="count", min_count=2)


def test_a_policy_that_lets_sizes_alone_be_learned_lets_shares_be_made():
    data, careful = valued(range(9), range(6, 20)), SitePolicy(learned=["sizes"])
    atoll.simulate(Alignment(protocol=Circuit(), result="shares"), data, policy=careful, progress=False)
    for result in ("count", "sum:shop.spend"):
        with pytest.raises(AtollError, match="tells"):
            atoll.simulate(Alignment(protocol=Circuit(), result=result), data, policy=careful, progress=False)


@pytest.mark.parametrize(
    ("source", "channel", "change", "says"),
    [
        ("shop", "table", lambda m: m[:-1], "in 'table' from shop"),
        ("shop", "table", lambda m: m.astype(np.int64), "in 'table' from shop"),
        ("shop", "places", lambda m: np.tile(m, (2, 1)), "in 'places' from shop"),
        ("bank", "corrections", lambda m: m[:-1], "in 'corrections' from bank"),
        ("shop", "opened", lambda m: "3", "in 'opened' from shop"),
        ("shop", "triples of the first", lambda m: m[:-1], "party 'shop' sent"),
        ("bank", "", lambda m: [part[:, :-1] for part in m], "shares of shape"),
    ],
)
def test_frames_without_form_are_refused(monkeypatch, source, channel, change, says):
    def changed(who, name, message):
        return change(message) if (who, name) == (source, channel) else message

    with recorded(monkeypatch, changed), pytest.raises(LetterError, match=says):
        align(Circuit(), valued(range(9), range(6, 20)), result="count")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spend": [np.nan] * 3}, "has no value in row 0"),
        ({"spend": [1, np.inf, 2]}, "has an infinity in row 1"),
        ({"spend": [2.0**41, 2.0**41, 0]}, r"adds up to more than 2\^42"),
        ({"spend": ["a", "b", "c"]}, "holds text"),
        ({"sped": [1, 2, 3]}, "no column 'spend'"),
    ],
)
def test_values_that_have_no_shares_are_refused(change, says):
    data = {"bank": {"id": [1, 2], "income": [1, 2]}, "shop": {"id": [2, 3, 4], **change}}
    with pytest.raises(DataError, match=says):
        shares_of(data)


def test_settings_that_make_no_sense_are_refused():
    plan = {"columns": ("id",), "roles": ROLES}
    for more, says in (
        ({"result": "shares", "payload": ("mill.x",)}, "PARTY.COLUMN"),
        ({"result": "count", "payload": ("bank.x",)}, "PARTY.COLUMN"),
        ({"result": "shares", "learners": ("bank",)}, "shares for"),
        ({"result": "shares", "fraction": 41}, "fraction=41"),
    ):
        with pytest.raises(ConfigError, match=says):
            AlignmentPlan(**plan, **more)
    with pytest.raises(AtollError, match="Circuit gives no ids"):
        Circuit().require_plan(AlignmentPlan(**plan))
    with pytest.raises(AtollError, match=r"Ecdh gives no shares.*protocol=Circuit"):
        Ecdh().require_plan(AlignmentPlan(**plan, result="shares"))


@atoll.task
def read(island, message):
    read_shares(island, None)


def test_shares_are_read_where_an_alignment_left_them():
    async def program(fed):
        await align_parties(fed, ROLES, Ecdh(), AlignmentPlan(columns=("id",), roles=ROLES))
        await fed.ask("bank", read)

    with pytest.raises(AtollError, match="no shares under 'aligned'"):
        atoll.simulate(program, valued([1], [2]), progress=False)


@pytest.mark.parametrize("at", [("bank", "corrections"), ("shop", "table"), ("shop", "triples of the first")])
def test_after_a_crash_both_say_what_they_said(monkeypatch, tmp_path, at):
    """The table before and after are the same bytes: two under one function would tell the sender's keys."""
    data = valued(range(9), range(6, 20))
    program = program_of(Circuit(), list(data), result="count")
    first, second, found = die_and_resume(monkeypatch, tmp_path, program, data, at)
    assert found["bank"]["count"] == 3
    for channel in ("corrections", "table"):
        before, after = (
            [message.tobytes() for _, _, name, message in said if name == channel] for said in (first, second)
        )
        assert set(before) <= set(after) or not after
        assert len(set(before) | set(after)) == len(before) or len(set(after)) == 1


@atoll.task
def change(island, message):
    island.data.update(message)


def test_within_a_job_a_party_has_one_set_and_one_table(monkeypatch):
    data = valued(range(9), range(6, 20))
    again = {
        "bank": {**data["bank"], "id": list(range(1, 10))},
        "shop": {**data["shop"], "spend": data["shop"]["spend"] + 1},
    }
    plan = AlignmentPlan(columns=("id",), roles=ROLES, result="shares", payload=("bank.income", "shop.spend"))
    args = {"protocol": Circuit().spec(), "plan": plan.spec()}

    def program(changed):
        async def twice(fed):
            for turn in range(2):
                if turn and changed:
                    await fed.ask(changed, change, again[changed])
                await fed.session({name: (name, intersect_keys.with_args(me=name, **args)) for name in ROLES})

        return twice

    with recorded(monkeypatch) as said:
        atoll.simulate(
            program(None), {name: dict(table) for name, table in data.items()}, engine="inline", progress=False
        )
    tables_said = [message.tobytes() for _, _, channel, message in said if channel == "table"]
    assert len(tables_said) == 2
    assert len(set(tables_said)) == 1
    for changed, says in (("bank", "not those that it began"), ("shop", "values are not those")):
        with pytest.raises(AtollError, match=says):
            atoll.simulate(
                program(changed), {name: dict(table) for name, table in data.items()}, engine="inline", progress=False
            )


def test_a_policy_error_names_who_comes_with_another_table(monkeypatch):
    """A sender that makes a second table in the job, for other keys, is bound to the first."""
    data, seen = valued(range(9), range(6, 20)), []

    def changed(who, name, message):
        if name != "table":
            return message
        seen.append(message)
        return message if len(seen) == 1 else message ^ np.uint8(1)

    plan = AlignmentPlan(columns=("id",), roles=ROLES, result="count")
    args = {"protocol": Circuit().spec(), "plan": plan.spec()}

    async def twice(fed):
        for _ in range(2):
            await fed.session({name: (name, intersect_keys.with_args(me=name, **args)) for name in ROLES})

    with recorded(monkeypatch, changed), pytest.raises(PolicyError, match="shop comes with another set"):
        atoll.simulate(twice, data, engine="inline", progress=False)
