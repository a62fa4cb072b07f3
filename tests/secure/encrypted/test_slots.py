"""Products of plain numbers with columns under CKKS encryption."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.errors import DataError
from atoll.core.requests.island import Secret

pytest.importorskip("tenseal")

from atoll.secure.encrypted import slots
from atoll.secure.encrypted.bfv import context, seal
from atoll.secure.encrypted.slots import SlotForm, SlotOwner, SlotVector


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
    np.testing.assert_allclose(found, x.T @ v, rtol=0, atol=6 * 2.0**-16 + 1e-7 * np.abs(v).max() * rows**0.5)


def see(owner, sealed):
    """All slots of one ciphertext, as its owner can decrypt them."""
    [one] = slots._load_all(sealed, 1, 2.0**80)
    made, plain = context(*slots._PARAMETERS), seal().Plaintext()
    seal().Decryptor(made, owner._private).decrypt(one, plain)
    return np.array(seal().CKKSEncoder(made).decode_double(plain))


def test_the_noise_of_the_sums_is_hidden(owner):
    """It depends on the other's numbers, and is below 1e-6; what hides it has a deviation of 2^-16."""
    peer = SlotVector(owner.seal_columns(np.ones((16, 1))), 16)
    seen = see(owner, peer.multiply(np.ones((16, 1)), Secret(5)))[SlotForm(16, 1).heads]
    assert len(seen) == 256
    assert 0.8 * 2.0**-16 < seen[1:].std() < 1.5 * 2.0**-16


def test_slots_beside_the_sums_are_hidden(owner):
    """The owner decrypts all slots: those beside the sums would show parts of them."""
    x, v = np.ones((600, 1)), np.arange(600.0)[:, None]
    peer = SlotVector(owner.seal_columns(x), 600)
    seen = [see(owner, peer.multiply(v, Secret(seed))) for seed in (3, 4)]
    heads = SlotForm(600, 1).heads
    rest = np.delete(np.arange(4096), heads)
    assert np.abs(seen[0][heads[0]] - v.sum()) < 1e-3
    for each in seen:
        assert np.abs(each[rest]).mean() == pytest.approx(2.0**33, rel=0.05)
    assert abs(np.corrcoef(seen[0][rest], seen[1][rest])[0, 1]) < 0.1


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
        ({**message, "rotations": message["rotations"][:1000]}, "keys for rotations that are none"),
        ("x", "None columns"),
    ):
        with pytest.raises(DataError, match=match):
            SlotVector(wrong, 10)
    with pytest.raises(DataError, match="expected 1 of scale"):
        owner.open(message["sealed"], peer.form, 1)  # fresh ones, not products
    answer = peer.multiply(np.ones((10, 1)), Secret(1))
    with pytest.raises(DataError, match="expected 2 of scale"):
        owner.open(answer, peer.form, 2)
