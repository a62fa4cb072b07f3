"""Naive Bayes from counts and sums by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.extras import need
from atoll.fitting.method import AtParty, FitMethod, Known, State, Sums, positive
from atoll.fitting.rows import PartyRows, typed
from atoll.statistics.disclosure import hidden

__all__ = ["NaiveBayes"]

_KINDS = ("gaussian", "multinomial", "categorical")


@dataclass(frozen=True, kw_only=True)
class NaiveBayes(FitMethod):
    """Naive Bayes, exactly that of all rows.

    ===============  ===============================================  =================
    ``features``     sums by class                                    contacts
    ===============  ===============================================  =================
    ``gaussian``     values, then squares around the common means     2
    ``multinomial``  counts of each feature                           1
    ``categorical``  rows with each value, ``encode="ordinal"``       1
    ===============  ===============================================  =================

    A party leaves out the rows of a class of which it has fewer than ``min_count``, and another class where sums of all rows would give those away.

    Attributes:
        features: what the features are, see above.
        alpha: additive smoothing of counts.
        var_smoothing: share of the largest variance that is added to all variances.
    """

    target: ClassVar[Any] = "class"
    measure: ClassVar[str] = "accuracy"
    features: str = "gaussian"
    alpha: float = 1.0
    var_smoothing: float = 1e-9

    def __post_init__(self) -> None:
        positive(self, alpha=0, var_smoothing=0)
        if self.features not in _KINDS:
            raise ConfigError(f"features={self.features!r}", remedy=f"use one of {', '.join(_KINDS)}")

    def check(self, known: Known) -> None:
        """Categories have places."""
        if self.features == "categorical" and (known.layout.encode != "ordinal" or known.layout.numbers):
            raise CompositionError(
                "features='categorical' takes places of categories",
                where="NaiveBayes",
                remedy=f"use encode='ordinal', and name the values of {', '.join(known.layout.numbers) or 'each column'} in categories=",
            )

    def start(self, known: Known) -> State:
        """Ask for sums."""
        levels = [len(values) for values in known.layout.levels.values()]
        return {"phase": "sums", "classes": len(known.layout.classes), "levels": levels}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Sums by class."""
        del party
        member = (rows.y[:, None] == np.arange(state["classes"])).astype(np.float64)
        counts = member.sum(axis=0)
        member[:, hidden(counts, rows.least)] = 0.0
        counts = member.sum(axis=0)
        if state["phase"] == "squares":
            squares = [member[:, c] @ (rows.x - mean) ** 2 for c, mean in enumerate(np.asarray(state["mean"]))]
            return {"squares": np.array(squares)}
        if self.features == "categorical":
            most = max(state["levels"])
            values = np.stack([member.T @ (rows.x == value).astype(np.float64) for value in range(most)], axis=-1)
            return {"counts": counts, "values": values}
        if self.features == "multinomial" and (rows.x < 0).any():
            raise DataError("a negative number is no count", where=rows.name, remedy="use features='gaussian'")
        return {"counts": counts, "sums": member.T @ rows.x}

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """Means, then variances; or counts, at once."""
        if state["phase"] == "squares":
            return {**state, "phase": "solved", "squares": sums["squares"], "done": True}
        empty = [name for name, n in zip(known.layout.classes, sums["counts"].tolist(), strict=True) if n < 1]
        if empty:
            raise DataError(
                f"no party tells of class {empty[0]!r}",
                where="NaiveBayes",
                remedy="leave the class out of categories=, or use a smaller min_count",
            )
        if self.features == "gaussian":
            mean = sums["sums"] / sums["counts"][:, None]
            return {**state, "phase": "squares", "counts": sums["counts"], "mean": mean}
        name = "values" if self.features == "categorical" else "sums"
        return {**state, "phase": "solved", "counts": sums["counts"], name: sums[name], "done": True}

    def result(self, state: State) -> dict[str, Any]:
        """``class_count``; ``mean`` and ``variance`` ``(classes, features)``, or ``feature_count``."""
        counts = np.asarray(state["counts"])
        if self.features != "gaussian":
            name = "values" if self.features == "categorical" else "sums"
            return {
                "class_count": counts,
                "feature_count": np.asarray(state[name]),
                "levels": np.array(state["levels"], np.int64),
            }
        mean, squares = np.asarray(state["mean"]), np.asarray(state["squares"])
        centre = counts @ mean / counts.sum()
        whole = (squares + counts[:, None] * (mean - centre) ** 2).sum(axis=0) / counts.sum()
        added = self.var_smoothing * float(whole.max())
        return {"class_count": counts, "mean": mean, "variance": squares / counts[:, None] + added, "epsilon": added}

    @property
    def probable(self) -> bool:
        """Every class has a probability."""
        return True

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.naive_bayes.GaussianNB`, ``MultinomialNB`` or ``CategoricalNB``."""
        bayes, labels = need("sklearn.naive_bayes", "sklearn", "an estimator"), typed([*classes])
        counts, places = np.array(params["class_count"]), np.arange(len(labels))
        # scikit-learn sorts the classes that it is fitted to; the parameters have them in their agreed order.
        if self.features == "gaussian":
            made = bayes.GaussianNB(var_smoothing=self.var_smoothing).fit(np.array(params["mean"]), places)
            made.theta_, made.var_, made.epsilon_ = (
                np.array(params["mean"]),
                np.array(params["variance"]),
                float(params["epsilon"]),
            )
            made.class_count_, made.class_prior_, made.classes_ = counts, counts / counts.sum(), labels
            return made
        found = np.array(params["feature_count"])
        if self.features == "multinomial":  # one row a class, with its rows as weight, has the same counts
            made = bayes.MultinomialNB(alpha=self.alpha).fit(found / counts[:, None], places, sample_weight=counts)
            made.classes_ = labels
            return made
        levels = [int(n) for n in params["levels"]]
        rows = np.zeros((len(labels), len(levels)), np.int64)
        made = bayes.CategoricalNB(alpha=self.alpha, min_categories=levels).fit(rows, places)
        made.classes_ = labels
        made.class_count_, made.class_log_prior_ = counts, np.log(counts) - np.log(counts.sum())
        made.category_count_ = [found[:, j, :n] for j, n in enumerate(levels)]
        smooth = [one + self.alpha for one in made.category_count_]
        made.feature_log_prob_ = [np.log(one) - np.log(one.sum(axis=1, keepdims=True)) for one in smooth]
        return made

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The share of right classes."""
        return float((self.predict(params, rows, classes) == typed([*classes])[rows.y]).mean())
