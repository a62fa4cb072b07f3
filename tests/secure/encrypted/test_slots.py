"""Products of plain numbers with columns under CKKS encryption."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.errors import DataError
from atoll.core.requests.island import Secret

pytest.importorskip("tenseal")

from atoll.secure.encrypted import slots
from atoll.secure.encrypted.bfv import context, join, save, seal
from atoll.secure.encrypted.slots import SlotOwner, SlotVector


@pytest.fixture(scope="module")
def owner():
    return SlotOwner(Secret(1))


@pytest.mark.parametrize(
    ("rows", "columns", "outputs"), [(1, 2, 1), (5, 3, 2), (700, 9, 1), (4096, 1, 1), (5000, 2, 1)]
)
def test_products_are_the_plain_ones(owner, rows, columns, outputs):
    rng = np.random.default_rng(rows)
    x, v = rng.normal(size=(rows, columns)), 10 * rng.normal(size=(rows, outputs))
    v[:4096] *= rows != 5000  # a block of zeros
    peer = SlotVector(owner.seal_columns(x), rows)
    found = owner.open(peer.multiply(v, Secret(2)), peer.form, outputs)
    assert found.shape == (columns, outputs)
    np.testing.assert_allclose(found, x.T @ v, rtol=0, atol=6 * 2.0**-24)


def see(owner, sealed):
    """All slots of one ciphertext, as its owner can decrypt them."""
    [one] = slots._load_all(sealed, 1, 2.0**96)
    return open_slots(owner, one)


def open_slots(owner, one):
    made, plain = context(*slots._PARAMETERS), seal().Plaintext()
    seal().Decryptor(made, owner._private).decrypt(one, plain)
    return np.array(seal().CKKSEncoder(made).decode_complex(plain))


def test_the_noise_of_the_sums_is_hidden(owner, monkeypatch):
    """It depends on the other's numbers, in both parts of each slot; what hides it is at least 64 times as large."""
    peer = SlotVector(owner.seal_columns(np.ones((16, 1))), 16)
    seen = see(owner, peer.multiply(np.ones((16, 1)), Secret(5))).reshape(16, 256)
    seen[:, 0] -= 16
    for part in (seen.real, seen.imag):
        assert part.mean(axis=0).std() == pytest.approx(2.0**-24, rel=0.2)
        assert part.std() == pytest.approx(4 * 2.0**-24, rel=0.1)
    monkeypatch.setattr(slots, "_ERROR", 0.0)
    bare = see(owner, peer.multiply(np.ones((16, 1)), Secret(5))).reshape(16, 256)
    bare[:, 0] -= 16
    assert 0 < np.abs(bare).max() < 2.0**-24 / 64


def test_every_slot_has_the_sum_and_no_part_of_it(owner):
    x, v = np.ones((600, 2)) * [1, -2], np.arange(600.0)[:, None]
    peer = SlotVector(owner.seal_columns(x), 600)
    seen = see(owner, peer.multiply(v, Secret(3))).reshape(1024, 4)
    np.testing.assert_allclose(seen, np.tile(v.sum() * np.array([1, -2, 0, 0]), (1024, 1)), rtol=0, atol=6 * 2.0**-19)


def test_an_owner_with_numbers_in_imaginary_parts_reads_sums_alone(owner):
    """Nobody can tell that they are there, but there is no slot with the number of a row."""
    rows, v = 600, np.random.default_rng(0).normal(size=(600, 1))
    planted = np.zeros((1024, 4), complex)
    planted[:rows, 0] = 2.0**10 * 1j * (1 + np.arange(rows) % 3)
    sealed = slots._encrypt(planted.ravel(), 2.0**56, owner._public, Secret(7))
    peer = SlotVector({**owner.seal_columns(np.zeros((rows, 1))), "sealed": join([save(sealed)])}, rows)
    seen = see(owner, peer.multiply(v, Secret(3))).reshape(1024, 4)
    np.testing.assert_allclose(seen[:, 0].imag, (planted[:rows, 0].imag @ v)[0], rtol=0, atol=1e-4)
    assert np.abs(seen[:, 1:]).max() < 1e-4


def test_both_halves_of_an_answer_are_masked(owner):
    """The owner knows all that makes the second half of a product but the other's numbers: a fresh encryption of the hiding noise covers it."""
    peer = SlotVector(owner.seal_columns(np.ones((3, 1))), 3)
    made, less = context(*slots._PARAMETERS), seal().Ciphertext()
    one, other = (slots._load_all(peer.multiply(np.ones((3, 1)), Secret(k)), 1, 2.0**96)[0] for k in (1, 2))
    seal().Evaluator(made).sub(one, other, less)
    assert np.abs(open_slots(owner, less)).max() < 2.0**-20
    assert (
        np.median(np.abs(open_slots(SlotOwner(Secret(9)), less))) > 2.0**40
    )  # with equal second halves, this key too would find the noise alone


def test_what_is_no_product_and_no_columns_is_refused(owner):
    x = np.ones((10, 2))
    message = owner.seal_columns(x)
    peer = SlotVector(message, 10)
    with pytest.raises(DataError, match="sums may overflow"):
        peer.multiply(np.full((10, 1), 2.0**20), Secret(1))
    for wrong, match in (
        ({**message, "columns": -1}, "-1 columns"),
        ({**message, "columns": 9000}, "expected"),
        ({**message, "sealed": message["sealed"][:-5]}, "not one of SEAL"),
        ({**message, "sealed": None}, "NoneType in place of"),
        ({**message, "rotations": message["rotations"][:1000]}, "keys for rotations, none of SEAL"),
        ({**message, "rotations": None}, "keys for rotations of type NoneType"),
        ({**message, "public": message["rotations"]}, "a public key, none of SEAL"),
        ("x", "None columns"),
    ):
        with pytest.raises(DataError, match=match):
            SlotVector(wrong, 10)
    with pytest.raises(DataError, match="expected 1 of scale"):
        owner.open(message["sealed"], peer.form, 1)  # fresh ones, not products
    answer = peer.multiply(np.ones((10, 1)), Secret(1))
    with pytest.raises(DataError, match="expected 2 of scale"):
        owner.open(answer, peer.form, 2)
