"""The sets of a site's units behind an answer, as its record keeps them: from the units of a table and the rows of `CellSets.units_text`, both in arrays.

A table without a unit has as many units as rows. So no step here makes a Python object for each of them: names of units and keys are coded once, in the order in which they come, and all else are whole numbers and truth values.
Items and sets are numbered in that order too: records of old were written so, and a record of other labels would be of another answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.extras import need
from atoll.statistics.answered import RowSets
from atoll.statistics.combined import PRIMES, divide_modulo

from ..plan import DIGEST, CellSets, Covariate

__all__ = ["AnsweredCells", "SetRows", "UnitRows", "divide_units"]

Cell = tuple[str | None, ...]
Places = NDArray[np.int64]
_FEW_CELLS = 256
"""Most groups of few units whose sums a site's record combines with all others."""


class UnitRows:
    """The units of a table at a site, and parts of their rows: what a record of answers is about.

    A unit all of whose rows are added up, each once, is itself. One of which an answer has other rows, or a row more than once, is another *item*, so that two answers which differ in these alone differ by the unit.

    Args:
        table: Arrow's table of each unit's name, the hash of what it holds, and the digest of its rows; see `atoll.query.local.units_text`.
    """

    def __init__(self, table: Any) -> None:
        self._names = table.column(0)
        self._held = np.asarray(table.column(1).to_numpy(), np.uint64)
        self._every = np.asarray(table.column(2).to_numpy(), np.int64)
        self._parts = np.zeros((2, 0), np.int64)

    def find(self, names: Any) -> Places:
        """The units of these names, ``(names,)``; -1 for one that is not here, as where an outer join has no row."""
        found = need("pyarrow.compute", "sql", "units of a site").index_in(names, value_set=self._names)
        return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)

    def place_all(self, units: Places, digests: Places) -> Places:
        """The item of each unit, with a digest of those of its rows that a set has, ``(units,)``; -1 stays -1.

        Args:
            units: see `find`.
            digests: from 0 and below `DIGEST`.
        """
        items = units.copy()
        parts = np.flatnonzero(units >= 0)
        parts = parts[digests[parts] != self._every[units[parts]]]
        known = self._parts.shape[1]
        at, some = np.concatenate([self._parts, np.stack([units[parts], digests[parts]])], axis=1)
        coded, values = _number_values(some)
        found, at, codes = _number_pairs(at, coded)
        items[parts] = len(self._held) + found[known:]
        self._parts = np.stack([at, values[codes]])
        return items

    def label(self, items: Places, sets: Places | int) -> Places:
        """The set of each item, -1 for none, of all that were placed."""
        labels = np.full(len(self._held) + self._parts.shape[1], -1, np.int64)
        labels[items] = sets
        return labels

    def pad(self, sets: Iterable[RowSets]) -> list[RowSets]:
        """Sets over all items, also those that were placed after they were made."""
        made, size = [], len(self._held) + self._parts.shape[1]
        for one in sets:
            labels = np.concatenate([one.labels, np.full(size - len(one.labels), -1, np.int64)])
            weights = one.weights
            if weights is not None:
                weights = np.pad(weights, ((0, 0), (0, size - weights.shape[1])))
            made.append(replace(one, labels=labels, weights=weights))
        return made

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """Hashes of all items."""
        at, digests = self._parts
        texts = (f"{held},{digest}" for held, digest in zip(self._held[at].tolist(), digests.tolist(), strict=True))
        parts = (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in texts)
        return np.concatenate([self._held, np.fromiter(parts, np.uint64, len(at))])


