"""Vectors of Paillier ciphertexts: sums by index and with weights are those of the plain numbers, and bad ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.island import Secret
from atoll.secure.encrypted import JoinedFields, KeyOwner, Paillier, SealedVector

pytest.importorskip("gmpy2")
SHORT = Paillier(key_bits=512, insecure=True)
OWNER = KeyOwner(SHORT, Secret(1))


def as_vector(numbers, owner=OWNER):
    return SealedVector(owner.cipher, owner.public, owner.encrypt(numbers))


def as_bytes(sums):
    return np.stack([np.frombuffer(int(c).to_bytes(128, "little"), np.uint8) for c in sums])


def test_the_owner_decrypts_what_it_and_others_encrypt():
    numbers = [0, 1, -1, 2**200, -(2**200)]
    assert OWNER.decrypt(OWNER.encrypt(numbers)) == numbers
    public = as_vector([]).key
    theirs = as_bytes([public.encrypt(m % public.n, Secret(2)) for m in numbers])
    assert OWNER.decrypt(theirs) == numbers
    assert KeyOwner(SHORT, Secret(3), OWNER.keys).decrypt(theirs) == numbers


def test_the_owners_noise_is_that_of_the_public_key():
    """Both draw a power of h: the same bytes of the secret give the same ciphertext."""
    public = as_vector([]).key
    ours = KeyOwner(SHORT, Secret(9), OWNER.keys).encrypt([5])
    assert int.from_bytes(ours[0].tobytes(), "little") == public.encrypt(5, Secret(9))


def test_short_exponents_draw_less_and_give_the_same_sums():
    cipher = Paillier(key_bits=1024, insecure=True)
    long = KeyOwner(cipher, Secret(4))
    short = KeyOwner(cipher, Secret(4), long.keys, short=True)
    assert len(short._tables[0]) == 448 // 8 < len(long._tables[0]) == 512 // 8
    assert long.decrypt(short.encrypt([7, -7])) == [7, -7]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_sums_by_index_are_those_of_the_plain_numbers(data):
    rows = data.draw(st.integers(1, 30))
    fields = JoinedFields(2, 20, rows)
    draw = st.lists(st.integers(-(2**20) + 1, 2**20 - 1), min_size=2 * rows, max_size=2 * rows)
    numbers = np.array(data.draw(draw)).reshape(rows, 2)
    index = np.array(data.draw(st.lists(st.integers(-1, 6), min_size=rows, max_size=rows)))
    vector = as_vector(fields.join(numbers))
    packed = vector.pack(vector.add_by_index(index, 6), fields, Secret(5))
    assert len(packed) == -(-6 // fields.per_plaintext(512))
    plain = np.stack([numbers[index == k].sum(axis=0) for k in range(6)])
    np.testing.assert_array_equal(fields.split(OWNER.decrypt(packed), 6, 512), plain)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_fit(sign):
    fields = JoinedFields(2, 30, 9)
    numbers = np.full((9, 2), sign * (2**30 - 1))
    vector = as_vector(fields.join(numbers))
    packed = vector.pack([*vector.add_by_index(np.zeros(9, int), 1)] * 10, fields, Secret(5))
    np.testing.assert_array_equal(fields.split(OWNER.decrypt(packed), 10, 512), np.tile(numbers.sum(axis=0), (10, 1)))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_weighted_sums_are_those_of_the_plain_numbers(data):
    rows = data.draw(st.integers(0, 12))
    numbers = data.draw(st.lists(st.integers(-(2**40), 2**40), min_size=rows, max_size=rows))
    draw = st.lists(st.integers(-(2**62), 2**62), min_size=2 * rows, max_size=2 * rows)
    weights = np.array(data.draw(draw), np.int64).reshape(rows, 2)
    found = as_vector(numbers).weighted_sums(weights)
    expected = [sum(int(w) * x for w, x in zip(column, numbers, strict=True)) for column in weights.T]
    assert OWNER.decrypt(as_bytes(found)) == expected


def test_answers_carry_fresh_noise():
    """The owner, who knows the noise of its ciphertexts, sees products of none of them."""
    fields = JoinedFields(1, 8, 4)
    vector = as_vector(fields.join(np.array([[1], [2], [3]])))
    sums = vector.add_by_index(np.array([0, 0, 1]), 2)
    one, other = (vector.pack(sums, fields, Secret(seed)) for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert OWNER.decrypt(one) == OWNER.decrypt(other)


def test_answers_carry_noise_that_the_owner_did_not_choose():
    """With h = -1, a power of h is 1 or -1: the owner would see which of its ciphertexts were multiplied."""
    fields, square = JoinedFields(1, 8, 4), int(as_vector([]).key.square)
    chosen = {**OWNER.public, "h": as_bytes([square - 1])[0]}
    vector = SealedVector(SHORT, chosen, OWNER.encrypt([1, 2, 3]))
    sums = vector.add_by_index(np.array([0, 0, 1]), 1)
    packed = vector.pack(sums, fields, Secret(1))
    assert int.from_bytes(packed[0].tobytes(), "little") not in (int(sums[0]), square - int(sums[0]))
    assert OWNER.decrypt(packed) == [3]


def test_what_is_no_ciphertext_is_refused():
    sealed = OWNER.encrypt([1, 2])
    n = int(as_vector([]).key.n)
    for bad in (0, n, n * n, 3 * n):
        wrong = np.vstack([sealed, as_bytes([bad])])
        with pytest.raises(DataError, match="not invertible"):
            SealedVector(SHORT, OWNER.public, wrong)
        with pytest.raises(DataError, match="not invertible"):
            OWNER.decrypt(wrong)
    with pytest.raises(DataError, match=r"expected bytes of shape \(numbers, 128\)"):
        SealedVector(SHORT, OWNER.public, sealed[:, :-1])
    with pytest.raises(DataError, match="expected bytes"):
        SealedVector(SHORT, OWNER.public, sealed.astype(np.int32))


def test_keys_that_are_short_or_none_are_refused():
    with pytest.raises(ConfigError, match="key_bits=1024"):
        Paillier(key_bits=1024)
    with pytest.raises(DataError, match="a public key of 512 bits that is none of 640"):
        SealedVector(Paillier(key_bits=640, insecure=True), OWNER.public, OWNER.encrypt([1]))
    with pytest.raises(DataError, match="a public key of 512 bits"):
        SealedVector(SHORT, {**OWNER.public, "h": np.zeros(128, np.uint8)}, OWNER.encrypt([1]))
    with pytest.raises(DataError, match="a key of 'bfv'"):
        SealedVector(SHORT, {**OWNER.public, "scheme": "bfv"}, OWNER.encrypt([1]))


def test_sums_that_may_overflow_are_refused():
    with pytest.raises(ConfigError, match="may overflow"):
        JoinedFields(2, 40, 2**24)
    with pytest.raises(DataError, match="for 2 numbers of 8 bits"):
        JoinedFields(2, 8, 4).join(np.array([[256, 0]]))
    with pytest.raises(ConfigError, match="use a longer key"):
        JoinedFields(20, 40, 4).per_plaintext(512)
    vector = as_vector([1, 1, 1])
    with pytest.raises(ConfigError, match="sums of 3 numbers may overflow fields for 2"):
        vector.pack(vector.add_by_index(np.zeros(3, int), 1), JoinedFields(1, 8, 2), Secret(1))
    with pytest.raises(DataError, match="weights of shape"):
        vector.weighted_sums(np.ones((2, 1)))
