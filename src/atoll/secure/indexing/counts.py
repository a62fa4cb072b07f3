"""Totals apart: numbers, and rows of counts with one index a block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Total, Totals
from atoll.core.errors import ConfigError, DataError, MessageError, PolicyError
from atoll.core.event import Event
from atoll.core.message import Words
from atoll.core.validation import Checked
from atoll.privacy.discrete import DISTANCE, SkellamLaw, Source, sampler_of
from atoll.privacy.events import Skellam
from atoll.stages.coded.words import counts_in, with_counts, with_sums

__all__ = [
    "BITS",
    "Book",
    "CountNoise",
    "Indices",
    "by_layer",
    "count_indices",
    "grid_books",
    "join_totals",
    "layers_of",
    "noisy",
    "part_totals",
    "require_alone",
    "runs_of",
    "sizes_of",
]


# ------------------------------------------------------------------ totals apart: numbers, and rows of counts with one index a block


Array = np.ndarray[Any, np.dtype[Any]]
Sizes = dict[str, list[list[int]]]
"""Aggregate -> blocks and codewords of each of its layers."""


@dataclass(frozen=True)
class Indices:
    """One party's indices of an aggregate.

    Attributes:
        rows: index of each block, a layer each, ``(blocks,)``.
        codewords: number of codewords of each layer.
        weight: the party's weight in units, a whole number.
    """

    rows: list[Array]
    codewords: list[int]
    weight: int


def part_totals(totals: Totals, unit: float, most: int, party: str = "") -> tuple[Totals, dict[str, Indices]]:
    """Return a party's totals without counts, and its indices by aggregate.

    Args:
        totals: the party's totals, weighted.
        unit: the unit of weights.
        most: the largest weight in units.
        party: its name, for errors.

    Raises:
        DataError: a weight is not a whole number of units, or is too large; or a block has no index or several.
    """
    numbers: Totals = {}
    found: dict[str, Indices] = {}
    for name, total in totals.items():
        counts = counts_in(total.value)
        if counts is None:
            numbers[name] = total
            continue
        weight = float(total.weight) if total.kind == "mean" else 1.0
        units = round(weight / unit)
        if not 0 < units <= most or not math.isclose(units * unit, weight, rel_tol=1e-9):
            raise DataError(
                f"a weight of {weight:g} for {name!r}, and counts add up whole numbers of {unit:g} up to {most * unit:g}",
                where=party or None,
                remedy="set unit= and max_weight= of SecureIndexing, or weigh clients equally",
            )
        rows = [np.asarray(leaf) for leaf in counts]
        if any((np.count_nonzero(leaf, axis=1) != 1).any() for leaf in rows):
            raise DataError(
                f"a block of {name!r} without one index", where=party or None, remedy="encode with a stage that indexes"
            )
        index = [leaf.argmax(axis=1) for leaf in rows]
        found[name] = Indices(index, [leaf.shape[1] for leaf in rows], units)
        numbers[name] = replace(total, value=with_counts(total.value, []))
    return numbers, found


def sizes_of(found: Mapping[str, Indices]) -> Sizes:
    """Return the sizes of a party's counts, the same at every party."""
    pairs = {name: zip(one.rows, one.codewords, strict=True) for name, one in found.items()}
    return {name: [[len(rows), k] for rows, k in layers] for name, layers in pairs.items()}


def layers_of(sizes: Sizes) -> Iterator[tuple[str, int, int, int]]:
    """Yield aggregate, layer, blocks and codewords of each layer, in order of the aggregates' names."""
    for name, layers in sorted(sizes.items()):
        for layer, (blocks, k) in enumerate(layers):
            yield name, layer, blocks, k


def runs_of(sizes: Sizes) -> Iterator[tuple[str, int, list[int]]]:
    """Yield aggregate, number of codewords, and the layers that have so many: their blocks stand side by side in one run, which is shared and counted at once."""
    for name, layers in sorted(sizes.items()):
        for k in sorted({k for _, k in layers}):
            yield name, k, [layer for layer, (_, own) in enumerate(layers) if own == k]


def by_layer(sizes: Sizes, runs: Sequence[Array]) -> list[Array]:
    """Return the counts of each layer, in the order of `layers_of`, from those of runs."""
    found: dict[tuple[str, int], Array] = {}
    for (name, _, layers), counts in zip(runs_of(sizes), runs, strict=True):
        ends = np.cumsum([sizes[name][layer][0] for layer in layers])[:-1]
        found.update(zip([(name, layer) for layer in layers], np.split(counts, ends), strict=True))
    return [found[name, layer] for name, layer, _, _ in layers_of(sizes)]


def count_indices(
    sizes: Sizes, sums: list[Array], bits: int, unit: float, weights: Mapping[str, float]
) -> dict[str, list[Array]]:
    """Return counts by aggregate, from words modulo ``2^bits``, after checking that each block's counts add up to the weight of the parties.

    Args:
        sizes: their sizes.
        sums: the words of each layer, ``(blocks * codewords,)``.
        bits: word length.
        unit: the unit of weights.
        weights: aggregate -> weight of all parties in the sum.

    Raises:
        MessageError: a party sent something else than one index a block, so the counts are wrong.
    """
    found: dict[str, list[Array]] = {}
    for (name, _, blocks, k), words in zip(layers_of(sizes), sums, strict=True):
        counts = np.asarray(Words.of(np.asarray(words), bits).reduced()).reshape(blocks, k).astype(np.float64)
        whole, expected = counts.sum(axis=1), round(weights[name] / unit)
        wrong = np.flatnonzero(whole != expected)
        if len(wrong):
            raise MessageError(
                f"the counts of {len(wrong)} of {blocks} blocks of {name!r} are wrong: those of block {int(wrong[0])} add up to {whole[wrong[0]]:.0f}, not {expected}",
                where="SecureIndexing",
                remedy="look for a party that sends something else than one index a block; the sum is not used",
            )
        found.setdefault(name, []).append(counts * unit)
    return found


def noisy(sizes: Sizes, sums: list[Array], bits: int, step: float) -> dict[str, list[Array]]:
    """Return counts, or sums of codewords, with noise: words modulo ``2^bits`` as numbers with a sign, times a step. They cannot be checked.

    Args:
        sizes: the sizes of the counts.
        sums: the words of each layer.
        bits: word length.
        step: what one unit stands for.
    """
    found: dict[str, list[Array]] = {}
    for (name, _, blocks, _), words in zip(layers_of(sizes), sums, strict=True):
        told = Words.of(np.asarray(words), bits).lifted().reshape(blocks, -1)
        found.setdefault(name, []).append(told * step)
    return found


def join_totals(totals: Mapping[str, Total], counts: Mapping[str, list[Array]], *, summed: bool = False) -> Totals:
    """Return totals with their counts, or with sums of codewords in place of counts."""
    put = with_sums if summed else with_counts
    return {
        name: replace(total, value=put(total.value, counts[name])) if name in counts else total
        for name, total in totals.items()
    }


# ------------------------------------------------------------------ differential privacy of counts
#
# Differential privacy of counts: noise that the helpers of secure indexing add before they tell the server anything.


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
