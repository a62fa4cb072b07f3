"""`Oprf`: the plain intersection, what each role sees, and peers that do not follow the protocol."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.errors import AtollError, DataError, PolicyError
from atoll.core.execution.session import LocalPeers
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.secure.psi import AlignmentPlan, Ecdh, Oprf, oprf
from atoll.secure.psi.protocol import intersect_keys
from atoll.testing import killed_and_resumed
from atoll.testing.crash import Killed
from tests.support.alignment import align, die_and_resume, program_of, recorded, send_seeds_openly, shared_keys, tables
from tests.support.worlds import WORLDS

SETS = tables({"bank": ["u1", "u2", "u2", "u3"], "shop": ["u2", "u2", "u3", "u9", None]})
"""Three keys at both, so the bank, named first, is the receiver."""
KEYS = st.lists(st.integers(0, 12).map(str), max_size=12)


@settings(max_examples=8)
@given(KEYS, KEYS, st.integers(0, 3), st.sampled_from([("bank", "shop"), ("bank",), ("shop",)]))
def test_it_is_the_plain_intersection_in_one_order(left, right, seed, learners):
    data = tables({"bank": left, "shop": right})
    found = align(Oprf(), data, seed=seed, learners=learners)
    wanted = shared_keys(data, seed)
    for name in data:
        assert found[name]["names"] == (wanted if name in learners else None)
        assert found[name]["count"] == (len(wanted) if name in learners else None)


@pytest.mark.parametrize(("left", "right"), [(1, 300), (300, 1), (70, 70)])
@pytest.mark.parametrize("block", [64, 1 << 15])
def test_sets_of_any_sizes_agree_with_ecdh(monkeypatch, left, right, block):
    monkeypatch.setattr(oprf, "_BLOCK", block)
    data = tables({"bank": range(left), "shop": range(0, 3 * right, 3)})
    found = align(Oprf(), data)
    assert found == align(Ecdh(), data)
    assert found["bank"]["names"] == found["shop"]["names"] == shared_keys(data)


@pytest.mark.every(4)  # each value of both axes once
@pytest.mark.parametrize("learners", [("bank", "shop"), ("bank",), ("shop",)])
@pytest.mark.parametrize(("left", "right"), [(5, 4), (4, 5), (0, 3)])
def test_what_is_said_is_what_the_contract_says(monkeypatch, learners, left, right):
    sizes = []
    for shared in (0, min(left, right)):  # equal sizes, other overlaps: the same frames
        data = tables({"bank": range(left), "shop": range(left - shared, left - shared + right)})
        plan = AlignmentPlan(columns=("id",), roles=("bank", "shop"), learners=learners)
        with recorded(monkeypatch) as said:
            align(Oprf(), data, learners=learners)
        assert Oprf().contract(plan, {"bank": left, "shop": right}).compare_recorded(said) == []
        sizes.append([(source, channel, message.shape, message.dtype) for source, _, channel, message in said])
    assert sizes[0] == sizes[1]


def test_the_contract_grows_with_the_sets_alone():
    plan = AlignmentPlan(columns=("id",), roles=("bank", "shop"))
    sizes = {"bank": 10**6, "shop": 10**6}
    frames = {frame.name: frame for frame in Oprf().contract(plan, sizes).frames if frame.rows > 10**5}
    assert {name: frame.nbytes for name, frame in frames.items()} == {
        "corrections": 64 * 1_305_000, "masks": 30 * 10**6, "shared": 125_000
    }  # fmt: skip
    assert (frames["masks"].source, frames["masks"].target) == ("shop", "bank")
    other = Oprf().contract(plan, {"bank": 10**6, "shop": 1000}).frames
    assert [(frame.source, frame.target) for frame in other if frame.name == "masks"] == [("bank", "shop")]


@pytest.fixture
def open_seeds(monkeypatch):
    send_seeds_openly(monkeypatch)


def _bytes_of(monkeypatch, data, channel, learners=("bank", "shop"), runs=6):
    seen = []
    for secrets in range(runs):
        with recorded(monkeypatch) as said:
            align(Oprf(), data, secrets=secrets, learners=learners)
        seen += [message for *_, name, message in said if name == channel]
    return seen


def test_views_of_equal_outcomes_are_equally_distributed(monkeypatch, open_seeds):
    """Corrections, and masks of keys that are not shared, are uniform bytes whatever the sets are (chi-square, .999)."""
    for first in (0, 100):
        data = tables({"bank": range(first, first + 40), "shop": range(500, 540)})
        for channel, ordered in (("corrections", 0), ("masks", 2)):  # rows of masks are sorted by their first bytes
            rows = np.concatenate(_bytes_of(monkeypatch, data, channel))[:, ordered:]
            assert stats.chisquare(np.bincount(rows.ravel(), minlength=256)).pvalue > 1e-3


@pytest.mark.slow  # quicker: the order of masks follows from their bytes alone (test_oprf_parts), and those are uniform (above)
def test_the_place_of_a_shared_key_among_masks_is_uniform(monkeypatch, open_seeds):
    """Now the first key in the order of u is shared and now the last: where its masks stand does not tell (chi-square of two samples, .999)."""
    keys = [str(i) for i in range(8)]
    places = []
    for one in (keys[0], keys[-1]):
        data = tables({"bank": [one], "shop": keys})
        counts = np.zeros(8)
        for message in _bytes_of(monkeypatch, data, "shared", runs=60):
            counts[int(np.flatnonzero(np.unpackbits(message.ravel(), bitorder="little"))[0])] += 1
        places.append(counts)
    both = places[0] + places[1]
    assert ((places[0] - places[1]) ** 2 / both).sum() < 24.3  # seven degrees of freedom
    assert stats.chisquare(both).pvalue > 1e-3


def _longer(message):
    return np.concatenate([message, message])


@pytest.mark.parametrize(
    ("who", "channel", "spoil", "says"),
    [
        ("shop", "salt", _longer, r"\(2, 16\) in 'salt' from shop"),
        ("bank", "points", np.zeros_like, "party 'bank' sent .*neutral"),
        ("shop", "points", lambda message: message + 1, "party 'shop' sent .* no point"),
        ("shop", "points", _longer, r"party 'shop' sent uint8\(32768,\)"),
        ("bank", "corrections", _longer, r"in 'corrections' from bank, in place of uint8 \(3, 64\)"),
        ("bank", "corrections", lambda message: message.astype(np.int16), "int16"),
        ("shop", "masks", lambda message: message[:2], r"\(2, 24\) in 'masks' from shop"),
        ("bank", "shared", lambda message: message | 0xF0, "bank sent 6 shared keys, more than there are"),
        ("bank", "shared", lambda message: message | 0x80, "bank sent 3 shared keys, more than there are"),
        ("bank", "shared", _longer, r"\(2, 1\) in 'shared'"),
    ],
)
def test_a_peer_that_does_not_follow_the_protocol_is_refused(monkeypatch, who, channel, spoil, says):
    def change(source, at, message):
        return spoil(message) if (source, at) == (who, channel) else message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match=says):
        align(Oprf(), SETS)


def test_an_answer_with_more_keys_than_the_receiver_has_is_refused(monkeypatch):
    def change(source, at, message):
        return message | 0b11 if (source, at) == ("bank", "shared") else message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match="bank sent 2 shared keys"):
        align(Oprf(), tables({"bank": ["a"], "shop": range(8)}))


def test_masks_that_name_a_key_twice_are_refused(monkeypatch):
    """A sender that puts one key's mask in two tables of one row would have two keys found for one."""
    places = oprf.find_masks

    def same_row(mine, theirs):
        found = places(mine, theirs)
        found[found >= 0] = 0
        return found

    monkeypatch.setattr(oprf, "find_masks", same_row)
    with pytest.raises(AtollError, match="shop sent masks that name a key twice"):
        align(Oprf(), SETS)


