"""Agreement: one card for all sites, or an error that says where they differ; and a site's labels in the agreed codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from atoll.core.errors import DataError, nearest
from atoll.data.codings import require_one_coding
from atoll.data.dataset import About, order_columns, united
from atoll.data.units import require_one_unit

from .cards import MOST_CLASSES, DataCard

__all__ = ["few", "lone_classes", "merge_cards", "recoded", "union_of_labels"]


def merge_cards(cards: Mapping[str, DataCard]) -> DataCard:
    """Merge the cards of all sites into one.

    Class names are united. If all sites have the same names in the same order, that order stays; otherwise numbers are
    sorted by value, words by spelling. That is the coding of all rows together (see `atoll.data.readers.table.from_table`). A
    site without names uses its codes as they are. Named features are in the order that all sites have, or in alphabetical order. Features may be missing if they may at one site.

    Args:
        cards: owner, as errors name it (``"site 'a'"``), -> card.

    Raises:
        DataError: two cards disagree; the error names both, and the column.
    """
    if not cards:
        raise DataError("no site has any data", where="data cards", remedy="let at least one site join")
    cards = _without_bare(cards)
    for (a, first), (b, other) in pairwise(cards.items()):
        _require_same(a, first, b, other)
    known = {card.labelled for card in cards.values()}
    first = replace(
        next(iter(cards.values())),
        labelled=known.pop() if len(known) == 1 else "part",
        missing_features=any(card.missing_features for card in cards.values()),
        features=order_columns([card.features for card in cards.values()]),
    )
    negatives = {card.negative for card in cards.values() if card.negative is not None}
    if len(negatives) > 1:
        at = {card.negative: name for name, card in cards.items()}
        raise _differ(
            at[0], at[-1], "the target's lower class is 0", "it is -1", "use 0 and 1, or -1 and 1, everywhere"
        )
    negative = next(iter(negatives), None)
    if first.task != "classification":
        return replace(first, negative=negative)
    labels = union_of_labels(cards)
    if labels:
        return replace(first, labels=labels, classes=len(labels))
    return replace(first, classes=max(card.classes or 0 for card in cards.values()))


def _without_bare(cards: Mapping[str, DataCard]) -> Mapping[str, DataCard]:
    """Return the cards, with the task and the targets of sites that have labels also at those that have none.

    Raises:
        DataError: a site without labels has other features.
    """
    lead = next(((name, card) for name, card in cards.items() if not card.bare), None)
    if lead is None:
        return cards
    like = lead[1]
    found = {}
    for site, card in cards.items():
        found[site] = card if not card.bare else replace(
            like, features=card.features, categories=card.categories, negative=None, labelled="none", missing_features=card.missing_features,
            columns={**({"x": card.columns["x"]} if "x" in card.columns else {}), **{k: v for k, v in like.columns.items() if k != "x"}},
        )  # fmt: skip
    return found


def _require_same(a: str, first: DataCard, b: str, other: DataCard) -> None:
    if first.task != other.task:
        raise _differ(
            a, b, f"the target is a {first.task} task", f"a {other.task} task",
            "give every site the same target and task (task: in its data's settings)",
        )  # fmt: skip
    # Names first: an extra column also changes the shape of x, and its name says more.
    _require_features(a, first, b, other)
    for name in ("x", "y"):
        mine, theirs = first.columns.get(name), other.columns.get(name)
        if mine != theirs:
            said = [f"column {name!r} is {'missing' if c is None else c}" for c in (mine, theirs)]
            raise _differ(a, b, said[0], said[1], "give every site the same columns, shapes and dtypes")
    for name in dict.fromkeys((*first.categories, *other.categories)):
        mine_, theirs_ = first.categories.get(name), other.categories.get(name)
        if mine_ != theirs_:
            raise _differ(
                a, b, f"column {name!r} has the values {few(mine_)}", f"the values {few(theirs_)}",
                f"declare the same values in the same order everywhere (categories: {{{name}: [...]}})",
            )  # fmt: skip
    if first.task == "multilabel" and (first.classes, first.labels) != (other.classes, other.labels):
        raise _differ(
            a, b, f"the targets are {few(first.labels)}", f"they are {few(other.labels)}",
            "give every site the same targets in the same order",
        )  # fmt: skip


def _require_features(a: str, first: DataCard, b: str, other: DataCard) -> None:
    if not first.features and not other.features:
        return
    if not first.features or not other.features:
        named, bare = (a, b) if first.features else (b, a)
        raise _differ(
            named, bare, "the features have names", "they have none, so their order is unknown",
            "give names to all (an array `features` in a .npz file) or to none",
        )  # fmt: skip
    require_one_unit(other.features, first.features, b, a)
    for name in first.features:
        if name not in other.features:
            raise _differ(
                a,
                b,
                f"there is a column {name!r}",
                f"there is none.{nearest(name, other.features)}",
                _SAME_COLUMNS.format(name),
            )
    for name in other.features:
        if name not in first.features:
            raise _differ(
                b,
                a,
                f"there is a column {name!r}",
                f"there is none.{nearest(name, first.features)}",
                _SAME_COLUMNS.format(name),
            )


_SAME_COLUMNS = "give every site the same columns, or leave {0!r} out where it is (drop)"


def _differ(a: str, b: str, said: str, other: str, remedy: str) -> DataError:
    return DataError(f"at {a} {said}, and at {b} {other}", where="data cards", remedy=remedy)


def few(values: Sequence[str] | None) -> str:
    """Return the first few of some words, as errors show them."""
    return "none" if not values else ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")


def union_of_labels(cards: Mapping[str, DataCard]) -> tuple[str, ...]:
    """Return the names of all classes, in the order of the agreed codes; empty if no site has names.

    Raises:
        DataError: some sites have names that are not codes, and others have codes without names, or whole numbers for
            names.
    """
    given = {name: card.labels for name, card in cards.items()}
    if not any(given.values()):
        return ()
    known = {name: labels for name, labels in given.items() if labels}
    words = next((name for name, labels in known.items() if not all(_is_whole(label) for label in labels)), None)
    if words is not None and len(known) < len(given):
        bare = next(name for name in given if name not in known)
        raise _differ(
            words, bare, f"the classes are {few(given[words])}", "they are codes without names",
            "give the classes names everywhere (labels), or code them the same way everywhere",
        )  # fmt: skip
    _require_one_kind(known)
    require_one_coding(known, "target", "data cards", label=True)
    every = [_names(card) for card in cards.values()]
    if len(set(every)) == 1:
        return every[0]
    union = united(every)
    if len(union) > MOST_CLASSES:
        raise DataError(
            f"all sites together have {len(union)} classes; {MOST_CLASSES} are allowed",
            where="data cards",
            remedy="choose a target that is a class",
        )
    return union


def _require_one_kind(known: Mapping[str, Sequence[str]]) -> None:
    """Refuse words at one site and whole numbers at another: 0 and 1 would become extra classes that mean the same as the words."""
    words = next((name for name, labels in known.items() if not any(map(_is_whole, labels))), None)
    numbers = next((name for name, labels in known.items() if all(map(_is_whole, labels))), None)
    if words is not None and numbers is not None:
        raise _differ(
            words, numbers, f"the classes are words such as {known[words][0]!r}",
            f"they are whole numbers such as {known[numbers][0]!r}",
            "write each class the same way everywhere; where both are names of classes, list all of them everywhere "
            "(categories: {TARGET: [...]})",
        )  # fmt: skip


def lone_classes(cards: Mapping[str, DataCard]) -> dict[str, tuple[str, ...]]:
    """Return the classes that only one site has, by name: that may be right, or the name is misspelt there."""
    if len(cards) < 2 or not any(card.labels for card in cards.values()):
        return {}
    at = Counter(label for card in cards.values() for label in _names(card))
    lone = {name: tuple(label for label in _names(card) if at[label] == 1) for name, card in cards.items()}
    return {name: labels for name, labels in lone.items() if labels}


def _names(card: DataCard) -> tuple[str, ...]:
    return card.labels or tuple(map(str, range(card.classes or 0)))


def _is_whole(label: str) -> bool:
    return label.removeprefix("-").isdecimal() and label.isascii()


def recoded(data: Any, own: DataCard, agreed: DataCard) -> Any:
    """Return a data set with its labels in the codes, and its features in the order, of the agreed card.

    Args:
        data: a ``Dataset`` whose card is ``own``.
        own: its card.
        agreed: the agreed card.
    """
    data = data.with_features_of(About(features=agreed.features, categories=data.about.categories))
    about = {"classes": agreed.classes, "labels": agreed.labels}
    if own.bare and not agreed.bare and "y" in agreed.columns:
        form = agreed.columns["y"]
        y = np.zeros((len(data), *form.shape), form.dtype)
        return data.with_columns({"y": y, "labelled": np.zeros(len(data), np.bool_)}, task=agreed.task, **about)
    if agreed.task != "classification":
        return data
    names = _names(own)
    if not agreed.labels or names == agreed.labels[: len(names)]:
        return data.with_columns({}, **about)
    code = {label: i for i, label in enumerate(agreed.labels)}
    places = np.array([code[label] for label in names], dtype=np.int64)
    return data.with_columns({"y": places[np.asarray(data["y"])]}, **about)
