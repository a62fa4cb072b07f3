"""What a site allows of its tables: the policy that stands in the site's own file.

::

    limits: {seconds: 30, memory: 2GiB}
    policy: {min_count: 5}
    tables:
      cities: {unit: id, columns: {id: protected, country: public, pay: {level: private, release: aggregate, range: [0, 9.9e5]}}}
      nation: {mode: replicated, columns: public}

A column's *level* says who may read its values: ``public`` anyone; ``protected`` the site, the coordinator and the analyst; ``private`` the site alone. Its *release* says
what may leave of it together with other rows: ``aggregate`` sums and what follows from them, ``never`` nothing, not even a condition. Without a word, a public or
protected column is released in aggregates, and a private one only counts rows: in conditions and in ``COUNT``. What is not named is private. Without a policy all is private and
``min_count`` is 10, so that only ``COUNT`` answers. ``trusted: [regulator]`` lets a party beside the site read a column that is not public.

Where sites differ the strictest counts (`strictest`): the higher level, the smaller release, the larger minimum count, whom all trust, the coarser precision of points.

``unrecorded: joins`` in ``policy`` says what may choose rows under shares where no site sees which, so that its record of earlier answers cannot compare them: ``nothing`` (by default), ``joins`` or
``anything``; see `atoll.query.secure.limits.selections`.

``enclave: {simulated: true}`` in ``policy`` lets the strategy ``opaque`` send rows, sealed, to a party whose enclave has no hardware; ``root:`` pins the key that signs its quotes, in hex.

``points: {location: {x: lon, y: lat, extent: 360, precision: 1.0e-4}}`` in a table lets statements name the point ``location`` in spatial functions (`atoll.query.spatial`); with ``wkt: column`` a
column of text has it, such as ``POINT (2.3 48.8)``.

``patients: {mode: vertical, key: id, columns: {id: protected, age: private}}`` says that other sites have other columns of the same rows, found by ``id``. What lies here is a *part* of the table, and
plans call it by its columns, ``patients (age)`` (`QueryPolicy.name_parts`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atoll.core.errors import ConfigError, nearest
from atoll.core.validation import is_real

__all__ = [
    "LEVELS",
    "ColumnPolicy",
    "EnclavePolicy",
    "NoisePolicy",
    "PointPolicy",
    "QueryPolicy",
    "TablePolicy",
    "strictest",
]

LEVELS = ("public", "protected", "private")
"""Levels of a column, the least strict first (SMCQL, Bater et al. 2017, section 3)."""
RELEASES = ("aggregate", "noise", "count", "never")
MODES = ("horizontal", "vertical", "replicated")
SIZES = ("open", "noisy", "hidden")
UNRECORDED = ("anything", "joins", "nothing")
"""What may choose rows where no site sees which, the least strict first."""
_NAMED = 3
"""Most columns that the name of a part shows."""
_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True)
class ColumnPolicy:
    """What is allowed of one column.

    Attributes:
        level: who may read its values.
        release: what may leave of it together with other rows: ``"aggregate"``, ``"noise"`` (sums with noise alone), ``"count"`` or ``"never"``.
        low: values below it do not count: they are NULL in every query. The site applies it to its own rows.
        high: values above it do not count.
        scale: the smallest difference of two values that matters, for strategies that share numbers as whole multiples of it. Masked sums are exact without it. ``None`` for none.
        local: whether all rows with one value of it lie at one site, so that sites join on it by themselves.
        at_most: how many rows of all sites may have one value of it: 1 for a key. Strategies under shares make joins no larger, and check it. ``None`` for any number.
        trusted: parties that may read its values beside the site, by name: the strategy ``conclave`` has one of them match and sort the rows of all sites by it.
    """

    level: str = "private"
    release: str = "count"
    low: float | None = None
    high: float | None = None
    scale: float | None = None
    local: bool = False
    at_most: int | None = None
    trusted: tuple[str, ...] = ()


@dataclass(frozen=True)
class PointPolicy:
    """Which columns of a table are the coordinates of a point.

    Attributes:
        x: column of the first coordinate, such as the longitude; empty with ``wkt``.
        y: column of the second one, such as the latitude.
        wkt: column of texts such as ``POINT (2.3 48.8)``.
        extent: the largest distance between two points, in units of the coordinates.
        precision: the smallest difference of two distances that matters; a search for a radius ends there.
    """

    x: str = ""
    y: str = ""
    wkt: str = ""
    extent: float = 360.0
    precision: float = 1e-4

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it lies in."""
        return (self.wkt,) if self.wkt else (self.x, self.y)


