"""A record's sets of units, from arrays, are those that a plain reading of the rows makes, in the same order: so a record of any version compares with today's answers, byte for byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atoll.query.plan import DIGEST, CellSets, Covariate
from atoll.query.strategies.unit_sets import AnsweredCells, SetRows, UnitRows, divide_units
from atoll.statistics.answered import RowSets, with_entry
from atoll.statistics.combined import PRIMES, divide_modulo

pa = pytest.importorskip("pyarrow")
SIZE = len(PRIMES)


class PlainUnits:
    """`UnitRows` unit by unit, as records were made before there were arrays."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.places = {unit: k for k, (unit, _, _) in enumerate(rows)}
        self.held, self.every = [held for _, held, _ in rows], [every for _, _, every in rows]
        self.parts: dict[tuple[int, int], int] = {}

    def place_all(self, rows: Any) -> list[tuple[int, int]]:
        made = []
        for unit, where, digest in rows:
            at, part = self.places.get(unit), digest % DIGEST
            if at is None:
                continue
            whole = part == self.every[at]
            made.append((at if whole else self.parts.setdefault((at, part), len(self.held) + len(self.parts)), where))
        return made

    def whole(self, unit: Any) -> int:
        return self.every[self.places[unit]] if unit in self.places else 0

    def label(self, pairs: Any) -> Any:
        labels = np.full(len(self.held) + len(self.parts), -1, np.int64)
        for item, where in pairs:
            labels[item] = where
        return labels

    def pad(self, sets: Sequence[RowSets]) -> list[RowSets]:
        more = [len(self.held) + len(self.parts) - len(one.labels) for one in sets]
        return [replace(one, labels=np.pad(one.labels, (0, n), constant_values=-1), weights=None if one.weights is None else np.pad(one.weights, ((0, 0), (0, n)))) for one, n in zip(sets, more, strict=True)]  # fmt: skip

    def hashes(self) -> Any:
        parts = [int.from_bytes(hashlib.blake2b(f"{self.held[at]},{one}".encode(), digest_size=8).digest(), "little") for at, one in self.parts]  # fmt: skip
        return np.array([*self.held, *parts], np.uint64)


class PlainCells:
    """`AnsweredCells` row by row."""

    def __init__(self, cells: CellSets, told: Sequence[Any], rows: Sequence[Any], units: PlainUnits, name: Any) -> None:
        self.rows, self.units, self.told, self.name = rows, units, told, name
        self.keys, self.weights = len(cells.keys), 1 + len(cells.keys) + len(cells.conditions) + len(cells.values)
        self.place_of = {key: k for k, key in enumerate(told)}

    def inside(self, condition: int, shown: Sequence[bool]) -> Any:
        for row in self.rows:
            cell = self.place_of.get(tuple(row[1 : 1 + self.keys]))
            if cell is not None and shown[cell] and (not condition or row[self.keys + abs(condition)] is (condition > 0)):  # fmt: skip
                yield cell, row

    def list_rows(self, condition: int, shown: Sequence[bool], combined: bool, *, whole: bool = False) -> list[RowSets]:
        parts, every = dict[tuple[Any, int], int](), dict[Any, int]()
        for cell, row in self.inside(condition, shown):
            parts[row[0], cell] = parts.get((row[0], cell), 0) + int(row[-1] or 0)
            every[row[0]] = every.get(row[0], 0) + int(row[-1] or 0)
        if whole:
            parts = {one: self.units.whole(one[0]) for one in parts}
            every = {unit: self.units.whole(unit) for unit in every}
        made = self.sets(condition, self.units.place_all((*one, digest) for one, digest in parts.items()))
        if len(self.told) > 1:
            total = self.units.place_all((unit, 0, digest) for unit, digest in every.items())
            made.append(RowSets(["the groups together"], self.units.label(total), keys=[json.dumps([])]))
        return [replace(one, combined=combined) for one in made]

    def list_products(self, k: int, count: int, covariate: Covariate, shown: Sequence[bool]) -> list[RowSets]:
        parts, sums = dict[tuple[Any, int], int](), dict[tuple[Any, int], Any]()
        for cell, row in self.inside(covariate.condition, shown):
            at = (row[0], cell)
            parts[at] = parts.get(at, 0) + int(row[-1] or 0)
            added = [one or 0 for place in (k, count) for one in row[self.weights + place * SIZE :][:SIZE]]
            sums[at] = sums.get(at, np.zeros(2 * SIZE, np.int64)) + np.array(added, np.int64)
        table = np.array(list(sums.values()), np.int64).reshape(-1, 2 * SIZE)
        values = divide_modulo(table[:, :SIZE], table[:, SIZE:])
        placed = [(pair, value) for ((unit, cell), digest), value in zip(parts.items(), values, strict=True) for pair in self.units.place_all([(unit, cell, digest)])]  # fmt: skip
        made = []
        for one in self.sets(covariate.condition, [pair for pair, _ in placed]):
            weights = np.zeros((SIZE, len(one.labels)), np.int64)
            cell_of = {json.dumps(key): k for k, key in enumerate(self.told)}
            for (item, cell), value in placed:
                if one.labels[item] >= 0 and cell_of[one.keys[one.labels[item]]] == cell:
                    weights[:, item] = value
            made.append(replace(one, weights=weights, of=(covariate.column,)))
        return made

    def sets(self, condition: int, pairs: Sequence[tuple[int, int]]) -> list[RowSets]:
        names, keys = [self.name(k, condition) for k in range(len(self.told))], [json.dumps(key) for key in self.told]
        if len({item for item, _ in pairs}) == len(pairs):
            return [RowSets(names, self.units.label(pairs), keys=keys)]
        return [RowSets([name], self.units.label((item, 0) for item, cell in pairs if cell == k), keys=[keys[k]]) for k, name in enumerate(names)]  # fmt: skip


