"""Totals apart: numbers, and rows of counts with one index a block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.core.algebra.aggregate import Total, Totals
from atoll.core.errors import DataError, MessageError
from atoll.core.message import Words
from atoll.stages.coded.words import counts_in, with_counts, with_sums

__all__ = [
    "Indices",
    "by_layer",
    "count_indices",
    "join_totals",
    "layers_of",
    "noisy",
    "part_totals",
    "runs_of",
    "sizes_of",
]

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
