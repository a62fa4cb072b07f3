"""Removing labels: who keeps which."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from .._supply import Pooled, offsets_of
from ..dataset import Dataset, root
from ..islands import Islands
from ..missing import without_hidden

__all__ = ["LABELS", "PROBE", "Where", "unlabel"]


# Choosing rows, clients and classes that keep their labels, so that every class keeps one where the number allows.


Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]


def quotas(counts: Codes, total: int, rng: np.random.Generator) -> Codes:
    """Divide ``total`` among classes as equally as their numbers of rows allow; what does not divide goes to random classes."""
    given = np.zeros(len(counts), np.int64)
    left = min(total, int(counts.sum()))
    while left:
        free = np.flatnonzero(counts > given)
        share = left // len(free)
        if share == 0:
            given[rng.permutation(free)[:left]] += 1
            break
        more = np.minimum(share, counts[free] - given[free])
        given[free] += more
        left -= int(more.sum())
    return given


def balanced_rows(codes: Codes, free: Mask, total: int, rng: np.random.Generator, where: str) -> Mask:
    """Mark ``total`` of the free rows, with as equal numbers of each class as there are.

    Raises:
        DataError: there are fewer free rows.
    """
    if total > int(free.sum()):
        raise DataError(
            f"keep={total}, but only {int(free.sum()):,} labelled rows can leave the clients, which keep one row each",
            where=where,
            remedy=f"keep at most {int(free.sum()):,}",
        )
    chosen = np.zeros(len(codes), np.bool_)
    counts = np.bincount(codes[free], minlength=1)
    for code, quota in enumerate(quotas(counts, total, rng)):
        rows = np.flatnonzero(free & (codes == code))
        chosen[rng.permutation(rows)[:quota]] = True
    return chosen


def spread_rows(codes: Codes, owner: Codes, free: Mask, total: int, rng: np.random.Generator) -> Mask:
    """Mark ``total`` of the free rows, with as equal numbers of each class as there are, spread over the clients.

    Class by class, the rarest first: a class' next row is that of the client with the fewest rows so far (ties by the seed).
    """
    chosen = np.zeros(len(codes), np.bool_)
    counts = np.bincount(codes[free], minlength=1)
    load = np.zeros(int(owner.max(initial=0)) + 1, np.int64)
    given = quotas(counts, total, rng)
    for code in np.argsort(counts, kind="stable"):
        rows = rng.permutation(np.flatnonzero(free & (codes == code)))
        rows = rows[np.argsort(owner[rows], kind="stable")]
        begin = np.searchsorted(owner[rows], owner[rows])
        level = (
            load[owner[rows]] + np.arange(len(rows)) - begin
        )  # the client's load if the rows before this one are taken too
        taken = rows[np.lexsort((rng.random(len(rows)), level))[: given[code]]]
        chosen[taken] = True
        np.add.at(load, owner[taken], 1)
    return chosen


def covering_parties(
    codes: Codes, owner: Codes, free: Mask, parties: int, total: int, rng: np.random.Generator
) -> Codes:
    """Choose ``total`` clients with labels, each the one with the most classes that nobody chosen has (ties by the seed)."""
    held = _find_held(codes, owner, free, parties)
    candidates = [int(p) for p in rng.permutation(np.flatnonzero(held.any(axis=1)))]
    covered = np.zeros(held.shape[1], np.bool_)
    chosen: list[int] = []
    while candidates and len(chosen) < total:
        best = max(candidates, key=lambda party: int((held[party] & ~covered).sum()))
        candidates.remove(best)
        chosen.append(best)
        covered |= held[best]
    return np.array(sorted(chosen), np.int64)


def chosen_classes(codes: Codes, owner: Codes, free: Mask, parties: int, total: int, rng: np.random.Generator) -> Mask:
    """Choose ``total`` of each client's own classes, ``(parties, classes)``: first each class at one client, the rarest first, then those that the fewest have."""
    held = _find_held(codes, owner, free, parties)
    kept = np.zeros_like(held)
    for code in np.argsort(held.sum(axis=0), kind="stable"):
        able = np.flatnonzero(held[:, code] & (kept.sum(axis=1) < total))
        if len(able):
            able = rng.permutation(able)
            kept[able[np.argmin(kept[able].sum(axis=1))], code] = True
    for party in rng.permutation(parties):
        for _ in range(total - int(kept[party].sum())):
            able = rng.permutation(np.flatnonzero(held[party] & ~kept[party]))
            if len(able):
                kept[party, able[np.argmin(kept[:, able].sum(axis=0))]] = True
    return kept


