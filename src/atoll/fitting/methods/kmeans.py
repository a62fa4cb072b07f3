"""k-means by sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.fitting.method import AtParty, FitMethod, Known, State, Sums, positive
from atoll.fitting.numerics import add_up_rows
from atoll.fitting.rows import PartyRows
from atoll.statistics.disclosure import hidden

__all__ = ["KMeans", "distances", "drawn", "local_centres", "merged", "plus_plus", "spread_out"]


# Where clusters begin: centres that parties propose, or draws around the common mean.


Points = NDArray[np.float64]
_LOCAL_ROUNDS = 100


def distances(x: Points, centres: Points) -> Points:
    """Squared distances, ``(rows, centres)``.

    Each is a sum of squares of differences. The shorter ``|x|^2 - 2 x c + |c|^2`` loses all digits where the columns have an offset.
    """
    return (
        np.stack([((x - one) ** 2).sum(axis=1) for one in centres], axis=1) if len(centres) else np.zeros((len(x), 0))
    )


def plus_plus(x: Points, weights: Points, k: int, draw: np.random.Generator) -> Points:
    """Seeds by k-means++ (Arthur and Vassilvitskii 2007): each with a chance proportional to weight times squared distance."""
    chosen = [x[draw.choice(len(x), p=weights / weights.sum())]]
    while len(chosen) < k:
        near = distances(x, np.array(chosen)).min(axis=1) * weights
        if near.sum() <= 0:
            near = weights
        chosen.append(x[draw.choice(len(x), p=near / near.sum())])
    return np.array(chosen)


def merged(x: Points, weights: Points, centres: Points) -> Points:
    """The centres after Lloyd's iterations over weighted points."""
    for _ in range(_LOCAL_ROUNDS):
        member = (distances(x, centres).argmin(axis=1)[:, None] == np.arange(len(centres))) * weights[:, None]
        counts = member.sum(axis=0)
        moved = np.where(counts[:, None] > 0, member.T @ x / np.maximum(counts, 1e-300)[:, None], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def local_centres(rows: PartyRows, k: int, draw: np.random.Generator) -> dict[str, NDArray[Any]]:
    """A party's own clusters: centres of at least ``min_count`` rows each, and their sizes. Smaller ones are not told."""
    x = rows.x
    k = min(k, len(x) // max(1, rows.least))
    if k < 1:
        return {"centres": np.zeros((0, x.shape[1])), "sizes": np.zeros(0)}
    centres = merged(x, np.ones(len(x)), plus_plus(x, np.ones(len(x)), k, draw))
    sizes = np.bincount(distances(x, centres).argmin(axis=1), minlength=k).astype(np.float64)
    keep = sizes >= max(1, rows.least)
    return {"centres": centres[keep], "sizes": sizes[keep]}


def _stack_told(told: Sequence[Mapping[str, NDArray[Any]]], k: int, where: str) -> tuple[Points, Points]:
    points = np.concatenate([np.asarray(one["centres"], dtype=np.float64) for one in told])
    sizes = np.concatenate([np.asarray(one["sizes"], dtype=np.float64) for one in told])
    if len(points) < k:
        raise DataError(
            f"the parties propose {len(points)} centres for {k} clusters",
            where=where,
            remedy="use fewer clusters, a smaller min_count, or start_from='moments'",
        )
    return points, sizes


def drawn(told: Sequence[Mapping[str, NDArray[Any]]], k: int, draw: np.random.Generator, where: str) -> Points:
    """Seeds from proposals: k-means of the proposed centres, each weighted by its rows.

    Raises:
        DataError: there are fewer proposals than clusters.
    """
    points, sizes = _stack_told(told, k, where)
    return merged(points, sizes, plus_plus(points, sizes, k, draw))


def spread_out(told: Sequence[Mapping[str, NDArray[Any]]], k: int, where: str) -> Points:
    """The server's half of k-FED (Dennis, Li and Smith 2021, algorithm 2): seeds far from each other among the proposals, then one step of Lloyd's.

    The first seeds are the centres of the party that proposes most; each further one is the proposal farthest from those before. The paper averages the proposals of a
    cluster without weights, and so do we.

    Raises:
        DataError: there are fewer proposals than clusters.
    """
    points, _ = _stack_told(told, k, where)
    seeds = max((np.asarray(one["centres"], dtype=np.float64) for one in told), key=len)[:k]
    while len(seeds) < k:
        far = distances(points, seeds).min(axis=1).argmax()
        seeds = np.concatenate([seeds, points[far : far + 1]])
    nearest = distances(points, seeds).argmin(axis=1)
    return np.array([points[nearest == c].mean(axis=0) if (nearest == c).any() else seeds[c] for c in range(k)])


_ROUNDED = 64 * float(np.finfo(np.float64).eps)
_SCHEMES = ("lloyd", "minibatch", "one-shot")
_STARTS = ("proposals", "moments")


@dataclass(frozen=True, kw_only=True)
class KMeans(FitMethod):
    """k-means: ``min_c sum_i min_k |x_i - c_k|^2``.

    =============  ======================================================================================  ===============
    ``scheme``     contacts                                                                                equals
    =============  ======================================================================================  ===============
    ``lloyd``      one an iteration: sums and sizes of the clusters                                        pooled Lloyd
    ``minibatch``  the same over ``batch`` rows a party; ``c_k += (sum - n c_k) / N_k`` (Sculley 2010)     its own
    ``one-shot``   one: each party's own clusters, and the server groups them (k-FED, Dennis et al. 2021)  see `local_centres`
    =============  ======================================================================================  ===============

    With the same ``centres`` at the start, ``lloyd`` gives what Lloyd's algorithm gives on all rows in one place, up to rounding. A cluster without rows keeps its centre.

    With a minimum count a party leaves out its clusters of fewer rows, and one more where the sum of all rows would give those away. A row then moves to another cluster only if ``min_count`` rows of the party make the same move at
    once: otherwise the difference of two answers would be a single row.

    Attributes:
        clusters: number of clusters.
        scheme: see above.
        start_from: ``"proposals"``: k-means of the parties' own centres; ``"moments"``: draws around the mean of all rows, which needs sums alone.
        centres: the first centres, ``(clusters, features)``, in place of ``start_from``.
        tolerance: stop when the centres' squared moves add up to at most this share of the summed variances of the features.
        batch: rows of a party in a contact of ``minibatch``.
        iterations: contacts of ``minibatch``.
    """

    singly: ClassVar[frozenset[str]] = frozenset({"proposals", "one-shot"})
    measure: ClassVar[str] = "inertia"
    clusters: int = 8
    scheme: str = "lloyd"
    start_from: str = "proposals"
    centres: Sequence[Sequence[float]] = ()
    tolerance: float = 0.0
    batch: int = 256
    iterations: int = 50

    def __post_init__(self) -> None:
        positive(self, clusters=1, tolerance=0, batch=1, iterations=1)
        for name, words in (("scheme", _SCHEMES), ("start_from", _STARTS)):
            if getattr(self, name) not in words:
                raise ConfigError(f"{name}={getattr(self, name)!r}", remedy=f"use one of {', '.join(words)}")
        if len(self.centres) not in (0, self.clusters):
            raise ConfigError(f"{len(self.centres)} centres for clusters={self.clusters}", remedy="give one a cluster")

    def check(self, known: Known) -> None:
        """Centres have a number a feature; one shot needs single replies."""
        require_centres(self.centres, known)
        if known.sums_only and (
            self.scheme == "one-shot" or (self.start_from == "proposals" and not len(self.centres))
        ):
            raise ConfigError(
                "each party's own clusters are no sum, which is all that a secure reducer shows",
                where="KMeans",
                remedy="use scheme='lloyd' with start_from='moments', or give centres",
            )

    def start(self, known: Known) -> State:
        """Ask for what the first centres need."""
        del known
        if self.scheme == "one-shot":
            return {"phase": "one-shot"}
        if len(self.centres):
            return self._begun(np.array(self.centres, dtype=np.float64))
        return {"phase": self.start_from}

    def _begun(self, centres: NDArray[np.float64]) -> State:
        return {"phase": "lloyd", "start": centres, "centres": centres, "sizes": np.zeros(len(centres)), "turn": 0}

    def proposal(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """A party's own clusters."""
        del state
        return local_centres(rows, self.clusters, party.rng)

    def gather(self, state: State, told: Sequence[Mapping[str, NDArray[Any]]], known: Known) -> State:
        """First centres, or the last."""
        if state["phase"] == "one-shot":
            centres = spread_out(told, self.clusters, "KMeans")
            return {**self._begun(centres), "phase": "solved", "done": True, "inertia": None}
        return self._begun(drawn(told, self.clusters, known.draw, "KMeans"))

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Sums and sizes of the clusters, and the squared distances."""
        if state["phase"] == "moments":
            return add_up_rows(rows.x)
        if state["phase"] == "spread":
            return {"xx": ((rows.x - np.asarray(state["mean"])) ** 2).sum(axis=0)}
        centres, x = np.asarray(state["centres"], dtype=np.float64), rows.x
        if self.scheme == "minibatch" and len(x) > self.batch:
            x = x[party.rng.choice(len(x), self.batch, replace=False)]
        away = distances(x, centres)
        nearest = away.argmin(axis=1)
        if rows.least > 1 and self.scheme == "lloyd":
            nearest = _together_only(nearest, party.memory, rows.least)
            party.memory = nearest
        member = (nearest[:, None] == np.arange(len(centres))).astype(np.float64)
        member[:, hidden(member.sum(axis=0), rows.least)] = (
            0.0  # and others, so that the sum of all rows gives no small one away
        )
        # Sums are told around the centre, so that the next one is a small move of it.
        moves = np.stack([m @ (x - c) for m, c in zip(member.T, centres, strict=True)])
        made = {"sums": moves, "sizes": member.sum(axis=0), "error": (away * member).sum()}
        if self.tolerance:
            told = x[member.any(axis=1)] - np.asarray(state["start"], dtype=np.float64).mean(axis=0)
            made |= {"x": told.sum(axis=0), "xx": (told**2).sum(axis=0)}
        return made

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """The next centres."""
        if state["phase"] == "moments":
            return {"phase": "spread", "mean": sums["x"] / sums["n"], "n": float(sums["n"])}
        if state["phase"] == "spread":
            mean, std = np.asarray(state["mean"]), np.sqrt(sums["xx"] / float(state["n"]))
            return self._begun(mean + std * known.draw_rows(self.clusters))
        centres, sizes, turn = np.asarray(state["centres"], dtype=np.float64), sums["sizes"], int(state["turn"]) + 1
        total = sizes[:, None]
        if self.scheme == "minibatch":
            sizes = np.asarray(state["sizes"]) + sizes
            moved = centres + np.where(total > 0, sums["sums"] / np.maximum(sizes[:, None], 1), 0.0)
            return {
                **state,
                "centres": moved,
                "sizes": sizes,
                "turn": turn,
                "inertia": float(sums["error"]),
                "done": turn >= self.iterations,
            }
        moved = np.where(total > 0, centres + sums["sums"] / np.maximum(total, 1), centres)
        n = max(1.0, float(sizes.sum()))
        # Rounding moves centres for ever, by parts of the size of the centres and of the rows around them: without a tolerance, such a move is none.
        least = _ROUNDED**2 * (float((moved**2).sum()) + len(moved) * float(sums["error"]) / n)
        if self.tolerance:
            least = self.tolerance * float(np.maximum(sums["xx"] / n - (sums["x"] / n) ** 2, 0.0).sum())
        done = float(((moved - centres) ** 2).sum()) <= least
        return {**state, "centres": moved, "sizes": sizes, "turn": turn, "inertia": float(sums["error"]), "done": done}

    def measures(self, state: State) -> dict[str, float]:
        """The squared distances before the last move of the centres."""
        return {"inertia": float(state["inertia"])} if state.get("inertia") is not None else {}

    def result(self, state: State) -> dict[str, Any]:
        """``centres`` ``(clusters, features)``, ``sizes``, ``iterations``, and the first centres, ``start``."""
        return {
            "centres": np.asarray(state["centres"]),
            "sizes": np.asarray(state["sizes"]),
            "iterations": int(state["turn"]),
            "start": np.asarray(state["start"]),
        }

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.cluster.KMeans`."""
        del classes
        centres = np.array(params["centres"])
        apart = np.arange(centres.size, dtype=np.float64).reshape(
            centres.shape
        )  # distinct rows, so that the fit has as many clusters
        made = (
            need("sklearn.cluster", "sklearn", "an estimator")
            .KMeans(len(centres), init=apart, n_init=1, max_iter=1)
            .fit(apart)
        )
        made.cluster_centers_, made.n_iter_ = centres, int(params["iterations"])
        return made

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """The place of the nearest centre."""
        del classes
        return np.asarray(distances(rows.x, np.asarray(params["centres"])).argmin(axis=1))

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The summed squared distances: smaller is better."""
        del classes
        return float(distances(rows.x, np.asarray(params["centres"])).min(axis=1).sum())


def require_centres(centres: Sequence[Sequence[float]], known: Known) -> None:
    """Refuse centres of another width than the rows.

    Raises:
        ConfigError: names the widths.
    """
    widths = {len(one) for one in centres}
    if widths - {known.features}:
        raise ConfigError(
            f"centres of {sorted(widths)} numbers for {known.features} features", remedy="give a number a feature"
        )


def _together_only(nearest: NDArray[np.int64], before: Any, least: int) -> NDArray[np.int64]:
    """The clusters of the rows, where a move is made only by at least ``least`` rows at once."""
    if before is None or len(before) != len(nearest):
        return nearest
    old = np.asarray(before, dtype=np.int64)
    made = nearest.copy()
    width = int(max(old.max(initial=0), nearest.max(initial=0))) + 1
    moves = old * width + nearest
    _, back, counts = np.unique(moves, return_inverse=True, return_counts=True)
    few = (counts[back] < least) & (old != nearest)
    made[few] = old[few]
    return made
