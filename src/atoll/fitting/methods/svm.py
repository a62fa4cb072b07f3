"""Support vector machines in two steps."""

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
from atoll.fitting.rows import PartyRows, typed

__all__ = ["SVM"]

_KERNELS = ("linear", "rbf", "poly")
_BETWEEN = 0.9


@dataclass(frozen=True, kw_only=True)
class SVM(FitMethod):
    """A support vector machine in two steps, as NVIDIA FLARE's: each party fits its own, and the server fits one to all their support vectors.

    The machines see rows around the mean of all rows, so an offset costs no digits; those of ``"poly"``, which an offset changes, see them as they are. It is not the machine of all rows: a row that is no support vector at its party can be one of the union. A support vector is a row. So the server sees rows as they are: a minimum
    count and a secure reducer refuse this method. A party that has one class alone has no machine, and tells all its rows.

    Attributes:
        kernel: ``"linear"``, ``"rbf"`` or ``"poly"`` (of degree 3).
        C: penalty of errors.
        gamma: of the kernel; 0 is one over features times the variance of all numbers, as scikit-learn's ``"scale"``. That variance is also one between the columns' means: where it is
            nearly all of it, a note of the result says so.
    """

    target: ClassVar[Any] = "class"
    singly: ClassVar[frozenset[str]] = frozenset({"vectors"})
    measure: ClassVar[str] = "accuracy"
    kernel: str = "rbf"
    C: float = 1.0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        positive(self, gamma=0)
        if self.kernel not in _KERNELS:
            raise ConfigError(f"kernel={self.kernel!r}", remedy=f"use one of {', '.join(_KERNELS)}")
        if not 0 < self.C < np.inf:
            raise ConfigError(f"C={self.C}", remedy="use a finite number > 0")

    def check(self, known: Known) -> None:
        """Rows may be told, and there are classes."""
        if known.sums_only or known.least > 1:
            raise ConfigError(
                "support vectors are single rows, which a minimum count or a secure reducer does not show",
                where="SVM",
                remedy="use GLM(), which needs sums alone",
            )
        known.require_classes("SVM")

    def start(self, known: Known) -> State:
        """Ask for the variance first: means, then squares around them."""
        del known
        return {"phase": "means"}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Sums of the columns, and of squares around their means."""
        del party
        if state["phase"] == "means":
            return add_up_rows(rows.x)
        moved = rows.x - np.asarray(state["mean"])
        return {"xx": (moved**2).sum(axis=0), "off": moved.sum(axis=0)}

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """The means, then the kernel's width: the variance of all numbers is that within columns and that of their means."""
        if state["phase"] == "means":
            n = float(sums["n"])
            return {"phase": "squares", "mean": sums["x"] / n, "n": n}
        off = np.asarray(sums["off"]) / float(state["n"])
        means = np.asarray(state["mean"]) + off
        variance = float((np.asarray(sums["xx"]) / float(state["n"]) - off**2).mean() + means.var())
        mean = np.zeros(known.features) if self.kernel == "poly" else np.asarray(state["mean"])
        return {
            "phase": "vectors",
            "gamma": self.gamma or 1 / (known.features * variance if variance > 0 else 1.0),
            "mean": mean,
            "between": float(means.var()) / variance if variance > 0 else 0.0,
        }

    def _machine(self, gamma: float) -> Any:
        return need("sklearn.svm", "sklearn", "SVM", where="atoll.fitting").SVC(
            C=self.C, kernel=self.kernel, gamma=gamma
        )

    def proposal(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """The support vectors of a party's own machine, with their classes."""
        del party
        if len(np.unique(rows.y)) < 2:
            return {"vectors": rows.x, "labels": rows.y.astype(np.int64)}
        moved = rows.x - np.asarray(state["mean"])
        at = self._machine(float(state["gamma"])).fit(moved, rows.y).support_
        return {"vectors": rows.x[at], "labels": rows.y[at].astype(np.int64)}

    def gather(self, state: State, told: Sequence[Mapping[str, NDArray[Any]]], known: Known) -> State:
        """The union of the support vectors."""
        vectors = np.concatenate([np.asarray(one["vectors"]) for one in told])
        labels = np.concatenate([np.asarray(one["labels"], dtype=np.int64) for one in told])
        if len(np.unique(labels)) < 2:
            raise DataError(
                "all parties together have one class",
                where="SVM",
                remedy=f"invite parties with {' and '.join(known.layout.classes)}",
            )
        return {**state, "phase": "solved", "vectors": vectors, "labels": labels, "done": True}

    def measures(self, state: State) -> dict[str, float]:
        """The number of support vectors told."""
        return {"vectors": float(len(state["labels"]))} if "labels" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``vectors``, their ``labels`` (places of classes), ``gamma`` and ``mean``: the machine follows from them. ``between`` is the share of columns' means in the variance of ``gamma``."""
        return {
            "vectors": np.asarray(state["vectors"]),
            "labels": np.asarray(state["labels"]),
            "gamma": float(state["gamma"]),
            "mean": np.asarray(state["mean"]),
            "between": float(state["between"]),
        }

    def notes(self, features: Sequence[str], params: Mapping[str, Any]) -> list[str]:
        """Whether the kernel is as wide as the columns' offsets, so that all rows look alike to it."""
        del features
        if self.gamma or self.kernel == "linear" or float(params["between"]) <= _BETWEEN:
            return []
        return [
            (
                f"gamma is one over features times the variance of all numbers, of which {100 * float(params['between']):.4g}% is between the columns' means: rows look alike to so wide a kernel. "
                "Give scale='standard', or gamma"
            )
        ]

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.svm.SVC`, fitted to the support vectors, behind a ``StandardScaler`` that subtracts the mean."""
        labels, vectors = typed([*classes])[np.asarray(params["labels"])], np.asarray(params["vectors"])
        mean = np.array(params.get("mean", np.zeros(vectors.shape[1])))
        pipeline, preprocessing = (
            need(f"sklearn.{name}", "sklearn", "an estimator") for name in ("pipeline", "preprocessing")
        )
        scaler = preprocessing.StandardScaler(with_std=False).fit(vectors)
        scaler.mean_ = mean
        return pipeline.Pipeline(
            [("mean", scaler), ("machine", self._machine(float(params["gamma"])).fit(vectors - mean, labels))]
        )

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The share of right classes."""
        return float((self.predict(params, rows, classes) == typed([*classes])[rows.y]).mean())