def _find_held(codes: Codes, owner: Codes, free: Mask, parties: int) -> Mask:
    """Which client has a labelled row of which class."""
    held = np.zeros((parties, int(codes.max(initial=0)) + 1), np.bool_)
    held[owner[free], codes[free]] = True
    return held


LABELS = "labels"
"""The helper party whose rows have labels if no client's have."""
PROBE = "probe"
"""The helper party whose labelled rows only measure, if nobody trains on labels."""
Where = Literal["rows", "parties", "server", "classes", "none"]
_PLACES = ("rows", "parties", "server", "classes", "none")


@checked_call
def unlabel(islands: Islands, *, keep: float = 0, at: Where = "rows", seed: int | Rng = 0) -> Islands:
    """Remove labels, and leave some where you say.

    The removed labels are nowhere in the result: the column ``labelled`` says which rows have one, and ``y`` holds 0 in the others.

    | ``at`` | which labels stay | ``keep`` counts |
    | --- | --- | --- |
    | ``"rows"`` | of some rows, spread over the clients as evenly as their classes allow | rows |
    | ``"parties"`` | of some clients, all of theirs | clients |
    | ``"server"`` | of rows that leave the clients for the helper party ``labels`` (``islands.others``) | rows |
    | ``"classes"`` | of some of each client's classes, as in learning from positive and unlabelled rows | classes a client |
    | ``"none"`` | none. The rows that ``keep`` counts leave the clients for the helper party ``probe``, to measure with | rows |

    Rows are drawn with as equal numbers of each class as there are, so every class keeps a label if ``keep`` is at least the number of classes. Clients
    and classes are drawn so that as many classes as possible keep one. `label_map` says which classes nobody has.

    Labels that are missing before stay missing: ``unlabel(unlabel(islands, keep=2, at="parties"), keep=100)`` leaves 100 labels at two clients.

    Args:
        islands: the population; its test rows keep their labels.
        keep: a whole number; or a share below 1 of the rows with a label, or of the clients.
        at: where the labels stay.
        seed: seed or random stream of the choice.

    Returns:
        The same clients. Their rows are stored, even if they were made on demand.

    Raises:
        DataError: there are fewer labels, clients or classes than ``keep`` says, a client would be left without rows, or rows have no label of one kind.

    Example:
        >>> import atoll.data
        >>> islands = atoll.data.iid(atoll.data.digits(), parties=5, seed=0)
        >>> few = atoll.data.unlabel(islands, keep=40, at="server", seed=0)
        >>> int(few.sizes.sum()), len(few.others["labels"]), few.shard(0)["labelled"].any()
        (1397, 40, np.False_)
    """
    if not isinstance(islands, Islands):
        raise DataError(
            f"a {type(islands).__name__} in place of parties",
            where="unlabel",
            remedy="divide the rows first, such as atoll.data.iid(rows, parties=20)",
        )
    where = f"unlabel of {islands.name!r}"
    if at not in _PLACES:
        raise DataError(f"at={at!r}", where=where, remedy=f"use one of {', '.join(_PLACES)}")
    if set(islands.others) & {LABELS, PROBE}:
        raise DataError(
            f"a helper party already has the labels: {', '.join(islands.others)}",
            where=where,
            remedy="remove labels at the server last",
        )
    pool, order, offsets = _gather_rows(islands, where)
    owner = _owners_of_rows(islands, len(pool), order, offsets)
    there = _mark_labelled(pool) & (owner >= 0)
    codes = _codes_of_rows(pool)
    rng = root(seed).child("unlabel", at).generator()
    count = _count_kept(
        keep, at, len(islands) if at == "parties" else int(there.sum()), len(np.unique(codes[there])), where
    )
    moved = np.zeros(len(pool), np.bool_)
    if at == "parties":
        kept = there & np.isin(owner, covering_parties(codes, owner, there, len(islands), count, rng))
    elif at == "classes":
        kept = there & chosen_classes(codes, owner, there, len(islands), count, rng)[np.maximum(owner, 0), codes]
    elif at == "rows":
        kept = spread_rows(codes, owner, there, count, rng)
    else:
        moved = balanced_rows(codes, _find_spare(owner, there, rng), count, rng, where)
        kept = moved
    others = {**islands.others, **({LABELS if at == "server" else PROBE: pool.take(moved)} if moved.any() else {})}
    supply = _hide_labels(pool, order, offsets, kept & ~moved, moved)
    return islands._with(supply=supply, others=others)


