"""The base class of compressors, stages that encode a client's vector in a binary form, and the packing of small whole numbers into bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.requests.stage import Stage, StageContext

from .rows import Groups, Per, check_per, lay_out, put_back

__all__ = ["Packed", "index_width", "pack", "pack_trits", "packed_bytes", "unpack", "unpack_trits"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Packed(Stage):
    """Base class of compressors: it lays out an update as one vector, and ``pack`` turns the vector into named arrays.

    The message is ``{"like": template, name: array, ...}``; the template has shapes and dtypes but no entries.
    """

    summable: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    packs: ClassVar[bool] = True

    def pack(self, rows: Array, groups: Groups, public: Tree, keys: Array) -> dict[str, Any]:
        """Compress vectors.

        Args:
            rows: one vector a client, shape ``(clients, entries)``.
            groups: which entries share a scale.
            public: the round's parameters.
            keys: one random key a client.

        Returns:
            Arrays with a leading client axis, or ``Ragged`` ones.
        """
        raise NotImplementedError

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Array:
        """Return the vectors as the server decodes them, shape ``(clients, entries)``, of this dtype."""
        raise NotImplementedError

    @property
    def grouping(self) -> Per:
        """Which entries share a scale."""
        per: Per = getattr(self, "per", "model")
        return per

    def groups(self, like: Tree) -> Groups:
        """The groups of a value or a template."""
        return Groups.of(like, self.grouping)

    def _check_per(self) -> None:
        check_per(self.grouping, type(self).__name__)

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one client."""
        block = T.map(
            lambda leaf: leaf[None] if hasattr(leaf, "shape") and leaf.shape else np.asarray(leaf)[None], value
        )
        return T.map(lambda leaf: leaf[0], self.encode_block(block, context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Pack each client's vector."""
        rows, like = lay_out(block)
        with np.errstate(over="ignore", invalid="ignore"):
            parts = self.pack(rows, self.groups(T.map(lambda leaf: leaf[0], like)), context.public, context.keys)
        return {"like": like, **parts}

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Decode a block of one client."""
        del n
        one = T.map(lambda leaf: np.asarray(leaf)[None], total)
        return T.map(lambda leaf: leaf[0], self.decode_block(one, public))

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Unpack each client's vector and put it back into the tree."""
        del memory
        like = block["like"]
        groups = self.groups(T.map(lambda leaf: leaf[0], like))
        dtype = np.result_type(*[leaf.dtype for leaf in T.leaves(like)])
        parts = {name: leaf for name, leaf in block.items() if name != "like"}
        with np.errstate(over="ignore", invalid="ignore"):
            return put_back(self.unpack(parts, groups, dtype, public), like)


def wire_scale(scale: Array, *, up: bool = False) -> Array:
    """Round scales to the 32 bits on the wire; with ``up``, never below the original, so that no entry exceeds its scale."""
    sent = scale.astype(np.float32)
    if not up:
        return sent
    return np.where(sent.astype(np.float64) < scale, np.nextafter(sent, np.float32(np.inf)), sent)


# ---------------------------------------------------------------- packing of small whole numbers into bytes and back

_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_TRITS = (np.arange(243, dtype=np.uint8)[:, None] // _POWERS % 3).astype(np.uint8)


def index_width(count: int) -> int:
    """Bits of a number below ``count``: ``ceil(log2 count)``."""
    return max(0, count - 1).bit_length()


def packed_bytes(count: int, width: int) -> int:
    """Bytes for ``count`` numbers: ``ceil(count * width / 8)``."""
    return -(-count * width // 8)


def pack(codes: Array, width: int) -> Array:
    """Pack along the last axis.

    Args:
        codes: whole numbers below ``2^width``, shape ``(..., count)``.
        width: bits each, up to 63.

    Returns:
        ``uint8``, shape ``(..., ceil(count * width / 8))``.
    """
    count = codes.shape[-1]
    if width in (8, 16, 32):
        return np.ascontiguousarray(codes.astype(f"<u{width // 8}")).view(np.uint8)
    if width == 1:
        return np.packbits(codes.astype(bool), axis=-1, bitorder="little")
    if width < 8:
        return _pack_words(codes, width)[..., : packed_bytes(count, width)]
    bits = (codes.astype(np.uint64)[..., None] >> np.arange(width, dtype=np.uint64)).astype(np.uint8) & np.uint8(1)
    return np.packbits(bits.reshape(*codes.shape[:-1], count * width), axis=-1, bitorder="little")


def _pack_words(codes: Array, width: int) -> Array:
    """Pack words: eight numbers take ``width`` bytes."""
    *lead, count = codes.shape
    padded = np.zeros((*lead, -(-count // 8) * 8), dtype=np.uint8)
    padded[..., :count] = codes
    eight = padded.reshape(*lead, -1, 8)
    word = np.zeros(eight.shape[:-1], dtype="<u8")
    for i in range(8):
        word |= eight[..., i].astype(np.uint64) << np.uint64(i * width)
    return np.ascontiguousarray(word[..., None].view(np.uint8)[..., :width]).reshape(*lead, -1)


def unpack(packed: Array, width: int, count: int) -> Array:
    """The inverse of ``pack``: unsigned integers of the smallest dtype, shape ``(..., count)``."""
    packed = np.ascontiguousarray(packed)
    lead = packed.shape[:-1]
    if width in (8, 16, 32):
        return packed.view(f"<u{width // 8}")
    if width == 1:
        return np.unpackbits(packed, axis=-1, count=count, bitorder="little")
    if 0 < width < 8:
        groups = -(-count // 8)
        words = np.zeros((*lead, groups, 8), dtype=np.uint8)
        body = np.zeros((*lead, groups * width), dtype=np.uint8)
        body[..., : packed.shape[-1]] = packed
        words[..., :width] = body.reshape(*lead, groups, width)
        word = words.view("<u8")[..., 0]
        mask = np.uint64((1 << width) - 1)
        codes = np.empty((*lead, groups, 8), dtype=np.uint8)
        for i in range(8):
            codes[..., i] = (word >> np.uint64(i * width)) & mask
        return codes.reshape(*lead, -1)[..., :count]
    bits = np.unpackbits(packed, axis=-1, count=count * width, bitorder="little").reshape(*lead, count, width)
    weights = np.uint64(1) << np.arange(width, dtype=np.uint64)
    return np.asarray((bits * weights).sum(axis=-1, dtype=np.uint64))


def pack_trits(trits: Array) -> Array:
    """Pack the numbers 0, 1 and 2, five a byte (``3^5 = 243``): 1.6 bits each."""
    *lead, count = trits.shape
    padded = np.zeros((*lead, -(-count // 5) * 5), dtype=np.uint8)
    padded[..., :count] = trits
    return np.asarray((padded.reshape(*lead, -1, 5) * _POWERS).sum(axis=-1, dtype=np.uint8))


def unpack_trits(packed: Array, count: int) -> Array:
    """The inverse of ``pack_trits``."""
    return np.asarray(_TRITS[packed].reshape(*packed.shape[:-1], -1)[..., :count])