@dataclass(frozen=True)
class SetRows:
    """The rows of `CellSets.units_text` at a site: one for each unit, cell, and truth of the conditions.

    Attributes:
        names: the units, in the order in which they come; Arrow's, with NULL where an outer join has no row.
        units: place among them, ``(rows,)``.
        keys: the cells, in the order in which they come.
        cells: place among them, ``(rows,)``.
        flags: whether each condition holds and each value is there, ``(flags, rows)``.
        weights: by each covariate and by 1, modulo each of `PRIMES`, ``(primes * (covariates + 1), rows)``; none without covariates.
        digests: of the rows that are added up, ``(rows,)``.
        bases: the same for each basis, and where there is one.
    """

    names: Any
    units: Places
    keys: Sequence[Cell]
    cells: Places
    flags: Sequence[NDArray[np.bool_]]
    weights: Sequence[Places]
    digests: Places
    bases: Sequence[tuple[Places, NDArray[np.bool_]]] = ()

    @classmethod
    def read(cls, cells: CellSets, alias: str, table: Any, bases: int = 0) -> SetRows:
        """The rows from Arrow's table of `CellSets.units_text`.

        Args:
            cells: into which sets they fall.
            alias: what the statement calls the table of the units.
            table: the answer of the local SQL.
            bases: how many of its last columns are digests of bases.
        """
        columns, keys, flags = list(table.columns), len(cells.keys), len(cells.conditions) + len(cells.values)
        units, names = _code_column(columns[0])
        places, told = _code_keys(columns[1 : 1 + keys], table.num_rows)
        truths = [np.asarray(one.to_numpy(), np.bool_) for one in columns[1 + keys : 1 + keys + flags]]
        last = len(columns) - 1 - bases
        weights = [_whole(one) for one in columns[1 + keys + flags : last]] if cells.of_table(alias) else []
        found = [(_whole(one), np.asarray(one.is_valid().to_numpy(), np.bool_)) for one in columns[last + 1 :]]
        return cls(names, units, told, places, truths, weights, _whole(columns[last]), found)

    def of_bases(self) -> list[SetRows]:
        """For each basis the rows that have one, with its digest in place of the rows' own."""
        return [replace(self, units=self.units[there], cells=self.cells[there], flags=[one[there] for one in self.flags], weights=[one[there] for one in self.weights], digests=digests[there], bases=()) for digests, there in self.bases]  # fmt: skip

    def list_units(self, keys: Iterable[Cell]) -> Any:
        """The names of the units that have a row in these cells, as Arrow's array."""
        told = set(keys)
        inside = np.array([key in told for key in self.keys], np.bool_)[self.cells]
        there = np.bincount(self.units[inside], minlength=len(self.names)) > 0
        return self.names.filter(need("pyarrow", "sql", "units of a site").array(there))