def _gather_rows(islands: Islands, where: str) -> tuple[Dataset, NDArray[np.int64], NDArray[np.int64]]:
    """All rows as one data set, row numbers ordered by client, and the start of each client of the supply in them."""
    if "y" not in islands.columns:
        raise DataError("the rows have no labels", where=where, remedy="give the data a column 'y'")
    supply = islands._supply
    if isinstance(supply, Pooled):
        return supply.pool, supply.order, supply.offsets
    ids = islands.clients
    sizes = np.zeros(supply.count, np.int64)
    sizes[ids] = islands.sizes
    starts = offsets_of(islands.sizes)
    parts = [np.arange(starts[p], starts[p + 1]) for p in np.argsort(ids, kind="stable")]
    return islands.pooled(), np.concatenate(parts), offsets_of(sizes)


def _owners_of_rows(
    islands: Islands, rows: int, order: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The place of each row's client among the clients' numbers, which follow no order of a list, ``(rows,)``; -1 for rows of nobody here."""
    position = np.full(len(offsets) - 1, -1, np.int64)
    position[np.sort(islands.clients)] = np.arange(len(islands))
    owner = np.full(rows, -1, np.int64)
    owner[order] = np.repeat(position, np.diff(offsets))
    return owner


def _mark_labelled(pool: Dataset) -> NDArray[np.bool_]:
    """Which rows have any label."""
    if "labelled" not in pool:
        return np.ones(len(pool), np.bool_)
    return np.asarray(np.asarray(pool["labelled"]).reshape(len(pool), -1).any(axis=1))


def _codes_of_rows(pool: Dataset) -> NDArray[np.int64]:
    """The class of each row; 0 if rows do not have one class each."""
    if pool.task == "classification":
        return np.asarray(pool.y, np.int64)
    if pool.task == "binary":
        return (pool.y > 0).astype(np.int64)
    return np.zeros(len(pool), np.int64)


def _count_kept(keep: float, at: str, most: int, classes: int, where: str) -> int:
    """The whole number that ``keep`` means."""
    whole = float(keep) == int(keep)
    if keep < 0 or (not whole and (keep > 1 or at == "classes")):
        raise DataError(
            f"keep={keep}", where=where, remedy="give a whole number, or a share between 0 and 1 of the rows or clients"
        )
    count = int(keep) if whole else max(1, round(keep * most))
    if at == "classes" and count > classes:
        raise DataError(f"keep={count}, but there are {classes} classes", where=where, remedy=f"keep at most {classes}")
    if at != "classes" and count > most:
        what = "clients" if at == "parties" else "rows with a label"
        raise DataError(f"keep={count}, but there are {most:,} {what}", where=where, remedy=f"keep at most {most:,}")
    if count == 0 and at != "none":
        raise DataError(
            "keep=0 leaves no label anywhere",
            where=where,
            remedy="keep at least one, or set at='none' to train without",
        )
    return count


def _find_spare(owner: NDArray[np.int64], there: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Rows that may leave: those with a label, without one row of each client that stays."""
    free = there.copy()
    mixed = rng.permutation(len(owner))
    _, first = np.unique(owner[mixed], return_index=True)
    free[mixed[first]] = False
    return free & (owner >= 0)


def _hide_labels(
    pool: Dataset,
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    kept: NDArray[np.bool_],
    moved: NDArray[np.bool_],
) -> Pooled:
    """The clients' rows with the labels that stay, and without the rows that moved."""
    marks = np.asarray(pool["labelled"]) if "labelled" in pool else np.ones(len(pool), np.bool_)
    there = marks & kept.reshape(kept.shape + (1,) * (marks.ndim - 1))
    columns = {name: pool[name] for name in pool.columns} | {"y": without_hidden(pool.y, there), "labelled": there}
    for name in ("y", "labelled"):
        columns[name].flags.writeable = False
    hidden = Dataset._of(columns, None, len(pool), pool.about)
    stays = ~moved[order]
    sizes = np.diff(np.concatenate([[0], np.cumsum(stays)])[offsets])
    return Pooled(hidden, offsets_of(sizes.astype(np.int64)), order[stays])
