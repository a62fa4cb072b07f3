"""Words: whole numbers modulo ``2^p``, which a message packs to ``p`` bits each."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from atoll.core.errors import MessageError

__all__ = ["Words", "word_dtype"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_JOINS = (np.concatenate, np.stack)


def word_dtype(bits: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype that holds ``bits`` bits.

    Raises:
        MessageError: ``bits`` is not 1 to 64.
    """
    if type(bits) is not int or not 1 <= bits <= 64:
        raise MessageError(f"words of {bits!r} bits", where="Words", remedy="use 1 to 64 bits")
    return np.dtype(f"u{max(1, 1 << (bits - 1).bit_length() >> 3)}")


class Words(np.ndarray[Any, np.dtype[Any]]):
    """An unsigned array whose entries count modulo ``2^bits``: encoded updates, masks, shares.

    It adds up as its dtype does. ``2^bits`` divides the modulus of the dtype, so a sum is right modulo ``2^bits``, and the bits above are
    meaningless; `reduced` clears them. On the wire an array of ``n`` words takes ``ceil(n bits / 8)`` bytes: first the whole bytes of all words, lowest
    first, then their remaining ``bits % 8`` bits, packed lowest first.

    Make one with `Words.of`. A slice, a copy, a sum or a stack of words has the same word length.

    Attributes:
        bits: word length ``p``.
    """

    bits: int = 0

    @classmethod
    def of(cls, values: Array, bits: int) -> Words:
        """Return whole numbers as words; negative ones count modulo ``2^bits``. Shares memory with ``values`` if its dtype fits.

        Args:
            values: integers, any shape.
            bits: word length, 1 to 64.

        Raises:
            MessageError: the values are not integers, or no dtype holds so many bits.
        """
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
            kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
            raise MessageError(f"expected whole numbers, found {kind}", where="Words", remedy="round them first")
        dtype = word_dtype(bits)
        plain = values.view(np.ndarray)
        made: Any = None
        if plain.dtype.itemsize == dtype.itemsize:
            made = plain.view(dtype.newbyteorder(plain.dtype.byteorder)).view(cls)
        else:
            made = plain.astype(dtype).view(cls)
        found: Words = made
        found.bits = bits
        return found

    def __array_finalize__(self, other: Any) -> None:
        self.bits = getattr(other, "bits", 0)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Keep the word length where several arrays are joined: NumPy then forgets the subclass."""
        made = super().__array_function__(func, types, args, kwargs)
        joined = func in _JOINS and isinstance(made, np.ndarray) and made.dtype.kind == "u"
        return Words.of(made, self.bits) if joined else made

    @property
    def is_words(self) -> bool:
        """Whether this is still an array of words: a comparison of two, for example, is not."""
        return self.dtype.kind == "u" and 1 <= self.bits <= 8 * self.dtype.itemsize

    def reduced(self) -> Array:
        """Return the words in ``[0, 2^bits)`` as a plain array."""
        plain = self.view(np.ndarray)
        if self.bits == 8 * plain.dtype.itemsize:
            return plain
        made: Array = plain & plain.dtype.type((1 << self.bits) - 1)
        return made

    def lifted(self) -> Array:
        """Return the centred lift of the words: int64 in ``[-2^(bits-1), 2^(bits-1))``."""
        up = np.uint64(64 - self.bits)
        wide = self.view(np.ndarray).astype(np.uint64)
        wide <<= up
        signed: Array = wide.view(np.int64)
        signed >>= np.int64(up)
        return signed

    @property
    def packed_nbytes(self) -> int:
        """Bytes of the packed words: ``ceil(size bits / 8)``."""
        return -(-self.size * self.bits // 8)

    def packed(self) -> Array:
        """Return the packed words, ``uint8``, shape ``(packed_nbytes,)``."""
        flat = np.ascontiguousarray(self.view(np.ndarray).reshape(-1))
        flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        whole, rest = divmod(self.bits, 8)
        raw = flat.view(np.uint8).reshape(-1, flat.dtype.itemsize)
        if not rest:
            return np.ascontiguousarray(raw[:, :whole]).reshape(-1)
        low = raw[:, :whole].reshape(-1)
        return np.concatenate([low, _pack_rest(raw[:, whole] & np.uint8((1 << rest) - 1), rest)])

    @classmethod
    def unpacked(cls, packed: Array, bits: int, shape: tuple[int, ...], count: int) -> Words:
        """The inverse of `packed`.

        Raises:
            MessageError: bits are set past the last word.
        """
        dtype, (whole, rest) = word_dtype(bits), divmod(bits, 8)
        raw = np.zeros((count, dtype.itemsize), dtype=np.uint8)
        raw[:, :whole] = packed[: count * whole].reshape(count, whole)
        if rest:
            raw[:, whole] = _unpack_rest(packed[count * whole :], rest, count)
        words = raw.reshape(-1).view(dtype.newbyteorder("<")).astype(dtype, copy=False)
        return cls.of(words.reshape(shape), bits)


def _pack_rest(values: Array, width: int) -> Array:
    """Pack numbers below ``2^width``, ``width < 8``: eight of them take ``width`` bytes."""
    count = len(values)
    padded = np.zeros(-(-count // 8) * 8, dtype=np.uint8)
    padded[:count] = values
    eight = padded.reshape(-1, 8)
    word = np.zeros(len(eight), dtype="<u8")
    for i in range(8):
        word |= eight[:, i].astype(np.uint64) << np.uint64(i * width)
    return np.ascontiguousarray(word[:, None].view(np.uint8)[:, :width]).reshape(-1)[: -(-count * width // 8)]


def _unpack_rest(packed: Array, width: int, count: int) -> Array:
    """The inverse of `_pack_rest`.

    Raises:
        MessageError: bits are set past the last number.
    """
    groups = -(-count // 8)
    body = np.zeros(groups * width, dtype=np.uint8)
    body[: len(packed)] = packed
    spread = np.zeros((groups, 8), dtype=np.uint8)
    spread[:, :width] = body.reshape(groups, width)
    word, mask = spread.view("<u8")[:, 0], np.uint64((1 << width) - 1)
    out = np.empty((groups, 8), dtype=np.uint8)
    for i in range(8):
        out[:, i] = (word >> np.uint64(i * width)) & mask
    flat = out.reshape(-1)
    if flat[count:].any():
        raise MessageError("bits are set past the last word", where="Words", remedy="clear them")
    return flat[:count]
