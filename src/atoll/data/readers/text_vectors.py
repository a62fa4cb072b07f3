"""Vectors of texts: hashed n-grams, the common words of all parties, or their directions of most variance."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from .._checks import Array
from ..dataset import Dataset

__all__ = [
    "FittedTexts",
    "FittedWords",
    "TextVectors",
    "WordVectors",
    "at_length",
    "grams",
    "rarities",
    "with_text_vectors",
]


# The words of a text, their rarity, and what the forms of text vectors share.


Floats = NDArray[np.float32]

_WORD = re.compile(r"\w+(?:'\w+)?")


def grams(text: str, pairs: bool) -> list[bytes]:
    """Return the words of a text in lower case, and with ``pairs`` also each two neighbours."""
    words = [word.encode() for word in _WORD.findall(text.lower())]
    return words + [a + b" " + b for a, b in pairwise(words)] if pairs else words


def rarities(documents: NDArray[np.int64], texts: int) -> NDArray[np.float32]:
    """Return the weight ``ln((1 + n) / (1 + n_word)) + 1`` of words that ``documents`` of ``texts`` have."""
    return np.asarray(np.log((1 + texts) / (1 + documents)) + 1, np.float32)


def at_length(rows: NDArray[Any], length: float) -> NDArray[np.float32]:
    """Return rows at an Euclidean length; zeros stay zeros."""
    own = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(own, 1e-12) * np.float32(length), np.float32)


# Texts as vectors of their common words: which words a text has, weighted by rarity.


@dataclass(frozen=True)
class WordVectors:
    """How texts become vectors of their common words; `fit` learns from one sum over parties which words are common.

    The words are the ``dims`` hashes that most texts have. A text has ``log(1 + count)`` of each, times ``idf = ln((1 + n) / (1 + n_word)) + 1``, at a fixed length.
    Other words are left out.

    `TextVectors` projects on the directions of most variance instead. Where parties write of different things, those directions name the party, such as an airline, and
    say little of a party whose texts have no label. Words keep their meaning there, and a view that hides entries, `MaskFeatures`, leaves out words.

    A party adds to the sum its numbers of texts with each hash, ``(buckets,)``. Several parties get the vectors of their pooled texts, to the bit.

    Attributes:
        dims: length of a vector at most; less if there are fewer words.
        buckets: number of hashes. Different words may share one.
        pairs: whether neighbouring words count as words too.
        norm: Euclidean length of a vector. At 8, the entries of a text of 16 words are about 2.
        seed: of the hashes.
    """

    dims: int = 1024
    buckets: int = 1 << 17
    pairs: bool = False
    norm: float = 8.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.dims <= self.buckets or not 0.0 < self.norm < math.inf:
            raise DataError(
                f"dims={self.dims}, buckets={self.buckets}, norm={self.norm}",
                where="WordVectors",
                remedy="use at least one word, as many buckets as words, and a length above 0",
            )

    def hashes(self, text: str) -> list[int]:
        """Return the hash of each word of a text, in order."""
        return [zlib.crc32(gram, self.seed) % self.buckets for gram in grams(text, self.pairs)]

    def documents(self, texts: Sequence[str] | Array) -> NDArray[np.int64]:
        """Return the number of texts with each hash, ``(buckets,)``: what a party adds to the sum."""
        made = np.zeros(self.buckets, np.int64)
        for text in texts:
            made[np.unique(np.array(self.hashes(str(text)), np.int64))] += 1
        return made

    def fit(self, parties: Iterable[Sequence[str] | Array]) -> FittedWords:
        """Learn from the texts of parties which words are common.

        Raises:
            DataError: there is no word.
        """
        held = list(parties)
        total = sum(map(len, held))
        documents = np.sum([self.documents(texts) for texts in held], axis=0, initial=0)
        kept = np.argsort(-documents, kind="stable")[: self.dims]
        kept = kept[documents[kept] > 0]
        if not len(kept):
            raise DataError(
                "there are no words to fit", where="WordVectors", remedy="give the texts of at least one party"
            )
        return FittedWords(self, kept, rarities(documents[kept], total))


@dataclass(frozen=True, eq=False)
class FittedWords:
    """Vectors of common words.

    Attributes:
        form: the settings.
        kept: hashes of the common words, the commonest first, ``(dims,)``.
        idf: weight of each, ``(dims,)``.
    """

    form: WordVectors
    kept: NDArray[np.int64]
    idf: Floats

    def __call__(self, texts: Sequence[str] | Array) -> Floats:
        """Return the vectors of texts, ``(texts, dims)`` float32, of length ``norm``; 0 for a text without a common word."""
        places = np.full(self.form.buckets, -1, np.int64)
        places[self.kept] = np.arange(len(self.kept))
        made = np.zeros((len(texts), len(self.kept)), np.float32)
        for row, text in enumerate(texts):
            found = places[np.array(self.form.hashes(str(text)), np.int64)]
            np.add.at(made[row], found[found >= 0], 1.0)
        return at_length(np.log1p(made) * self.idf, self.form.norm)


_BLOCK = 1024
_MORE = 10  # directions beyond those asked for, as Halko, Martinsson and Tropp 2011 advise


@dataclass(frozen=True)
class TextVectors:
    """How texts become vectors; `fit` learns rarities and directions from the texts of one or more parties, by sums alone.

    A text is first counts of hashed words and pairs of words, ``log(1 + count)``, times ``idf = ln((1 + n) / (1 + n_word)) + 1``, at length 1 (as
    scikit-learn's ``TfidfVectorizer(sublinear_tf=True)`` but for ``log(1 + c)`` in place of ``1 + log c``). Then come the ``dims`` leading right singular
    vectors of all these rows, by subspace iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4): latent semantic analysis.

    A party adds to sums only: its numbers of texts with each hash, ``(buckets,)``, and in each of ``passes + 1`` rounds the product ``X^T X Q``, ``(buckets, dims +
    10)``. Several parties get the vectors of their pooled texts.

    Attributes:
        dims: length of a vector.
        buckets: number of hashes. Different words may share one.
        pairs: whether neighbouring words count as words too.
        passes: rounds of the iteration.
        seed: of the first directions, and of the hashes.
    """

    dims: int = 64
    buckets: int = 2048
    pairs: bool = True
    passes: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.dims <= self.buckets - _MORE or self.passes < 1:
            raise DataError(
                f"dims={self.dims}, buckets={self.buckets}, passes={self.passes}",
                where="TextVectors",
                remedy=f"use at least one direction and one pass, and {_MORE} more buckets than directions",
            )

    def counts(self, texts: Sequence[str] | Array) -> Floats:
        """Return ``log(1 + count)`` of each hash in each text, ``(texts, buckets)``."""
        made = np.zeros((len(texts), self.buckets), np.float32)
        for row, text in enumerate(texts):
            for gram in grams(str(text), self.pairs):
                made[row, zlib.crc32(gram, self.seed) % self.buckets] += 1.0
        return np.log1p(made)

    def documents(self, texts: Sequence[str] | Array) -> NDArray[np.int64]:
        """Return the number of texts with each hash, ``(buckets,)``: what a party adds to the first sum."""
        parts = [np.count_nonzero(self.counts(block), axis=0) for block in _split_blocks(texts)]
        return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(self.buckets, np.int64)

    def product(self, texts: Sequence[str] | Array, idf: Floats, basis: Floats) -> Floats:
        """Return ``X^T X Q`` of a party's weighted rows ``X``, ``(buckets, r)``: what it adds to the sum of a later round."""
        made = np.zeros_like(basis)
        for block in _split_blocks(texts):
            rows = at_length(self.counts(block) * idf, 1.0)
            made += rows.T @ (rows @ basis)
        return made

    def fit(self, parties: Iterable[Sequence[str] | Array]) -> FittedTexts:
        """Learn from the texts of parties. The result is that of their pooled texts, up to rounding.

        Raises:
            DataError: there is no text.
        """
        held = list(parties)
        total = sum(map(len, held))
        if not total:
            raise DataError(
                "there are no texts to fit", where="TextVectors", remedy="give the texts of at least one party"
            )
        documents = np.sum([self.documents(texts) for texts in held], axis=0)
        idf = rarities(documents, total)
        drawn = Rng.of(self.seed).child("text-vectors").generator()
        basis = drawn.standard_normal((self.buckets, self.dims + _MORE)).astype(np.float32)
        for _ in range(self.passes):
            basis = np.linalg.qr(np.sum([self.product(texts, idf, basis) for texts in held], axis=0))[0]
        small = basis.T @ np.sum([self.product(texts, idf, basis) for texts in held], axis=0)
        values, turn = np.linalg.eigh((small + small.T) / 2)
        leading = (basis @ turn[:, ::-1][:, : self.dims]).astype(np.float32)
        return FittedTexts(self, idf, leading, np.sqrt(np.maximum(values[::-1][: self.dims], 0.0)))