@dataclass(frozen=True)
class EnclavePolicy:
    """To which enclave rows may go.

    Attributes:
        simulated: whether it may be one without hardware, whose host could read the rows.
        root: the public key whose signature its quotes must have, in hex; empty for that of `atoll.secure.attestation`.
    """

    simulated: bool = False
    root: str = ""


@dataclass(frozen=True)
class TablePolicy:
    """What is allowed of one table.

    Attributes:
        mode: ``"horizontal"``: each site has rows of its own; ``"vertical"``: sites have different columns of the same rows; ``"replicated"``: each has the same rows.
        unit: the column whose values are the people or things that ``min_count`` counts; empty for rows.
        columns: column -> its policy, by names in lower case.
        others: the policy of columns that are not named.
        points: point -> its columns, by names in lower case.
        indexes: column or point -> the index by which the site finds its own rows (`atoll.query.indexes`), by names in lower case. It changes no answer, and stays at the site.
        sizes: ``"open"``: strategies may tell how many rows joins of it have; ``"noisy"`` or ``"hidden"``: none does without noise.
        key: with ``"vertical"`` the column by which rows of several sites are one.
        whole: the table that this one is a part of, in lower case; empty for a table of its own.
    """

    mode: str = "horizontal"
    unit: str = ""
    columns: Mapping[str, ColumnPolicy] = field(default_factory=dict)
    others: ColumnPolicy = ColumnPolicy()
    points: Mapping[str, PointPolicy] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)
    sizes: str = "hidden"
    key: str = ""
    whole: str = ""

    def column(self, name: str) -> ColumnPolicy:
        """The policy of a column."""
        return self.columns.get(name.lower(), self.others)


@dataclass(frozen=True)
class NoisePolicy:
    """What answers with noise may cost.

    Attributes:
        people: analyst -> the epsilon and the delta of all of their answers together.
        groups: in how many groups of one statement a unit counts.
        rows: how many of a unit's rows count in a group.
    """

    people: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    groups: int = 1
    rows: int = 1


