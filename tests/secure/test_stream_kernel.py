"""The native pass of keystream: the library's bits for words of each length, and the library where the pass cannot be used."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.native import cpp_compiler, library_of
from atoll.secure import keystream as ks
from atoll.secure.keystream import SOURCE, StreamKernel

needs_compiler = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
ROWS = st.none() | st.integers(0, 2)
SEEDS = st.tuples(st.binary(min_size=16, max_size=16), st.sampled_from([bytes(16), b"\xff" * 16, bytes(8) + b"\xff" * 8]) | st.binary(min_size=16, max_size=16))  # fmt: skip


@pytest.fixture
def judged_anew():
    """Kernels that the test has replaced are forgotten after it."""
    ks._sound_kernel.cache_clear()
    yield
    ks._sound_kernel.cache_clear()


@needs_compiler
@given(st.lists(st.tuples(SEEDS, ROWS, ROWS), min_size=1, max_size=6), st.integers(0, 1500), st.sampled_from([1, 2, 4, 8]))  # fmt: skip
@settings(max_examples=30)
def test_native_words_are_those_of_the_library(streams, count, width):
    """Also where a counter carries into its upper half or around its end, for a row on both sides, and for an end that fills no vector."""
    seeds = [(key + counter, plus, minus) for (key, counter), plus, minus in streams]
    expected, found = (np.arange(3 * count, dtype=f"u{width}").reshape(3, count) for _ in range(2))
    ks._by_library(list(expected), seeds)
    assert ks._natively(list(found), seeds)
    assert np.array_equal(expected, found)


@needs_compiler
def test_native_words_are_aes_128_in_counter_mode():
    """NIST SP 800-38A, F.5.1 (CTR-AES128), over more bytes than one step of the pass: the first are the published ones."""
    seed = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c" + "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    found = [np.zeros(20_001, np.uint8), np.zeros(20_001, np.uint8)]
    assert StreamKernel.here().add_between(found, [seed], [0], [1])
    assert found[0][:32].tobytes().hex() == "ec8cdf7398607cb0f2d21675ea9ea1e4362b7c3c6773516318a077d7fc5073ae"
    assert not (found[0] + found[1]).any()
    assert np.array_equal(found[0], ks.keystream(seed, 8, 20_001).view(np.ndarray))


@needs_compiler
@pytest.mark.slow
def test_processors_without_wide_aes_get_the_same_words():
    narrow = StreamKernel(library_of("#define NARROW\n" + SOURCE))
    rng = np.random.default_rng(0)
    seeds = [rng.bytes(24) + b"\xff" * 8 for _ in range(5)]
    for width in (1, 2, 4, 8):
        expected, found = (np.arange(3 * 5003, dtype=f"u{width}").reshape(3, -1) for _ in range(2))
        ks._by_library(list(expected), [(s, i % 3, (i + 1) % 3) for i, s in enumerate(seeds)])
        assert narrow.add_between(list(found), seeds, [i % 3 for i in range(5)], [(i + 1) % 3 for i in range(5)])
        assert np.array_equal(expected, found)


class _Wrong:
    """A pass that counts its counters as another processor might: in the other order of bytes."""

    def add_between(self, rows, seeds, plus, minus):
        ks._by_library(rows, [(s[:16] + s[:15:-1], p if p >= 0 else None, m if m >= 0 else None) for s, p, m in zip(seeds, plus, minus, strict=True)])  # fmt: skip
        return True


def test_a_pass_with_other_bits_is_never_used(monkeypatch, judged_anew):
    monkeypatch.setattr(StreamKernel, "here", classmethod(lambda cls: _Wrong()))
    monkeypatch.setattr(ks, "_LONG", 1)
    seed = hashlib.sha256(b"seed").digest()
    expected, found = np.zeros(100, np.uint32), np.zeros(100, np.uint32)
    ks._by_library([expected], [(seed, 0, None)])
    ks.add_stream(found, seed)
    assert np.array_equal(expected, found)
    assert ks._sound_kernel() is None


@pytest.mark.parametrize("why", ["no compiler", "switched off"])
def test_without_native_code_the_library_makes_long_streams(monkeypatch, judged_anew, why):
    monkeypatch.setenv("ATOLL_NATIVE", "0" if why == "switched off" else "1")
    if why == "no compiler":
        monkeypatch.setattr("atoll.secure.keystream.library_of", lambda source: None)
    monkeypatch.setattr(ks, "_LONG", 1)
    seed, found = hashlib.sha256(b"seed").digest(), np.zeros(100, np.uint32)
    ks.add_stream(found, seed)
    assert StreamKernel.here() is None
    assert np.array_equal(found, ks.keystream(seed, 32, 100).view(np.ndarray))


@pytest.mark.parametrize("long", [1, 1 << 40])
def test_rows_that_do_not_lie_in_one_piece_are_added_to_as_well(monkeypatch, long):
    monkeypatch.setattr(ks, "_LONG", long)
    seed, places = hashlib.sha256(b"seed").digest(), np.zeros((50, 2), np.uint32)
    ks.add_stream(places[:, 1], seed)
    assert np.array_equal(places[:, 1], ks.keystream(seed, 32, 50).view(np.ndarray))
    assert not places[:, 0].any()
    fixed = np.zeros(50, np.uint32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        ks.add_stream(fixed, seed)


@pytest.mark.parametrize("long", [1, 1 << 40])
def test_long_streams_need_right_seeds_too(monkeypatch, long):
    monkeypatch.setattr(ks, "_LONG", long)
    with pytest.raises(ks.ConfigError, match="a seed of 5 bytes"):
        ks.add_stream(np.zeros(8, np.uint32), b"short")