@dataclass(frozen=True, eq=False)
class FittedTexts:
    """Text vectors that know rarities and directions.

    Attributes:
        form: the settings.
        idf: weight of each hash, ``(buckets,)``.
        basis: the directions, ``(buckets, dims)``, orthonormal.
        strengths: singular values of the fitted rows, ``(dims,)``.
    """

    form: TextVectors
    idf: Floats
    basis: Floats
    strengths: Floats

    def __call__(self, texts: Sequence[str] | Array) -> Floats:
        """Return the vectors of texts, ``(texts, dims)`` float32: at length 1 where a text has a known direction, times the root of ``dims``."""
        parts = [at_length(self.form.counts(block) * self.idf, 1.0) @ self.basis for block in _split_blocks(texts)]
        rows = np.concatenate(parts) if parts else np.zeros((0, self.form.dims), np.float32)
        return at_length(rows, float(np.sqrt(self.form.dims)))


def _split_blocks(texts: Sequence[str] | Array) -> Iterator[Sequence[str] | Array]:
    return (texts[begin : begin + _BLOCK] for begin in range(0, len(texts), _BLOCK))


@checked_call
def with_text_vectors(
    dataset: Dataset,
    *,
    column: str = "text",
    form: TextVectors | WordVectors | None = None,
    public: Sequence[str] | None = None,
) -> Dataset:
    """Give a data set a column ``x`` of text vectors, its test rows too; the test rows take no part in the fit.

    Args:
        dataset: the rows, with their test set.
        column: the text column.
        form: the settings of `TextVectors`, the default, or of `WordVectors`.
        public: texts that everyone may see, to fit on in place of the training rows.

    Raises:
        DataError: there is no such column, or it is not text.
    """
    form = form or TextVectors()
    if dataset[column].dtype.kind != "U":
        raise DataError(
            f"column {column!r} of dtype {dataset[column].dtype}",
            where=f"data set {dataset.name!r}",
            remedy="choose a text column",
        )
    fitted = form.fit([dataset[column] if public is None else list(public)])
    made = dataset.with_columns({"x": fitted(dataset[column])}, features=())
    return (
        made
        if dataset.test is None
        else made.with_test(dataset.test.with_columns({"x": fitted(dataset.test[column])}, features=()))
    )
