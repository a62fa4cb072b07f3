"""Distributed point functions: two keys for ``f(r) = weight if r = index else 0``, each of which tells nothing about the index or the weight.

Two servers evaluate a key each at every ``r``. Their results add up to ``f`` modulo ``2^p``, so sums over parties add up to counts. The construction is the tree of Boyle,
Gilboa and Ishai 2016, "Function Secret Sharing: Improvements and Extensions", figure 1, with early termination (section 3.2.3): each node of the last level
stands for a run of indices. All blocks of an update are computed together.

The generator of the tree is AES with fixed keys in the Matyas-Meyer-Oseas mode, ``G(s) = E_0(s) ^ s, E_1(s) ^ s`` (as in Boyle et al., section 4), from the library
``cryptography``. Its security rests on AES as an ideal cipher; keys hold 127-bit seeds. The roots of all blocks follow from one 32-byte seed a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import ConfigError, MessageError
from atoll.core.extras import need
from atoll.core.message import Words
from atoll.core.message.words import word_dtype

from ..keystream import keystream

__all__ = ["KeyParts", "deal", "depth_of", "evaluate", "evaluate_all", "key_bits"]

Array = np.ndarray[Any, np.dtype[Any]]
_SEED = 16
_MOST = 1 << 20
"""Words that are computed together."""
_LEFT, _RIGHT, _LEAF = (bytes([use]) * 16 for use in (1, 2, 3))
"""The fixed keys of the generator: for the two children of a node, and for the words of a leaf. Public, and different."""


def key_bits(codewords: int, bits: int, depth: int) -> int:
    """Bits of a key for one block, without the root: ``130 depth + 2^(L - depth) p`` with ``L = ceil(log2 k)``."""
    return depth * (8 * _SEED + 2) + (bits << (_height(codewords) - depth))


def depth_of(codewords: int, bits: int) -> int:
    """The depth of the tree with the shortest keys."""
    return min(range(_height(codewords) + 1), key=lambda depth: key_bits(codewords, bits, depth))


def deal(index: Array, weight: int, codewords: int, bits: int, seeds: tuple[bytes, bytes]) -> dict[str, Any]:
    """Return what both keys have in common for some blocks; a key is this and the server's own seed.

    Args:
        index: the index of each block, ``(blocks,)``, below ``codewords``.
        weight: the value at the index, modulo ``2^bits``.
        codewords: number of indices ``k``.
        bits: word length ``p``.
        seeds: 32 secret bytes for each server, for this use only.
    """
    depth, height = depth_of(codewords, bits), _height(codewords)
    blocks, index = len(index), np.asarray(index).astype(np.int64)
    if blocks and not 0 <= int(index.min()) <= int(index.max()) < codewords:
        raise ConfigError(
            f"an index of {int(index.max())} among {codewords} codewords",
            where="point function",
            remedy="use indices from 0",
        )
    nodes = [_roots(seed, blocks) for seed in seeds]
    turns = [np.full(blocks, bool(b)) for b in (0, 1)]
    seams, steers = [], []
    for level in range(depth):
        right = (index >> (height - 1 - level) & 1).astype(bool)
        children = [_children(node) for node in nodes]  # each: seeds (2, blocks, 16), turns (2, blocks)
        keep, lose = right.astype(int), 1 - right.astype(int)
        each = np.arange(blocks)
        seam = children[0][0][lose, each] ^ children[1][0][lose, each]
        steer = children[0][1] ^ children[1][1] ^ np.stack([~right, right])
        for b in (0, 1):
            chosen, turn = children[b][0][keep, each], children[b][1][keep, each]
            nodes[b] = np.where(turns[b][:, None], chosen ^ seam, chosen)
            turns[b] = turn ^ (turns[b] & steer[keep, each])
        seams.append(seam)
        steers.append(steer)
    wide = 1 << (height - depth)
    leaf = np.zeros((blocks, wide), dtype=word_dtype(bits))
    leaf[np.arange(blocks), index & (wide - 1)] = np.uint64(weight % (1 << bits)).astype(leaf.dtype)
    last = leaf - _words(nodes[0], wide, bits) + _words(nodes[1], wide, bits)
    last = np.where(turns[1][:, None], np.zeros_like(last) - last, last)
    return {
        "seams": np.stack(seams) if seams else np.zeros((0, blocks, _SEED), np.uint8),
        "steers": np.packbits(np.stack(steers) if steers else np.zeros((0, 2, blocks), bool)),
        "last": Words.of(last.ravel(), bits),
    }


def evaluate(shared: Any, seed: bytes, server: int, blocks: int, codewords: int, bits: int) -> Array:
    """Return one server's share of the counts, ``(blocks, codewords)``, words modulo ``2^bits`` in their dtype; bits above are meaningless.

    Args:
        shared: what `deal` returned, from a party.
        seed: the server's own seed.
        server: 0 or 1.
        blocks: number of blocks.
        codewords: number of indices.
        bits: word length.

    Raises:
        MessageError: the key has another form.
    """
    return evaluate_all([KeyParts.of(shared, seed, blocks, codewords, bits)], server, blocks, codewords, bits)


@dataclass(frozen=True)
class KeyParts:
    """A key of a party as arrays.

    Attributes:
        seams: correction of the seeds of each level, ``(depth, blocks, 16)``.
        steers: correction of the turns, ``(depth, 2, blocks)``.
        last: correction of the words, ``(blocks, wide)``.
        seed: the server's own seed.
    """

    seams: Array
    steers: Array
    last: Array
    seed: bytes

    @classmethod
    def of(cls, shared: Any, seed: bytes, blocks: int, codewords: int, bits: int) -> KeyParts:
        """Read a key; see `evaluate`.

        Raises:
            MessageError: it has another form.
        """
        depth = depth_of(codewords, bits)
        return cls(*_check_shared(shared, depth, blocks, 1 << (_height(codewords) - depth), bits), seed)


def evaluate_all(keys: Sequence[KeyParts], server: int, blocks: int, codewords: int, bits: int) -> Array:
    """Return one server's share of the sum of the counts of many parties, ``(blocks, codewords)``; see `evaluate`.

    The keys of many parties are evaluated together, as many as fit into `_MOST` words.
    """
    total = np.zeros((blocks, codewords), dtype=word_dtype(bits))
    step = max(1, _MOST // max(1, blocks << _height(codewords)))
    for start in range(0, len(keys), step):
        some = keys[start : start + step]
        found = _evaluate_leaves(some, server, blocks, codewords, bits)
        total += found.reshape(len(some), blocks, -1)[:, :, :codewords].sum(axis=0, dtype=total.dtype)
    return total


def _evaluate_leaves(keys: Sequence[KeyParts], server: int, blocks: int, codewords: int, bits: int) -> Array:
    """The words of all leaves of the parties' blocks, party by party: ``(parties * blocks, leaves)``."""
    depth, height = depth_of(codewords, bits), _height(codewords)
    wide, rows = 1 << (height - depth), len(keys) * blocks
    seams, steers, last = (
        np.concatenate(parts, axis=axis)
        for axis, parts in ((1, [k.seams for k in keys]), (2, [k.steers for k in keys]), (0, [k.last for k in keys]))
    )
    nodes = np.concatenate([_roots(key.seed, blocks) for key in keys])[:, None]
    turns = np.full((rows, 1), bool(server))
    for level in range(depth):
        width = nodes.shape[1]
        grown, bent = _children(nodes.reshape(-1, _SEED))
        grown, bent = grown.reshape(2, rows, width, _SEED), bent.reshape(2, rows, width)
        grown = np.where(turns[None, :, :, None], grown ^ seams[level][None, :, None], grown)
        bent = bent ^ (turns[None] & steers[level][:, :, None])
        nodes = np.stack([grown[0], grown[1]], axis=2).reshape(rows, 2 * width, _SEED)
        turns = np.stack([bent[0], bent[1]], axis=2).reshape(rows, 2 * width)
    width = nodes.shape[1]
    found = _words(nodes.reshape(-1, _SEED), wide, bits).reshape(rows, width, wide)
    found = np.where(turns[:, :, None], found + last[:, None], found)
    found = np.zeros_like(found) - found if server else found
    return found.reshape(rows, width * wide)


