"""Texts as vectors of their common words: which words a text has, weighted by rarity."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

from .._checks import Array
from .grams import at_length, grams, rarities

__all__ = ["FittedWords", "WordVectors"]

Floats = NDArray[np.float32]


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