class AnsweredCells:
    """The sets of a table's units behind an answer, from the rows of `CellSets.units_text`.

    Args:
        told: the keys of the cells that are answered.
        rows: the site's own rows.
        units: the units of the table.
        name: what people call the rows of a condition in a cell, by their places.
    """

    def __init__(self, told: Sequence[Cell], rows: SetRows, units: UnitRows, name: Callable[[int, int], str]) -> None:
        self._rows, self._units, self._told, self._name = rows, units, told, name
        place_of = {key: k for k, key in enumerate(told)}
        self._cells = np.array([place_of.get(key, -1) for key in rows.keys], np.int64)[rows.cells]
        self._at = units.find(rows.names)

    def _inside(self, condition: int, shown: Sequence[bool]) -> Places:
        """Places of the rows of a condition."""
        inside = np.array([*shown, False], np.bool_)[self._cells]  # a cell that is not answered has -1: the last
        if condition:
            flag = self._rows.flags[abs(condition) - 1]
            inside &= flag if condition > 0 else ~flag
        return np.flatnonzero(inside)

    def _place(self, number: Places, units: Places, rows: Places) -> Places:
        """The items of units, each of the rows that have its number."""
        return self._units.place_all(self._at[units], _add_digests(number, len(units), self._rows.digests[rows]))

    def list_rows(self, condition: int, shown: Sequence[bool], combined: bool, *, whole: bool = False) -> list[RowSets]:
        """The units of a condition in each cell, and in all cells.

        Args:
            condition: its place; below 0 for those that it is not true of.
            shown: in which cells it is answered.
            combined: see `RowSets`.
            whole: whether a unit is itself, whichever of its rows there are.
        """
        rows = self._inside(condition, shown)
        number, units, cells = _number_pairs(self._rows.units[rows], self._cells[rows])
        made = self._sets(condition, self._at[units] if whole else self._place(number, units, rows), cells)
        if len(self._told) > 1:  # the groups add up to a total
            number, units = _number_values(self._rows.units[rows])
            total = self._at[units] if whole else self._place(number, units, rows)
            made.append(
                RowSets(["the groups together"], self._units.label(total[total >= 0], 0), keys=[json.dumps([])])
            )
        return [replace(one, combined=combined) for one in made]

    def list_products(self, k: int, count: int, covariate: Covariate, shown: Sequence[bool]) -> list[RowSets]:
        """The same units with what a column of theirs is multiplied with: an equation for the columns of all of them.

        Args:
            k: the place of what it is multiplied with.
            count: how many of these there are.
            covariate: what it is multiplied with.
            shown: in which cells the sum is answered.
        """
        size, rows = len(PRIMES), self._inside(covariate.condition, shown)
        number, units, cells = _number_pairs(self._rows.units[rows], self._cells[rows])
        # Residues are below 2^23, so that sums of 2^30 of them are exact as doubles.
        sums = [np.bincount(number, one[rows], len(units)).astype(np.int64) for place in (k, count) for one in self._rows.weights[place * size :][:size]]  # fmt: skip
        values = divide_modulo(np.stack(sums[:size], axis=1), np.stack(sums[size:], axis=1))
        items = self._place(number, units, rows)
        there = items >= 0
        placed, inside, factors = items[there], cells[there], values[there].T
        cell_of, made = {json.dumps(key): k for k, key in enumerate(self._told)}, []
        for one in self._sets(covariate.condition, items, cells):
            weights, labels = np.zeros((size, len(one.labels)), np.int64), one.labels[placed]
            fits = (labels >= 0) & (np.array([cell_of[key] for key in one.keys], np.int64)[labels] == inside)
            weights[:, placed[fits]] = factors[:, fits]
            made.append(replace(one, weights=weights, of=(covariate.column,)))
        return made

    def _sets(self, condition: int, items: Places, cells: Places) -> list[RowSets]:
        """The sets of items; if one is in several cells, each cell by itself."""
        names, keys = [self._name(k, condition) for k in range(len(self._told))], [json.dumps(key) for key in self._told]  # fmt: skip
        items, cells = items[items >= 0], cells[items >= 0]
        if np.bincount(items, minlength=1).max() <= 1:
            return [RowSets(names, self._units.label(items, cells), keys=keys)]
        order = np.argsort(cells, kind="stable")
        parts = np.split(items[order], np.searchsorted(cells[order], np.arange(1, len(names))))
        return [RowSets([name], self._units.label(part, 0), keys=[key]) for name, key, part in zip(names, keys, parts, strict=True)]  # fmt: skip


