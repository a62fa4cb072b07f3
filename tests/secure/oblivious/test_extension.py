"""Extension: rows agree exactly where words do, and what crosses the link is uniform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.core.errors import ConfigError, LetterError
from atoll.secure.keystream import keystream
from atoll.secure.oblivious import CodeReceiver, CodeSender, PseudoRandomCode, transpose_bits

CODE = PseudoRandomCode(b"\7" * 32)


def sides(width, seed=0):
    """Both sides of an extension, as the base transfers leave them."""
    rng = np.random.default_rng(seed)
    pairs, choices = rng.integers(256, size=(width, 2, 32), dtype=np.uint8), rng.integers(256, size=width // 8, dtype=np.uint8)  # fmt: skip
    bits = np.unpackbits(choices, bitorder="little")
    return CodeReceiver(pairs), CodeSender(choices, pairs[np.arange(width), bits])


def words_of(rng, count):
    return rng.integers(256, size=(count, 16), dtype=np.uint8)


@given(width=st.sampled_from([8, 128, 512]), length=st.integers(1, 300), seed=st.integers(0, 99))
def test_transposing_is_what_single_bits_say(width, length, seed):
    columns = np.random.default_rng(seed).integers(256, size=(width, length), dtype=np.uint8)
    bits = np.unpackbits(columns, axis=1, bitorder="little")
    np.testing.assert_array_equal(transpose_bits(columns), np.packbits(bits.T, axis=1, bitorder="little"))


@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_rows_agree_exactly_where_words_do(counts, seed):
    receiver, sender = sides(512, seed)
    rng = np.random.default_rng(seed)
    for count in counts:
        mine, other = words_of(rng, count), words_of(rng, count)
        rows, corrections = receiver.extend(CODE.encode(mine))
        kept = sender.extend(corrections, count, "peer")
        np.testing.assert_array_equal(sender.evaluate(kept, CODE.encode(mine)), rows)
        assert not (sender.evaluate(kept, CODE.encode(other)) == rows).all(axis=1).any()


def test_a_wrong_word_is_hidden_by_as_many_secret_bits_as_codewords_differ_in():
    rng = np.random.default_rng(1)
    codewords = np.unpackbits(CODE.encode(words_of(rng, 600)), axis=1).astype(np.int16)
    apart = (codewords[:, None] != codewords[None]).sum(axis=2)[np.triu_indices(600, 1)]
    assert apart.min() > 128
    assert abs(apart.mean() - 256) < 1
    assert abs(apart.std() - np.sqrt(128)) < 0.2  # the binomial law of 512 fair bits


def test_corrections_of_any_words_are_uniform():
    """The sender's view: bytes of corrections for equal words, and for different ones, are uniform (chi-square)."""
    rng = np.random.default_rng(2)
    for words in (np.zeros((400, 16), np.uint8), words_of(rng, 400)):
        receiver, _ = sides(512, seed=3)
        _, corrections = receiver.extend(CODE.encode(words))
        assert stats.chisquare(np.bincount(corrections.ravel(), minlength=256)).pvalue > 1e-3
        pairs = corrections.reshape(-1, 2)[:, 0] ^ corrections.reshape(-1, 2)[:, 1]
        assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-3
        assert len(np.unique(corrections, axis=0)) == 400


@pytest.mark.parametrize("restored", [False, True])
def test_a_restored_state_goes_on_with_the_same_rows(restored):
    receiver, sender = sides(128)
    ones = np.full((13, 16), 255, np.uint8)
    sender.extend(receiver.extend(ones)[1], 13, "peer")
    if restored:
        receiver, sender = CodeReceiver.restored(receiver.captured()), CodeSender.restored(sender.captured())
    rows, corrections = receiver.extend(ones)
    np.testing.assert_array_equal(sender.evaluate(sender.extend(corrections, 13, "peer"), ones), rows)
    kept, other = ([_bits(seed) for seed in receiver.seeds[:, i]] for i in (0, 1))
    by_definition = np.array(kept).T ^ np.array(other).T ^ 1
    np.testing.assert_array_equal(np.unpackbits(corrections, axis=1, bitorder="little"), by_definition[16 : 16 + 13])


def _bits(seed):
    return np.unpackbits(np.asarray(keystream(seed.tobytes(), 8, 4)), bitorder="little")


@pytest.mark.parametrize(
    "frame", [np.zeros((3, 16), np.uint8), np.zeros((4, 15), np.uint8), np.zeros((4, 16), np.int8), [0] * 64, None]
)
def test_other_corrections_than_announced_name_their_party(frame):
    _, sender = sides(128)
    with pytest.raises(LetterError, match=r"party 'shop' sent .* in place of 4 corrections"):
        sender.extend(frame, 4, "shop")


def test_seeds_must_fit_the_code():
    with pytest.raises(ConfigError, match=r"\(7, 2, 32\)"):
        CodeReceiver(np.zeros((7, 2, 32), np.uint8))
    with pytest.raises(ConfigError, match="for 16 choices"):
        CodeSender(np.zeros(2, np.uint8), np.zeros((8, 32), np.uint8))