@dataclass(frozen=True)
class QueryPolicy:
    """What a site allows.

    Attributes:
        min_count: smallest number of units behind every number that leaves.
        seconds: longest time of a statement's local part.
        memory: most bytes of it.
        tables: table -> its policy, by names in lower case.
        privacy: what answers with noise may cost; ``None`` for none.
        enclave: to which enclave rows may go; ``None`` for none.
        kept: most bytes of relations that stay shared between statements here; 0 for none.
        kept_days: after how many days they are forgotten.
        unrecorded: with a ``min_count`` above 1, what may choose rows where no site sees which: ``"nothing"``, ``"joins"`` or ``"anything"``.
    """

    min_count: int = 10
    seconds: float = 30.0
    memory: int = 2 << 30
    tables: Mapping[str, TablePolicy] = field(default_factory=dict)
    privacy: NoisePolicy | None = None
    enclave: EnclavePolicy | None = None
    kept: int = 0
    kept_days: float = 7.0
    unrecorded: str = "nothing"

    def table(self, name: str) -> TablePolicy:
        """The policy of a table; one that is not named is all private."""
        return self.tables.get(name.lower(), TablePolicy())

    def require_columns(self, tables: Mapping[str, Iterable[str]], where: str) -> None:
        """Refuse a policy that names a column or a unit that its table lacks: what it means to protect would be open.

        Args:
            tables: table -> its columns.
            where: the site, for errors.

        Raises:
            ConfigError: names the column, and the nearest.
        """
        known = {name.lower(): [column.lower() for column in columns] for name, columns in tables.items()}
        for name, table in self.tables.items():
            if name not in known:
                near = nearest(name, known)
                if near:  # another site may have further tables, and one policy may be for all
                    raise ConfigError(f"tables: {name}: there is no such table here.{near}", where=where, remedy=f"use {', '.join(known)}")  # fmt: skip
                continue
            points = [column for point in table.points.values() for column in point.columns]
            for column in (*table.columns, *(one for one in (table.unit, table.key) if one), *points, *(one for one in table.indexes if one not in table.points)):  # fmt: skip
                if column in known[name]:
                    continue
                near = nearest(column, [one for one in known[name] if one not in table.columns])
                if table.mode != "vertical" or column == table.key or near:  # other columns may be at other sites
                    raise ConfigError(f"tables.{name}: there is no column {column!r}.{nearest(column, known[name])}", where=where, remedy=f"use {', '.join(known[name])}")  # fmt: skip

    def name_parts(self, tables: Mapping[str, Iterable[str]]) -> tuple[QueryPolicy, dict[str, str]]:
        """The policy with the tables of mode vertical under the names of their parts, and part -> the table, as the source writes it.

        A part has a name by its columns beside the key, such as ``patients (age, pay)``, so that each site knows by itself what plans call its own.

        Args:
            tables: table -> its columns.
        """
        named, found = dict(self.tables), {}
        for source, columns in tables.items():
            table = self.table(source)
            if table.mode != "vertical":
                continue
            del named[source.lower()]
            part = _name_part(source.lower(), table.key, columns)
            key = replace(table.column(table.key), at_most=1)
            unit = table.unit if table.unit in map(str.lower, columns) else ""
            named[part] = replace(table, unit=unit, columns={**table.columns, table.key: key}, whole=source.lower())
            found[part] = source
        return (replace(self, tables=named) if found else self), found

    @classmethod
    def read(cls, path: str | Path) -> QueryPolicy:
        """The policy of a YAML file.

        Raises:
            ConfigError: there is no such file, it is not YAML, or a value cannot be used; names the place in the file.
        """
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        place = Path(path)
        try:
            given = YAML(typ="safe", pure=True).load(place.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"the policy cannot be read: {error.strerror}", where=str(path), remedy="give the path of a YAML file") from error  # fmt: skip
        except YAMLError as error:
            raise ConfigError(f"this is not YAML: {' '.join(str(error).split())}", where=str(path), remedy="correct the line") from error  # fmt: skip
        return cls.of(given if given is not None else {}, where=str(path))

    @classmethod
    def of(cls, given: Any, where: str = "policy") -> QueryPolicy:
        """The policy of plain values, such as a YAML file holds.

        Args:
            given: ``limits``, ``policy`` and ``tables``; other settings of a site's file are its own.
            where: the file, for errors.

        Raises:
            ConfigError: a value cannot be used; names its place.
        """
        whole = _mapping(given, where, ("limits", "policy", "tables", "database", "consent"))
        limits = _mapping(whole.get("limits", {}), f"{where}: limits", ("seconds", "memory", "kept", "kept_days"))
        rules = _mapping(whole.get("policy", {}), f"{where}: policy", ("min_count", "privacy", "enclave", "unrecorded"))
        tables = _mapping(whole.get("tables", {}), f"{where}: tables")
        # Whoever names tables has thought about them: then a number of rows that nobody names is 1, as in the policy of other jobs.
        usual = 1 if "tables" in whole else cls.min_count
        least = rules.get("min_count", usual)
        if isinstance(least, bool) or not isinstance(least, int) or least < 1:
            raise ConfigError(f"min_count: {least!r}", where=f"{where}: policy", remedy="use a whole number of at least 1")  # fmt: skip
        seconds = limits.get("seconds", cls.seconds)
        if not is_real(seconds) or not 0 < seconds < 1e9:
            raise ConfigError(f"seconds: {seconds!r}", where=f"{where}: limits", remedy="use a number above 0")
        memory = _bytes_of(limits.get("memory", cls.memory), f"{where}: limits")
        kept = _bytes_of(limits["kept"], f"{where}: limits", "kept") if "kept" in limits else 0
        days = limits.get("kept_days", cls.kept_days)
        if not is_real(days) or not 0 < days < 1e6:
            raise ConfigError(f"kept_days: {days!r}", where=f"{where}: limits", remedy="use a number of days above 0, such as 7")  # fmt: skip
        made = {name.lower(): _table(one, f"{where}: tables.{name}") for name, one in tables.items()}
        privacy = _privacy(rules["privacy"], f"{where}: policy.privacy") if "privacy" in rules else None
        enclave = _enclave(rules["enclave"], f"{where}: policy.enclave") if "enclave" in rules else None
        unrecorded = _word(rules.get("unrecorded", cls.unrecorded), UNRECORDED, "unrecorded", f"{where}: policy")
        return cls(least, float(seconds), memory, made, privacy, enclave, kept, float(days), unrecorded)

    def told(self, tables: Mapping[str, Iterable[str]], elsewhere: Collection[str] = ()) -> dict[str, Any]:
        """What the coordinator needs of it to plan, as a message.

        Args:
            tables: table -> its columns.
            elsewhere: parts of tables of mode vertical; of those that are not here it says nothing.
        """
        found = {}
        for name, columns in tables.items():
            if name in elsewhere and name not in self.tables:
                continue
            one = self.table(name)
            found[name] = {
                "mode": one.mode,
                "unit": one.unit,
                "columns": {c: _packed(one.column(c)) for c in columns},
                "points": {point: [p.x, p.y, p.wkt, p.extent, p.precision] for point, p in one.points.items()},
                **({} if one.sizes == "hidden" else {"sizes": one.sizes}),
                **({"part": [one.whole, one.key]} if one.whole else {}),
            }
        noise = {} if self.privacy is None else {"noise": [self.privacy.groups, self.privacy.rows]}
        enclave = {} if self.enclave is None else {"enclave": [self.enclave.simulated, self.enclave.root]}
        unrecorded = {} if self.unrecorded == "nothing" else {"unrecorded": self.unrecorded}
        return {"min_count": self.min_count, "tables": found, **noise, **enclave, **unrecorded, **({"kept": [self.kept, self.kept_days]} if self.kept else {})}  # fmt: skip


