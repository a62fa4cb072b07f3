"""Choosing rows, clients and classes that keep their labels, so that every class keeps one where the number allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

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
    held = _held(codes, owner, free, parties)
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
    held = _held(codes, owner, free, parties)
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


def _held(codes: Codes, owner: Codes, free: Mask, parties: int) -> Mask:
    """Which client has a labelled row of which class."""
    held = np.zeros((parties, int(codes.max(initial=0)) + 1), np.bool_)
    held[owner[free], codes[free]] = True
    return held
