"""Product quantisation: blocks of entries become indices of codewords, which add up as counts. Codebooks are made by k-means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Fitting, Stage, StageContext, WithMemory, Worded

from ..packed import index_width, packed_bytes
from ..rows import numpy_leaf, template, template_of
from .words import Layers, coded, of_version, under, untouched

__all__ = ["ProductQuantizer", "codebook", "nearest"]

Array = np.ndarray[Any, np.dtype[Any]]
_ROWS = 1 << 14
"""Points whose distances are in memory at once."""


def nearest(points: Array, words: Array) -> Array:
    """Return the index of the nearest codeword of each point, the first of several at the same distance.

    Args:
        points: ``(n, d)``.
        words: ``(k, d)``.
    """
    squares = (words * words).sum(axis=1)
    parts = [
        np.argmin(squares - 2.0 * (points[at : at + _ROWS] @ words.T), axis=1) for at in range(0, len(points), _ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def codebook(points: Array, k: int, rng: np.random.Generator, iterations: int = 20) -> Array:
    """Return ``k`` codewords by Lloyd's algorithm, from distinct random points; an empty cell gets the point that is farthest from its codeword.

    Lloyd 1982, "Least Squares Quantization in PCM".

    Args:
        points: ``(n, d)``, at least ``k``.
        k: number of codewords.
        rng: the random stream of the first codewords.
        iterations: the largest number of iterations; it ends earlier once no point changes its cell.
    """
    words = points[np.sort(rng.permutation(len(points))[:k])]
    cells = np.full(len(points), -1)  # distances in the precision of the points, means in float64
    for _ in range(iterations):
        found = nearest(points, words)
        if (found == cells).all():
            break
        cells = found
        sizes = np.bincount(cells, minlength=k)
        sums = np.stack([np.bincount(cells, column, minlength=k) for column in points.T], axis=1)
        words = np.where(sizes[:, None] > 0, sums / sizes.clip(min=1)[:, None], words).astype(points.dtype)
        empty = np.flatnonzero(sizes == 0)
        if len(empty):
            far = np.argsort(-((points - words[cells]) ** 2).sum(axis=1), kind="stable")
            words[empty] = points[far[: len(empty)]]
    return words


# ---------------------------------------------------------------- product quantisation

_FEWEST = 8
"""Blocks that a coded layer must have: with fewer, a codebook of their own would be longer than they are."""


@dataclass(frozen=True)
class ProductQuantizer(Stage, WithMemory, Worded, Fitting):
    """Cut each layer into blocks of ``d`` entries, and send for each block the index of the nearest of ``k`` codewords that all parties share.

    A party sends ``A_m = argmin_r ||block_m - C_r||^2``, ``ceil(log2 k)`` bits for ``d`` entries: 0.625 bits an entry for ``d = 8``, ``k = 32``. Sums follow from
    counts: ``sum_i w_i C[A_i,m] = sum_r H_m[r] C_r``, where ``H_m[r]`` is the weight of the parties with index ``r``. ``atoll.reducers.SecureIndexing`` finds
    ``H`` and hides the indices; a plain reducer decodes each reply on arrival, which gives the same. Prasad, Ghosh, Cormode, Mironov, Yousefpour, Stock
    2022, "Reconciling Security and Communication Efficiency in Federated Learning" (which says ``k`` bits where its example has ``log2 k``).

    Codebooks are fitted to the last sum or a mock client's reply, a layer each, by k-means; until then, values go as numbers. A codebook that is fitted to
    sums of codewords every round loses its spread, so refresh it every few rounds, or fit it to public rows. Entries are in C order, the last block
    is padded with zeros, and of several nearest codewords the first counts. A layer has at most a codeword for four blocks; one with fewer than 8 blocks, fewer
    than two axes or fewer than ``least`` entries stays numbers.

    On the wire: ``8 ceil(blocks ceil(log2 k) / 8)`` bits a coded layer; on the way down ``32 k d`` bits a layer for the codebook.

    Attributes:
        block: ``d``, entries a block.
        codewords: ``k``, the largest number of codewords, from 2 to 65536.
        spread: factor of the codewords: above 1 if the fitted value is a mean, whose entries are smaller than those of single replies.
        iterations: iterations of k-means.
        refresh: rounds between two fits.
        adapt: share by which a codebook's relative error on the value that it would be fitted to may have grown since it was fitted; only if it has grown by more, a fit makes
            another. ``None`` makes another at each fit.
        layers: ``"matrices"`` codes leaves with at least two axes, ``"all"`` every leaf.
        least: entries that a coded leaf must have.
    """

    block: int = 8
    codewords: int = 256
    spread: float = 2.0
    iterations: int = 20
    refresh: int = 5
    layers: Layers = "matrices"
    least: int = 10
    adapt: float | None = None
    summable: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    packs: ClassVar[bool] = True
    indexes: ClassVar[bool] = True
    fits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        where = "ProductQuantizer"
        if self.block < 1 or not 2 <= self.codewords <= 1 << 16:
            remedy = "use blocks of at least 1 entry, and 2 to 65536 codewords"
            raise ConfigError(f"block={self.block}, codewords={self.codewords}", where=where, remedy=remedy)
        if not (self.spread > 0 and math.isfinite(self.spread)):
            raise ConfigError(f"spread={self.spread}", where=where, remedy="use a finite number above 0")
        if self.adapt is not None and not (self.adapt >= 0 and math.isfinite(self.adapt)):
            raise ConfigError(f"adapt={self.adapt}", where=where, remedy="use a share from 0, such as 0.2, or None")
        if self.refresh < 1 or self.iterations < 1 or self.least < 0:
            raise ConfigError(
                f"refresh={self.refresh}, iterations={self.iterations}, least={self.least}",
                where=where,
                remedy="use at least 1 round and 1 iteration, and least of at least 0 entries",
            )

    # ------------------------------------------------------------------ layers and blocks

    def words_of(self, shape: tuple[int, ...]) -> int:
        """Codewords of a layer of this shape, at most a fourth of its blocks, a power of two; 0 if it stays numbers."""
        blocks = self.blocks_of(shape)
        if not coded(shape, self.layers, self.least) or blocks < _FEWEST:
            return 0
        return min(self.codewords, 1 << ((blocks // 4).bit_length() - 1))

    def blocks_of(self, shape: tuple[int, ...]) -> int:
        """Blocks of a layer of this shape."""
        return -(-math.prod(shape) // self.block)

    def _cut(self, leaf: Any) -> Any:
        """A leaf of a block of clients as blocks of entries, ``(clients, blocks, d)``."""
        rows = leaf.reshape(len(leaf), -1)
        over = -rows.shape[1] % self.block
        return np.pad(rows, ((0, 0), (0, over))).reshape(len(leaf), -1, self.block)

    @staticmethod
    def _join_blocks(blocks: Any, form: Any) -> Any:
        """The inverse of ``_cut``; ``form`` is the leaf's template."""
        shape = form.shape[2:]
        return blocks.reshape(len(blocks), -1)[:, : math.prod(shape)].reshape(len(blocks), *shape).astype(form.dtype)

    # ------------------------------------------------------------------ round parameters

    def fit(self, example: Tree, rng: Rng) -> dict[str, Tree]:
        """Return a codebook for each coded layer, ``(k, d)``, float32."""
        books = []
        for i, leaf in enumerate(T.leaves(T.map(numpy_leaf, example))):
            k = self.words_of(leaf.shape)
            if k:
                points = self._cut(leaf[None])[0] * self.spread
                books.append(codebook(points, k, rng.child("layer", i).generator(), self.iterations).astype(np.float32))
        return {"books": books} if self.adapt is None else {"books": books, "error": self._error(example, books)}

    def refit(self, example: Tree, rng: Rng, known: Tree, told: Mapping[str, int] | None) -> dict[str, Tree] | None:
        """Return codebooks; ``None``, with ``adapt``, if those so far are still good for this value."""
        del told
        if self.adapt is not None and self._error(example, known["books"]) <= (1 + self.adapt) * known["error"]:
            return None
        return self.fit(example, rng)

    def _error(self, example: Tree, books: Sequence[Any]) -> float:
        """The relative squared error ``||x - C[A]||^2 / ||x||^2`` of ``spread`` times a value under codebooks."""
        left, off, size = iter(books), 0.0, 0.0
        for leaf in T.leaves(T.map(numpy_leaf, example)):
            if self.words_of(leaf.shape):
                book, points = next(left), self._cut(leaf[None])[0] * self.spread
                off += float(np.sum((points - book[nearest(points, book)]) ** 2))
                size += float(np.sum(points**2))
        return off / (size or 1.0)

    # ------------------------------------------------------------------ the two halves

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one client."""
        if context.public is None:
            return untouched(value)
        block = T.map(lambda leaf: numpy_leaf(leaf)[None], value)
        return T.map(lambda leaf: leaf[0], self.encode_block(block, context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Return each client's indices, and its other leaves."""
        if context.public is None:
            return untouched(block)
        arrays = T.map(numpy_leaf, block)
        books, index, of, rest = iter(context.public["books"]), [], [], []
        for leaf in T.leaves(arrays):
            k = self.words_of(leaf.shape[1:])
            if not k:
                rest.append(leaf)
                continue
            book, points = next(books), self._cut(leaf)
            if not np.isfinite(points).all():  # an index would hide it: the form changes, and the reply is refused
                return under(0, {"numbers": arrays})
            index.append(nearest(points.reshape(-1, self.block), book).reshape(points.shape[:2]).astype(np.uint16))
            of.append(np.zeros((len(leaf), 0, k), dtype=np.float32))
        return under(context.public["version"], {"like": template(arrays), "of": of, "rest": rest, "index": index})

    def addends(self, sent: Tree) -> Tree:
        """Turn indices into rows of zeros with a one at each index."""
        ((version, parts),) = sent.items()
        if "index" not in parts:
            return sent
        pairs = zip(parts["index"], parts["of"], strict=True)
        counts = [(np.asarray(i)[..., None] == np.arange(of.shape[-1])).astype(of.dtype) for i, of in pairs]
        return {version: {**{name: parts[name] for name in ("like", "of", "rest")}, "counts": counts}}

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Multiply counts by the codebooks: ``sum_r H[r] C_r``."""
        del n
        if public is None:
            return of_version(total, 0, "ProductQuantizer")["numbers"]
        parts = of_version(total, public["version"], "ProductQuantizer")
        told = "sums" if "sums" in parts else "counts"  # an enclave may tell no counts, but what they stand for
        one = {name: [np.asarray(leaf)[None] for leaf in parts[name]] for name in ("rest", told)}
        like = T.map(lambda leaf: np.asarray(leaf)[None], parts["like"])
        rows = (
            one["sums"]
            if told == "sums"
            else [h @ book for h, book in zip(one["counts"], public["books"], strict=True)]
        )
        return T.map(lambda leaf: leaf[0], self._put(like, rows, one["rest"]))

    def decode_one(self, sent: Tree, public: Tree, memory: Tree) -> Tree:
        """Look the codewords up."""
        del memory
        one = T.map(lambda leaf: np.asarray(leaf)[None], sent)
        return T.map(lambda leaf: leaf[0], self.decode_block(one, public))

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Look up the codewords of each client."""
        del memory
        if public is None:
            return of_version(block, 0, "ProductQuantizer")["numbers"]
        parts = of_version(block, public["version"], "ProductQuantizer")
        rows = [book[index] for index, book in zip(parts["index"], public["books"], strict=True)]
        return self._put(parts["like"], rows, parts["rest"])

    def _put(self, like: Tree, rows: list[Any], rest: list[Any]) -> Tree:
        blocks, others, leaves = iter(rows), iter(rest), []
        for form in T.leaves(like):
            whole = not self.words_of(form.shape[2:])
            leaves.append(np.asarray(next(others), form.dtype) if whole else self._join_blocks(next(blocks), form))
        return T.rebuild(like, leaves)

    # ------------------------------------------------------------------ promises

    def word_bits(self, sent: Tree) -> Tree:
        """``ceil(log2 k)`` for indices, ``None`` for other leaves."""
        ((version, parts),) = sent.items()
        bits = T.map(lambda leaf: None, parts)
        if "index" in parts:
            bits["index"] = [max(1, index_width(of.shape[-1])) for of in parts["of"]]
        return {version: bits}

    def wire_bits(self, value: Tree) -> int:
        """``8 ceil(blocks ceil(log2 k) / 8)`` a coded layer, and the other leaves whole."""
        forms = [(leaf.shape[1:], leaf.itemsize) for leaf in T.leaves(template_of(value))]
        return 8 * sum(
            packed_bytes(self.blocks_of(shape), max(1, index_width(k)))
            if (k := self.words_of(shape))
            else math.prod(shape) * item
            for shape, item in forms
        )
