"""What a party has answered: the sets of rows behind earlier replies, so that no two replies differ by fewer rows than the minimum count.

Two numbers over nearly the same rows give away the few rows between them (differencing). Each party keeps the sets of rows behind all numbers that it has told: the
rows of a request, those of each group and period, and those of each value and bin that was listed. They are sets of rows and nothing else: which columns a request
names, by which conditions or groups it reaches a set, who asks, and in which job, makes no difference. A new set is compared with those of every earlier answer:

* Rows that a request describes, against rows that an earlier one described: they are refused if they are not the same and fewer than ``min_count`` rows are in one and
  not in the other, each way. This covers two people who change places: each way it is one row.
* Any set, against all unions of the sets of one earlier listing: ``sum_j min(n_j, N_j - n_j)`` is the smallest number of rows by which it differs from such a union, with
  ``n_j`` of its rows in the earlier set ``j`` of ``N_j``. A difference of 1 to ``min_count - 1`` rows is refused.

* Where other parties hold the rest of a set (``keys``), two sets of one key are compared even without a common row: the others' rows may be the same in both.
* All sets together: no sum of them with any weights, nor of sums of products over them (``weights``), may rest on fewer than ``min_count`` rows (`atoll.statistics.combined`, which says what is proven and what is excused). Groups as sums over
  parties are left out: there the server withholds them after it has the sums, and a party does not learn which.

Rows are compared by a hash of their content, so rows that were added to the table or changed are seen too. What people conclude from many answers by other means than sums, such as by which of them were
refused, no record sees: against that only noise with a budget helps (``epsilon``).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CheckpointError, ConfigError, PolicyError
from atoll.data.table import DataTable

from .combined import CellClasses
from .plan import Cell

__all__ = [
    "NAME",
    "AnswerRecord",
    "RowSets",
    "base_sets",
    "keep_record",
    "open_record",
    "require_apart",
    "row_hashes",
    "with_entry",
]

NAME = "statistics-answered"
"""Name of the record among the results that stay at a party."""
_BEGUN = "-begun"
"""Behind a record's name: the result that says that there is one."""

Hashes = NDArray[np.uint64]
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)
_CHUNK = 1 << 16
_DENSE = 1 << 20
"""Largest table of counts that is made in full."""


@dataclass(frozen=True)
class RowSets:
    """Sets of rows without a common row: the groups of a column, the listed values of a column, or all rows.

    Attributes:
        names: what people call each set.
        labels: the place of each row's set, -1 for a row in none, ``(rows,)``.
        described: whether moments of the sets were told, not their sizes alone.
        keys: what each set is a part of at all parties, where they were told added up over parties; none where the party's own were told.
        combined: whether their sums are combined with those of all other sets.
        weights: what each row is multiplied by in them, modulo `atoll.statistics.combined.PRIMES` or the first of them, ``(primes, rows)``; ``None`` for 1.
        of: what they multiply.
    """

    names: Sequence[str]
    labels: NDArray[Any]
    described: bool = True
    keys: Sequence[str] = ()
    combined: bool = True
    weights: NDArray[Any] | None = None
    of: tuple[str, ...] = ()

    def packed(self) -> dict[str, Any]:
        """The sets as a message."""
        small = self.labels.astype(np.min_scalar_type(-max(1, len(self.names))))
        squeezed = np.frombuffer(zlib.compress(small.tobytes(), 1), np.uint8)
        made = {"names": list(self.names), "labels": squeezed, "dtype": small.dtype.str, "described": self.described}
        if self.weights is not None:
            made["of"] = list(self.of)
            made["weights"] = np.frombuffer(zlib.compress(self.weights.astype("<i4").tobytes(), 1), np.uint8)
        return made | ({"keys": list(self.keys)} if self.keys else {}) | ({} if self.combined else {"combined": False})

    @classmethod
    def unpacked(cls, message: Any) -> RowSets:
        """The inverse of `packed`."""
        raw = zlib.decompress(np.asarray(message["labels"], np.uint8).tobytes())
        labels = np.frombuffer(raw, np.dtype(message["dtype"]))
        keys, combined = list(message.get("keys", ())), bool(message.get("combined", True))
        weights = None
        if "weights" in message:
            weights = np.frombuffer(zlib.decompress(np.asarray(message["weights"], np.uint8).tobytes()), "<i4").reshape(
                -1, len(labels)
            )
        return cls(
            list(message["names"]),
            labels,
            bool(message["described"]),
            keys,
            combined,
            weights,
            _read_names(message.get("of", ())),
        )