def strictest(told: Sequence[Mapping[str, Any]]) -> QueryPolicy:
    """The policy that all of several sites allow.

    Args:
        told: what each site tells; see `QueryPolicy.told`.

    Raises:
        ConfigError: sites declare a table in different modes, by different units, or a point in different columns.
    """
    tables: dict[str, TablePolicy] = {}
    for one in told:
        for name, table in one["tables"].items():
            points = {point: PointPolicy(*row) for point, row in table["points"].items()}
            made = TablePolicy(table["mode"], table["unit"], {c: _unpacked(row) for c, row in table["columns"].items()}, points=points, sizes=_word(table.get("sizes", "hidden"), SIZES, "sizes", name))  # fmt: skip
            if table.get("part"):
                made = replace(made, whole=str(table["part"][0]), key=str(table["part"][1]))
            known = tables.setdefault(name, made)
            if (known.mode, known.unit, known.key) != (made.mode, made.unit, made.key):
                raise ConfigError(
                    f"table {name}: {_kind_of(known)} at one site, and {_kind_of(made)} at another",
                    where="policies of the sites",
                    remedy="let all sites declare it alike",
                )
            columns = {c: _stricter(known.columns.get(c), p) for c, p in made.columns.items()}
            sizes = max(known.sizes, made.sizes, key=SIZES.index)
            tables[name] = replace(
                known, columns=columns, sizes=sizes, points=_common_points(name, known.points, made.points)
            )
    noise = [one.get("noise") for one in told]
    bounds = [min(int(one[k]) for one in noise) for k in (0, 1)] if all(noise) else None  # type: ignore[index]  # none is missing
    privacy = None if bounds is None else NoisePolicy(groups=bounds[0], rows=bounds[1])
    enclaves = {(bool(one["enclave"][0]), str(one["enclave"][1])) if one.get("enclave") else None for one in told}
    alike = enclaves.pop() if len(enclaves) == 1 else None  # sites that pin different roots trust none together
    enclave = None if alike is None else EnclavePolicy(*alike)
    unrecorded = max((_word(one.get("unrecorded", "nothing"), UNRECORDED, "unrecorded", "policies of the sites") for one in told), key=UNRECORDED.index)  # fmt: skip
    return QueryPolicy(max(int(one["min_count"]) for one in told), tables=tables, privacy=privacy, enclave=enclave, unrecorded=unrecorded, **_common_room(told))  # fmt: skip