def divide_plain(cells: CellSets, rows: Sequence[Any], units: PlainUnits, least: int, alone: bool, few_cells: int) -> list[RowSets]:  # fmt: skip
    """`divide_units` row by row."""
    whole, members = dict[Any, int](), dict[Any, set[Any]]()
    for row in rows:
        whole[row[0]] = whole.get(row[0], 0) + int(row[-1] or 0)
        members.setdefault(tuple(row[1 : 1 + len(cells.keys)]), set()).add(row[0])
    every = units.place_all((unit, 0, digest) for unit, digest in whole.items())
    sets = [RowSets(["said"], units.label(every), keys=["[]"], combined=alone)]
    many = [key for key, some in members.items() if len(some) >= least]
    few = [key for key, some in members.items() if len(some) < least]
    told, rest = ([*many, *few], []) if len(few) <= few_cells else (many, few)
    made, apart = (PlainCells(cells, one, rows, units, lambda *_: "a group of said") for one in (told, rest))
    places = sorted(range(-len(cells.conditions), 1 + len(cells.conditions)), key=abs)
    values = range(1 + len(cells.conditions), 1 + len(cells.conditions) + len(cells.values))
    for place in places:
        sets += made.list_rows(place, [True] * len(told), alone) if place or cells.keys else []
    for place in values:
        sets += made.list_rows(place, [True] * len(told), combined=False)
    for place in (*places, *values) if rest else ():
        sets += apart.list_rows(place, [True] * len(rest), combined=False)
    mine = cells.of_table("p")
    for k, covariate in enumerate(mine if alone else ()):
        sets += made.list_products(k, len(mine), covariate, [True] * len(told))
    return sets


