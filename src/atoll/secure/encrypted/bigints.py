"""Numbers side by side in large whole numbers, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["pack", "per_plaintext", "unpack"]


def per_plaintext(width: int, key_bits: int) -> int:
    """Return how many numbers of ``width`` bits fit below ``2^(key_bits - 1)``, and so below the modulus.

    Raises:
        ConfigError: not one.
    """
    if width >= key_bits:
        raise ConfigError(f"sums of {width} bits, in a modulus of {key_bits}", remedy="use a longer key")
    return (key_bits - 1) // width


def pack(numbers: NDArray[np.uint64], width: int, key_bits: int) -> list[int]:
    """Return whole numbers ``sum_j numbers[j] 2^(j width)``, the first one lowest."""
    per = per_plaintext(width, key_bits)
    rows = np.zeros((-(-numbers.size // per), per), dtype="<u8")
    rows.ravel()[: numbers.size] = numbers
    bits = np.unpackbits(rows.view(np.uint8).reshape(*rows.shape, 8), axis=2, bitorder="little")[:, :, :width]
    packed = np.packbits(bits.reshape(len(rows), per * width), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def unpack(packed: Sequence[Any], size: int, width: int, key_bits: int) -> NDArray[np.uint64]:
    """Return the ``(size,)`` numbers of ``pack``, modulo ``2^width`` each."""
    per = per_plaintext(width, key_bits)
    count = -(-per * width // 8)
    mask = (1 << (8 * count)) - 1
    raw = b"".join((int(number) & mask).to_bytes(count, "little") for number in packed)
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(len(packed), count)
    bits = np.unpackbits(rows, axis=1, count=per * width, bitorder="little").reshape(-1, width)
    wide = np.zeros((len(bits), 64), dtype=np.uint8)
    wide[:, :width] = bits
    return np.asarray(np.packbits(wide, axis=1, bitorder="little").view("<u8").ravel()[:size], dtype=np.uint64)