def _common_room(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How much all sites keep of relations that stay shared, and for how long."""
    found = [one["kept"] for one in told if one.get("kept")]
    days = {"kept_days": min(float(one[1]) for one in found)} if found else {}
    return {"kept": min(int(one[0]) for one in found) if found and len(found) == len(told) else 0, **days}


def _kind_of(table: TablePolicy) -> str:
    return f"mode {table.mode}, unit {table.unit or 'rows'}{table.key and f', key {table.key}'}"


def _name_part(table: str, key: str, columns: Iterable[str]) -> str:
    """What plans call a part of a table; two that differ after the third column have a column in common, which is refused."""
    others = sorted(name for name in map(str.lower, columns) if name != key) or [key]
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{table} ({', '.join(others[:_NAMED])}{more})"


def _stricter(one: ColumnPolicy | None, other: ColumnPolicy) -> ColumnPolicy:
    if one is None:
        return other
    return ColumnPolicy(
        max(one.level, other.level, key=LEVELS.index),
        max(one.release, other.release, key=RELEASES.index),
        None if one.low is None or other.low is None else min(one.low, other.low),
        None if one.high is None or other.high is None else max(one.high, other.high),
        local=one.local and other.local,
        scale=one.scale if one.scale == other.scale else None,
        at_most=None if one.at_most is None or other.at_most is None else max(one.at_most, other.at_most),
        trusted=_trusted_by_both(one, other),
    )


def _trusted_by_both(one: ColumnPolicy, other: ColumnPolicy) -> tuple[str, ...]:
    """Whom both trust: a public column is one that anyone may read."""
    if "public" in (one.level, other.level):
        return other.trusted if one.level == "public" else one.trusted
    return tuple(name for name in one.trusted if name in other.trusted)


def _common_points(table: str, one: Mapping[str, PointPolicy], other: Mapping[str, PointPolicy]) -> dict[str, PointPolicy]:  # fmt: skip
    """The points that both of two sites declare: an extent that holds all, and the coarser precision."""
    found = {}
    for name in (name for name in one if name in other):
        a, b = one[name], other[name]
        if a.columns != b.columns:
            raise ConfigError(
                f"points.{name} of table {table} lies in {', '.join(a.columns)} at one site, and in {', '.join(b.columns)} at another",
                where="policies of the sites",
                remedy="let all sites declare it alike, over a view that has the same columns",
            )
        found[name] = replace(a, extent=max(a.extent, b.extent), precision=max(a.precision, b.precision))
    return found


def _packed(one: ColumnPolicy) -> list[Any]:
    """A column's policy as a message; its range too, from which follow the size of noise, and of numbers under shares."""
    return [
        one.level,
        one.release,
        one.low,
        one.high,
        one.scale,
        one.local,
        one.at_most,
        *([list(one.trusted)] if one.trusted else []),
    ]


def _unpacked(row: Sequence[Any]) -> ColumnPolicy:
    made = ColumnPolicy(*row[:7])
    return replace(made, trusted=tuple(str(name) for name in row[7])) if len(row) > 7 else made


def _mapping(given: Any, where: str, known: Sequence[str] = ()) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ConfigError(f"{given!r} where settings by name are expected", where=where, remedy="write name: value")
    wrong = next((key for key in given if known and key not in known), None)
    if wrong is not None:
        raise ConfigError(f"{wrong}: there is no such setting.{nearest(wrong, known)}", where=where, remedy=f"use {', '.join(known)}")  # fmt: skip
    return given


def _privacy(given: Any, where: str) -> NoisePolicy:
    one = _mapping(given, where, ("people", "groups", "rows"))
    people = {}
    for name, terms in _mapping(one.get("people", {}), f"{where}.people").items():
        budget = _mapping(terms, f"{where}.people.{name}", ("epsilon", "delta"))
        epsilon: Any = budget.get("epsilon")
        delta: Any = budget.get("delta", 0.0)
        if not is_real(epsilon) or not is_real(delta) or epsilon <= 0 or not 0 <= delta < 1:
            raise ConfigError(f"epsilon: {epsilon!r}, delta: {delta!r}", where=f"{where}.people.{name}", remedy="give an epsilon above 0, and a delta from 0 to below 1: {epsilon: 4, delta: 1.0e-6}")  # fmt: skip
        people[name] = (float(epsilon), float(delta))
    for name in ("groups", "rows"):
        if isinstance(one.get(name, 1), bool) or not isinstance(one.get(name, 1), int) or one.get(name, 1) < 1:
            raise ConfigError(f"{name}: {one[name]!r}", where=where, remedy="use a whole number of at least 1")
    return NoisePolicy(people, one.get("groups", 1), one.get("rows", 1))


def _enclave(given: Any, where: str) -> EnclavePolicy:
    one = _mapping(given, where, ("simulated", "root"))
    simulated, root = one.get("simulated", False), one.get("root", "")
    if not isinstance(simulated, bool):
        raise ConfigError(f"simulated: {simulated!r}", where=where, remedy="use simulated: true, for an enclave without hardware")  # fmt: skip
    if not isinstance(root, str) or (root and not re.fullmatch("[0-9a-f]{64}", root)):
        raise ConfigError(f"root: {root!r}", where=where, remedy="give the root's public key as 64 digits in hex, in quotes")  # fmt: skip
    return EnclavePolicy(simulated, root)


def _table(given: Any, where: str) -> TablePolicy:
    one = _mapping(given, where, ("mode", "unit", "sizes", "columns", "points", "index", "key"))
    mode = _word(one.get("mode", "horizontal"), MODES, "mode", where)
    sizes = _word(one.get("sizes", "hidden"), SIZES, "sizes", where)
    columns = one.get("columns", {})
    points = {name.lower(): _point(each, f"{where}.points.{name}") for name, each in _mapping(one.get("points", {}), f"{where}.points").items()}  # fmt: skip
    indexes = _indexes(one.get("index", {}), points, f"{where}.index")
    unit, others, made = _name(one.get("unit", ""), where), ColumnPolicy(), {}
    if isinstance(columns, str):
        others = _column(columns, f"{where}.columns")
    else:
        named = _mapping(columns, f"{where}.columns")
        made = {name.lower(): _column(each, f"{where}.columns.{name}") for name, each in named.items()}
    table = TablePolicy(mode, unit, made, others, points, indexes, sizes, _name(one.get("key", ""), where, "key"))
    _require_key(table, where)
    return table


def _require_key(table: TablePolicy, where: str) -> None:
    """Refuse a key without mode vertical and the reverse, and what a table whose columns lie apart cannot have."""
    if (table.mode == "vertical") != bool(table.key):
        raise ConfigError(f"mode: {table.mode} {'with key: ' + table.key if table.key else 'without key:'}", where=where, remedy="use mode: vertical together with key: and the column by which sites find the same rows, as in {mode: vertical, key: id}")  # fmt: skip
    if not table.key:
        return
    key = table.column(table.key)
    if key.local:  # sites would join parts within themselves, and find nothing
        raise ConfigError(f"{table.key}: join: local of the key of a vertical table, whose rows with one value lie at several sites", where=where, remedy="leave join: local out")  # fmt: skip
    if key.at_most not in (None, 1):
        raise ConfigError(f"{table.key}: at_most: {key.at_most} of the key of a vertical table", where=where, remedy="leave at_most: out: a key has each value once")  # fmt: skip
    if table.points:
        raise ConfigError(f"points of a vertical table: {', '.join(table.points)}", where=where, remedy="leave points: out, and write distances with the columns of the coordinates")  # fmt: skip


def _indexes(given: Any, points: Mapping[str, PointPolicy], where: str) -> dict[str, str]:
    """Which index finds rows by which column or point."""
    named = {name.lower(): kind for name, kind in _mapping(given, where).items()}
    if not named:
        return {}
    from .indexes.registry import PointIndex, known_indexes

    known = known_indexes()
    for name, kind in named.items():
        fits = [one for one, found in known.items() if issubclass(found, PointIndex) == (name in points)]
        if kind not in fits:
            what = "a point" if name in points else "a column"
            raise ConfigError(f"{name}: {kind!r} is no index of {what}.{nearest(str(kind), fits)}", where=where, remedy=f"use {', '.join(fits)}")  # fmt: skip
        if name in points and points[name].wkt:
            raise ConfigError(f"{name}: an index of a point in texts", where=where, remedy="let a view have the coordinates in two columns, and declare x: and y:")  # fmt: skip
    return named


def _point(given: Any, where: str) -> PointPolicy:
    one = _mapping(given, where, ("x", "y", "wkt", "extent", "precision"))
    names = [name for name in ("x", "y", "wkt") if name in one]
    if names not in (["x", "y"], ["wkt"]):
        raise ConfigError(f"{' and '.join(names) or 'no column'} of a point", where=where, remedy="name the columns of both coordinates, x: lon, y: lat, or a column of texts, wkt: shape")  # fmt: skip
    for name in names:
        if not isinstance(one[name], str) or not one[name]:
            raise ConfigError(f"{name}: {one[name]!r}", where=where, remedy="name a column")
    extent, precision = (one.get(name, getattr(PointPolicy, name)) for name in ("extent", "precision"))
    for name, value in (("extent", extent), ("precision", precision)):
        if not is_real(value) or not 0 < value < 1e300:
            raise ConfigError(f"{name}: {value!r}", where=where, remedy="use a number above 0, in units of the coordinates")  # fmt: skip
    if not 1 < extent / precision <= 2.0**52:
        raise ConfigError(f"extent: {extent!r} and precision: {precision!r}", where=where, remedy="let the precision be smaller than the extent, by a factor of at most 2^52")  # fmt: skip
    x, y, wkt = (one.get(name, "").lower() for name in ("x", "y", "wkt"))
    return PointPolicy(x, y, wkt, float(extent), float(precision))


def _column(given: Any, where: str) -> ColumnPolicy:
    words: Any = {"level": given} if isinstance(given, str) else given
    one = _mapping(words, where, ("level", "release", "range", "scale", "join", "key", "at_most", "trusted"))
    level = _word(one.get("level", "private"), LEVELS, "level", where)
    release = _word(one.get("release", "count" if level == "private" else "aggregate"), RELEASES, "release", where)
    low, high = None, None
    if "range" in one:
        ends: Any = one["range"]
        if (
            not isinstance(ends, list | tuple)
            or len(ends) != 2
            or not all(map(is_real, ends))
            or not ends[0] <= ends[1]
        ):
            raise ConfigError(f"range: {ends!r}", where=where, remedy="give the lower and the upper end: [0, 120]")
        low, high = float(ends[0]), float(ends[1])
    scale = one.get("scale")
    if scale is not None and (not is_real(scale) or scale <= 0):
        raise ConfigError(f"scale: {scale!r}", where=where, remedy="use a number above 0, such as 0.01")
    if "join" in one:
        _word(one["join"], ("local",), "join", where)
    trusted = one.get("trusted", ())
    if isinstance(trusted, str) or not isinstance(trusted, Sequence) or not all(isinstance(w, str) for w in trusted):
        raise ConfigError(f"trusted: {trusted!r}", where=where, remedy="give a list of names, such as [regulator]")
    most = one.get("at_most", 1 if one.get("key") else None)
    if ("key" in one and (one["key"] is not True or "at_most" in one)) or (most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1)):  # fmt: skip
        raise ConfigError(f"key: {one.get('key')!r}, at_most: {one.get('at_most')!r}", where=where, remedy="use key: true, or at_most: and a whole number of at least 1")  # fmt: skip
    return ColumnPolicy(
        level,
        release,
        low,
        high,
        None if scale is None else float(scale),
        "join" in one,
        most,
        tuple(sorted(set(trusted))),
    )


def _word(given: Any, known: Sequence[str], name: str, where: str) -> str:
    if given not in known:
        raise ConfigError(f"{name}: {given!r}.{nearest(given, known)}", where=where, remedy=f"use {', '.join(known[:-1])} or {known[-1]}" if len(known) > 1 else f"use {known[0]}")  # fmt: skip
    return str(given)


def _name(given: Any, where: str, setting: str = "unit") -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{setting}: {given!r}", where=where, remedy="name a column")
    return given.lower()


def _bytes_of(given: Any, where: str, setting: str = "memory") -> int:
    """Bytes of a number, or of words such as ``2GiB``."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMG]?i?B?)\s*", str(given)) if not isinstance(given, bool) else None
    try:
        if found is None or found[2] not in _BYTES or float(found[1]) * _BYTES[found[2]] < 1 << 20:
            raise ValueError
        return int(float(found[1]) * _BYTES[found[2]])
    except ValueError:
        raise ConfigError(
            f"{setting}: {given!r}", where=where, remedy="give 1048576 bytes or more, such as 2GiB"
        ) from None
