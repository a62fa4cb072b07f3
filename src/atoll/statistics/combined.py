"""Combined answers: whether sums over recorded sets of rows, with any weights, give a sum over a few rows.

An answer is a sum over a set of rows (a *cell*). From the answers of m cells anybody computes the sum of the rows with the weights ``y A``, for any numbers y; A has a row for each cell and is 1 for rows in
it. A sum of products weighs them: ``sum(pay * age)`` has in A the ages, which others may know. Rows that are in the same cells with the same weights are alike, so A has one column for each *class* of such rows. What must not be: weights that are 0 but for fewer than ``least`` rows.

Such weights are 0 on every class of ``least`` rows or more. So `find_few` eliminates those classes first. In nearly all records no combination is left, and the answer is proven. Otherwise it looks for the
combination of the smallest support, as one looks for short words of a linear code (Leon 1988, Brouwer and Zimmermann): the combinations that are left have dimension d, any d independent classes are an
*information set*, and weights that are not 0 everywhere are not 0 on it.

* With g disjoint information sets, every combination has at least g classes, so g >= ``least`` proves that there is none.
* For each information set, the d combinations with one class of it are looked at. After that every other combination has two classes in each, so 2 g >= ``least`` proves it.
* Otherwise random information sets are tried, as often as `_TRIES` says. Each finds a combination of w classes that has at most one of them in the set: for d classes of c, and w of them, with probability
  ``(1 - d/c)^w + w d/c (1 - d/c)^(w-1)`` or more. So the search is exact where records have many more classes than cells, and may miss a combination of several classes where they are nearly as many.

Arithmetic is modulo a prime below 2^23. That misses nothing: whole weights without a common factor stay different from 0 somewhere. It may see a combination where there is none, with a probability of about 1e-7.

A party may hold fewer than ``least`` rows of a cell while other parties hold the others. Such a cell is told as a sum over parties, and shows none of its rows. What follows from such cells alone is
therefore excused: one class for each independent cell of them counts as hidden among the rows of others.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PRIMES", "CellClasses", "divide_modulo", "find_few", "weigh_values"]

PRIMES = (8_388_593, 8_388_587, 8_388_581, 8_388_571, 8_388_547, 8_388_539)
"""Weights are residues modulo these primes, or the first of them. Their product is above 2^127: no two whole numbers that a database computes with are alike modulo all."""
_BLOCK = 64
"""Columns that are eliminated at once: sums of so many products stay below 2^53, where doubles are exact."""
_TRIES = 40
_MOST = 3e9
"""Products in one search of an information set, beyond which only disjoint sets are counted."""
_CHUNK = 1 << 24
"""Entries that are multiplied at once."""
Matrix = NDArray[np.float64]
_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_DIGITS = 15
"""Digits of numbers with a fraction that count: what two computations of the same number agree in."""


def weigh_values(values: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers of a table as weights modulo the first of `PRIMES`, ``(1, rows)``; 0 for one that is missing.

    Whole numbers are themselves. Others count as multiples of a power of ten of which the largest has 15 digits, so that columns which add up in decimals do so here. Where that would make two
    numbers one, as of 10^9 and 10^9 + 2^-20, all are the fractions ``m 2^e`` that they are: then they differ however far from 0 they lie.

    Args:
        values: numbers or truth values of one column, ``(rows,)``.
    """
    prime = PRIMES[0]
    if values.dtype.kind in "bui":
        whole = values.astype(np.int64) if values.dtype.kind == "b" else values % prime
        return np.asarray(whole, np.int64)[None]
    x = np.where(np.isfinite(values), values, 0.0).astype(np.float64)
    largest = float(np.abs(x).max(initial=0.0))
    if largest < 2.0**53 and (x == np.rint(x)).all():
        return np.asarray(x.astype(np.int64) % prime)[None]
    power = _DIGITS - 1 - math.floor(math.log10(largest))
    scaled = np.rint(x * 10.0 ** (power // 2) * 10.0 ** (power - power // 2))
    if len(np.unique(scaled)) == len(np.unique(x)):
        return np.asarray(scaled.astype(np.int64) % prime)[None]
    fraction, exponent = np.frexp(x)
    powers = {int(e): pow(2, int(e) - 53, prime) for e in np.unique(exponent)}
    whole = np.ldexp(fraction, 53).astype(np.int64) % prime
    return np.asarray(whole * np.array([powers[int(e)] for e in exponent], np.int64) % prime)[None]


def divide_modulo(values: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.int64]:
    """Quotients modulo `PRIMES`; a divisor of 0 counts as 1.

    Args:
        values: ``(rows, primes)``.
        by: divisors, ``(rows, primes)``.
    """
    primes = np.array(PRIMES, np.int64)
    power, made = by % primes, np.ones_like(by)
    for bit in range(int(primes.max()).bit_length()):  # a^(p - 2) is the inverse of a
        made = np.where((primes - 2) >> bit & 1, made * power % primes, made)
        power = power * power % primes
    return np.asarray(values % primes * np.where(by % primes == 0, 1, made) % primes)


class CellClasses:
    """The classes of rows that cells make, cell by cell.

    Args:
        rows: number of rows.

    Attributes:
        rows: number of rows.
        cells: for each family of disjoint cells the place of each row's cell (-1 for none), the number of cells, the rows' weights modulo `PRIMES`, ``(primes, rows)`` (``None`` for 1), and what it adds up.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.cells: list[tuple[NDArray[np.int64], int, NDArray[np.int64] | None, tuple[str, ...]]] = []
        self._codes: dict[str, NDArray[np.uint64]] = {}

    def copy(self) -> CellClasses:
        """The same classes, to which others may be added."""
        made = CellClasses(self.rows)
        made.cells, made._codes = list(self.cells), dict(self._codes)
        return made

    def add_cells(self, labels: NDArray[np.int64], count: int, weights: NDArray[np.int64] | None = None, of: tuple[str, ...] = ()) -> None:  # fmt: skip
        """Take in a family of disjoint cells.

        Args:
            labels: the place of each row's cell, -1 for none.
            count: the number of cells.
            weights: what the rows are multiplied by, modulo `PRIMES` or the first of them, ``(primes, rows)``.
            of: what is multiplied: sums of each of these are combined with each other and with sums without weights. Empty for anything.
        """
        # The sum of a random-looking word for each cell that a row is in: 64 bits tell the classes apart as they tell rows.
        words = _spread(np.arange(count + 1, dtype=np.uint64) + np.uint64(1 + len(self.cells) * (1 << 32)))
        words[-1] = 0  # a row in none, at -1
        more = words[labels]
        if weights is not None:
            for one in weights:  # alike are rows that are so modulo all primes
                more = _spread(more + one.astype(np.uint64))
            more = np.where((labels < 0) | ~weights.any(axis=0), np.uint64(0), more)
        for one in of or ("",):
            self._codes[one] = self._codes.get(one, np.zeros(self.rows, np.uint64)) + more
        self.cells.append((labels, count, weights, of))

    def isolates(self, least: int, of: Collection[str] = ()) -> bool:
        """Whether a combination of the cells shows fewer rows than ``least``.

        Args:
            least: the minimum count.
            of: only of these, if anything else was looked at before.
        """
        return any(self._isolates(one, least) for one in (of or [one for one in self._codes if one] or [""]))

    def _isolates(self, of: str, least: int) -> bool:
        """The same of what sums of one thing show."""
        codes = sum((self._codes[one] for one in {"", of} & {*self._codes}), np.zeros(self.rows, np.uint64))
        codes, first, sizes = np.unique(codes, return_index=True, return_counts=True)
        first, sizes = first[codes != 0], sizes[codes != 0]
        if not len(sizes) or sizes.min() >= least:
            return False
        mine = [one for one in self.cells if not one[3] or of in one[3]]
        few = np.concatenate([np.bincount(labels + 1, minlength=count + 1)[1:] < least for labels, count, *_ in mine])
        insides = [labels[first][None] == np.arange(count)[:, None] for labels, count, *_ in mine]
        weighed = [weights[:, first].astype(np.float64) for *_, weights, _ in mine if weights is not None]
        for k in range(min(map(len, weighed), default=1)):
            # What cancels over whole numbers does so modulo each prime. Weights that differ by a multiple of one, which somebody may choose, differ modulo another.
            places = iter(weighed)
            parts = [inside if one[2] is None else inside * next(places)[k] for inside, one in zip(insides, mine, strict=True)]  # fmt: skip
            if find_few(np.concatenate(parts), sizes, least, few, PRIMES[k]) is not None:
                return True
        return False


def find_few(cells: NDArray[Any], sizes: NDArray[np.int64], least: int, few: NDArray[np.bool_] | None = None, prime: int = PRIMES[0]) -> NDArray[np.int64] | None:  # fmt: skip
    """The classes of fewer than ``least`` rows in all that a combination of cells shows; ``None`` if none was found.

    Args:
        cells: whether each class is in each cell, or its weight there modulo the prime, ``(cells, classes)``.
        sizes: rows of each class.
        least: the minimum count.
        few: which cells have fewer rows here, so that other parties hold the others; ``None``: those with a weight for so few.
        prime: the prime.
    """
    order = np.argsort(-sizes, kind="stable")
    cells, sizes = cells[:, order], sizes[order]
    few = (cells != 0).astype(np.float64) @ sizes < least if few is None else few
    fixed = sizes >= least
    if few.any():
        _, hidden = _reduce(cells[few].astype(np.float64), prime, above=False)
        fixed[hidden] = True
    free = np.flatnonzero(~fixed)
    _, left = _eliminate(np.eye(len(cells)), cells, np.flatnonzero(fixed), prime)
    left, _ = _eliminate(left, cells, free, prime)
    found = _shortest(left, cells[:, free], sizes[free], least, prime) if len(left) else None
    return None if found is None else order[free[found]]


def _eliminate(left: Matrix, cells: NDArray[Any], classes: NDArray[np.int64], prime: int) -> tuple[Matrix, Matrix]:
    """Combinations with independent weights on some classes, and those with weights of 0 there; together as many as before."""
    kept = [np.zeros((0, len(cells)))]
    scanned = False
    while len(left) and len(classes):
        if scanned:  # the first classes alone have nearly always all that there is to eliminate
            chunks = np.array_split(classes, -(-len(classes) * len(cells) // _CHUNK))
            classes = np.concatenate([part[_product(left, cells[:, part], prime).any(axis=0)] for part in chunks])
        scanned = True
        some = classes[: len(left) + 16]
        reduced, pivots = _reduce(np.concatenate([_product(left, cells[:, some], prime), left], axis=1), prime)
        combined = reduced[:, len(some) :]
        kept.append(combined[pivots < len(some)])
        left = combined[pivots >= len(some)]
    return np.concatenate(kept), left


def _shortest(
    left: Matrix, cells: NDArray[Any], sizes: NDArray[np.int64], least: int, prime: int
) -> NDArray[np.int64] | None:
    """Classes of a combination of fewer than ``least`` rows; see the module for what is proven."""
    dimension, count = len(left), len(sizes)
    unused, sets, bound = np.arange(count), [], [0, 0]
    while len(unused) >= dimension and bound[0] < least:
        pivots = np.zeros(0, np.int64)
        for width in (dimension + 16, len(unused)):
            if len(pivots) < dimension and dimension * dimension * width <= _MOST:
                _, pivots = _reduce(_product(left, cells[:, unused[:width]], prime), prime)
        if len(pivots) < dimension:
            break
        sets.append(unused[pivots])
        smallest = np.sort(sizes[sets[-1]])[:2]
        bound = [bound[0] + int(smallest[0]), bound[1] + int(smallest.sum() if dimension > 1 else least)]
        unused = np.delete(unused, pivots)
    if bound[0] >= least or dimension * dimension * count > _MOST:
        return None
    rng = np.random.default_rng(count)  # which sets are tried must not change from one request to the next
    weights = _product(left, cells, prime)
    for chosen in [*sets, *(None for _ in range(0 if bound[1] >= least else _TRIES))]:
        order = rng.permutation(count) if chosen is None else np.concatenate([chosen, np.setdiff1d(np.arange(count), chosen)])  # fmt: skip
        reduced, _ = _reduce(weights[:, order], prime)
        rows = (reduced != 0) @ sizes[order]
        if rows.min() < least:
            return np.sort(order[np.flatnonzero(reduced[rows.argmin()])])
    return None


# ---------------------------------------------------------------- linear algebra modulo a prime


def _spread(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random-looking words, other ones for other words (after SplitMix64)."""
    words = (words ^ (words >> np.uint64(29))) * _GOLDEN
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    return np.asarray(words ^ (words >> np.uint64(27)))


def _product(left: Matrix, right: NDArray[Any], prime: int) -> Matrix:
    """A product modulo the prime; exact, as sums of `_BLOCK` products are."""
    if right.dtype == np.bool_ or len(right) <= _BLOCK:
        return _modulo(left @ right.astype(np.float64), prime)
    made = np.zeros((len(left), right.shape[1]))
    for start in range(0, len(right), _BLOCK):
        made = _modulo(made + left[:, start : start + _BLOCK] @ right[start : start + _BLOCK], prime)
    return made


def _modulo(values: Matrix, prime: int) -> Matrix:
    return np.asarray(values - np.floor(values / prime) * prime)


def _reduce(matrix: Matrix, prime: int, *, above: bool = True) -> tuple[Matrix, NDArray[np.int64]]:
    """The reduced row echelon form without rows of 0, and the column of each row's first 1; ``above=False`` leaves what stands above a 1."""
    done, left = np.zeros((0, matrix.shape[1])), _modulo(matrix, prime)
    pivots: list[int] = []
    for start in range(0, matrix.shape[1], _BLOCK):
        if not len(left):
            break
        rows, columns = _independent(left[:, start : start + _BLOCK], prime)
        if not len(rows):
            continue
        places = start + columns
        inverse = _inverse(left[np.ix_(rows, places)], prime)
        made = _product(inverse, left[rows], prime)
        if above:
            done = _modulo(done - _product(done[:, places], made, prime), prime)
        left = np.delete(left, rows, axis=0)
        left = _modulo(left - _product(left[:, places], made, prime), prime)
        left = left[left.any(axis=1)]
        done = np.concatenate([done, made])
        pivots += places.tolist()
    return done, np.array(pivots, np.int64)


def _independent(panel: Matrix, prime: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of a largest square part that can be inverted."""
    panel, rows, columns = panel.copy(), list[int](), list[int]()
    for column in range(panel.shape[1]):
        there = np.flatnonzero(panel[:, column])
        if not len(there):
            continue
        row = int(there[0])
        scaled = _modulo(panel[row] * pow(int(panel[row, column]), -1, prime), prime)
        panel[there] = _modulo(panel[there] - panel[there, column][:, None] * scaled, prime)
        rows.append(row)
        columns.append(column)
    return np.array(rows, np.int64), np.array(columns, np.int64)


def _inverse(square: Matrix, prime: int) -> Matrix:
    """The inverse of a matrix of at most `_BLOCK` rows."""
    n = len(square)
    both = np.concatenate([square, np.eye(n)], axis=1)
    for column in range(n):
        row = column + int(np.flatnonzero(both[column:, column])[0])
        both[[column, row]] = both[[row, column]]
        both[column] = _modulo(both[column] * pow(int(both[column, column]), -1, prime), prime)
        others = np.flatnonzero(both[:, column])
        others = others[others != column]
        both[others] = _modulo(both[others] - both[others, column][:, None] * both[column], prime)
    return both[:, n:]