def _read_names(of: Any) -> tuple[str, ...]:
    """What is multiplied: a record of old has one name."""
    return ((of,) if of else ()) if isinstance(of, str) else tuple(of)


def row_hashes(table: DataTable) -> Hashes:
    """A hash of each row's content, ``(rows,)``; it depends on the names of the columns and not on their order."""
    made = np.zeros(len(table), np.uint64)
    for name in sorted(table.readable):
        salt = np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
        values = table[name]
        for start in range(0, len(table), _CHUNK):
            part = _words_of(values[start : start + _CHUNK])
            mixed = np.full(len(part), salt, np.uint64)
            for k in range(part.shape[1]):
                mixed = _mix_words(mixed ^ part[:, k])
            made[start : start + _CHUNK] += mixed
    return made


def _words_of(values: NDArray[Any]) -> Hashes:
    """The values as 64-bit words, ``(rows, words)``."""
    if values.dtype.kind == "U":
        # Trailing zeros are no letters, so that a wider column of the same texts is the same.
        letters = np.ascontiguousarray(values).view(np.uint32).reshape(len(values), -1).astype(np.uint64)
        places = np.arange(1, letters.shape[1] + 1, dtype=np.uint64) * _MULTIPLIER | np.uint64(1)
        spread = _mix_words(letters * places) * (letters > 0)
        return np.asarray(spread.sum(axis=1, dtype=np.uint64))[:, None]
    if values.dtype.kind in "Mm":
        return np.asarray(values.astype("datetime64[us]").astype(np.int64).view(np.uint64).reshape(len(values), -1))
    flat = np.ascontiguousarray(values, dtype=np.float64).reshape(len(values), -1) + 0.0
    return np.where(np.isnan(flat), np.nan, flat).view(np.uint64)


def _mix_words(words: Hashes) -> Hashes:
    """Spread every bit over all (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


def base_sets(cells: Sequence[Cell], base: str, of: int) -> list[RowSets]:
    """The sets of rows that a request describes, a family of groups at a time.

    Args:
        cells: the cells that are told.
        base: the rows that the request is about, in words.
        of: number of rows of the table.
    """
    made = []
    for family in dict.fromkeys(cell.family for cell in cells):
        mine = [cell for cell in cells if cell.family == family]
        labels = np.full(of, -1, np.int64)
        for k, cell in enumerate(mine):
            labels[slice(None) if cell.rows is None else cell.rows] = k
        made.append(RowSets([f"{base} with {family}={one.label}" if family else base for one in mine], labels))
    return made


@dataclass
class AnswerRecord:
    """The record of a party while it answers one request. With a minimum count of 1 it keeps nothing.

    Attributes:
        request: what people know the request by.
        least: the minimum count.
        party: the party's name.
        hashes: of the table's rows.
        kept: what the party has answered; ``None`` is nothing.
        made: the sets behind the new answer.
        name: of the record among the results that stay at the party.
    """

    request: str
    least: int
    party: str
    hashes: Hashes
    kept: Any = None
    made: list[RowSets] = field(default_factory=list)
    name: str = NAME
    _classes: tuple[CellClasses, NDArray[np.int64]] | None = None
    _begins: bool = False

    @classmethod
    def opened(cls, island: Any, request: str, least: int, table: DataTable) -> AnswerRecord:
        """The record of a party."""
        if least <= 1:
            return cls(request, least, island.name, np.zeros(0, np.uint64))
        return cls.of(island, request, least, row_hashes(table), NAME)

    @classmethod
    def of(cls, island: Any, request: str, least: int, hashes: Hashes, name: str) -> AnswerRecord:
        """The record of a party about rows that are known by their hashes.

        Args:
            island: the party.
            request: what people know the request by.
            least: the minimum count.
            hashes: of the rows, or of whatever is counted.
            name: of the record.

        Raises:
            CheckpointError: the record is gone, or is none.
        """
        found = open_record(island, name, _in_sets)
        return cls(request, least, island.name, hashes, found, name=name, _begins=found is None)

    def describe(self, sets: Sequence[RowSets], *, alone: bool = True) -> None:
        """Take note of sets that are described.

        Args:
            sets: the sets, a family of groups at a time.
            alone: whether the party's own numbers are seen; of sums over parties, the groups of one request are not compared with each other.

        Raises:
            PolicyError: a set differs from one of an earlier answer by too few rows; names both.
        """
        if self.least <= 1:
            return
        version = _version(self.kept, self.hashes)
        known = _list_known(self.kept, version)
        fresh = [one for one in sets if _key(one.packed()) not in known]  # what was told once tells nothing more
        require_apart(self.kept, [one for one in fresh if one.weights is None], self.hashes, self.least, self.party)
        for k, one in enumerate(sets if alone else ()):
            for other in sets[:k]:
                found = next(_isolating(one, other, one.labels, other.labels, self.least, ways=False), None)
                if found is not None:
                    raise _too_close(*found, "this request", self.least, self.party)
        if fresh and not self._combines(fresh):
            raise PolicyError(
                f"{fresh[0].names[0] if fresh[0].names else 'this answer'} and earlier answers together show the sum of fewer than min_count={self.least} rows",
                where=self.party,
                remedy="ask for the same rows as before, for fewer different sets of rows, or with epsilon=, whose noise hides single rows",
            )
        self.made += sets

    def lists(self, sets: RowSets) -> bool:
        """Take note of sets whose sizes are listed; false, and no note, if a set differs from a union of an earlier answer's by too few rows."""
        if self.least <= 1:
            return True
        if next(_close(self.kept, [sets], self.hashes, self.least), None) is not None or not self._combines([sets]):
            return False
        self.made.append(sets)
        return True

    def combines(self, sets: Sequence[RowSets], *, try_only: bool = False) -> bool:
        """Take note of sums of products; false, and no note, if a combination of all sums shows too few rows.

        Args:
            sets: the sets, with weights.
            try_only: take no note.
        """
        if self.least <= 1:
            return True
        before = self._classes
        fits = not sets or self._combines(sets)
        if try_only:
            self._classes = before
        elif fits:
            self.made += sets
        return fits

    def _combines(self, sets: Sequence[RowSets]) -> bool:
        """Take note of sets, unless a combination of all sets shows too few rows."""
        if self._classes is None:
            self._classes = _classes_of(self.kept, self.hashes)
        classes, places = self._classes
        with_sets = classes.copy()
        if not any(one.combined for one in sets):
            return True
        for one in (one for one in sets if one.combined):
            with_sets.add_cells(*_place_sets(one, places, classes.rows))
        of = {name for one in sets if one.combined for name in one.of or ("",)}
        if with_sets.isolates(self.least, () if "" in of else sorted(of)):
            return False
        self._classes = with_sets, places
        return True

    def keep(self, island: Any) -> None:
        """Make the record durable. Do this before the reply leaves: a server that lets the job fail then gains nothing."""
        if self.least > 1 and self.made:
            made = with_entry(self.kept, self.request, self.made, self.hashes)
            keep_record(island, self.name, made, begins=self._begins)