def divide_units(cells: CellSets, said: str, alias: str, rows: SetRows, units: UnitRows, least: int, alone: bool) -> list[RowSets]:  # fmt: skip
    """The sets of a table's units behind an answer under shares: all that a site shares of it, and how groups, conditions and factors divide these.

    A site does not know which groups are shown. So those of enough of its units count as shown, and of the others those that are few in number. A refusal names no key: it may be that of one unit.

    Args:
        cells: into which sets they fall.
        said: what people call the rows.
        alias: what the statement calls the table.
        rows: the site's own rows.
        units: the units of the table.
        least: the minimum count.
        alone: whether a number of the answer is a sum over these units.
    """
    number, some = _number_values(rows.units)
    every = units.place_all(units.find(rows.names)[some], _add_digests(number, len(some), rows.digests))
    sets = [RowSets([said], units.label(every[every >= 0], 0), keys=["[]"], combined=alone)]
    _, _, places = _number_pairs(rows.units, rows.cells)
    members = np.bincount(places, minlength=len(rows.keys)).tolist()
    many = [key for key, some in zip(rows.keys, members, strict=True) if some >= least]
    few = [key for key, some in zip(rows.keys, members, strict=True) if some < least]
    told, rest = ([*many, *few], []) if len(few) <= _FEW_CELLS else (many, few)

    def divide(told: Sequence[Cell]) -> tuple[AnsweredCells, list[bool]]:
        return AnsweredCells(told, rows, units, lambda cell, place: f"a group of {said}"), [True] * len(told)

    made, shown = divide(told)
    # The parties see to it that what a condition leaves over is of nobody or of enough, so it counts as shown too: few of it may be here.
    conditions = sorted(range(-len(cells.conditions), 1 + len(cells.conditions)), key=abs)
    for place in conditions:
        sets += made.list_rows(place, shown, alone) if place or cells.keys else []
    values = range(1 + len(cells.conditions), 1 + len(cells.conditions) + len(cells.values))
    for place in values:
        sets += made.list_rows(place, shown, combined=False)
    if rest:  # so many classes would make combinations slow: each earlier answer is compared with them by itself
        apart, every_one = divide(rest)
        sets += [one for place in (*conditions, *values) for one in apart.list_rows(place, every_one, combined=False)]
    mine = cells.of_table(alias)
    for k, covariate in enumerate(mine if alone else ()):
        sets += made.list_products(k, len(mine), covariate, shown)
    return sets


def _whole(column: Any) -> Places:
    """A column of whole numbers; 0 for NULL."""
    return np.asarray(column.fill_null(0).to_numpy(), np.int64)


def _code_column(column: Any) -> tuple[Places, Any]:
    """The place of each value among the different ones, in the order in which they come; NULL is one."""
    coded = column.dictionary_encode(null_encoding="encode").combine_chunks()
    return coded.indices.to_numpy().astype(np.int64), coded.dictionary


def _code_keys(columns: Sequence[Any], rows: int) -> tuple[Places, list[Cell]]:
    """The place of each row's cell among the different ones, in the order in which they come, and these."""
    if not columns:
        return np.zeros(rows, np.int64), [()] if rows else []
    (places, values), keys = _code_column(columns[0]), []
    found = [(np.arange(len(values)), values)]
    for column in columns[1:]:
        more, values = _code_column(column)
        places, before, codes = _number_pairs(places, more)
        found = [*((own[before], names) for own, names in found), (codes, values)]
    keys = [names.take(need("pyarrow", "sql", "units of a site").array(own)).to_pylist() for own, names in found]
    return places, list(zip(*keys, strict=True))


def _number_values(values: Places) -> tuple[Places, Places]:
    """The number of each value among the different ones, in the order in which they come, and these."""
    coded = need("pyarrow", "sql", "units of a site").array(values).dictionary_encode()
    return coded.indices.to_numpy().astype(np.int64), np.asarray(coded.dictionary.to_numpy(), np.int64)


def _number_pairs(first: Places, second: Places) -> tuple[Places, Places, Places]:
    """The number of each pair among the different ones, in the order in which they come, and the two parts of these; all from 0, as places are."""
    size = int(second.max(initial=0)) + 1
    number, codes = _number_values(first * size + second)
    return number, codes // size, codes % size


def _add_digests(number: Places, count: int, digests: Places) -> Places:
    """Sums of digests modulo `DIGEST`, exact: in halves of 32 bits, which do not leave 64 bits, as whole digests would.

    Args:
        number: to which sum each belongs, ``(rows,)``.
        count: how many sums there are.
        digests: ``(rows,)``.
    """
    high, low = np.zeros((2, count), np.int64)
    np.add.at(high, number, digests >> 32)
    np.add.at(low, number, digests & 0xFFFF_FFFF)
    top = (high % DIGEST).astype(np.uint64)
    # 2^63 is 1 modulo DIGEST, so that times 2^32 is a turn of 63 bits.
    turned = (top >> np.uint64(31)) | ((top & np.uint64(0x7FFF_FFFF)) << np.uint64(32))
    return np.asarray((turned + low.astype(np.uint64)) % np.uint64(DIGEST), np.int64)
