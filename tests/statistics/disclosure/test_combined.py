"""Combinations of answers: what the search finds is what trying all small sets of classes finds, and it stays quick."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import PolicyError
from atoll.statistics.answered import AnswerRecord, RowSets
from atoll.statistics.combined import PRIMES, CellClasses, _reduce, divide_modulo, find_few, weigh_values


def smallest(cells: Any, sizes: Any, least: int) -> bool:
    """Whether some classes of few rows are not determined by the others: then a combination is 0 but for them."""
    rank = np.linalg.matrix_rank(cells)
    for count in range(1, min(len(sizes), least - 1) + 1):
        for some in itertools.combinations(range(len(sizes)), count):
            others = np.delete(cells, some, axis=1)
            if sizes[list(some)].sum() < least and (not others.size or np.linalg.matrix_rank(others) < rank):
                return True
    return False


@given(st.data(), st.integers(2, 6))
def test_the_search_finds_what_trying_all_classes_finds(data: Any, least: int) -> None:
    sizes = np.array(data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 5, 8]), min_size=1, max_size=9)))
    rows = data.draw(st.lists(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)), min_size=1, max_size=6))  # fmt: skip
    cells = np.array(rows)
    cells = cells[cells @ sizes >= least]  # smaller ones are told of nobody
    if len(cells):
        found = find_few(cells, sizes, least)
        assert (found is not None) == smallest(cells.astype(float), sizes, least)
        if found is not None:
            assert 0 < sizes[found].sum() < least
            others = np.delete(cells, found, axis=1).astype(float)
            assert not others.size or np.linalg.matrix_rank(others) < np.linalg.matrix_rank(cells.astype(float))


@given(st.data(), st.integers(2, 6))
def test_the_search_finds_what_trying_all_classes_finds_of_sums_of_products_too(data: Any, least: int) -> None:
    sizes = np.array(data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 5, 8]), min_size=1, max_size=8)))
    weights = st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes))
    cells = np.array(data.draw(st.lists(weights, min_size=1, max_size=5)), float)
    cells = cells[cells.any(axis=1)]
    if len(cells):
        found = find_few(cells, sizes, least, np.zeros(len(cells), np.bool_))
        assert (found is not None) == smallest(cells, sizes, least)


def test_sums_of_products_whose_weights_are_known_are_equations() -> None:
    """The pay of the only one who is not 30 follows from sum(pay) and sum(pay * age); with ages that vary nothing does, and of another column nothing either."""
    everybody, ages = np.zeros(40, np.int64), np.full(40, 30)
    alone, varied = np.where(np.arange(40) == 7, 31, ages), 30 + np.arange(40) % 5
    for weights, of, isolated in ((alone, "pay", True), (varied, "pay", False), (ages, "pay", False)):
        classes = CellClasses(40)
        classes.add_cells(everybody, 1)
        classes.add_cells(everybody, 1, weights[None], (of,))
        classes.add_cells(everybody, 1, np.arange(40)[None] ** 2, ("bonus",))
        assert classes.isolates(5) == isolated
    for power in (2, 3):
        classes.add_cells(everybody, 1, varied[None] ** power, ("pay",))
    assert not classes.isolates(5)
    five = np.where(np.arange(40) < 5, 0, -1)
    classes = CellClasses(40)
    for power in range(5):  # five equations for five unknown numbers
        classes.add_cells(five, 1, varied[None] ** power, ("pay",))
    assert classes.isolates(5)


def sets(*spans: tuple[int, int], of: int = 60, **more: Any) -> list[RowSets]:
    return [RowSets([f"rows {a} to {b}"], np.where((np.arange(of) >= a) & (np.arange(of) < b), 0, -1), **more) for a, b in spans]  # fmt: skip


class Place:
    """A party without a record of its own."""

    name = "north"

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def left(self, name: str) -> Any:
        from atoll.core.errors import ConfigError

        if name not in self.kept:
            raise ConfigError("nothing is kept", where=name)
        return self.kept[name]

    def leave(self, name: str, value: Any, *, at_once: bool) -> None:
        del at_once
        self.kept[name] = value


def answer(place: Place, hashes: Any, made: list[RowSets], least: int = 5) -> None:
    record = AnswerRecord.of(place, "a request", least, hashes, "answered")
    record.describe(made)
    record.keep(place)


def test_three_answers_that_show_one_row_are_not_all_given() -> None:
    """Rows 0 to 9, 10 to 19 and 0 to 20: no two differ by few, and the third less the others is row 20; also after the table has grown."""
    hashes, place = np.arange(60, dtype=np.uint64) + np.uint64(7), Place()
    answer(place, hashes, sets((0, 10)))
    answer(place, hashes, sets((10, 20)))
    for at in (hashes, np.concatenate([hashes, [np.uint64(999)]])):
        of = len(at)
        with pytest.raises(PolicyError, match="rows 0 to 21 and earlier answers together show the sum of fewer than min_count=5 rows"):  # fmt: skip
            answer(place, at, sets((0, 21), of=of))
        record = AnswerRecord.of(place, "a list", 5, at, "answered")
        assert not record.lists(sets((0, 21), of=of, described=False)[0])  # a bin or a listed value is left out
    answer(place, hashes, sets((0, 25)))  # five rows more


def test_a_cell_of_which_others_hold_the_rest_is_excused_and_its_rows_are_not() -> None:
    """Two rows here of a cell that many hold: a total less its groups is that cell. One of the two rows alone is not."""
    classes = CellClasses(30)
    ward = np.where(np.arange(30) < 14, 0, np.where(np.arange(30) < 28, 1, 2))
    classes.add_cells(ward, 3)
    classes.add_cells(np.zeros(30, np.int64), 1)
    assert not classes.isolates(5)
    classes.add_cells(np.where(np.arange(30) < 29, 0, -1), 1)
    assert classes.isolates(5)


def test_many_answers_over_many_rows_are_combined() -> None:
    """Three hundred thresholds over 30,000 rows, each 70 rows apart, leave every class large; one more row is seen at once."""
    place = np.arange(30_000)
    classes = CellClasses(len(place))
    for k in range(300):
        classes.add_cells(np.where(place < 70 * (k + 1), 0, -1), 1)
    assert not classes.isolates(5)
    classes.add_cells(np.where((place >= 35) & (place < 70 * 200 + 1), 0, -1), 1)
    classes.add_cells(np.where((place >= 35) & (place < 70), 0, -1), 1)
    assert classes.isolates(5)


def test_weights_are_equal_where_numbers_are_and_add_up_where_decimals_do() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.integers(-999, 999, 200) / 10, draw.integers(-99999, 99999, 200) / 100
    for offset in (0.0, 1e6):
        x, y, z = weigh_values(a), weigh_values(b + offset), weigh_values(np.round(a + b + offset, 2))
        relations = np.array([*x, *y, *z, np.ones(200, np.int64)], float)
        assert len(_reduce(relations, PRIMES[0])[0]) == 3  # a + b = c
    for values in (np.array([1e9, 1e9 + 2.0**-20, 1e9]), np.array([1e-300, -3e-300, 0.0]), np.array([1e300, 0.1, 1e300]), np.array([True, False, True]), np.array([2**60, 2**60 + 1, 2**60])):  # fmt: skip
        found = weigh_values(values)
        assert len(np.unique(found)) == len(np.unique(values))
        assert ((found >= 0) & (found < PRIMES[0])).all()
    assert weigh_values(np.array([np.nan, 2.5, -np.inf]))[0, ::2].tolist() == [0, 0]


def test_weights_are_told_apart_by_all_primes() -> None:
    assert all(prime % k for prime in PRIMES for k in range(2, 2900))
    assert math.prod(PRIMES) > 2**128
    values, by = np.array([[12] * len(PRIMES), [7] * len(PRIMES)]), np.array([[4] * len(PRIMES), [*PRIMES]])
    assert divide_modulo(values, by).tolist() == [[3] * len(PRIMES), [7] * len(PRIMES)]
    everybody, plain = np.zeros(40, np.int64), np.full((len(PRIMES), 40), 30)
    for count, isolated in ((1, True), (len(PRIMES), False)):  # a multiple of the first one differs modulo the others
        classes = CellClasses(40)
        factor = 30 + math.prod(PRIMES[:count]) * 7
        classes.add_cells(everybody, 1)
        classes.add_cells(everybody, 1, np.where(np.arange(40) == 7, np.array([factor % p for p in PRIMES])[:, None], plain), ("pay",))  # fmt: skip
        assert classes.isolates(5) == isolated