def open_record(island: Any, name: str, read: Callable[[Any], Any]) -> Any:
    """A record of what a party has answered; ``None`` before its first answer.

    Args:
        island: the party.
        name: of the record.
        read: what the record is, from what its file holds.

    Raises:
        CheckpointError: the record is gone though there was one, or is none: the party would forget what it has answered.
    """
    try:
        found = island.left(name)
    except ConfigError:
        if _is_there(island, name + _BEGUN):
            raise CheckpointError(
                f"the record {name!r} of what {island.name} has answered is gone",
                where=island.name,
                remedy=f"let a person at the site put {name}.msg back into the folder results, from a backup; who removes {name}{_BEGUN}.msg too lets the site forget what it has answered",
            ) from None
        return None
    try:
        return read(found)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{name!r} is no record of what {island.name} has answered",
            where=island.name,
            remedy=f"let a person at the site put {name}.msg back into the folder results, from a backup",
        ) from error


def keep_record(island: Any, name: str, value: Any, *, begins: bool) -> None:
    """Write a record of what a party has answered; durable when this returns.

    Args:
        island: the party.
        name: of the record.
        value: all of it.
        begins: whether there was none before. Then a second file says from now on that there is one, so that it cannot be lost unnoticed.
    """
    island.leave(name, value, at_once=True)
    if begins:  # second: a crash in between must not let the party miss a record that never was
        island.leave(name + _BEGUN, {}, at_once=True)


def _is_there(island: Any, name: str) -> bool:
    try:
        island.left(name)
    except ConfigError:
        return False
    return True


def _in_sets(record: Any) -> dict[str, Any]:
    """A record as it is kept today: earlier versions kept the bits of single cells."""
    entries = []
    for entry in record["entries"]:
        if "sets" not in entry:
            rows = len(record["tables"][entry["version"]])
            inside = [np.unpackbits(np.asarray(bits, np.uint8), count=rows) for bits in entry["bits"]]
            made = [RowSets([name], one.astype(np.int64) - 1) for name, one in zip(entry["cells"], inside, strict=True)]
            entry = {"request": entry["request"], "version": entry["version"], "sets": [one.packed() for one in made]}
        entries.append(entry)
    return {"entries": entries, "tables": dict(record["tables"])}


