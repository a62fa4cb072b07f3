"""A model fitted over a federation beside those of each site alone and of all rows in one place: what ``atoll fit`` shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import AtollError, ConfigError, nearest

if TYPE_CHECKING:
    from atoll.data import DataTable
    from atoll.fitting import FitMethod, FittedModel

__all__ = ["METHODS", "compared", "method_of"]

METHODS = {
    "bayes": "NaiveBayes", "cox": "Cox", "glm": "GLM", "gmm": "GaussianMixture", "km": "KaplanMeier", "kmeans": "KMeans", "pca": "PCA", "ridge": "Ridge",
    "svd": "TruncatedSVD", "svm": "SVM",
}  # fmt: skip
"""What people type -> the method's class."""


def method_of(name: str, settings: Mapping[str, Any]) -> FitMethod:
    """A method by the name that people type.

    Raises:
        ConfigError: there is no such method, or it has no such setting.
    """
    from atoll.fitting import methods

    if name not in METHODS:
        raise ConfigError(
            f"no method {name!r}.{nearest(name, METHODS)}", where="atoll fit", remedy=f"use one of {', '.join(METHODS)}"
        )
    kind: type[FitMethod] = getattr(methods, METHODS[name])
    return kind(**settings)


def compared(
    tables: Mapping[str, DataTable],
    test: DataTable | None,
    model: FitMethod,
    settings: Mapping[str, Any],
    *,
    secure: bool,
    seed: int,
) -> tuple[dict[str, Any], FittedModel]:
    """Fit over all sites, for each site alone, and over all rows in one place.

    Clusters and mixtures in one place begin where the federation began, so that the difference is that of the sums.

    Args:
        tables: one a site.
        test: rows to score on; by default those of all sites.
        model: the method.
        settings: of `atoll.fitting.Fit`.
        secure: whether the server sees sums alone.
        seed: of draws.

    Returns:
        ``measure``, its value ``alone`` by site (``None`` where a site cannot fit alone), ``federated``, ``pooled``; the largest ``difference`` of a parameter from that of
        all rows (``None`` if shapes differ); what the result ``told``; short ``params``. And the federation's model.
    """
    from atoll.data import DataTable
    from atoll.runs.config import job_class
    from atoll.secure import SecureAggregation
    from atoll.simulation import simulate

    def fitted(data: Mapping[str, DataTable], method: FitMethod, **more: Any) -> FittedModel:
        job = job_class("fit")(**{**settings, "model": method, **more})
        made: FittedModel = simulate(job, data, engine="inline", seed=seed, progress=False).outcome
        return made

    whole = DataTable.stacked(list(tables.values()), name="all")
    rows = whole if test is None else test
    federated = fitted(tables, model, **({"reducer": SecureAggregation()} if secure else {}))
    plain = _without_noise(model)
    alone = {
        name: _alone(lambda table=table: fitted({"one": table}, plain, min_count=1).score(rows))
        for name, table in tables.items()
    }
    same = {field.name for field in fields(model)} & {"centres", "means"} if "start" in federated.params else set[str]()
    begun = replace(plain, **{name: np.asarray(federated["start"]).tolist() for name in same})
    pooled = fitted({"all": whole}, begun, min_count=1)
    found = {
        "method": type(model).__name__, "measure": model.measure, "alone": alone, "federated": federated.score(rows), "pooled": pooled.score(rows),
        "difference": _difference(federated.params, pooled.params), **federated.plain(short=True),
    }  # fmt: skip
    return found, federated


def _without_noise(model: FitMethod) -> FitMethod:
    return replace(model, epsilon=0.0) if getattr(model, "epsilon", 0.0) else model  # type: ignore[call-arg]


def _alone(score: Any) -> float | None:
    """The score of a site alone; none where it cannot fit, for example because it has one class."""
    try:
        value = float(score())
    except AtollError:
        return None
    return value if math.isfinite(value) else None


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float | None:
    found = []
    for name, value in ours.items():
        mine, other = np.asarray(value), np.asarray(theirs[name])
        if mine.shape != other.shape:
            return None
        if mine.dtype.kind == "f":
            found.append(float(np.abs(mine - other).max(initial=0.0)))
    return max(found, default=0.0)
