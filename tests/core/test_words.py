"""Words: whole numbers modulo 2^p, packed to p bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.core import message as M
from atoll.core.errors import MessageError
from atoll.core.message import Words


def slowly(words, bits):
    """The packed form, bit by bit: the whole bytes of every word, then the remaining bits of every word."""
    whole, rest = divmod(bits, 8)
    low = b"".join((w % 2 ** (8 * whole)).to_bytes(whole, "little") for w in words)
    tail = sum(((w % 2**bits) >> (8 * whole)) << (i * rest) for i, w in enumerate(words))
    return low + tail.to_bytes(-(-len(words) * rest // 8), "little")


@given(hnp.arrays(np.uint64, st.integers(0, 40)), st.integers(1, 64))
def test_packing_is_the_slow_one_and_comes_back(values, bits):
    words = Words.of(values, bits)
    packed = words.packed()
    assert packed.tobytes() == slowly(values.tolist(), bits)
    assert packed.nbytes == words.packed_nbytes == -(-len(values) * bits // 8)
    back = Words.unpacked(packed, bits, words.shape, words.size)
    assert back.bits == bits
    assert back.tolist() == words.reduced().tolist() == [v % 2**bits for v in values.tolist()]


@given(hnp.arrays(np.int64, st.integers(1, 9), elements=st.integers(-(2**40), 2**40)), st.integers(42, 64))
def test_the_lift_of_negative_numbers_is_the_numbers(values, bits):
    assert Words.of(values, bits).lifted().tolist() == values.tolist()


def test_sums_wrap_and_stay_words():
    a, b = (Words.of(np.array(row), 13) for row in ([8191, 1], [3, -2]))
    total = a + b
    assert (total.bits, total.reduced().tolist(), total.lifted().tolist()) == (13, [2, 8191], [2, -1])
    stacked = np.stack([a, b])
    assert stacked.bits == 13
    assert stacked.sum(axis=0, dtype=stacked.dtype).bits == 13
    assert stacked[1].reduced().tolist() == [3, 8190]
    assert np.concatenate([a, b]).bits == 13


def test_a_message_counts_the_packed_bits():
    words = Words.of(np.arange(1000, dtype=np.uint64), 13)
    assert M.nbytes({"w": words}) < M.nbytes({"w": np.zeros(1640, np.uint8)}) + 16
    back = M.decode(M.encode({"w": words}))["w"]
    assert (type(back), back.bits, back.dtype) == (Words, 13, np.uint16)
    assert M.Schema.of({"w": words}).form["w"].dtype == "words13"


@pytest.mark.parametrize(("values", "bits", "why"), [
    (np.zeros(2), 8, "expected whole numbers, found an array of float64"),
    (np.zeros(2, np.uint8), 0, "words of 0 bits"),
    (np.zeros(2, np.uint8), 65, "words of 65 bits"),
])  # fmt: skip
def test_what_cannot_be_words(values, bits, why):
    with pytest.raises(MessageError, match=why):
        Words.of(values, bits)


def test_set_bits_past_the_last_word_are_refused():
    with pytest.raises(MessageError, match="past the last word"):
        Words.unpacked(np.array([7, 0xFF], np.uint8), 9, (1,), 1)
