"""Profiles of clients and of the server, aligned by the version of the model that made them.

A profile describes the output of a model's hidden layer on some rows, so two profiles are comparable if the same model made them. The store keeps
each client's newest profile ``RP_k(v_k)`` with its version ``v_k``, and the server's own ``RP*(v)`` for every version still in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError
from atoll.learn.profiles import FLOOR, gaussian_kl

from .members import members, places_of
from .seen import Seen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.party import Parties

__all__ = ["divergences_of", "empty_divergences", "empty_store", "store_divergences", "store_profiles"]

UNKNOWN, NO_ROWS = 0, -1


def empty_store(parties: Parties) -> Tree:
    """Return a store without profiles.

    Returns:
        ``who``: see `members`; ``mean`` and ``var``, ``(clients, q)`` with ``q = 0`` until one is known; ``version``, ``(clients,)``: the round whose
        model made it, 0 without a profile, -1 for a client without rows; ``own``: the server's, ``version`` ``(versions,)`` ascending, ``mean`` and ``var``.
    """
    own = {"version": np.zeros(0, dtype=np.int64), "mean": np.zeros((0, 0)), "var": np.zeros((0, 0))}
    clients = len(parties)
    version = np.full(clients, UNKNOWN, dtype=np.int64)
    columns = {"mean": np.zeros((clients, 0)), "var": np.zeros((clients, 0)), "version": version}
    return {"who": members(parties), **columns, "own": own}


def store_profiles(store: Tree, seen: Seen, lag: int = 0) -> Tree:
    """Return the store after a round or a survey, without server profiles that are no longer used.

    Args:
        store: a store from `empty_store`.
        seen: results with the report ``"profile"``; the server computes its own for the round's model.
        lag: the store also keeps the server's profiles of the last ``lag`` rounds, for late replies, and of all rounds in ``seen.pending``.

    Raises:
        DataError: a profile has another length than before, or comes from a model for which the server has no profile.
    """
    told = seen.reports.get("profile", [])
    who = places_of(store["who"], seen.replied.positions[: len(told)])
    versions = np.full(len(who), seen.round) if seen.versions is None else np.asarray(seen.versions)[: len(who)]
    own = store["own"]
    pending = np.zeros(0, dtype=np.int64) if seen.pending is None else seen.pending
    if (len(who) and (versions == seen.round).any()) or (pending == seen.round).any() or lag:
        own = _with_own(own, seen)
    missing = ~np.isin(versions, own["version"])
    if missing.any():
        late = int(np.flatnonzero(missing)[0])
        raise DataError(
            f"client {seen.replied.names[late]} sent a profile in round {seen.round} made with the model of round {versions[late]}, but the server only keeps its own of rounds {own['version'].tolist()}",
            where="profiles",
            remedy="set `lag` to the number of rounds that a reply may be late, or let the pacing report pending rounds",
        )
    new = {**store, "version": store["version"].copy()}
    for name in ("mean", "var"):
        rows = np.array([profile[name] for profile in told], dtype=np.float64)
        new[name] = _placed(store[name], who, rows)
    new["version"][who] = np.where(seen.examples[: len(who)] > 0, versions, NO_ROWS)
    used = np.isin(own["version"], np.concatenate([new["version"], pending])) | (own["version"] > seen.round - lag)
    return {**new, "own": {name: column[used] for name, column in own.items()}}


def divergences_of(store: Tree, floor: float = FLOOR) -> NDArray[np.float64]:
    """Return ``div(RP_k(v_k), RP*(v_k))`` of each client, ``(clients,)``; ``nan`` without a profile, ``inf`` without rows.

    Args:
        store: a store from `store_profiles`.
        floor: the smallest variance, as in `atoll.learn.profiles.divergence`.
    """
    found = np.full(len(store["version"]), np.nan)
    found[store["version"] == NO_ROWS] = np.inf
    own = store["own"]
    for at, version in enumerate(own["version"]):
        who = np.flatnonzero(store["version"] == version)
        if not len(who):  # kept for late replies
            continue
        var, other = (np.maximum(v, floor) for v in (store["var"][who], own["var"][at]))
        each = gaussian_kl(store["mean"][who], var, own["mean"][at], other)
        found[who] = np.maximum(each.mean(axis=1), 0.0)
    return found


def empty_divergences(parties: Parties) -> Tree:
    """Return an empty store of divergences, for encrypted profiles.

    Returns:
        ``who`` and ``version`` as in `empty_store`; ``divergence``, ``(clients,)``, as in `divergences_of`; ``key``: the public key, once it exists.
    """
    clients = len(parties)
    version, unknown = np.full(clients, UNKNOWN, dtype=np.int64), np.full(clients, np.nan)
    return {"who": members(parties), "version": version, "divergence": unknown, "key": np.zeros(0, dtype=np.uint8)}


def store_divergences(store: Tree, seen: Seen) -> Tree:
    """Return the store after a round or a survey with the report ``"divergence"``."""
    told = seen.reports.get("divergence", [])
    who = places_of(store["who"], seen.replied.positions[: len(told)])
    version, divergence = store["version"].copy(), store["divergence"].copy()
    version[who] = np.where(seen.examples[: len(who)] > 0, seen.round, NO_ROWS)
    divergence[who] = told
    return {**store, "version": version, "divergence": divergence}


def _with_own(own: Tree, seen: Seen) -> Tree:
    """Return the server's profiles with the one of this round's model."""
    if seen.round in own["version"]:
        return own
    made = seen.own("profile")
    row = {name: np.asarray(made[name], dtype=np.float64)[None] for name in ("mean", "var")}
    kept = {name: _fit(own[name], row[name].shape[1]) for name in row}
    return {
        "version": np.append(own["version"], np.int64(seen.round)),
        **{name: np.concatenate([kept[name], row[name]]) for name in row},
    }


def _placed(column: Any, who: NDArray[np.int64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a column with some rows replaced."""
    if not len(who):
        return np.asarray(column)
    new = np.array(_fit(column, rows.shape[1]))
    new[who] = rows
    return new


def _fit(column: Any, width: int) -> NDArray[np.float64]:
    """Return a column of this width; an empty column grows."""
    if column.shape[1] == width:
        return np.asarray(column)
    if column.shape[1]:
        raise DataError(
            f"profiles have {width} elements, but earlier ones have {column.shape[1]}",
            where="profiles",
            remedy="profile the same layer of the same model in every round",
        )
    return np.zeros((len(column), width))