def test_a_site_does_not_tell_below_its_least_overlap(monkeypatch):
    assert align(Oprf(), SETS, policy={"bank": SitePolicy(min_aligned=2)})["shop"]["count"] == 2
    with recorded(monkeypatch) as said, pytest.raises(AtollError, match="fewer than 3 keys are shared"):
        align(Oprf(), SETS, policy={"bank": SitePolicy(min_aligned=3)})
    assert "shared" not in {channel for *_, channel, _ in said}
    with recorded(monkeypatch) as said, pytest.raises(PolicyError, match=r"Oprf tells bank .* before shop knows"):
        align(Oprf(), SETS, policy={"shop": SitePolicy(min_aligned=2)})
    assert "masks" not in {channel for *_, channel, _ in said}
    with pytest.raises(PolicyError, match="tells bank which of its own keys shop has too"):
        align(Oprf(), SETS, policy={"shop": SitePolicy(learned=("sizes",))})


def test_a_count_and_a_sum_are_found_as_by_ecdh(monkeypatch):
    """They tell nobody which keys match, which the receiver of masks would know."""
    plan = AlignmentPlan(columns=("id",), roles=("bank", "shop"), result="count")
    assert {one.kind for one in Oprf().contract(plan, {"bank": 3, "shop": 3}).learns} == {"sizes", "count"}
    with recorded(monkeypatch) as said:
        assert align(Oprf(), SETS, result="count")["bank"]["count"] == 2
    assert "masks" not in {channel for *_, channel, _ in said}
    data = {**SETS, "shop": {**SETS["shop"], "amount": [1, 2, 4, 8, 16]}}
    assert align(Oprf(), data, result="sum", column="amount", holder="shop")["bank"]["total"] == 7


