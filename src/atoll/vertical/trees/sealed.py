"""Sums of gradients that the hosts add up without seeing them: Paillier ciphertexts under the guest's key.

A row's gradient and second derivative share a ciphertext. A host multiplies the ciphertexts of each leaf, column and bin, and sends several sums in one ciphertext, with fresh
noise. Of each column it leaves out the bin with the most rows: the guest knows the sum of the leaf, and so the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.secure.encrypted import JoinedFields, KeyOwner, Paillier, SealedVector
from atoll.secure.encrypted.vectors import time_product

from ..model import require
from .boosting import GradientUnits, HostColumns, fits
from .columns import OwnedColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = ["GuestCipher", "HostCipher", "predict_cost"]

_MOST_BITS = 40


@dataclass
class GuestCipher:
    """The guest's half: it has the key.

    Attributes:
        owner: the key.
        fields: how a row's two numbers share a ciphertext.
        packed: whether hosts send several sums in a ciphertext.
    """

    owner: KeyOwner
    fields: JoinedFields
    packed: bool = True

    @classmethod
    def of(
        cls, cipher: Paillier, units: GradientUnits, rows: int, secret: Secret, keys: Sequence[Tree] | None, short: bool, packed: bool = True
    ) -> GuestCipher:  # fmt: skip
        """Make a key, or go on with one, for gradients in these units."""
        return cls(KeyOwner(cipher, secret, keys or None, short), JoinedFields(2, max(units.bits), rows), packed)

    @property
    def public(self) -> dict[str, Any]:
        """What hosts must know."""
        return {"security": "paillier", "key": self.owner.public, "bits": self.fields.bits}

    def seal(self, pairs: NDArray[np.int64]) -> Any:
        """One ciphertext a row, ``(rows, key_bits / 4)``."""
        return self.owner.encrypt(self.fields.join(pairs))

    def open(
        self, sums: Any, columns: HostColumns, totals: NDArray[np.int64], rows: Sequence[NDArray[np.int32]]
    ) -> NDArray[np.int64]:
        """A host's sums, ``(nodes, features, width, 2)``, from what `HostCipher.sums` sent; ``totals`` are those of the nodes."""
        del rows
        bins = _sent(columns)
        many, bits = len(totals) * len(bins), self.owner.cipher.key_bits
        packed = np.asarray(sums)
        together = self.fields.per_plaintext(bits) if self.packed else 1
        expected = (-(-many // together), bits // 4)
        require(
            packed.dtype == np.uint8 and packed.shape == expected, f"sums of shape {packed.shape}, expected {expected}"
        )
        plain = self.owner.decrypt(packed)
        parts = [plain] if self.packed else [[one] for one in plain]
        found = np.concatenate(
            [self.fields.split(part, many if self.packed else 1, bits) for part in parts]
            or [np.zeros((0, 2), np.int64)]
        )
        found = found.reshape(len(totals), len(bins), 2)
        features = len(columns.counts)
        made = np.zeros((len(totals), features, columns.width, 2), np.int64)
        made[:, bins[:, 0], bins[:, 1]] = found
        made[:, np.arange(features), np.array(columns.fullest, np.int64)] = totals[:, None] - made.sum(axis=2)
        return made


@dataclass
class HostCipher:
    """A host's half.

    Attributes:
        cipher: the agreed length of the key.
        public: the guest's key.
        fields: how a row's two numbers share a ciphertext.
        secret: the host's entropy.
        packed: whether to send several sums in a ciphertext.
    """

    cipher: Paillier
    public: Tree
    fields: JoinedFields
    secret: Secret
    packed: bool = True
    _rows: SealedVector | None = field(default=None, repr=False)
    _root: list[list[Any]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, cipher: Paillier, told: Any, rows: int, secret: Secret, packed: bool = True) -> HostCipher:
        """The half for what the guest told.

        Raises:
            MessageError: the guest told something else.
        """
        good = isinstance(told, Mapping) and isinstance(told.get("bits"), int) and 0 < told["bits"] <= _MOST_BITS
        require(good and "key" in told, "no public key and bits of the gradients")
        return cls(cipher, told["key"], JoinedFields(2, told["bits"], rows), secret, packed)

    def take(self, sealed: Any, columns: OwnedColumns, start: int, *, last: bool) -> int:
        """Take the gradients of rows, after checking that each is a ciphertext. Where they come in batches, the sums of the root grow with them."""
        found, left = np.asarray(sealed), columns.rows - start
        good = found.ndim == 2 and fits(len(found), left, last=last)
        require(good, f"gradients of shape {found.shape} for {left} rows")
        batch = SealedVector(self.cipher, self.public, found)
        if start == 0:
            self._rows, self._root = batch, []
        else:
            rows: Any = self._rows
            rows.numbers += batch.numbers
        if not (start == 0 and last):
            sums = self._by_bin(batch, columns, np.arange(start, start + len(found)), start)
            self._root = (
                [_multiply(a, b, batch.key.square) for a, b in zip(self._root, sums, strict=True)] if start else sums
            )
        return start + len(found)

    def _by_bin(
        self, vector: SealedVector, columns: OwnedColumns, rows: NDArray[Any], start: int = 0
    ) -> list[list[Any]]:
        """Ciphertexts of the sums of rows by column and bin; the fullest bin is left out, the vector's first row is ``start``."""
        made = []
        for f, full in enumerate(columns.fullest):
            index = columns.bins[rows, f].astype(np.int64)
            sent = index != full
            made.append(vector.add_by_index(index[sent], columns.width, rows[sent] - start))
        return made

    def sums(self, columns: OwnedColumns, nodes: Sequence[int]) -> Any:
        """Packed ciphertexts of the sums by node, column and bin."""
        require(self._rows is not None, "sums were asked for before gradients were sent")
        vector: Any = self._rows
        known, made = HostColumns(columns.counts, columns.fullest), []
        bins = _sent(known)
        for node in nodes:
            by_bin = self._root if node == 0 and self._root else self._by_bin(vector, columns, columns.rows_at(node))
            made += [by_bin[f][b] for f, b in bins.tolist()]
        if self.packed or not made:
            return vector.pack(made, self.fields, self.secret)
        return np.concatenate([vector.pack([one], self.fields, self.secret) for one in made])


def _multiply(a: Sequence[Any], b: Sequence[Any], square: Any) -> list[Any]:
    return [one * other % square for one, other in zip(a, b, strict=True)]


def _sent(columns: HostColumns) -> NDArray[np.int64]:
    """Column and bin of each sum that a host sends, in order: all bins of a column and that of missing values, but the one that it leaves out."""
    bins = [(*range(n + 1), columns.width - 1) for n in columns.counts]
    found = [(f, b) for f, mine in enumerate(bins) for b in mine if b != columns.fullest[f]]
    return np.array(found, np.int64).reshape(-1, 2)


def predict_cost(
    cipher: Paillier, short: bool, *, rows: int, columns: Sequence[int], bins: int, trees: int, depth: int
) -> dict[str, float]:
    """The processor ``seconds`` of all parties and the ``bytes`` between them that encryption takes, before anyone is contacted.

    It counts multiplications, and times a few of them on this machine: a row takes one modulo ``p^2`` and one modulo ``q^2`` for each byte of its noise at the guest, and at a host
    one modulo ``n^2`` for each column and level, half of them below the root. The fullest bin of a column is taken to have one row in ``bins``.

    Args:
        cipher: the length of the key.
        short: whether noise has short exponents.
        rows: training rows.
        columns: how many columns each host has.
        bins: bins of a column.
        trees: trees in all.
        depth: levels of splits.
    """
    cipher.require()
    fields, bits = JoinedFields(2, 25, rows), cipher.key_bits
    whole, half = time_product(2 * bits), time_product(bits)
    noise = (448 if short else bits // 2) / 8
    sums = 2 ** (depth - 1) * sum(columns) * bins
    packed = sums / fields.per_plaintext(bits)
    products = rows * sum(columns) * (1 - 1 / bins) * (1 + (depth - 1) / 2)
    host = products + sums * (2 * fields.width + 1) + packed * 1.2 * bits + rows * len(columns)
    guest = rows * 2 * noise + packed * 1.2 * bits
    sent = rows * len(columns) + packed
    return {"seconds": trees * (host * whole + guest * half), "bytes": trees * sent * bits / 4}