def with_entry(record: Any, request: str, made: Sequence[RowSets], hashes: Hashes) -> dict[str, Any]:
    """The record with one more answer; sets that it has already are not added again.

    Args:
        record: what was answered; ``None`` is nothing.
        request: what people know the request by.
        made: the sets of the new answer.
        hashes: of the table's rows.
    """
    known = record or {"entries": [], "tables": {}}
    version = _version(known, hashes)
    there = _list_known(known, version)
    sets = list({_key(one): one for one in (each.packed() for each in made) if _key(one) not in there}.values())
    if not sets:
        return dict(known)
    entry = {"request": request, "version": version, "sets": sets}
    return {"entries": [*known["entries"], entry], "tables": {**known["tables"], version: hashes}}


def _classes_of(record: Any, hashes: Hashes) -> tuple[CellClasses, NDArray[np.int64]]:
    """The classes of all recorded sets over the rows of all tables, and the places of this table's rows among them."""
    tables = {str(name): np.asarray(others) for name, others in (record or {"tables": {}})["tables"].items()}
    if all(np.array_equal(hashes, others) for others in tables.values()):
        places, size = dict.fromkeys(tables, np.arange(len(hashes))), len(hashes)
        mine = np.arange(len(hashes))
    else:
        numbered = [_number_hashes(one) for one in (*tables.values(), hashes)]
        unique, inverse = np.unique(np.concatenate(numbered), return_inverse=True)
        *found, mine = np.split(inverse, np.cumsum([len(one) for one in numbered])[:-1])
        places, size = dict(zip(tables, found, strict=True)), len(unique)
    made = CellClasses(size)
    for entry in (record or {"entries": []})["entries"]:
        for packed in entry["sets"]:
            old = RowSets.unpacked(packed)
            if not old.combined:
                continue
            made.add_cells(*_place_sets(old, places[str(entry["version"])], size))
    return made, mine


def _place_sets(sets: RowSets, places: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], int, NDArray[np.int64] | None, tuple[str, ...]]:  # fmt: skip
    """Labels, number and weights of sets over the rows of all tables, ``(size,)`` each, and what they multiply."""
    labels = np.full(size, -1, np.int64)
    labels[places] = sets.labels
    if sets.weights is None:
        return labels, len(sets.names), None, sets.of
    weights = np.zeros((len(sets.weights), size), np.int64)
    weights[:, places] = sets.weights
    return labels, len(sets.names), weights, sets.of


def _version(record: Any, hashes: Hashes) -> str:
    """The name of a table: the same rows in another order are another one, since labels go by place."""
    for name, others in (record or {"tables": {}})["tables"].items():
        if np.array_equal(hashes, others):
            return str(name)
    return str(len((record or {"tables": {}})["tables"]))


def _list_known(record: Any, version: str) -> set[Any]:
    """Keys of the sets that are in the record."""
    entries = (record or {"entries": []})["entries"]
    return {_key(one) for entry in entries if entry["version"] == version for one in entry["sets"]}


