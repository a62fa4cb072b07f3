"""What the alignment of a batch costs under Paillier encryption: every feature of every row, or one packed sum."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

__all__ = ["SealedCost", "sealed_costs"]

_UNIT, _RANGE = 2.0**-24, 2.0**38
"""Fixed point: a feature as a whole number of this unit, shifted to be positive."""


@dataclass(frozen=True)
class SealedCost:
    """What two parties and a key holder do for the gap between two batches' mean features.

    Attributes:
        seconds: of encryption, addition and decryption.
        bytes: of the ciphertexts that a party sends.
        error: largest error of the gap.
    """

    seconds: float
    bytes: int
    error: float


def sealed_costs(rows: int, features: int, key_bits: int = 2048, seed: int = 0) -> tuple[SealedCost, SealedCost]:
    """Return the costs of the naive way and of EfficientFDA's, with the same keys and the same library.

    Naive: each party encrypts every feature of every row, the server adds up the rows of both batches, the holder decrypts every sum. EfficientFDA: each party adds up
    its batch, packs the sums into plaintexts and encrypts those.

    Args:
        rows: of a batch.
        features: of a row.
        key_bits: of the modulus.
        seed: of the features.
    """
    from atoll.core.requests.island import Secret
    from atoll.secure.encrypted.digits import Digits
    from atoll.secure.encrypted.paillier import Paillier

    scheme, secret = Paillier(key_bits=key_bits), Secret()
    public, private = scheme.make_keys(secret)
    z = np.random.default_rng(seed).normal(size=(2, rows, features)).clip(-8, 8)
    truth = z[0].mean(0) - z[1].mean(0)
    signed = np.stack([z[0], -z[1]])

    def words(values: np.ndarray) -> np.ndarray:
        return (np.rint(values / _UNIT) + _RANGE).astype(np.uint64)

    def gap(total: np.ndarray, addends: int) -> np.ndarray:
        return (total.astype(np.float64) - addends * _RANGE) * _UNIT / rows

    begun = time.perf_counter()
    single = [Digits(1, 40, 2 * rows)]
    sent = [
        [scheme.encrypt(public, [words(value.reshape(1))], single, secret) for value in z_k.ravel()] for z_k in signed
    ]
    totals = []
    for j in range(features):
        column = [ciphertext for party in sent for ciphertext in party[j::features]]
        totals.append(scheme.decrypt(private, scheme.add(public, column, single), single)[0][0])
    naive = SealedCost(
        time.perf_counter() - begun, sum(c.nbytes for c in sent[0]), _error(gap(np.array(totals), 2 * rows), truth)
    )
    begun = time.perf_counter()
    packed = [Digits(features, 40, 2)]
    whole = [scheme.encrypt(public, [words(z_k.sum(0))], packed, secret) for z_k in signed]
    total = scheme.decrypt(private, scheme.add(public, whole, packed), packed)[0]
    efficient = SealedCost(time.perf_counter() - begun, whole[0].nbytes, _error(gap(total, 2), truth))
    return naive, efficient


def _error(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(found - truth).max())
