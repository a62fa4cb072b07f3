"""Concatenating data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from .codings import require_one_coding
from .dataset import About, Dataset, has_named_features, named, order_columns, require_columns, unite_categories, united
from .missing import labelled_rows

__all__ = ["align_features", "concatenate"]


@checked_call
def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Concatenate data sets with the same columns, matched by name; `About` is that of the first; features may be missing if they may in one part.

    Test rows are those of all parts; parts that share one test set, as several `take` of one data set do, count once.

    If parts name their classes differently, as files that were read separately do, they get common codes of all classes. If some rows have labels, the
    rows of parts without any label are marked as such, in the column ``labelled``.

    Raises:
        DataError: there is nothing to join, or columns differ in names, shapes or kinds; names the part.
    """
    if not parts:
        raise DataError("no data sets to join", remedy="pass at least one")
    given = {id(part.test): part.test for part in parts if part.test is not None}
    parts = _in_one_coding(_with_labels(align_features([part.with_test(None) for part in parts])))
    first = parts[0]
    tests = [test.coded_as(first.about) for test in given.values()]
    test = tests[0] if len(tests) == 1 else concatenate(tests) if tests else None
    for k, part in enumerate(parts[1:], start=1):
        for name in sorted({*first.columns, *part.columns}):
            _check_same(first, part, name, k)
    base = {name: np.concatenate([p[name] for p in parts]) for name in first.columns}
    for array in base.values():
        array.flags.writeable = False
    about = replace(
        first.about,
        missing_features=any(part.about.missing_features for part in parts),
        reordered=any(part.about.reordered for part in parts),
    )
    return Dataset._of(base, None, sum(map(len, parts)), about, test)


def align_features(parts: Sequence[Dataset]) -> list[Dataset]:
    """Return the data sets with their features in one order, matched by name, and text in one coding.

    The order is that of all parts if it is the same, else alphabetical, so that no order of parts or of columns changes a result.

    Raises:
        DataError: a part lacks a feature or has another, or a feature is text in one part and numbers in another; names the part.
    """
    known = [part for part in parts if has_named_features(part)]
    about = [part.about for part in known]
    if all(one.features == about[0].features and one.categories == about[0].categories for one in about):
        return list(parts)
    if len(known) < len(parts):
        bare = next(part for part in parts if not has_named_features(part))
        raise DataError(
            "the features have no names, so their order is unknown; other parts have them in different orders",
            where=f"data set {bare.name!r}",
            remedy="give its features names: Dataset(..., features=[...])",
        )
    _require_features_of_most(about)
    order = order_columns([one.features for one in about])
    coded = {name: [one.categories[name] for one in about if name in one.categories] for name in order}
    for name in coded:
        having = {f"{k}: {part.name}": part for k, part in enumerate(known) if name in part.about.categories}
        lists_of = {at: part.about.categories[name] for at, part in having.items()}
        rows = {at: len(part) for at, part in having.items()}
        require_one_coding(lists_of, name, "data sets", rows=rows, who="data set")
    words = {name: unite_categories(lists) for name, lists in coded.items() if lists}
    like = About(features=order, categories=words)
    return [part.with_features_of(like) for part in parts]


def _require_features_of_most(about: Sequence[About]) -> None:
    """Refuse parts with other features: the one that differs from most is named, whatever their order."""
    names = [frozenset(one.features) for one in about]
    usual = about[names.index(max(names, key=names.count))]
    for one in about:
        require_columns(one.features, usual.features, f"data set {one.name!r}", exactly=True)


def _with_labels(parts: Sequence[Dataset]) -> list[Dataset]:
    """Return the data sets with the column ``labelled`` if one has it, and with a column of missing labels where a part has none at all."""
    bare = [part.task == "unlabelled" and not labelled_rows(part).any() for part in parts]
    like = next((part for part, none in zip(parts, bare, strict=True) if not none), None)
    if like is None or "y" not in like or not (any(bare) or any("labelled" in part for part in parts)):
        return list(parts)
    wide = (
        max(part["labelled"].ndim for part in parts if "labelled" in part) if any("labelled" in p for p in parts) else 1
    )
    return [_marked(part, like if none else part, none, wide) for part, none in zip(parts, bare, strict=True)]


def _marked(part: Dataset, like: Dataset, bare: bool, wide: int) -> Dataset:
    """Return a data set whose column ``labelled`` says which labels exist, one a row or (``wide`` > 1) one an entry; of a bare one, none does."""
    if "labelled" in part and not bare and part["labelled"].ndim == wide:
        return part
    y = np.zeros((len(part), *like.y.shape[1:]), like.y.dtype) if bare else part.y
    rows = labelled_rows(part) & (not bare)
    there = rows if wide == 1 else np.repeat(rows, int(np.prod(y.shape[1:]))).reshape(y.shape)
    columns = {name: part[name] for name in part.columns} | {"y": y, "labelled": there}
    for name in ("y", "labelled"):
        columns[name].flags.writeable = False
    about = replace(like.about, name=part.name, citation=part.citation, missing_features=part.about.missing_features)
    return Dataset._of(columns, None, len(part), about, part.test)


def _in_one_coding(parts: Sequence[Dataset]) -> list[Dataset]:
    """Return the data sets with common codes of all their classes, if the classes are named and differ.

    Raises:
        DataError: some parts name their classes differently, and others have no names.
    """
    with_names = [part for part in parts if named(part.about)]
    if len({part.about.labels for part in with_names}) < 2:
        return list(parts)
    if len(with_names) < len(parts):
        bare = next(k for k, part in enumerate(parts) if not named(part.about))
        raise DataError(
            f"part {bare} has labels without names, but the other parts number their classes differently",
            where=f"data set {parts[bare].name!r}",
            remedy="give all parts the same labels=",
        )
    names = {f"{k}: {part.about.name}": part.about.labels for k, part in enumerate(parts)}
    require_one_coding(names, "y", "data sets", label=True, who="data set")
    union = united(part.about.labels for part in parts)
    return [part.recoded(union) for part in parts]


def _check_same(first: Dataset, part: Dataset, name: str, position: int) -> None:
    a = first._base.get(name)
    b = part._base.get(name)
    if a is None or b is None or a.shape[1:] != b.shape[1:] or a.dtype.kind != b.dtype.kind:
        shown = ["missing" if c is None else f"{c.dtype}{list(c.shape[1:])}" for c in (a, b)]
        raise DataError(
            f"column {name!r} is {shown[0]} in part 0 and {shown[1]} in part {position}",
            where=f"data set {part.name!r}",
            remedy="give every part the same columns",
        )
