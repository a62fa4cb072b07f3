"""FedProf: clients whose data are closest to a reference are invited more often, by profiles that the server stores.

A profile describes the output of a model's hidden layer on some rows, so two profiles are comparable if the same model made them. The store keeps
each client's newest profile ``RP_k(v_k)`` with its version ``v_k``, and the server's own ``RP*(v)`` for every version still in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.party import Parties
from atoll.core.validation import numbers

from ..checks import require_positive
from ..profiles import FLOOR, gaussian_kl
from .base import Candidates, Seen, draw, members, places_of
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .base import Inquiry

__all__ = ["FedProf", "divergences_of", "empty_store", "store_profiles", "unbiased_alphas"]


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
        new[name] = _place_rows(store[name], who, rows)
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


def _place_rows(column: Any, who: NDArray[np.int64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
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


# ---------------------------------------------------------------- FedProf


@dataclass(frozen=True)
class FedProf(Uniform):
    """Draws clients with probability ``lambda_k / sum lambda``, ``lambda_k = exp(-alpha_k div(RP_k(v_k), RP*(v_k)))``.

    A profile ``RP`` is the mean and variance of every element of a hidden layer over some rows; ``div`` is the mean of the elements' Gaussian
    divergences from the server's (`atoll.learn.profiles`). The server asks every client for a profile of the initial model before the first round.
    Later, clients that reply send a profile of the model that they received, and the server computes its own for the same model, so that both sides have
    the same version, however old. A client that was away is asked when it returns; until then it has the median divergence. A client without rows is never
    drawn. W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, Algorithm 4 and Eqs. 5.21-5.25; ``alpha = 10`` in its experiments.

    The server needs data of its own (``test`` of the federated data set). With replacement, as the convergence theorem requires, a client may be
    drawn twice and counts twice. Without, clients of small probability are drawn more often than it says. Any aggregation works: the theorem
    uses ``EqualWeights``, the thesis also ``KeepGlobal``. Their weights do not correct for the probability of a draw, so rare data that the server
    lacks always count less; ``InverseProbability`` corrects and is unbiased. Scores are self-reported: the server believes a client that sends its profile back.

    Attributes:
        count: clients per round, as in ``Uniform``.
        alpha: weight of a divergence, at least 0: one number, or one per client; 0 draws uniformly. See `unbiased_alphas`.
        layer: the layer to profile, named as in ``named_modules()``; ``"auto"`` is the first fully connected one.
        replace: whether a client may be drawn again.
        explore: share of the probability that is uniform, so that a client with a bad first profile is drawn again; 0 as in the thesis.
        ageing: a score grows by ``exp(ageing)`` for every round since the profile was made; 0 as in the thesis.
        floor: the smallest variance of an element.
        lag: how many rounds late a profile may be with a custom pacing that does not report pending rounds; an older profile is an error.
            ``SAFA`` reports them and needs no lag.
        matching: ``"clear"``: clients send their profiles. ``"encrypted"``: their means stay encrypted, and a party that is neither server nor client,
            ``"key-holder"``, holds the key (`atoll.learn.selection.sealed`; ``pip install "atoll[secure]"``). Divergences are the same up to about 1e-4, from a
            conversation after the round with the clients that replied, at about 0.5 MB down and 0.3 MB up per client.
    """

    citation: ClassVar[str] = "Wu 2021, Towards Efficient Horizontal Federated Learning, chapter 5 (FedProf)"
    alpha: float | Sequence[float] = 10.0
    layer: str = "auto"
    replace: bool = False
    explore: float = 0.0
    ageing: float = 0.0
    floor: float = FLOOR
    lag: int = 0
    matching: Literal["clear", "encrypted"] = "clear"

    def __post_init__(self) -> None:
        super().__post_init__()
        alpha = numbers("FedProf", "alpha", self.alpha)
        if alpha.ndim > 1 or not alpha.size or not (np.isfinite(alpha).all() and (alpha >= 0).all()):
            raise ConfigError(f"alpha={self.alpha!r}", where="FedProf", remedy="use numbers of at least 0")
        if not 0 <= self.explore <= 1:
            raise ConfigError(f"explore={self.explore}", where="FedProf", remedy="use a share from 0 to 1")
        if not (self.ageing >= 0 and np.isfinite(self.ageing)):
            raise ConfigError(f"ageing={self.ageing}", where="FedProf", remedy="use a number of at least 0")
        if self.lag < 0:
            raise ConfigError(f"lag={self.lag}", where="FedProf", remedy="use a whole number of at least 0")
        require_positive("FedProf", floor=self.floor)
        if self.lag and self.matching == "encrypted":
            raise ConfigError(
                f"lag={self.lag} with matching='encrypted', which is for synchronous rounds",
                where="FedProf",
                remedy="use lag=0",
            )

    @property
    def repeats(self) -> bool:
        """Whether the draw is with replacement."""
        return self.replace

    @property
    def tells_odds(self) -> bool:
        """Whether the draw is with replacement."""
        return self.replace

    def odds(self, candidates: Candidates, state: Tree) -> NDArray[np.float64]:
        """Return ``lambda_k / sum lambda``, with exploration mixed in."""
        at = places_of(state["who"], candidates.parties.positions)
        return np.asarray(np.exp(self.log_odds(at, candidates.round, state)))

    @property
    def reports(self) -> Mapping[str, Any]:
        """The profile; empty if it is sent encrypted."""
        return {} if self.matching == "encrypted" else {"profile": {"layer": self.layer}}

    @property
    def inquiry(self) -> Inquiry | None:
        """Encrypted matching, if ``matching`` asks for it."""
        if self.matching == "clear":
            return None
        from .sealed import SealedProfiles

        return SealedProfiles(layer=self.layer, floor=self.floor)

    def init(self, parties: Parties) -> Tree:
        """Start with no profiles.

        Raises:
            ConfigError: the number of alphas differs from the number of clients.
        """
        if np.ndim(self.alpha) and np.size(self.alpha) != len(parties):
            raise ConfigError(
                f"alpha has {np.size(self.alpha)} numbers for {len(parties)} clients",
                where="FedProf",
                remedy="give one per client, or one for all",
            )
        return empty_store(parties) if self.matching == "clear" else empty_divergences(parties)

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Return clients without a profile: all clients before the first round."""
        del count
        return np.flatnonzero(state["version"][places_of(state["who"], candidates.parties.positions)] == 0)

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Store the first profiles."""
        return self._store_seen(seen, state)

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Store the new profiles of clients that replied, or the divergences of encrypted ones."""
        return self._store_seen(seen, state)

    def _store_seen(self, seen: Seen, state: Tree) -> Tree:
        return store_profiles(state, seen, self.lag) if self.matching == "clear" else store_divergences(state, seen)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Draw by score."""
        logits = self.log_odds(places_of(state["who"], candidates.parties.positions), candidates.round, state)
        return draw(candidates.rng, logits, count, replace=self.replace)

    def log_odds(self, at: NDArray[np.int64], number: int, state: Tree) -> NDArray[np.float64]:
        """Return the log probability that the next draw picks each of some clients.

        Args:
            at: rows of the clients in the memory, ``(n,)``; see `places_of`.
            number: the round.
            state: the rule's memory.

        Raises:
            DataError: no client has a row.
        """
        div = (divergences_of(state, self.floor) if self.matching == "clear" else state["divergence"])[at]
        known = np.isfinite(div)
        div = np.where(np.isnan(div), np.median(div[known]) if known.any() else 0.0, div)
        able = np.isfinite(div)
        if not able.any():
            raise DataError("no client has an example", where="FedProf", remedy="check the partition")
        alpha = np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), state["version"].shape)[at]
        age = np.where(state["version"][at] > 0, number - state["version"][at], 0)
        scores = np.where(able, self.ageing * age - alpha * np.where(able, div, 0.0), -np.inf)
        scores -= scores.max() + np.log(np.exp(scores - scores.max()).sum())
        if not self.explore:
            return np.asarray(scores)
        with np.errstate(divide="ignore"):
            mixed = np.log((1 - self.explore) * np.exp(scores) + self.explore / able.sum())
        return np.where(able, mixed, -np.inf)


def unbiased_alphas(divergences: ArrayLike, shares: ArrayLike) -> NDArray[np.float64]:
    """Return ``alpha_k = -ln(Lambda rho_k) / div_k``, such that client k is drawn with probability ``rho_k``, as Theorem 5.1 assumes.

    With replacement and ``EqualWeights``, the average of a round is then unbiased for ``sum_k rho_k w_k``. The alphas cancel the divergences:
    only while these stay constant, and then ``SizeProportional`` draws the same without profiles. ``Lambda`` is free; it is ``1 / max rho``,
    the largest value without a negative alpha.

    Args:
        divergences: positive, one per client.
        shares: ``rho_k > 0``, one per client, scaled to sum to 1.

    Raises:
        DataError: a divergence or share is not positive.
    """
    div, rho = np.asarray(divergences, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    if div.shape != rho.shape or not ((div > 0).all() and (rho > 0).all() and np.isfinite(div).all()):
        raise DataError(
            "a divergence or share is not positive, or there is not one per client",
            where="unbiased_alphas",
            remedy="no alpha makes a client with the server's profile rare: use SizeProportional",
        )
    return np.asarray(np.log(rho.max() / rho) / div)
