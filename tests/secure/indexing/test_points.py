"""Point functions: two keys add up to one entry, and one key tells nothing."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.errors import ConfigError, MessageError
from atoll.secure.indexing import points
from atoll.secure.indexing.points import KeyParts, deal, depth_of, evaluate, evaluate_all, key_bits
from atoll.secure.keystream import keystream


def seeds(number):
    return tuple(hashlib.sha256(f"{number} {b}".encode()).digest() for b in (0, 1))


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**40), st.integers(0, 999))
@settings(deadline=None, max_examples=60)
def test_the_shares_add_up_to_the_weight_at_the_index_and_zero_elsewhere(codewords, bits, blocks, weight, number):
    index = np.random.default_rng(number).integers(0, codewords, blocks)
    own = seeds(number)
    key = M.decode(M.encode(deal(index, weight, codewords, bits, own)))
    shares = [evaluate(key, own[b], b, blocks, codewords, bits).astype(object) for b in (0, 1)]
    expected = np.zeros((blocks, codewords), dtype=object)
    expected[np.arange(blocks), index] = weight % 2**bits
    assert ((shares[0] + shares[1]) % 2**bits == expected).all()


@pytest.mark.parametrize("most", [1, 700, 1 << 20], ids=["one by one", "some", "all"])
def test_many_parties_in_one_call_are_the_sum_of_each(most, monkeypatch):
    monkeypatch.setattr(points, "_MOST", most)
    codewords, bits, blocks, rng = 37, 12, 5, np.random.default_rng(0)
    made = [(deal(rng.integers(0, codewords, blocks), w, codewords, bits, seeds(w)), seeds(w)) for w in range(1, 8)]
    for server in (0, 1):
        keys = [KeyParts.of(shared, own[server], blocks, codewords, bits) for shared, own in made]
        each = [evaluate(shared, own[server], server, blocks, codewords, bits) for shared, own in made]
        assert (evaluate_all(keys, server, blocks, codewords, bits) == sum(each)).all()


def reference(key, root, server, block, r, codewords, bits):
    """One server's share at one index: Boyle, Gilboa and Ishai 2016, figure 1, node by node."""

    def hashed(use, seed):
        cipher = Cipher(algorithms.AES(bytes([use]) * 16), modes.ECB()).encryptor()
        return bytes(a ^ b for a, b in zip(cipher.update(seed), seed, strict=True))

    height = max(0, codewords - 1).bit_length()
    depth = depth_of(codewords, bits)
    seams = np.asarray(key["seams"])
    steers = np.unpackbits(np.asarray(key["steers"]))
    blocks = seams.shape[1] if depth else len(np.asarray(key["last"])) >> (height - depth)
    wide = 1 << (height - depth)
    node, turn = bytes([root[0] & 0xFE]) + root[1:], server
    for level in range(depth):
        side = r >> (height - 1 - level) & 1
        grown = hashed(side + 1, node)
        node, next_turn = bytes([grown[0] & 0xFE]) + grown[1:], grown[0] & 1
        if turn:
            node = bytes(a ^ b for a, b in zip(node, seams[level, block].tobytes(), strict=True))
            next_turn ^= int(steers[(2 * level + side) * blocks + block])
        turn = next_turn
    size = next(s for s in (1, 2, 4, 8) if 8 * s >= bits)
    place = r & (wide - 1)
    chunk, within = divmod(place * size, 16)
    counted = node[:14] + bytes([node[14] ^ chunk >> 8, node[15] ^ chunk & 255])
    word = int.from_bytes(hashed(3, counted)[within : within + size], "little")
    if turn:
        word += int(np.asarray(key["last"])[block * wide + place])
    return (-word if server else word) % 2**bits


@pytest.mark.parametrize(("codewords", "bits"), [(2, 3), (32, 7), (100, 20), (256, 7), (1000, 9)])
def test_the_evaluation_is_that_of_the_reference(codewords, bits):
    blocks, own = 5, seeds(codewords)
    index = np.random.default_rng(1).integers(0, codewords, blocks)
    key = deal(index, 3, codewords, bits, own)
    for server in (0, 1):
        share = evaluate(key, own[server], server, blocks, codewords, bits)
        roots = np.asarray(keystream(own[server], 8, 16 * blocks)).tobytes()
        for block in range(blocks):
            for r in {0, 1, codewords // 2, codewords - 1, int(index[block])}:
                expected = reference(key, roots[16 * block : 16 * block + 16], server, block, r, codewords, bits)
                assert int(share[block, r]) % 2**bits == expected


@pytest.mark.parametrize("weight", [1, 77])
def test_one_servers_share_and_key_are_uniform_whatever_the_index(weight):
    blocks, codewords, bits = 4000, 64, 8
    for index in (0, 41):
        own = seeds(index + weight)
        key = deal(np.full(blocks, index), weight, codewords, bits, own)
        for server in (0, 1):
            share = evaluate(key, own[server], server, blocks, codewords, bits)
            for sample in (share[:, index], share[:, (index + 1) % codewords], np.asarray(key["last"])):
                seen = np.bincount(np.asarray(sample).ravel() & 0xFF, minlength=256)
                expected = seen.sum() / 256
                chi = ((seen - expected) ** 2 / expected).sum()
                assert chi < 255 + 6 * np.sqrt(2 * 255)  # six standard deviations


@pytest.mark.parametrize(
    ("codewords", "bits", "depth", "size"),
    [(32, 7, 0, 224), (256, 7, 3, 614), (256, 12, 4, 712), (1024, 9, 6, 924), (1, 5, 0, 5)],
)
def test_keys_are_shorter_than_rows_once_there_are_many_codewords(codewords, bits, depth, size):
    assert depth_of(codewords, bits) == depth
    assert key_bits(codewords, bits, depth) == size
    assert size <= codewords * bits
    blocks = 1000
    key = deal(np.zeros(blocks, int), 1, codewords, bits, seeds(0))
    assert 0 <= M.nbytes(key) - blocks * size / 8 < 400  # a header, and padding of three buffers


def test_keys_of_another_form_are_refused():
    key = deal(np.zeros(3, int), 1, 64, 8, seeds(0))
    with pytest.raises(MessageError, match="does not fit 4 blocks"):
        evaluate(key, seeds(0)[0], 0, 4, 64, 8)
    with pytest.raises(MessageError, match="does not fit"):
        evaluate({**key, "seams": np.zeros(2)}, seeds(0)[0], 0, 3, 64, 8)
    with pytest.raises(ConfigError, match="an index of 64 among 64 codewords"):
        deal(np.array([64]), 1, 64, 8, seeds(0))
