"""Streams are keyed by a path: never by the order of calls, and never silently changed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.rng import Rng, hash64, hash_names, keyed, mix64, mix_key, mix_keys, shuffles
from atoll.core.errors import ConfigError

paths = st.lists(st.one_of(st.text(max_size=8), st.integers(-(10**6), 10**6)), min_size=1, max_size=4)


def test_golden_keys():
    """Origin: this code at version 0.1.0. A change here changes every run that anybody published: streams must never move silently."""
    root = Rng.of(0)
    assert root.key == hash64("atoll", 0) == 0x3DB27417E20A877C
    assert root.child("round", 3, "client-17").key == 0xAB5F16B53D357ECA
    assert hash64("client-0") == 0xF3EF9058F8D8E674
    assert [int(k) for k in mix_keys(1, np.array([2, 3], dtype=np.uint64))] == [0xBCD9DBB49673066B, 0x86D6FD953217AE03]
    assert shuffles(np.array([42], dtype=np.uint64), 2, 6).tolist() == [[[2, 4, 3, 0, 1, 5], [4, 0, 5, 3, 1, 2]]]
    raw = root.child("noise").generator().bit_generator.random_raw(2)
    assert [int(v) for v in raw] == [0xB325F7A9F7718050, 0xAB4B9FB11AAC75C7]


@given(paths, paths)
def test_a_path_may_be_walked_in_steps(a, b):
    root = Rng.of(3)
    assert root.child(*a).child(*b) == root.child(*a, *b)


@given(paths, paths)
def test_different_paths_are_different_streams(a, b):
    if a != b:
        assert Rng.of(3).child(*a) != Rng.of(3).child(*b)
    assert Rng.of(3).child(*a) != Rng.of(4).child(*a)


@given(st.lists(paths, min_size=2, max_size=5))
def test_streams_do_not_depend_on_the_order_of_calls(asked):
    def draw(path):
        return float(Rng.of(1).child(*path).generator().random())

    forward = {tuple(map(repr, path)): draw(path) for path in asked}
    backward = {tuple(map(repr, path)): draw(path) for path in reversed(asked)}
    assert forward == backward


def test_words_and_numbers_do_not_collide():
    assert hash64(5) != hash64("5")
    assert hash64("#5") != hash64(5)
    assert hash64("##5") != hash64("#5")
    assert hash64("ab", "c") != hash64("a", "bc")
    assert hash64("a") != hash64("a", "")


@given(st.lists(st.text(max_size=6), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_keys_of_a_cohort_are_those_of_its_members(names, base):
    keys = np.array([hash64(name) for name in names], dtype=np.uint64)
    many = Rng(base).children(keys)
    assert [int(k) for k in many] == [Rng(base).child(name).key for name in names]


def test_mixing_is_a_bijection_that_scatters():
    """No collision among a million consecutive numbers, and every output bit is set about half the time."""
    mixed = mix64(np.arange(1_000_000, dtype=np.uint64))
    assert len(np.unique(mixed)) == 1_000_000
    ones = np.unpackbits(mixed.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / 1000


def test_splitmix64_as_published():
    """The first outputs of SplitMix64 seeded with 0 (Steele, Lea and Flood 2014; the reference C code by Vigna)."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([(i * golden) % 2**64 for i in range(3)], dtype=np.uint64)
    assert [hex(v) for v in mix64(states)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@given(st.integers(0, 2**64 - 1), st.integers(1, 3), st.integers(1, 30))
def test_shuffles_are_permutations(key, epochs, n):
    orders = shuffles(np.array([key], dtype=np.uint64), epochs, n)
    assert orders.shape == (1, epochs, n)
    for order in orders[0]:
        assert sorted(order.tolist()) == list(range(n))


def test_a_client_is_shuffled_the_same_in_any_cohort():
    keys = np.array([11, 22, 33], dtype=np.uint64)
    together = shuffles(keys, 2, 9)
    for i, key in enumerate(keys):
        np.testing.assert_array_equal(together[i : i + 1], shuffles(np.array([key]), 2, 9))
    np.testing.assert_array_equal(shuffles(keys[:1], 3, 9)[0, :2], together[0])


def test_every_order_is_equally_likely():
    """Chi-square over 24,000 shuffles of 4 with fixed keys; 49.7 is the 0.1 % point at 23 degrees of freedom."""
    keys = mix_keys(7, np.arange(12_000, dtype=np.uint64))
    orders = shuffles(keys, 2, 4).reshape(-1, 4)
    index = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    counts = np.bincount([index[tuple(order)] for order in orders.tolist()], minlength=24)
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7


def test_epochs_and_clients_are_independent():
    """Where a row stands in one epoch says nothing about the next, nor in the next client: correlation within 4 / sqrt(N)."""
    keys = mix_keys(5, np.arange(4000, dtype=np.uint64))
    places = shuffles(keys, 2, 10).argmin(axis=2).astype(float)
    limit = 4 / np.sqrt(4000)
    assert abs(np.corrcoef(places[:, 0], places[:, 1])[0, 1]) < limit
    assert abs(np.corrcoef(places[:-1, 0], places[1:, 0])[0, 1]) < limit


@given(key=st.integers(0, (1 << 64) - 1), base=st.integers(0, (1 << 64) - 1))
def test_a_generator_is_numpys_philox_with_that_key(key, base):
    reference = np.random.Generator(np.random.Philox(key=key))
    assert (keyed(key).integers(1 << 60, size=5) == reference.integers(1 << 60, size=5)).all()
    assert mix_key(base, key) == int(mix_keys(base, np.array([key], np.uint64))[0])


def test_what_is_spawned_is_reproducible_and_new_each_time():
    def spawned():
        stream = Rng.of(3).generator()
        return [float(child.random()) for child in (*stream.spawn(2), *stream.spawn(1))]

    assert spawned() == spawned()
    assert len({*spawned(), float(Rng.of(3).generator().random())}) == 4


def test_generators_begin_anew():
    stream = Rng.of(9).child("x")
    assert stream.generator().random() == stream.generator().random()
    assert repr(stream).startswith("Rng(0x")
    assert len({stream, Rng(stream.key)}) == 1


@pytest.mark.parametrize("seed", [-1, 2**70, np.int64(3)])
def test_any_whole_number_is_a_seed(seed):
    assert 0 <= Rng.of(seed).key < 2**64


@given(st.lists(st.text(max_size=12) | st.sampled_from(["#1", "", "client-0"]), max_size=8))
def test_names_are_hashed_alike_one_by_one_and_together(names):
    assert hash_names(names).tolist() == [hash64(name) for name in names]


@pytest.mark.parametrize("seed", [None, "0", 1.5, np.random.default_rng(0)])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ConfigError, match=r"seed=.*use a whole number"):
        Rng.of(seed)
    assert Rng.of(np.int64(3)) == Rng.of(3)