def _check_shared(shared: Any, depth: int, blocks: int, wide: int, bits: int) -> tuple[Array, Array, Array]:
    try:
        seams, packed, last = (np.asarray(shared[name]) for name in ("seams", "steers", "last"))
        right = seams.shape == (depth, blocks, _SEED) and seams.dtype == np.uint8 and packed.dtype == np.uint8
        right = right and packed.shape == (-(-2 * depth * blocks // 8),) and last.shape == (blocks * wide,)
        if not right or last.dtype != word_dtype(bits):
            raise ValueError("another shape or dtype")
    except (KeyError, TypeError, ValueError) as error:
        raise MessageError(
            f"a key of a point function that does not fit {blocks} blocks: {error}", where="SecureIndexing",
            remedy="let every party use the same codebook",
        ) from error  # fmt: skip
    steers = np.unpackbits(packed, count=2 * depth * blocks).astype(bool).reshape(depth, 2, blocks)
    return seams, steers, last.reshape(blocks, wide)


def _height(codewords: int) -> int:
    return max(0, codewords - 1).bit_length()


def _roots(seed: bytes, blocks: int) -> Array:
    roots = np.asarray(keystream(seed, 8, blocks * _SEED)).reshape(blocks, _SEED).copy()
    roots[:, 0] &= 0xFE
    return roots


def _children(nodes: Array) -> tuple[Array, Array]:
    """Both children of nodes, ``(2, nodes, 16)``, and their turns, ``(2, nodes)``: the lowest bit, which is then cleared."""
    grown = np.stack([_hash_blocks(key, nodes) for key in (_LEFT, _RIGHT)])
    turns = (grown[:, :, 0] & 1).astype(bool)
    grown[:, :, 0] &= 0xFE
    return grown, turns


def _words(nodes: Array, count: int, bits: int) -> Array:
    """Pseudorandom words of leaves, ``(nodes, count)``: hashes of the leaf's seed with a counter in its last two bytes."""
    dtype = word_dtype(bits)
    chunks = -(-count * dtype.itemsize // _SEED)
    counted = np.repeat(nodes[:, None], chunks, axis=1)
    counted[:, :, -2:] ^= np.arange(chunks, dtype=">u2").view(np.uint8).reshape(1, chunks, 2)
    made = _hash_blocks(_LEAF, counted.reshape(-1, _SEED)).reshape(len(nodes), chunks * _SEED)
    return made.view(dtype.newbyteorder("<")).astype(dtype)[:, :count]


def _hash_blocks(key: bytes, blocks: Array) -> Array:
    ciphers: Any = need("cryptography.hazmat.primitives.ciphers", "secure", "point functions")
    encryptor = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.ECB()).encryptor()
    plain = np.ascontiguousarray(blocks)
    made: Array = np.frombuffer(encryptor.update(plain.tobytes()), dtype=np.uint8).reshape(plain.shape) ^ plain
    return made
