"""Keystreams: published vectors, uniformity, and seeds that have nothing in common."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from atoll.core.errors import ConfigError
from atoll.secure.keystream import add_masks, add_stream, derived, keystream


def test_the_words_are_aes_128_in_counter_mode():
    """NIST SP 800-38A, F.5.1 (CTR-AES128): its key and first counter block give its output blocks."""
    seed = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c" + "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    blocks = "ec8cdf7398607cb0f2d21675ea9ea1e4362b7c3c6773516318a077d7fc5073ae6a2cc3787889374fbeb4c81b17ba6c44e89c399ff0f198c6d40a31db156cabfe"  # fmt: skip
    raw = bytes.fromhex(blocks)
    assert keystream(seed, 8, 64).tobytes() == raw
    assert keystream(seed, 64, 8).tolist() == np.frombuffer(raw, "<u8").tolist()
    assert keystream(seed, 13, 32).tolist() == (np.frombuffer(raw, "<u2") & 8191).tolist()


def test_a_derived_seed_is_hkdf_expand():
    """RFC 5869 with one block: HMAC(seed, info || 01)."""
    seed = bytes(32)
    expected = hmac.new(seed, b"atoll secure \x00\x04maskround 3\x01", hashlib.sha256).digest()
    assert derived(seed, "mask", b"round 3") == expected
    assert len({derived(seed, use, context) for use in ("a", "ab") for context in (b"", b"b")}) == 4


@pytest.mark.parametrize("bits", [8, 13, 39, 64])
def test_words_are_uniform_by_chi_square(bits):
    """Bytes of the words against 256 equal cells: below 370 with probability 1 - 1e-5 at 255 degrees of freedom."""
    words = keystream(hashlib.sha256(b"uniform").digest(), bits, 50_000)
    assert int(words.max()) < 2**bits
    top = (words.view(np.ndarray).astype(np.uint64) >> np.uint64(bits - 8)).astype(np.uint8)
    for cells in (top, words.view(np.ndarray).astype(np.uint8)):
        counts = np.bincount(cells, minlength=256)
        assert ((counts - len(words) / 256) ** 2 / (len(words) / 256)).sum() < 370


@pytest.mark.parametrize("count", [0, 1, 1 << 17, (1 << 17) + 5, (1 << 18) + 1])
@pytest.mark.parametrize("bits", [8, 32, 64])
def test_a_stream_in_pieces_is_one_stream(bits, count):
    seed = hashlib.sha256(b"pieces").digest()
    words = keystream(seed, bits, count)
    into = np.arange(count, dtype=words.dtype)
    add_stream(into, seed)
    assert np.array_equal(into, np.arange(count, dtype=words.dtype) + words.view(np.ndarray))
    add_stream(into, seed, subtract=True)
    assert np.array_equal(into, np.arange(count, dtype=words.dtype))


def test_masks_of_a_pair_cancel_in_every_lane():
    lanes = [{"8": np.zeros(5, np.uint8), "39": np.zeros(3, np.uint64)} for _ in range(2)]
    seed = hashlib.sha256(b"pair").digest()
    add_masks(lanes[0], [(seed, False)])
    add_masks(lanes[1], [(seed, True)])
    assert lanes[0]["8"].any()
    assert lanes[0]["39"].tolist() != lanes[0]["8"].tolist()[:3]
    assert not any((lanes[0][lane] + lanes[1][lane]).any() for lane in lanes[0])


@pytest.mark.parametrize("seed", [b"short", "text", None])
def test_a_seed_has_32_bytes(seed):
    with pytest.raises(ConfigError, match="a seed of"):
        keystream(seed, 8, 1)
