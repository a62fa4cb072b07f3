"""Gaussian mixtures: expectation maximisation by sums."""

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

from .kmeans import drawn, local_centres, require_centres

__all__ = ["GaussianMixture"]

_TINY = 10 * np.finfo(np.float64).eps


@dataclass(frozen=True, kw_only=True)
class GaussianMixture(FitMethod):
    """A mixture of Gaussians ``p(x) = sum_k w_k N(x; m_k, C_k)``, by expectation maximisation (Dempster, Laird and Rubin 1977).

    Each contact adds up, for each component, the responsibilities ``r``, ``r (x - m)`` and ``r (x - m)(x - m)'``, and the log-likelihood. From the same start this is EM on all
    rows, up to rounding: the first means are the given ones, the weights are equal, and the covariances are the variances of all rows.

    A party leaves out a component of which it has less than ``min_count`` responsibility, rounded up, and another where sums of all rows would give that away.

    Attributes:
        components: number of components.
        covariance: ``"full"`` or ``"diag"``.
        start_from: as in `KMeans`.
        means: the first means, in place of ``start_from``.
        tolerance: stop when the mean log-likelihood changes by less.
        ridge: what is added to all variances.
    """

    singly: ClassVar[frozenset[str]] = frozenset({"proposals"})
    measure: ClassVar[str] = "log_likelihood"
    components: int = 2
    covariance: str = "full"
    start_from: str = "proposals"
    means: Sequence[Sequence[float]] = ()
    tolerance: float = 1e-3
    ridge: float = 1e-6

    def __post_init__(self) -> None:
        positive(self, components=1, tolerance=0, ridge=0)
        for name, words in (("covariance", ("full", "diag")), ("start_from", ("proposals", "moments"))):
            if getattr(self, name) not in words:
                raise ConfigError(f"{name}={getattr(self, name)!r}", remedy=f"use one of {', '.join(words)}")
        if len(self.means) not in (0, self.components):
            raise ConfigError(
                f"{len(self.means)} means for components={self.components}", remedy="give one a component"
            )

    def check(self, known: Known) -> None:
        """Means have a number a feature; proposals are single replies."""
        require_centres(self.means, known)
        if known.sums_only and self.start_from == "proposals" and not len(self.means):
            raise ConfigError(
                "each party's own clusters are no sum, which is all that a secure reducer shows",
                where="GaussianMixture",
                remedy="use start_from='moments', or give means",
            )

    def start(self, known: Known) -> State:
        """Ask for the means of all rows, then for squares around them."""
        del known
        return {"phase": "moments"}

    def proposal(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """A party's own clusters."""
        del state
        return local_centres(rows, self.components, party.rng)

    def gather(self, state: State, told: Sequence[Mapping[str, NDArray[Any]]], known: Known) -> State:
        """First means."""
        return self._begun(drawn(told, self.components, known.draw, "GaussianMixture"), np.asarray(state["variance"]))

    def _begun(self, means: NDArray[np.float64], variance: NDArray[np.float64]) -> State:
        k, full = self.components, self.covariance == "full"
        first = np.diag(variance) if full else variance
        return {
            "phase": "em",
            "start": means,
            "weights": np.full(k, 1 / k),
            "means": means,
            "covariances": np.stack([first + self.ridge * (np.eye(len(variance)) if full else 1)] * k),
        }

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Moments, or the expectations."""
        del party
        x = rows.x
        if state["phase"] == "moments":
            return add_up_rows(x)
        if state["phase"] == "spread":
            return {"xx": ((x - np.asarray(state["mean"])) ** 2).sum(axis=0)}
        means, covariances = np.asarray(state["means"]), np.asarray(state["covariances"])
        logs = _log_densities(x, means, covariances) + np.log(np.asarray(state["weights"]))
        whole = np.logaddexp.reduce(logs, axis=1) if len(x) else np.zeros(0)
        r = np.exp(logs - whole[:, None])
        r[:, hidden(np.ceil(r.sum(axis=0)), rows.least)] = 0.0
        first, second = np.zeros_like(means), np.zeros_like(covariances)
        for k, mean in enumerate(means):  # one component after the other: memory for one
            away = x - mean
            weighted = away * r[:, k : k + 1]
            first[k] = weighted.sum(axis=0)
            second[k] = weighted.T @ away if self.covariance == "full" else (weighted * away).sum(axis=0)
        return {
            "sizes": r.sum(axis=0),
            "first": first,
            "second": second,
            "log_likelihood": whole.sum(),
            "n": np.float64(len(x)),
        }

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """Maximisation."""
        if state["phase"] == "moments":
            return {"phase": "spread", "mean": sums["x"] / float(sums["n"]), "n": float(sums["n"])}
        if state["phase"] == "spread":
            mean, variance = np.asarray(state["mean"]), sums["xx"] / float(state["n"])
            if len(self.means):
                return self._begun(np.array(self.means, dtype=np.float64), variance)
            if self.start_from == "proposals":
                return {"phase": "proposals", "variance": variance}
            return self._begun(mean + np.sqrt(variance) * known.draw_rows(self.components), variance)
        n, sizes = float(sums["n"]), sums["sizes"] + _TINY
        move = sums["first"] / sizes[:, None]
        if self.covariance == "full":
            made = sums["second"] / sizes[:, None, None] - move[:, :, None] * move[:, None, :]
            made = (made + made.transpose(0, 2, 1)) / 2 + self.ridge * np.eye(move.shape[1])
        else:
            made = sums["second"] / sizes[:, None] - move**2 + self.ridge
        level = float(sums["log_likelihood"]) / n
        done = "level" in state and abs(level - float(state["level"])) < self.tolerance
        return {
            **state, "weights": sizes / sizes.sum(), "means": np.asarray(state["means"]) + move, "covariances": made, "level": level, "done": bool(done)
        }  # fmt: skip

    def measures(self, state: State) -> dict[str, float]:
        """The mean log-likelihood before the last maximisation."""
        return {"log_likelihood": float(state["level"])} if "level" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``weights``, ``means``, ``covariances``, the first means, ``start``, and the mean ``log_likelihood`` before the last step."""
        names = ("weights", "means", "covariances", "start")
        return {**{name: np.asarray(state[name]) for name in names}, "log_likelihood": float(state.get("level", 0.0))}

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.mixture.GaussianMixture`."""
        del classes
        means, covariances = np.array(params["means"]), np.array(params["covariances"])
        kind = need("sklearn.mixture", "sklearn", "an estimator").GaussianMixture
        made = kind(len(means), covariance_type=self.covariance, reg_covar=self.ridge)
        made.weights_, made.means_, made.covariances_ = np.array(params["weights"]), means, covariances
        if self.covariance == "full":
            lower = np.linalg.cholesky(covariances)
            made.precisions_cholesky_ = np.linalg.inv(lower).transpose(0, 2, 1)
            made.precisions_ = np.linalg.inv(covariances)
        else:
            made.precisions_cholesky_, made.precisions_ = 1 / np.sqrt(covariances), 1 / covariances
        made.converged_, made.lower_bound_, made.n_features_in_ = True, float(params["log_likelihood"]), means.shape[1]
        return made

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """The component with the largest responsibility."""
        del classes
        return np.asarray(self._joint(params, rows).argmax(axis=1))

    def _joint(self, params: Mapping[str, Any], rows: PartyRows) -> NDArray[np.float64]:
        logs = _log_densities(rows.x, np.asarray(params["means"]), np.asarray(params["covariances"]))
        return np.asarray(logs + np.log(np.asarray(params["weights"])))

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The mean log-likelihood of a row."""
        del classes
        return float(np.logaddexp.reduce(self._joint(params, rows), axis=1).mean())


def _log_densities(
    x: NDArray[np.float64], means: NDArray[np.float64], covariances: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``log N(x; m_k, C_k)``, ``(rows, components)``.

    Raises:
        DataError: a covariance has no inverse.
    """
    made = np.empty((len(x), len(means)))
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        away = x - mean
        if covariance.ndim == 1:
            square, logdet = (away**2 / covariance).sum(axis=1), np.log(covariance).sum()
        else:
            try:
                lower = np.linalg.cholesky(covariance)
            except np.linalg.LinAlgError as error:
                raise DataError(
                    "a covariance has no inverse",
                    where="GaussianMixture",
                    remedy="use fewer components, or a larger ridge",
                ) from error
            square, logdet = (np.linalg.solve(lower, away.T) ** 2).sum(axis=0), 2 * np.log(np.diag(lower)).sum()
        made[:, k] = -0.5 * (square + logdet + x.shape[1] * np.log(2 * np.pi))
    return made
