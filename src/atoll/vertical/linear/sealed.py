"""Products of columns with rows of another party, under Paillier encryption.

Each party needs ``x' v`` of its own columns x with a vector v of numbers, one a row, at another. It encrypts its columns once, several side by side in one ciphertext a row. The other
raises each row's ciphertext to its own whole number ``v_i`` and multiplies them all: the sums ``sum_i v_i x_ij`` of all columns in a few ciphertexts. So the rows are encrypted once a
training, not once a step, and a step costs one multi-exponentiation (`SealedVector.weighted_sums`).

Numbers are whole multiples of ``2^-40``. Columns are scaled, so that ``|x| <= sqrt(rows)``; v has up to 20 bits before the point. A sum then needs ``101 + log2(rows)`` bits, and 2048
bits of a key hold about 17 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.secure.encrypted import Paillier
from atoll.secure.encrypted.slots import SlotForm
from atoll.secure.encrypted.vectors import SealedVector, time_product

from ..model import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret

__all__ = ["ColumnFields", "PeerColumns", "encrypt_columns", "predict_products", "predict_slots", "require_ciphertexts"]

FRACTION = 40
"""Bits behind the point."""
_WHOLE = 20
"""Most bits of a row's number before the point."""


def encrypt_columns(
    cipher: Paillier, x: NDArray[np.float64], encrypt: Callable[[Sequence[int]], NDArray[np.uint8]]
) -> dict[str, Any]:
    """Scaled columns as a message to those who multiply them."""
    numbers = ColumnFields(x.shape[0], x.shape[1], cipher.key_bits).join(x) if x.shape[1] else []
    sealed = encrypt(numbers) if numbers else np.zeros((0, cipher.key_bits // 4), np.uint8)
    return {"columns": x.shape[1], "sealed": sealed}


def to_whole(v: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers as whole multiples of ``2^-40``.

    Raises:
        DataError: one is so large that sums may overflow.
    """
    largest = float(np.abs(v).max(initial=0.0))
    if not largest < 2.0**_WHOLE:
        raise DataError(
            f"a row's number of {largest:.3g}: sums may overflow",
            where="VerticalLinear",
            remedy="use a larger penalty=: weights are too large for the columns' scales",
        )
    return np.asarray(np.rint(v * 2.0**FRACTION), np.int64)


@dataclass(frozen=True)
class ColumnFields:
    """How a party's columns lie in ciphertexts.

    Attributes:
        rows: number of rows.
        columns: number of columns.
        key_bits: of the key.
    """

    rows: int
    columns: int
    key_bits: int

    @property
    def width(self) -> int:
        """Bits of a sum, with its sign: ``|sum v x| <= |v| |x| <= rows max|v|``, as scaled columns have ``|x|^2 = rows``."""
        return 2 * FRACTION + _WHOLE + int(self.rows).bit_length() + 3

    @property
    def per_row(self) -> int:
        """Columns of a ciphertext."""
        return max((self.key_bits - 2) // self.width, 1)

    @property
    def count(self) -> int:
        """Ciphertexts of a row."""
        return -(-self.columns // self.per_row)

    def join(self, x: NDArray[np.float64]) -> list[int]:
        """Whole numbers, those of the first ciphertexts of all rows first.

        Raises:
            DataError: not even one column fits a key.
        """
        if self.width > self.key_bits - 2:
            raise DataError(
                f"sums of {self.width} bits in a modulus of {self.key_bits}",
                where="VerticalLinear",
                remedy="use a longer key: cipher=Paillier(key_bits=3072)",
            )
        whole, made = to_whole(x), []
        for begin in range(0, self.columns, self.per_row):
            part = [column.tolist() for column in whole[:, begin : begin + self.per_row].T]
            joined = part[-1]
            for column in reversed(part[:-1]):
                joined = [(high << self.width) + low for high, low in zip(joined, column, strict=True)]
            made += joined
        return made

    def split(self, packed: Sequence[int]) -> NDArray[np.float64]:
        """The sums of all columns, from a decrypted number a ciphertext of a row."""
        half, mask, made = 1 << (self.width - 1), (1 << self.width) - 1, []
        for k, number in enumerate(packed):
            mine = min(self.per_row, self.columns - k * self.per_row)
            raised = number + sum(half << (j * self.width) for j in range(mine))
            require(0 <= raised < 1 << (mine * self.width), "sums beyond their fields", "VerticalLinear")
            made += [((raised >> (j * self.width)) & mask) - half for j in range(mine)]
        return np.array([one / 4.0**FRACTION for one in made])

    def open(self, plain: Sequence[int], outputs: int) -> NDArray[np.float64]:
        """``x' v`` from decrypted numbers, those of the first output first, ``(columns, outputs)``."""
        parts = [self.split(plain[k * self.count : (k + 1) * self.count]) for k in range(outputs)]
        return np.stack(parts, axis=1)


def require_ciphertexts(message: Any, count: int, key_bits: int, name: str) -> NDArray[np.uint8]:
    """A peer's ciphertexts.

    Raises:
        MessageError: they have another form.
    """
    shape = (count, key_bits // 4)
    good = isinstance(message, np.ndarray) and message.dtype == np.uint8 and message.shape == shape
    require(good, f"no {count} ciphertexts from {name!r}", "VerticalLinear")
    return np.asarray(message)


class PeerColumns:
    """Another party's columns under its key.

    Args:
        cipher: the encryption.
        key: its public key.
        message: ``columns`` and ``sealed``.
        rows: number of rows.
        name: the party.

    Raises:
        MessageError: it has another form.
        DataError: the key is no key of this length, or a ciphertext is none.
    """

    def __init__(self, cipher: Paillier, key: Any, message: Any, rows: int, name: str) -> None:
        found = message if isinstance(message, Mapping) else {}
        columns = found.get("columns")
        good = type(columns) is int and 0 <= columns <= 1 << 20
        require(good and isinstance(key, Mapping), f"{columns!r} columns at {name!r}", "VerticalLinear")
        self.fields = ColumnFields(rows, columns, cipher.key_bits)  # type: ignore[arg-type]
        sealed = require_ciphertexts(found.get("sealed"), rows * self.fields.count, cipher.key_bits, name)
        self._parts = [
            SealedVector(cipher, key, each) for each in sealed.reshape(self.fields.count, rows, sealed.shape[1])
        ]
        self._size = sealed.shape[1]

    def multiply(self, v: NDArray[np.float64], secret: Secret) -> NDArray[np.uint8]:
        """Ciphertexts of ``x' v``, with fresh noise: those of the first output first.

        Args:
            v: ``(rows, outputs)``, this party's own numbers.
            secret: its entropy.
        """
        whole = to_whole(v)
        sums = [part.weighted_sums(whole) for part in self._parts]
        flat = [sums[k][output] for output in range(v.shape[1]) for k in range(len(sums))]
        return self._parts[0].blind(flat, secret) if flat else np.zeros((0, self._size), np.uint8)


def predict_products(
    cipher: Paillier, rows: int, columns: Sequence[int], outputs: int, rounds: float, short: bool
) -> dict[str, float]:
    """The processor ``seconds`` of all parties and the ``bytes`` between them of encrypted products, from the time of one multiplication on this machine.

    Args:
        cipher: the length of the key.
        rows: training rows.
        columns: how many columns each party has.
        outputs: margins of a row.
        rounds: how many products.
        short: whether noise has short exponents.
    """
    cipher.require()
    bits, others = cipher.key_bits, len(columns) - 1
    whole, half = time_product(2 * bits), time_product(bits)
    counts = sum(ColumnFields(rows, each, bits).count for each in columns)
    encrypted = rows * counts * 2 * (448 if short else bits // 2) / 8
    answers = rounds * outputs * others * counts
    products = (
        answers * (rows * 6 + 6 * 4 * 256 + 1.2 * bits) + rows * counts * others
    )  # and a check of each ciphertext
    opened = answers * 2 * 1.2 * bits / 2
    sent = others * rows * counts + answers
    return {"seconds": (encrypted + opened) * half + products * whole, "bytes": sent * bits / 4}


def predict_slots(rows: int, columns: Sequence[int], outputs: int, rounds: float) -> dict[str, float]:
    """The same of CKKS: 6 ms a ciphertext's product and rotation, 370 kB a ciphertext, 3.7 MB a party's keys.

    Args:
        rows: training rows.
        columns: how many columns each party has.
        outputs: margins of a row.
        rounds: how many products.
    """
    others, forms = len(columns) - 1, [SlotForm(rows, each) for each in columns]
    sealed = sum(form.groups * form.blocks for form in forms)
    answers = rounds * outputs * others * sum(form.groups for form in forms)
    turns = answers * forms[0].segment.bit_length() + rounds * outputs * others * sealed
    return {
        "seconds": 0.3 * len(columns) + 0.04 * sealed + 6e-3 * turns + 0.01 * answers,
        "bytes": others * (3.7e6 * len(columns) + 3.7e5 * sealed) + 3.7e5 * answers,
    }