def _twice(data, change=lambda: None):
    """A program that aligns two times in one job; ``change`` is called between them."""
    program = program_of(Oprf(), list(data))

    async def twice(fed):
        first = await program(fed)
        change()
        roles = {name: (name, intersect_keys.with_args(me=name, **program.args)) for name in data}
        return first, await fed.session(roles, at="again")

    return atoll.simulate(twice, data, engine="inline", progress=False)


@pytest.mark.parametrize("changed", [None, "bank", "shop"])
def test_a_second_alignment_of_a_job_is_of_the_same_sets(monkeypatch, changed):
    data = {name: {"id": list(table["id"])} for name, table in SETS.items()}
    with recorded(monkeypatch) as said:
        if changed is None:
            first, second = _twice(data, lambda: data["bank"]["id"].reverse())
            assert first == second
        else:
            with pytest.raises(AtollError, match="not those that it began to align in this job"):
                _twice(data, lambda: data[changed]["id"].__setitem__(data[changed]["id"].index("u3"), "u7"))
    assert [channel for *_, channel, _ in said].count("points") == 2  # once


@pytest.mark.parametrize(("who", "channel"), [("bank", "corrections"), ("shop", "masks")])
def test_another_set_of_the_other_is_refused(monkeypatch, who, channel):
    """A party that changes its set and does not refuse: its bytes differ, and the other notices."""
    seen = []

    def change(source, at, message):
        if (source, at) == (who, channel):
            seen.append(message)
            return message if len(seen) == 1 else message[::-1].copy()
        return message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match=f"{who} comes with another set"):
        _twice(dict(SETS))


@pytest.mark.parametrize(("who", "says", "answer"), [("bank", "corrections", ("shop", "masks")), ("shop", "masks", ("bank", "shared"))])  # fmt: skip
def test_a_party_that_dies_with_the_answer_cannot_try_another_set(monkeypatch, tmp_path, who, says, answer):
    """It is bound before it is answered, and stays so after a crash."""

    def change(source, at, message):
        return message[::-1].copy() if (source, at) == (who, says) else message

    send, died = LocalPeers.send, []

    async def die_after(self, role, message, channel=""):
        await send(self, role, message, channel)
        if (self.me, channel) == answer and not died:
            died.append(True)
            raise Killed(f"after {channel}")

    monkeypatch.setattr(LocalPeers, "send", die_after)
    with pytest.raises(AtollError, match=f"{who} comes with another set"):
        die_and_resume(monkeypatch, tmp_path, program_of(Oprf(), list(SETS)), SETS, ("nobody", ""), change)


@pytest.mark.parametrize(("engine", "points"), [("inline", 5), ("socket", 1)])
def test_a_killed_alignment_goes_on_to_the_same_result(tmp_path, engine, points):
    def make_world(folder, resume):
        return World(Community(dict(SETS)), WORLDS[engine](2), folder=folder, resume=resume)

    program = program_of(Oprf(), ["bank", "shop"])
    life = killed_and_resumed(make_world, program, tmp_path, points=points, exact_spending=False)
    assert life.result["bank"]["names"] == life.result["shop"]["names"] == shared_keys(SETS)


@pytest.mark.parametrize("who", ["bank", "shop"])
def test_a_party_whose_keys_have_changed_does_not_go_on(monkeypatch, who):
    """As after a crash: at the checkpoint the party has other keys than before it."""
    keep = oprf.AlignmentSide.keep

    async def keep_other(self, **state):
        await keep(self, **state | ({"keys": bytes(32)} if self.me == who else {}))

    monkeypatch.setattr(oprf.AlignmentSide, "keep", keep_other)
    with pytest.raises(DataError, match="not those that it began to align in this job"):
        align(Oprf(), SETS)


def test_a_set_without_a_placement_draws_another_salt(monkeypatch):
    place, tried = oprf.place_items, []

    def second_time(candidates, bins):
        tried.append(bins)
        return place(candidates, bins) if len(tried) > 1 else None

    monkeypatch.setattr(oprf, "place_items", second_time)
    assert align(Oprf(), SETS)["bank"]["count"] == 2
    assert len(tried) == 2
