"""Fuzzy alignment: nearly equal records become pairs, one to one, and the linker sees keyed encodings alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, LetterError, PolicyError
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.secure.psi import BloomEncoding, fuzzy
from atoll.secure.psi.fuzzy import (  # fmt: skip
    compare_encodings,
    encode_records,
    hash_blocks,
    link_parties,
    pair_records,
)
from atoll.testing import killed_and_resumed
from tests.support.alignment import recorded

KEY = b"\5" * 32
BY_NAME = BloomEncoding(columns=["name", "town"])
LEFT = {
    "name": ["Anna Schmidt", "Jörg Müller", "Mary Jones", "Peter Pan", "", "Mary Jones"],
    "town": ["Bonn", "Köln", "Leeds", "Oslo", None, "York"],
}
RIGHT = {
    "name": ["peter  pan", "Ana Schmidt", "Maria Jones", "Jorg Müller", "Eve Else", ""],
    "town": ["OSLO", "Bonn", "Leeds", "Köln", "Rome", ""],
}
WANTED = {(0, 1), (1, 3), (2, 2), (3, 0)}


def grams(text, number):
    edged = f"\x02{text}\x03"
    return {(number, edged[i : i + 2]) for i in range(len(edged) - 1)} if text else set()


def encodings(table, encoding=BY_NAME, key=KEY):
    return encode_records(table, encoding, key)


@given(st.lists(st.tuples(st.text("abä ", max_size=6), st.text("abä", max_size=3)), min_size=1, max_size=5))
def test_similarity_is_that_of_the_sets_of_pairs_of_letters(rows):
    """With many bits collisions are rare: Dice of the filters is nearly Dice of the sets."""
    wide = BloomEncoding(columns=["name", "town"], bits=1 << 16, hashes=20)
    table = {"name": [name for name, _ in rows], "town": [town for _, town in rows]}
    found = compare_encodings(*[encodings(table, wide)] * 2)
    sets = [grams(" ".join(name.split()), 0) | grams(town, 1) for name, town in rows]
    for (i, one), (j, other) in itertools.product(enumerate(sets), repeat=2):
        expected = 2 * len(one & other) / max(1, len(one) + len(other))
        assert abs(found[i, j] - expected) < 0.02


def test_what_does_not_count_does_not_show_and_what_does_shows():
    same = encodings({"name": ["Jörg  Müller ", "jo\u0308rg müller"], "town": ["", None]})
    np.testing.assert_array_equal(same[0], same[1])
    other = encodings({"name": ["Jörg", "Köln"], "town": ["Köln", "Jörg"]})
    assert compare_encodings(other[:1], other[1:])[0, 0] < 0.5  # a field's letters count in this field alone
    assert not encodings({"name": [""], "town": [None]}).any()
    assert compare_encodings(encodings(LEFT), encodings(LEFT, key=b"\6" * 32)).max() < 0.5  # another key, other places


def test_an_encoding_without_the_key_is_uniform_in_its_places():
    counts = np.zeros(1024)
    for number in range(60):
        counts += np.unpackbits(
            encodings({"name": ["abc"], "town": ["d"]}, key=bytes([number]) * 32), bitorder="little"
        )
    assert counts.max() < 20  # no position belongs to a letter: each has about 60 * 90 / 1024
    assert abs(counts.mean() - 5) < 0.5


@pytest.mark.parametrize("tile", [1, 2, 2048])
def test_pairs_are_one_to_one_and_the_most_similar_first(monkeypatch, tile):
    monkeypatch.setattr(fuzzy, "_TILE", tile)
    pairs = pair_records(encodings(LEFT), encodings(RIGHT), 0.6)
    assert {tuple(pair) for pair in pairs.tolist()} == WANTED
    ties = encodings({"name": ["x"] * 3, "town": ["y"] * 3})
    assert pair_records(ties, ties[:2], 0.5).tolist() == [[0, 0], [1, 1]]
    assert pair_records(ties[:0], ties, 0.5).shape == (0, 2)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_greedy_pairs_are_those_of_the_plain_algorithm(left, right, seed):
    rng = np.random.default_rng(seed)
    one, other = (rng.integers(256, size=(n, 2), dtype=np.uint8) for n in (left, right))
    scores = compare_encodings(one, other)
    expected, free = [], scores.copy()
    while free.size and free.max() >= 0.55:
        i, j = (int(k) for k in np.unravel_index(free.argmax(), free.shape))
        expected.append([i, j])
        free[i], free[:, j] = -1, -1
    assert pair_records(one, other, 0.55).tolist() == expected


def test_blocks_leave_out_what_shares_none():
    encoding = BloomEncoding(columns=["name"], blocking=["town", "name:1"])
    blocks = tuple(hash_blocks(table, encoding, KEY) for table in (LEFT, RIGHT))
    compared = {
        (int(i), int(j)) for mine, theirs in fuzzy._blocks_in_common(6, 6, blocks) for i in mine for j in theirs
    }
    towns = [[str(town or "").casefold() for town in table["town"]] for table in (LEFT, RIGHT)]
    letters = [[name[:1].casefold() for name in table["name"]] for table in (LEFT, RIGHT)]
    assert compared == {
        (i, j)
        for i, j in itertools.product(range(6), repeat=2)
        if (towns[0][i] and towns[0][i] == towns[1][j]) or (letters[0][i] and letters[0][i] == letters[1][j])
    }
    pairs = pair_records(encode_records(LEFT, encoding, KEY), encode_records(RIGHT, encoding, KEY), 0.6, blocks)
    assert {tuple(pair) for pair in pairs.tolist()} == WANTED


def program_of(encoding, *, ordered=False):
    """A program that links; ``ordered`` pairs have no secret order."""

    async def program(fed):
        state = await fed.restore(None)
        if state is None:
            state = await link_parties(fed, encoding)
            rows = await fed.ask_all(fed.parties.named(*encoding.parties), linked_rows)
            found = rows.by_name()
            if ordered:
                order = np.argsort(found["guest"])
                found = {party: numbers[order] for party, numbers in found.items()}
            state |= {"rows": found}
            await fed.checkpoint(state)
        return state

    return program


@atoll.task
def linked_rows(island, _):
    return island.state["linked"]["rows"]


SETTINGS = BloomEncoding(columns=["name", "town"], threshold=0.6, blocking=["name:1"])
PEOPLE = {"guest": LEFT, "host": RIGHT, "linker": {"none": [0]}}


def link(encoding=SETTINGS, **more):
    return atoll.simulate(program_of(encoding), dict(PEOPLE), engine="inline", progress=False, **more)


def test_both_parties_have_the_same_pairs_in_one_order():
    found = link()
    assert set(zip(found["rows"]["guest"].tolist(), found["rows"]["host"].tolist(), strict=True)) == WANTED
    assert found["count"] == 4


def test_the_order_of_pairs_and_records_is_new_each_time(monkeypatch):
    orders, sent = set(), set()
    for _ in range(4):
        with recorded(monkeypatch) as said:
            orders.add(tuple(link()["rows"]["guest"].tolist()))
        sent |= {message[:, -8:].tobytes() for source, _, channel, message in said if (source, channel) == ("guest", "records")}  # fmt: skip
    assert len(orders) > 1
    assert len(sent) == 4


def test_what_is_said_is_what_the_contract_says(monkeypatch):
    with recorded(monkeypatch) as said:
        link()
    assert fuzzy.link_contract(SETTINGS, {"guest": 6, "host": 6}).compare_recorded(said) == []
    assert not [1 for source, target, channel, _ in said if channel == "key" and "linker" in (source, target)]


@pytest.mark.parametrize(
    ("who", "channel", "spoil", "says"),
    [
        ("host", "key", lambda message: message[:31], r"host sent uint8 \(31,\) in place of uint8 \(32,\)"),
        ("host", "sizes", lambda message: message + 1, r"host sent uint8 \(6, 136\) in place of uint8 \(7, 136\)"),
        ("host", "sizes", lambda message: -message, r"in place of uint8 \(0, 136\)"),
        ("guest", "records", lambda message: message[:, 1:], r"guest sent uint8 \(6, 135\)"),
        ("linker", "pairs", lambda message: message[:3], r"linker sent int64 \(3,\)"),
        ("linker", "pairs", np.zeros_like, "linker sent numbers of pairs that are not"),
    ],
)
def test_a_role_that_does_not_follow_the_protocol_is_named(monkeypatch, who, channel, spoil, says):
    def change(source, at, message):
        return spoil(message) if (source, at) == (who, channel) else message

    with recorded(monkeypatch, change), pytest.raises((LetterError, AtollError), match=says):
        link()


def test_a_site_refuses_a_linker_that_sees_how_alike_records_are():
    with pytest.raises(PolicyError, match="tells linker how many records host has"):
        link(policy={"host": SitePolicy(learned=("ids", "sizes"))})
    assert link(policy={"host": SitePolicy(learned=("ids", "similarity", "sizes", "count"))})["count"] == 4
    with pytest.raises(PolicyError, match="tells the program how many records have a partner"):
        link(policy={"host": SitePolicy(learned=("ids", "similarity", "sizes"))})


@pytest.mark.parametrize("who", ["guest", "host"])
def test_no_party_is_told_its_pairs_below_the_least_overlap_of_either(monkeypatch, who):
    assert link(policy={who: SitePolicy(min_aligned=4)})["count"] == 4
    with recorded(monkeypatch) as said, pytest.raises(AtollError, match="fewer than 5 records have a partner"):
        link(policy={who: SitePolicy(min_aligned=5)})
    assert "pairs" not in {channel for *_, channel, _ in said}


def test_a_linker_that_does_not_refuse_is_refused(monkeypatch):
    def change(source, at, message):
        return message * np.array([1, 0]) if at == "sizes" else message

    with recorded(monkeypatch, change), pytest.raises(AtollError, match="fewer than 5 records have a partner"):
        link(policy={"host": SitePolicy(min_aligned=5)})


def test_a_killed_linkage_goes_on_to_the_same_pairs(tmp_path):
    def make_world(folder, resume):
        return World(Community(dict(PEOPLE)), ENGINES["inline"](1), folder=folder, resume=resume)

    life = killed_and_resumed(make_world, program_of(SETTINGS, ordered=True), tmp_path, points=4, exact_spending=False)
    assert life.result["rows"]["guest"].tolist() == [0, 1, 2, 3]
    assert life.result["rows"]["host"].tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize(
    "wrong",
    [{"columns": []}, {"threshold": 0.0}, {"threshold": 1.5}, {"bits": 1000}, {"hashes": 33}, {"linker": "host"}, {"parties": ["a", "a"]}],
)  # fmt: skip
def test_settings_without_a_meaning_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong)) if "linker" not in wrong else "linker"):
        BloomEncoding(**{"columns": ["name"], **wrong})


def test_unknown_columns_and_blocks_are_named():
    with pytest.raises(DataError, match=r"no column 'nam'\. Did you mean 'name'"):
        encode_records(LEFT, BloomEncoding(columns=["nam"]), KEY)
    with pytest.raises(DataError, match="no column 'twn'"):
        hash_blocks(LEFT, BloomEncoding(columns=["name"], blocking=["twn:2"]), KEY)
    with pytest.raises(ConfigError, match="name:x"):
        hash_blocks(LEFT, BloomEncoding(columns=["name"], blocking=["name:x"]), KEY)