def _key(packed: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two equal packed sets have in common."""
    plain = bytes(np.asarray(packed["labels"], np.uint8)), str(packed["dtype"]), bool(packed["described"]), bytes(np.asarray(packed.get("weights", ()), np.uint8)), _read_names(packed.get("of", ()))  # fmt: skip
    return *plain, tuple(packed.get("keys", ())), bool(packed.get("combined", True))


def require_apart(record: Any, sets: Sequence[RowSets], hashes: Hashes, least: int, party: str) -> None:
    """Refuse sets whose difference from answered ones isolates fewer rows than the minimum count.

    Args:
        record: what the party has answered; ``None`` is nothing.
        sets: those of the new request.
        hashes: of the table's rows.
        least: the minimum count.
        party: its name.

    Raises:
        PolicyError: names the earlier request and both sets.
    """
    found = next(_close(record, sets, hashes, least), None)
    if found is not None:
        name, before, request = found
        raise _too_close(name, before, f"the earlier request {request!r}", least, party)


def _too_close(name: str, other: str, request: str, least: int, party: str) -> PolicyError:
    return PolicyError(
        f"the difference between {name} and {other} of {request} is fewer than min_count={least} rows",
        where=party,
        remedy="ask for the same rows as before, for rows that differ by more, or with epsilon=, whose noise hides single rows",
    )


def _close(record: Any, sets: Sequence[RowSets], hashes: Hashes, least: int) -> Iterator[tuple[str, str, str]]:
    """A new set, the earlier one that it is too close to, and the earlier request, for each such pair."""
    for entry in (record or {"entries": []})["entries"]:
        others = record["tables"][entry["version"]]
        places = None if np.array_equal(hashes, others) else _places(hashes, others)
        for packed in entry["sets"]:
            old = RowSets.unpacked(packed)
            for new in sets if old.weights is None else ():
                pair = (new.labels, old.labels) if places is None else _align_tables(new.labels, old.labels, *places)
                for name, before in _isolating(new, old, *pair, least):
                    yield name, before, str(entry["request"])


def _isolating(
    new: RowSets, old: RowSets, mine: NDArray[Any], theirs: NDArray[Any], least: int, *, ways: bool = True
) -> Iterator[tuple[str, str]]:
    """Names of pairs that differ by 1 to ``least - 1`` rows. The last set of each is the rows in no set."""
    a, b, both = _counts(mine, theirs, len(new.names) + 1, len(old.names) + 1)
    here, there = np.bincount(a, both, len(new.names) + 1), np.bincount(b, both, len(old.names) + 1)
    named = (a < len(new.names)) & (b < len(old.names))
    if ways and new.described and old.described:
        more = np.maximum(here[a] - both, there[b] - both)
        for k in np.flatnonzero(named & (more > 0) & (more < least))[:1].tolist():
            yield new.names[a[k]], old.names[b[k]]
        shared = set(zip(a[named].tolist(), b[named].tolist(), strict=True))
        known = {key: k for k, key in enumerate(old.keys)}
        for k, j in ((k, known[key]) for k, key in enumerate(new.keys) if key in known):
            # Without a common row here: all others may be at other parties, and the same in both.
            if (k, j) not in shared and 0 < max(here[k], there[j]) < least:
                yield new.names[k], old.names[j]
    for apart, at, sizes, names, others in (
        (np.minimum(both, there[b] - both), a, here, new.names, old.names),
        (np.minimum(both, here[a] - both), b, there, old.names, new.names),
    ):
        smallest = np.bincount(at, apart, len(names) + 1)[: len(names)]
        near = (
            (smallest > 0) & (smallest < least) & (sizes[: len(names)] >= least)
        )  # smaller sets are told of nobody alone
        for k in np.flatnonzero(near)[:1].tolist():
            # The other set of which it has most rows.
            there_too = np.flatnonzero((at == k) & ((b if at is a else a) < len(others)))
            most = there_too[np.argmax(both[there_too])] if len(there_too) else None
            other = "the rest" if most is None else others[(b if at is a else a)[most]]
            yield (names[k], other) if at is a else (other, names[k])


def _counts(
    mine: NDArray[Any], theirs: NDArray[Any], ours: int, others: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Place in both, and the number of rows, of each pair of sets that have common rows; -1 is the last place."""
    a, b = (
        np.where(mine < 0, ours - 1, mine).astype(np.int64),
        np.where(theirs < 0, others - 1, theirs).astype(np.int64),
    )
    codes = a * others + b
    if ours * others <= _DENSE:
        counts = np.bincount(codes, minlength=ours * others)
        found = np.flatnonzero(counts)
        return found // others, found % others, counts[found]
    found, some = np.unique(codes, return_counts=True)
    return found // others, found % others, some


def _places(hashes: Hashes, others: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Places of the rows of two tables among the rows of both, and their number; a row that a table has twice is in two places."""
    keys = np.concatenate([_number_hashes(hashes), _number_hashes(others)])
    unique, place = np.unique(keys, return_inverse=True)
    return place[: len(hashes)], place[len(hashes) :], len(unique)


def _number_hashes(hashes: Hashes) -> Hashes:
    """Hashes of rows and of how many rows of the same content stand before them."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    first = np.searchsorted(ordered, ordered)
    made = np.empty_like(hashes)
    made[order] = _mix_words(ordered + (np.arange(len(ordered)) - first).astype(np.uint64) * _MULTIPLIER)
    return made


def _align_tables(
    mine: NDArray[Any], theirs: NDArray[Any], here: NDArray[np.int64], there: NDArray[np.int64], size: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels of both tables over the rows of both."""
    made = np.full((2, size), -1, np.int64)
    made[0, here], made[1, there] = mine, theirs
    return made[0], made[1]
