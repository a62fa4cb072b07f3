"""Principal components and truncated singular value decomposition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.fitting.method import AtParty, FitMethod, Known, State, Sums, positive
from atoll.fitting.rows import PartyRows

__all__ = ["PCA", "TruncatedSVD"]

_WIDE = 1000
_SOLVERS = ("auto", "covariance", "subspace")


@dataclass(frozen=True, kw_only=True)
class PCA(FitMethod):
    """Principal components: the eigenvectors of the covariance with the largest eigenvalues.

    The parties add up means, then products around them, ``p x p`` numbers for ``p`` features: exact. With more than 1000 features they add up ``X'(X Q)`` in place
    of ``X'X`` for ``components + oversample`` directions ``Q``, once for each of ``powers`` contacts: subspace iteration (Halko, Martinsson, Tropp 2011), whose
    angle to the exact components falls with ``(lambda_(k + oversample + 1) / lambda_k)^powers``.

    Attributes:
        components: number of components ``k``.
        solver: ``"covariance"``, ``"subspace"``, or ``"auto"``.
        powers: contacts of subspace iteration.
        oversample: directions beyond the components.
    """

    measure: ClassVar[str] = "explained_variance"
    centred: ClassVar[bool] = True
    components: int = 2
    solver: str = "auto"
    powers: int = 10
    oversample: int = 10

    def __post_init__(self) -> None:
        positive(self, components=1, powers=1, oversample=0)
        if self.solver not in _SOLVERS:
            raise ConfigError(f"solver={self.solver!r}", remedy=f"use one of {', '.join(_SOLVERS)}")

    def check(self, known: Known) -> None:
        """There are at least as many features as components."""
        if self.components > known.features:
            raise ConfigError(
                f"components={self.components} of {known.features} features",
                where=type(self).__name__,
                remedy="use fewer components",
            )

    def start(self, known: Known) -> State:
        """Ask for means first."""
        wide = self.solver == "subspace" or (self.solver == "auto" and known.features > _WIDE)
        return {"phase": "means", "wide": wide}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Sums; products; or products with the directions."""
        del party
        if state["phase"] == "means":
            return {"x": rows.x.sum(axis=0), "n": np.float64(len(rows))}
        x = rows.x - np.asarray(state["mean"])
        if state["phase"] == "products":
            return {"xx": x.T @ x}
        return {"xq": x.T @ (x @ np.asarray(state["directions"])), "squares": (x * x).sum(axis=0)}

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """Eigenvectors, or the next directions."""
        if state["phase"] == "means":
            n, features = float(sums["n"]), len(sums["x"])
            told = {**state, "mean": sums["x"] / n, "n": n}
            if not state["wide"]:
                return {**told, "phase": "products"}
            most = min(features, self.components + self.oversample)
            start = np.linalg.qr(known.draw_rows(most).T)[0]
            return {**told, "phase": "subspace", "directions": start, "turn": 0}
        mean, n = np.asarray(state["mean"]), float(state["n"])
        # Around the mean, products are those of the covariance; for values as they are, the mean's own product comes on top.
        level = np.zeros_like(mean) if self.centred else mean
        if state["phase"] == "products":
            values, vectors = np.linalg.eigh(sums["xx"]) if self.centred else _decompose(sums["xx"], n, mean)
            spread = np.einsum("ik,ij,jk->k", vectors, sums["xx"], vectors)
            return self._found(state, values, vectors, spread, float(np.trace(sums["xx"])))
        directions = np.asarray(state["directions"])
        image = sums["xq"] + n * np.outer(level, level @ directions)
        turn = int(state["turn"]) + 1
        if turn < self.powers:
            return {**state, "directions": np.linalg.qr(image)[0], "turn": turn}
        inner = directions.T @ image
        values, turned = np.linalg.eigh((inner + inner.T) / 2)
        vectors = directions @ turned
        spread = np.einsum("ik,ik->k", vectors, sums["xq"] @ turned)
        state = {name: one for name, one in state.items() if name != "directions"}
        return self._found(state, values, vectors, spread, float(sums["squares"].sum()))

    def _found(self, state: State, values: Any, vectors: Any, spread: Any, total: float) -> State:
        order = np.argsort(values)[::-1][: self.components]
        components = vectors[:, order].T
        largest = np.abs(components).argmax(
            axis=1
        )  # scikit-learn's signs: the largest entry of a component is positive
        components = components * np.sign(components[np.arange(len(order)), largest])[:, None]
        rest = (total - float(spread[order].sum())) if self.centred else 0.0
        return {
            **state, "phase": "solved", "done": True, "components": components, "values": np.maximum(values[order], 0.0), "spread": spread[order],
            "total": total, "rest": max(rest, 0.0),
        }  # fmt: skip

    def measures(self, state: State) -> dict[str, float]:
        """The share of the variance that the components explain."""
        return {"explained": float(np.sum(state["spread"])) / float(state["total"])} if "spread" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``components`` ``(k, features)``, ``mean``, ``explained_variance``, ``explained_variance_ratio``, ``singular_values``, ``rows``."""
        n, spread, total = float(state["n"]), np.asarray(state["spread"]), float(state["total"])
        dof = max(n - 1, 1.0) if self.centred else n
        left = np.asarray(state["components"]).shape[1] - self.components
        return {
            "components": np.asarray(state["components"]), "mean": np.asarray(state["mean"]), "explained_variance": spread / dof,
            "explained_variance_ratio": spread / total if total > 0 else np.zeros_like(spread), "singular_values": np.sqrt(np.asarray(state["values"])),
            "noise_variance": float(state["rest"]) / dof / left if left else 0.0, "rows": int(n),
        }  # fmt: skip

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.decomposition.PCA`."""
        del classes
        made = need("sklearn.decomposition", "sklearn", "an estimator").PCA(self.components)
        features = np.asarray(params["components"]).shape[1]
        made.fit(np.eye(max(2, features), features))
        made.n_samples_, made.mean_ = int(params["rows"]), np.array(params["mean"])
        made.noise_variance_ = float(params["noise_variance"])
        return _written(made, params)

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """The rows in components, ``(rows, k)``."""
        del classes
        made: NDArray[Any] = (rows.x - (np.asarray(params["mean"]) if self.centred else 0.0)) @ np.asarray(
            params["components"]
        ).T
        return made

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The share of the rows' variance that the components explain."""
        found = self.predict(params, rows, classes)
        return float(((found - found.mean(axis=0)) ** 2).sum() / ((rows.x - rows.x.mean(axis=0)) ** 2).sum())


@dataclass(frozen=True, kw_only=True)
class TruncatedSVD(PCA):
    """Truncated singular value decomposition: the same for the values as they are, not around their mean."""

    centred: ClassVar[bool] = False

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.decomposition.TruncatedSVD`."""
        del classes
        features = np.asarray(params["components"]).shape[1]
        made = need("sklearn.decomposition", "sklearn", "an estimator").TruncatedSVD(
            self.components, algorithm="randomized"
        )
        made.fit(np.eye(max(2, features), features))
        return _written(made, params)


def _decompose(products: Any, n: float, mean: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors of ``C + n m m'``: those of ``[C^(1/2); sqrt(n) m]' [...]``, by singular values.

    The sum itself loses what is small beside the mean: of columns a million deviations from 0 four digits are left.
    """
    values, vectors = np.linalg.eigh(products)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    _, sizes, turned = np.linalg.svd(np.concatenate([root, np.sqrt(n) * mean[None]]), full_matrices=False)
    return sizes**2, turned.T


def _written(made: Any, params: Mapping[str, Any]) -> Any:
    for name in ("components", "explained_variance", "explained_variance_ratio", "singular_values"):
        setattr(made, f"{name}_", np.array(params[name]))
    return made
