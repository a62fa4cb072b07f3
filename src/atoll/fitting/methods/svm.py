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


@dataclass(frozen=True, kw_only=True)
class SVM(FitMethod):
    """A support vector machine in two steps, as NVIDIA FLARE's: each party fits its own, and the server fits one to all their support vectors.

    It is not the machine of all rows: a row that is no support vector at its party can be one of the union. A support vector is a row. So the server sees rows as they are: a minimum
    count and a secure reducer refuse this method. A party that has one class alone has no machine, and tells all its rows.

    Attributes:
        kernel: ``"linear"``, ``"rbf"`` or ``"poly"`` (of degree 3).
        C: penalty of errors.
        gamma: of the kernel; 0 is one over features times the variance of all numbers.
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
        if len(known.layout.classes) < 2:
            raise DataError(
                f"the label has the values {list(known.layout.classes)}",
                where="SVM",
                remedy="give a label of at least two classes",
            )

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
        return {"phase": "vectors", "gamma": self.gamma or 1 / (known.features * variance if variance > 0 else 1.0)}

    def _machine(self, gamma: float) -> Any:
        return need("sklearn.svm", "sklearn", "SVM", where="atoll.fitting").SVC(
            C=self.C, kernel=self.kernel, gamma=gamma
        )

    def proposal(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """The support vectors of a party's own machine, with their classes."""
        del party
        if len(np.unique(rows.y)) < 2:
            return {"vectors": rows.x, "labels": rows.y.astype(np.int64)}
        at = self._machine(float(state["gamma"])).fit(rows.x, rows.y).support_
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
        """``vectors``, their ``labels`` (places of classes) and ``gamma``: the machine follows from them."""
        return {
            "vectors": np.asarray(state["vectors"]),
            "labels": np.asarray(state["labels"]),
            "gamma": float(state["gamma"]),
        }

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.svm.SVC`, fitted to the support vectors."""
        labels = typed([*classes])[np.asarray(params["labels"])]
        return self._machine(float(params["gamma"])).fit(np.asarray(params["vectors"]), labels)

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The share of right classes."""
        return float((self.predict(params, rows, classes) == typed([*classes])[rows.y]).mean())
