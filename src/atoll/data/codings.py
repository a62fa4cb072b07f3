"""Values that sites write in other ways: ``m`` here, ``Male`` or ``M`` there. Nothing would say so: a model learns them as further categories.

Two spellings that differ only in case, blanks or the form of a number are refused wherever they meet, in one table or in several. Two sites that each have a few values,
and none in common, are refused. So are labels 0 and 1 here, and 1 and 2 there. If the values really are different
ones, people say so: they list all of them (``categories=``), and nothing is compared. A site is named in the result if no other site has half of its values.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.redaction import private
from atoll.core.requests.cohort import Community

from .missing import labelled_rows
from .units import numbers_of

__all__ = ["name_lone_values", "name_other_codings", "require_one_coding", "require_one_spelling"]

_CODING = 12
"""Values that a site has at most, if two sites without a common value are refused; more are names, such as those of cities."""
_SHOWN, _SENTENCES = 4, 5
_CLIENTS, _ROWS, _PAIRED = 1000, 10_000, 100
"""Clients and rows that are looked at, and different sets of values that are compared in pairs."""


def require_one_coding(
    values: Mapping[str, Iterable[Any]],
    column: str,
    where: str,
    *,
    rows: Mapping[str, int] | None = None,
    label: bool = False,
    who: str = "site",
) -> None:
    """Refuse a column that sites code differently.

    Args:
        values: the distinct values, by site.
        column: its name.
        where: the place, for errors.
        rows: numbers of rows, by site: values that nearly all differ are names, which sites may have of their own.
        label: whether the values are classes.
        who: what the sites are, in words.

    Raises:
        DataError: names the sites, and values of both.
    """
    sets = {site: sorted(set(map(str, each))) for site, each in values.items()}
    _require_one_spelling(sets, column, where, label, who)
    most = {site: _CODING if rows is None else min(_CODING, 3 * rows[site] // 4) for site in sets}
    for (one, first), (other, second) in _pairs(sets):
        apart = not set(first) & set(second)
        codings = apart and 1 < len(first) <= most[one] and 1 < len(second) <= most[other]
        # A site with one value may lack the others, but not write a number where another has words.
        kinds = first and second and all(map(_is_number, first)) and not any(map(_is_number, second))
        # Grades 0 and 1 at one site and 1 and 2 at another are one coding if a third has all of them.
        joined = any({*first, *second} <= {*third} for name, third in sets.items() if name not in (one, other))
        if codings or kinds or (label and not joined and _are_shifted(first, second)):
            raise _differ(
                column, where, label, f"has {_few(first)} at {who} {one!r}, and {_few(second)} at {who} {other!r}"
            )


def _are_shifted(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two pairs of classes are neighbouring whole numbers that begin elsewhere, such as 0 and 1, and 1 and 2."""
    if first == second or not all(len(each) == 2 and all(map(_is_number, each)) for each in (first, second)):
        return False
    (a, b), (c, d) = (sorted(map(float, each)) for each in (first, second))
    return b - a == d - c == 1


def require_one_spelling(values: Iterable[Any], column: str, where: str, *, label: bool = False) -> None:
    """Refuse a column that writes one value in two ways, such as ``yes`` and ``Yes``.

    Args:
        values: the distinct values.
        column: its name.
        where: the place, for errors.
        label: whether the values are classes.

    Raises:
        DataError: names both.
    """
    _require_one_spelling({"": sorted(set(map(str, values)))}, column, where, label, "")


def _require_one_spelling(sets: Mapping[str, list[str]], column: str, where: str, label: bool, who: str) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for site, each in sets.items():
        for value in each:
            known, at = seen.setdefault(_plain_form(value), (value, site))
            if known != value:
                places = (f" at {who} {at!r}", f" at {who} {site!r}") if at != site else ("", f" at {who} {site!r}" if who else "")  # fmt: skip
                raise _differ(column, where, label, f"has {private(known)}{places[0]} and {private(value)}{places[1]}, which differ only in how they are written")  # fmt: skip


def _plain_form(value: str) -> str:
    """A value in lower case, in one form of Unicode, without blanks and quotes at its ends, and a number as its amount."""
    text = " ".join(unicodedata.normalize("NFKC", value).split()).strip("'\"").strip().casefold()
    return f"{float(text):.17g}" if _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        return "_" not in text and math.isfinite(float(text))
    except ValueError:
        return False


def _pairs(sets: Mapping[str, list[str]]) -> Iterable[tuple[tuple[str, list[str]], tuple[str, list[str]]]]:
    """All pairs of different sets; of many sites with the same values, one stands for them."""
    apart: dict[tuple[str, ...], str] = {}
    for site, each in sets.items():
        apart.setdefault(tuple(each), site)
    items = [(site, list(each)) for each, site in apart.items()][:_PAIRED]
    return ((one, other) for one in items for other in items if one is not other)


def _differ(column: str, where: str, label: bool, what: str) -> DataError:
    kind = "classes" if label else "values"
    return DataError(
        f"{'the label' if label else 'column'} {column!r} {what}",
        where=where,
        remedy=f"write each value the same way everywhere; if they are different {kind}, list all of them: categories={{{column!r}: [...]}}",
    )


def _few(values: list[str]) -> str:
    return ", ".join(map(private, values[:_SHOWN])) + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")  # fmt: skip


