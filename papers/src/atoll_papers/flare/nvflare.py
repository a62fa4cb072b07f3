"""CKKS as NVFlare calls it: TenSEAL with a ring of 8192, primes of 60, 40 and 40 bits and a scale of 2^40, 4096 numbers a ciphertext.

These are the defaults of NVFlare's ``tenseal_context`` of ``HEBuilder`` (NVFlare 2.9). Numbers are the whole numbers of `atoll.secure.encrypted`, divided by ``2^bits``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.extras import need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["NVFlareCKKS"]

_SLOTS = 4096


class NVFlareCKKS:
    """One key, and the three operations.

    Args:
        bits: bits of a number.
    """

    def __init__(self, bits: int) -> None:
        self._ts: Any = need("tenseal", "secure", "CKKS as NVFlare calls it")
        self._scale = 2.0**bits
        self._context = self._ts.context(
            self._ts.SCHEME_TYPE.CKKS, poly_modulus_degree=2 * _SLOTS, coeff_mod_bit_sizes=[60, 40, 40], n_threads=1
        )
        self._context.global_scale = 2**40

    def encrypt(self, numbers: NDArray[np.uint64]) -> list[bytes]:
        """Return a ciphertext for each 4096 numbers."""
        scaled = numbers.astype(np.float64) / self._scale
        rows = (scaled[at : at + _SLOTS] for at in range(0, len(scaled), _SLOTS))
        return [self._ts.ckks_vector(self._context, row).serialize() for row in rows]

    def add(self, sealed: Sequence[list[bytes]]) -> list[bytes]:
        """Return the ciphertexts of the sum."""
        total = [self._ts.ckks_vector_from(self._context, raw) for raw in sealed[0]]
        for each in sealed[1:]:
            for left, raw in zip(total, each, strict=True):
                left += self._ts.ckks_vector_from(self._context, raw)
        return [each.serialize() for each in total]

    def decrypt(self, sealed: list[bytes]) -> NDArray[np.uint64]:
        """Return the sums, rounded."""
        rows = [self._ts.ckks_vector_from(self._context, raw).decrypt() for raw in sealed]
        return np.asarray(np.rint(np.concatenate(rows) * self._scale), dtype=np.uint64)