HUGE = st.sampled_from([0, 1, DIGEST - 1, DIGEST // 2, 1 << 62, (1 << 32) - 1])
DIGESTS = HUGE | st.integers(0, DIGEST - 1) | st.integers(0, 5)


@st.composite
def drawn_tables(draw: st.DrawFn, most_bases: int) -> tuple[CellSets, list[Any], list[Any], int]:
    """Into which sets rows fall, the units, the rows, and how many of their last columns are digests of bases."""
    keys, conditions, values, factors, bases = (draw(st.integers(0, most)) for most in (2, 2, 1, 2, most_bases))
    covariates = tuple(Covariate(k, draw(st.integers(0, conditions)), "p", f"x{k}", f"x{k}") for k in range(factors))
    cells = CellSets(("a", "b")[:keys], ("c", "d")[:conditions], covariates, ("v",)[:values])
    names = draw(st.lists(st.sampled_from("uvwxyz"), unique=True, max_size=6))
    units = [(name, draw(st.integers(0, (1 << 64) - 1)), draw(DIGESTS)) for name in names]
    known = [every for _, _, every in units] or [0]
    digest = DIGESTS | st.none() | st.sampled_from(known)
    weight = st.none() | st.sampled_from([0, 1, PRIMES[-1] - 1]) | st.integers(0, 1 << 23)
    row = st.tuples(
        st.sampled_from([*names, None, "away"]),
        *[st.sampled_from([None, "", "A", "B"])] * keys,
        *[st.booleans()] * (conditions + values),
        st.lists(weight, min_size=factors + 1, max_size=factors + 1) if factors else st.just([]),
        *[digest] * (1 + bases),
    )
    flat = [[*one[: -2 - bases], *(None if x is None else x * (j + 1) % prime for x in one[-2 - bases] for j, prime in enumerate(PRIMES)), *one[-1 - bases :]] for one in draw(st.lists(row, max_size=8))]  # fmt: skip
    return cells, units, flat, bases


def arrow_units(units: Sequence[Any]) -> Any:
    columns = list(zip(*units, strict=True)) or [(), (), ()]
    types = (pa.string(), pa.uint64(), pa.int64())
    return pa.table({str(k): pa.array(one, kind) for k, (one, kind) in enumerate(zip(columns, types, strict=True))})


def arrow_rows(cells: CellSets, rows: Sequence[Any], bases: int) -> Any:
    """The rows as the local SQL gives them: in several pieces, and in none where there are none."""
    flags, weights = len(cells.conditions) + len(cells.values), SIZE * (len(cells.covariates) + 1) if cells.covariates else 0  # fmt: skip
    kinds = [pa.string()] * (1 + len(cells.keys)) + [pa.bool_()] * flags + [pa.int64()] * (weights + 1 + bases)
    pieces = [part for part in (rows[:3], rows[3:]) if part]
    columns = [pa.chunked_array([pa.array([row[k] for row in part], kind) for part in pieces], kind) for k, kind in enumerate(kinds)]  # fmt: skip
    return pa.table(columns, names=[f"c{k}" for k in range(len(kinds))])


def written(sets: Sequence[RowSets], units: Any, hashes: Any) -> str:
    """All that a record holds of sets, with the bytes of its arrays."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.tobytes()
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list) else value

    return repr(plain(with_entry(None, "asked", units.pad(sets), hashes)))


@settings(max_examples=100)
@given(drawn_tables(0), st.integers(1, 3), st.booleans(), st.integers(0, 3))
@example((CellSets(), [], [], 0), 2, True, 3)
def test_the_sets_under_shares_are_those_of_single_rows(made: Any, least: int, alone: bool, few: int) -> None:
    cells, entities, rows, _ = made
    plain, units = PlainUnits(entities), UnitRows(arrow_units(entities))
    expected = divide_plain(cells, rows, plain, least, alone, few)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atoll.query.strategies.unit_sets._FEW_CELLS", few)
        read = SetRows.read(cells, "p", arrow_rows(cells, rows, 0))
        found = divide_units(cells, "said", "p", read, units, least, alone)
    assert written(found, units, units.hashes) == written(expected, plain, plain.hashes())


@settings(max_examples=100)
@given(drawn_tables(2), st.data())
def test_the_sets_of_sums_are_those_of_single_rows(made: Any, data: st.DataObject) -> None:
    """Of the rows and of each basis, in the cells that the coordinator names: some are not here, and some are named twice."""
    cells, entities, rows, bases = made
    key = st.tuples(*[st.sampled_from([None, "", "A", "B", "C"])] * len(cells.keys))
    told = data.draw(st.lists(key, min_size=1, max_size=5))
    shown = data.draw(st.lists(st.booleans(), min_size=len(told), max_size=len(told)))
    read = SetRows.read(cells, "p", arrow_rows(cells, rows, bases), bases)
    last = [[row[: len(row) - bases] for row in rows], *([(*row[: len(row) - bases - 1], row[k - bases]) for row in rows if row[k - bases] is not None] for k in range(bases))]  # fmt: skip
    plain, units = PlainUnits(entities), UnitRows(arrow_units(entities))
    expected, found, mine = list[RowSets](), list[RowSets](), cells.of_table("p")
    for own, arrays in zip(last, (read, *read.of_bases()), strict=True):
        one = PlainCells(cells, told, own, plain, lambda cell, place: f"{cell} {place}")
        other = AnsweredCells(told, arrays, units, lambda cell, place: f"{cell} {place}")
        for place in range(-len(cells.conditions), 1 + len(cells.conditions) + len(cells.values)):
            expected += one.list_rows(place, shown, combined=True) + one.list_rows(
                place, shown, combined=False, whole=True
            )
            found += other.list_rows(place, shown, combined=True) + other.list_rows(
                place, shown, combined=False, whole=True
            )
        for k, covariate in enumerate(mine):
            expected += one.list_products(k, len(mine), covariate, shown)
            found += other.list_products(k, len(mine), covariate, shown)
    assert written(found, units, units.hashes) == written(expected, plain, plain.hashes())
    behind = {row[0] for row in rows if tuple(row[1 : 1 + len(cells.keys)]) in told}
    assert sorted(read.list_units(told).to_pylist(), key=str) == sorted(behind, key=str)