def name_lone_values(
    values: Mapping[str, Iterable[Any]], column: str, *, label: bool = False, who: str = "site"
) -> list[str]:
    """Return in words which site has values that no other site has: at least half of its values, of classes any, and of a few values any if it lacks one that all others have.

    Args:
        values: the distinct values, by site.
        column: its name.
        label: whether the values are classes.
        who: what the sites are, in words.
    """
    sets = {site: set(map(str, each)) for site, each in values.items()}
    held = {site: each for site, each in sets.items() if each}
    if len(held) < 2:
        return []
    at: dict[str, int] = {}
    for each in held.values():
        for value in each:
            at[value] = at.get(value, 0) + 1
    found = []
    for site, each in held.items():
        lone = sorted(value for value in each if at[value] == 1)
        others = sorted(value for value in at if value not in each)
        # A further ward is one that a site may have; one in place of another's may be its other name.
        instead = len(each) <= _CODING and any(at[value] == len(held) - 1 for value in others)
        if lone and others and (label or instead or 2 * len(lone) >= len(each)):
            found.append(f"{who} {site!r} alone has {_plainly(lone)}, and the others have {_plainly(others)}")
    if not found:
        return []
    name = f"{'label' if label else 'column'} {column!r}"
    if len(held) == 2:
        (one, first), (other, second) = held.items()
        apart = _plainly(sorted(first - second)), _plainly(sorted(second - first))
        return [
            f"{name} has {apart[0]} at {who} {one!r} alone, and {apart[1]} at {who} {other!r} alone: is it coded differently?"
        ]
    more = f", and {len(found) - 2} more {who}s have values of their own" if len(found) > 2 else ""
    return [f"{name}: {'; '.join(found[:2])}{more}: is it coded differently?"]


def _plainly(values: list[str]) -> str:
    return ", ".join(map(repr, values[:_SHOWN])) + (", …" if len(values) > _SHOWN else "")


def name_other_codings(population: Any) -> list[str]:
    """Return in words which client codes a column, or its classes, differently, where each has a table of its own; and which values the test rows alone have.

    Args:
        population: `Islands`, or clients with a table, a data frame or a dict of columns, whose columns of text their jobs compare.
    """
    if len(population) > _CLIENTS or not getattr(population, "separate", isinstance(population, Community)):
        return []
    about, test = getattr(population, "about", None), getattr(population, "test", None)
    found: dict[str, dict[str, list[str]]] = {}
    pairs: dict[str, dict[str, tuple[float, ...]]] = {}
    for place, client in enumerate(population.names):
        rows = population.shard(place)
        for column, each in _words_in(rows, about).items():
            found.setdefault(column, {})[str(client)] = each
        for column, values in numbers_of(rows, about).items():
            pairs.setdefault(column, {})[str(client)] = tuple(np.unique(values[:_ROWS][np.isfinite(values[:_ROWS])])[:3].tolist())  # fmt: skip
    told = [line for column, two in pairs.items() for line in _name_other_pairs(column, two)]
    # Clients with a single class here and there simply have few of them, as those of a partition by labels.
    coded = [c for c, each in found.items() if c != _CLASSES or all(len(values) > 1 for values in each.values())]
    for column in coded:
        lines = name_lone_values(found[column], column, label=column == _CLASSES, who="client")
        # Its name in the files is not kept.
        told += [line.replace(f"label {_CLASSES!r}", "the label") for line in lines] if column == _CLASSES else lines
    for column, values_of_test in ({} if test is None else _words_in(test, about)).items():
        unknown = sorted(set(values_of_test) - {value for each in found.get(column, {}).values() for value in each})
        if unknown:
            name = "the label" if column == _CLASSES else f"column {column!r}"
            told.append(f"{name}: the test rows have {_plainly(unknown)}, which no client has")
    return told[:_SENTENCES]


def _name_other_pairs(column: str, pairs: Mapping[str, tuple[float, ...]]) -> list[str]:
    """Say that clients have other two numbers, such as 0 and 1 here and 1 and 2 there, where none has more than two."""
    full = {client: two for client, two in pairs.items() if two}
    if len(full) < 2 or any(len(two) > 2 for two in full.values()):
        return []
    whole = {client: two for client, two in full.items() if len(two) == 2}
    one = next(iter(whole), "")
    other = next((client for client, two in whole.items() if two != whole[one]), None)
    if other is None:
        return []
    here, there = (" and ".join(f"{value:g}" for value in whole[client]) for client in (one, other))
    return [
        f"column {column!r} has {here} at client {one!r}, and {there} at client {other!r}: is it coded differently?"
    ]


_CLASSES = "y"


def _words_in(rows: Any, about: Any) -> dict[str, list[str]]:
    """The values of each coded column that some rows have, and the names of their classes."""
    found: dict[str, list[str]] = {}
    if about is None:
        return found
    x: Any = np.asarray(rows["x"]) if about.categories and "x" in rows else np.zeros(0)
    if x.ndim == 2 and x.shape[1] == len(about.features):
        codes = {name: x[:, k] for k, name in enumerate(about.features) if name in about.categories}
        found = {name: _names_of(values, about.categories[name]) for name, values in codes.items()}
    if about.labels and about.task == "classification" and "y" in rows and np.asarray(rows["y"]).ndim == 1:
        found[_CLASSES] = _names_of(np.asarray(rows["y"])[labelled_rows(rows)], about.labels)
    return found


def _names_of(codes: Any, names: Sequence[str]) -> list[str]:
    """The names of the codes that some rows have."""
    known = np.unique(codes[np.isfinite(codes)]).astype(np.int64)
    return [names[code] for code in known.tolist() if 0 <= code < len(names)]
