"""Differential privacy of counts: noise that the helpers of secure indexing add before they tell the server anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Totals
from atoll.core.errors import ConfigError, PolicyError
from atoll.core.event import Event
from atoll.core.validation import Checked
from atoll.privacy.discrete import DISTANCE, SkellamLaw, Source, sampler_of
from atoll.privacy.events import Skellam

from .counts import Sizes, layers_of

__all__ = ["BITS", "Book", "CountNoise", "grid_books", "require_alone"]

Array = NDArray[Any]
Book = NDArray[np.int64]
"""Codewords on a grid of whole numbers, ``(codewords, entries a block)``."""
BITS = 32
"""Word length of noisy counts: their sums have a sign."""


@dataclass(frozen=True)
class CountNoise(Checked):
    """Skellam noise on what an enclave, or each of two servers, tells of the indices of ``ProductQuantizer``.

    * ``space="counts"``: on the count of every codeword in every block. Of ``B`` blocks, one client more changes one count each: ``D = sqrt(B)`` in L2. A client that is
      replaced changes two: ``sqrt(2 B)``.
    * ``space="codewords"``: on the sum of the codewords, block by block, which is what the server needs; it does not learn the counts. With codewords on
      a grid of whole numbers, ``D = sqrt(sum_blocks max_r ||C_r||^2)``, or ``sqrt(sum_blocks max_(r,s) ||C_r - C_s||^2)`` if a client is replaced. The bound holds for
      every codebook, so it does not matter who made it.

    The variance is ``(multiplier D)^2``. Two servers add it each, so that one honest server is enough; the sum then has twice that. Prasad et al. 2022 name both
    spaces (and noise on scalar codes and pruned updates, which `atoll.secure.noise` adds) without sensitivity or accounting; both are ours.

    Clients send nothing beside their indices and a weight of 1: a client refuses to send numbers, such as a layer that is not coded or values before the first codebook.

    Attributes:
        multiplier: noise divided by what one client can change.
        space: ``"counts"`` or ``"codewords"``.
        replaced: whether neighbours replace a client, or leave it out.
        unit: the unit of protection.
    """

    multiplier: float
    space: Literal["counts", "codewords"] = "counts"
    replaced: bool = False
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.multiplier) and self.multiplier > 0):
            raise ConfigError(f"multiplier={self.multiplier}", where="CountNoise", remedy="use a finite number above 0")
        if self.space not in ("counts", "codewords"):
            raise ConfigError(f"space={self.space!r}", where="CountNoise", remedy="use 'counts' or 'codewords'")

    def bound_move(self, sizes: Sizes, books: Mapping[str, list[Book]]) -> float:
        """How far one client moves the release, in L2 on whole numbers.

        Args:
            sizes: blocks and codewords of each layer.
            books: aggregate -> the codebook of each layer, for ``space="codewords"``.
        """
        total = 0
        for name, layer, blocks, _ in layers_of(sizes):
            if self.space == "counts":
                total += blocks * (2 if self.replaced else 1)
            else:
                book = books[name][layer]
                squares = (book * book).sum(axis=1)
                if self.replaced:
                    apart = squares[:, None] + squares[None, :] - 2 * book @ book.T
                    total += blocks * int(apart.max())
                else:
                    total += blocks * int(squares.max())
        return math.sqrt(total)

    def event(self, sizes: Sizes, books: Mapping[str, list[Book]]) -> Event:
        """What one sum releases about one client."""
        moved = max(1.0, self.bound_move(sizes, books))
        values = max(2, sum(blocks * k for _, _, blocks, k in layers_of(sizes)))
        return Skellam(
            unit=self.unit,
            variance=(self.multiplier * moved) ** 2,
            sensitivity=moved,
            values=values,
            slack=min(0.5, values * DISTANCE),
            between="" if self.replaced else "add-remove",
        )

    def add(self, totals: list[Array], sizes: Sizes, books: Mapping[str, list[Book]], source: Source) -> list[Array]:
        """Return what a helper may tell: counts, or sums of codewords, with noise, as words of `BITS` bits."""
        moved = max(1.0, self.bound_move(sizes, books))
        sampler, made = sampler_of(SkellamLaw((self.multiplier * moved) ** 2)), []
        for (name, layer, _, _), counts in zip(layers_of(sizes), totals, strict=True):
            told = counts.astype(np.int64)
            if self.space == "codewords":
                told = told @ books[name][layer]
            noisy = told + sampler.draw(source, told.size).reshape(told.shape)
            made.append((noisy & ((1 << BITS) - 1)).astype(np.uint32))
        return made


def grid_books(
    books: Mapping[str, list[Array]], sizes: Sizes, multiplier: float
) -> tuple[dict[str, list[Book]], float]:
    """Codebooks on the finest grid whose noise has a table, and the step of the grid.

    Args:
        books: aggregate -> the codebook of each layer.
        sizes: blocks and codewords of each layer.
        multiplier: of the noise.
    """
    square = 0.0
    for name, layer, blocks, _ in layers_of(sizes) if books else ():
        lengths = (np.asarray(books[name][layer], np.float64) ** 2).sum(axis=1)
        square += 4 * blocks * float(lengths.max(initial=0.0))
    finest = 1.05 * multiplier * math.sqrt(square / SkellamLaw.largest)
    step = max(finest, 1e-30)
    return {
        name: [np.rint(np.asarray(book, np.float64) / step).astype(np.int64) for book in layers]
        for name, layers in books.items()
    }, step


def require_alone(numbers: Totals, weights: Mapping[str, int], party: str) -> None:
    """Refuse to send numbers without noise beside indices.

    Raises:
        PolicyError: names what there is.
    """
    for name, total in numbers.items():
        if any(np.size(leaf) for leaf in T.leaves(total.value)) or name not in weights:
            raise PolicyError(
                f"{name!r} has numbers beside its indices, to which no noise is added",
                where=party or None,
                remedy="code every layer (layers='all', least=0, and blocks so short that each leaf has 8), fit the codebook to public rows, and send no measurements",
            )
    heavy = next((name for name, weight in weights.items() if weight != 1), None)
    if heavy is not None:
        raise PolicyError(
            f"a weight of {weights[heavy]} units for {heavy!r}, and noise is for a weight of 1",
            where=party or None,
            remedy="use aggregation=EqualWeights()",
        )
